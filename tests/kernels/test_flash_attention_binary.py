"""FlashAttention's configurations, and what is in the binaries they become."""

from __future__ import annotations

import ast
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import flash_attention_kernel
from kernels.flash_attention import cases, sweep
from kernels.flash_attention_configs import candidates, choose, described, tiles

SMALL = tiles(16, 32, 4, 1)
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "sm_86", "sm_103", "interpreter"])
def test_every_head_has_a_configuration_on_every_architecture(arch):
    for size, head_dim, queries, tma, windowed in itertools.product(
        (2, 4), (1, 16, 65, 80, 128, 256), (1, 500), (False, True), (False, True)
    ):
        some = candidates(arch, size, head_dim, queries, tma=tma, windowed=windowed)
        assert some
        for config in some:
            assert tma or not config.kwargs["TMA"]
            assert not config.kwargs["TMA"] or arch.startswith(("sm_9", "sm_10"))
            assert not config.kwargs["SPECIALIZE"] or arch.startswith("sm_10")
            assert not config.kwargs["SPECIALIZE"] or not windowed


def test_choose_knows_when_descriptors_cannot_read(device):
    q, k, v = torch.zeros(3, 1, 2, 16, 16, dtype=torch.float16, device=device)
    odd = torch.zeros(1, 2, 16, 17, dtype=torch.float16, device=device)[..., :16]
    assert described(k)
    assert not described(odd)
    assert not described(k.mT)
    assert not described(k[:, :, :0])
    assert not described(torch.zeros(99, dtype=k.dtype, device=device)[1:97].view(1, 1, 6, 16))
    for some in (k, odd):
        chosen = choose({"q_ptr": q, "k_ptr": some, "v_ptr": v, "queries": 16, "WINDOWED": False})
        assert chosen
        assert described(some) or not any(config.kwargs["TMA"] for config in chosen)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_what_ships(arch):
    shipped, looked_at = list(cases(arch)), list(sweep(arch))
    assert len({case.variant for case in shipped}) == len(shipped) <= 6
    assert len({case.variant for case in looked_at}) == len(looked_at) == 10
    assert all(case.shipped for case in shipped)
    assert not any(case.shipped for case in looked_at)
    for case in shipped + looked_at:
        assert case.shape["BLOCK_M"] == case.config.kwargs["BLOCK_M"]
        given_values = set(case.constants) | set(case.config.kwargs)
        assert given_values == {n for n, kind in case.signature.items() if kind == "constexpr"}


# In a child that compiles: {name: text of the assembly} for sm_90, in tiles that compile fast.
COMPILE = """
import json, sys, importlib.util, re
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.flash_attention_configs import case, tiles

def build(kernel, dtype="bf16", log=False, **constants):
    one = case("sm_90", dtype, 16, tiles(16, 16, 1, 1), log=log, windowed=True)
    names, config = kernel.arg_names, one.config.kwargs
    signature = {n: one.signature[n] for n in names}
    constants = {n: v for n, v in (one.constants | config | constants).items() if n in names}
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n in one.aligned}
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})

def kernel_of(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._flash_attention_kernel

whole, bare = kernel_of(sys.argv[1], "whole"), kernel_of(sys.argv[2], "bare")
off = build(whole)
print(json.dumps({
    "off": off.asm["ptx"], "ttir": off.asm["ttir"], "bare": build(bare).asm["ptx"],
    "on": build(whole, log=True).asm["ptx"], "ieee": build(whole, "fp32").asm["ptx"],
    "tf32": build(whole, "fp32", PRECISION="tf32").asm["ptx"],
}))
"""


class WithoutLog(ast.NodeTransformer):
    """Takes out every `if LOG …:` of the kernel's source."""

    def visit_If(self, node):
        self.generic_visit(node)
        names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        return None if "LOG" in names else node


@pytest.fixture(scope="module")
def assembly(tmp_path_factory):
    source = Path(flash_attention_kernel.__file__)
    bare = tmp_path_factory.mktemp("kernel") / "bare.py"
    text = ast.unparse(WithoutLog().visit(ast.parse(source.read_text("utf-8"))))
    assert "if LOG" not in text
    bare.write_text(text, "utf-8")
    child = subprocess.run(
        [sys.executable, "-c", COMPILE, str(source), str(bare)],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return json.loads(child.stdout.splitlines()[-1])


def instructions(ptx):
    """Instructions alone: no debug lines, comments, labels' files or names of temporary blocks."""
    ptx = ptx[: ptx.index(".section")] if ".section" in ptx else ptx
    lines = (line.split("//")[0].strip() for line in ptx.splitlines())
    return [x for x in lines if x and not x.startswith((".loc", ".file", "$L__tmp"))]


def test_a_log_that_is_off_costs_nothing(assembly):
    """The binary without log is, instruction for instruction, that of a kernel which has none."""
    off, on = instructions(assembly["off"]), instructions(assembly["on"])
    assert off == instructions(assembly["bare"])
    assert any("globaltimer" in line for line in on)
    assert any("%smid" in line for line in on)
    assert not any("globaltimer" in line or "%smid" in line for line in off)
    stores = [sum("st.global" in line for line in lines) for lines in (off, on)]
    assert 0 < stores[0] < stores[1]


def test_tf32_is_in_the_binary_only_if_asked(assembly):
    assert "tf32" in assembly["tf32"]
    assert "tf32" not in assembly["ieee"]


def test_every_address_is_computed_in_64_bits(assembly):
    offsets = [line for line in assembly["ttir"].splitlines() if "tt.addptr" in line]
    assert len(offsets) > 10
    assert not [line for line in offsets if "i32" in line.split(" : ")[1].split(", ")[-1]]
