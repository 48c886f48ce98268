"""Which path the kernels of this process took, and that it was the one meant."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.runtime import JITFunction
from triton.runtime.interpreter import InterpretedFunction

from kernels.launch import INTERPRETED, architecture, tuned


@triton.jit
def _double_kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at))


def test_without_a_gpu_kernels_are_interpreted_with_one_they_are_compiled():
    assert torch.cuda.is_available() != INTERPRETED
    assert isinstance(_double_kernel, InterpretedFunction if INTERPRETED else JITFunction)


def test_architecture_names_the_path(device):
    name = architecture(device)
    assert name == "interpreter" if INTERPRETED else name.startswith(("sm_", "gfx"))


def test_tuned_takes_a_configuration_that_was_chosen(device):
    configs = [triton.Config({"BLOCK": 1}), triton.Config({"BLOCK": 4})]
    seen = []

    def choose(arguments):
        seen.append(arguments["x_ptr"])
        return [configs[1]]

    x = torch.arange(4.0, device=device)
    tuned(_double_kernel, configs, [], choose)[(1,)](x)
    assert seen
    assert x.tolist() == [0.0, 2.0, 4.0, 6.0]  # BLOCK 1 would have doubled the first only
