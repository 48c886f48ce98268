"""How the ops start their kernels: which path, which architecture, which configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from triton import Config
from triton.runtime import JITFunction

INTERPRETED: bool = triton.knobs.runtime.interpret


@dataclass(frozen=True)
class Case:
    """One kernel with everything that the compiler must know: a binary, ahead of time.

    `signature` gives each parameter's Triton type in order ("*bf16", "i32", "fp32", or
    "constexpr"), `constants` the constexpr values that are not in `config`. Parameters in `aligned`
    are promised to be divisible by 16, as the launcher finds real pointers and strides to be.
    A case that is not `shipped` exists to be looked at: no op would launch it.
    """

    op: str
    variant: str
    kernel: JITFunction
    signature: dict[str, str]
    constants: dict[str, Any]
    config: Config
    aligned: tuple[str, ...] = ()
    shipped: bool = True
    shape: dict[str, int] = field(default_factory=dict)


def architecture(device: torch.device) -> str:
    """What a kernel would be compiled for: "sm_90", "gfx942", or "interpreter"."""
    if INTERPRETED:
        return "interpreter"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


class FirstFit:
    """Stands in for the autotuner under the interpreter, where time means nothing."""

    def __init__(self, kernel: Any, choose: Callable[[dict[str, Any]], list[Config]]) -> None:
        self.kernel, self.choose = kernel, choose

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            named = dict(zip(self.kernel.arg_names, args, strict=False)) | kwargs
            return self.kernel[grid](*args, **kwargs, **self.choose(named)[0].all_kwargs())

        return launch


def tuned(
    kernel: Any,
    configs: list[Config],
    key: list[str],
    choose: Callable[[dict[str, Any]], list[Config]],
) -> Any:
    """`kernel`, launched as `tuned(...)[grid](*args)` with the fastest configuration.

    `choose(arguments)` keeps those of `configs` that suit the shape and the architecture, the best
    guess first. On a GPU Triton's autotuner times these once for each new value of the arguments
    named in `key`; the interpreter takes the first.
    """
    if INTERPRETED:
        return FirstFit(kernel, choose)
    return triton.autotune(
        configs=configs,
        key=key,
        prune_configs_by={
            "early_config_prune": lambda _configs, named, **kwargs: choose({**named, **kwargs})
        },
        cache_results=True,
    )(kernel)


def require(condition: bool, message: str) -> None:
    """Raise ValueError with one line that says what to do."""
    if not condition:
        raise ValueError(message)


Cases = Iterator[Case]
