"""Inside the kernels: what fusing saves in memory traffic, and what a fused kernel needs on chip.

An eager framework launches one kernel an operation. Each reads its operands from memory and writes
its result back, so k operations on n numbers of e bytes move about 2 k n e bytes. One fused kernel
keeps what lies between in registers and moves 2 n e. The price is room on the chip:

    blocks a multiprocessor = min(⌊65536 / (registers · threads)⌋, ⌊S / shared bytes⌋, …)

| symbol    | meaning                                                | unit      |
|-----------|--------------------------------------------------------|-----------|
| registers | 32-bit registers that the compiler gives each thread   | a thread  |
| threads   | threads of one block                                   | a block   |
| S         | shared memory of one multiprocessor                    | bytes     |

Nothing is timed here. Bytes of the eager forms are counted from the operations that really ran;
registers, spills and instructions are read from binaries, compiled without any GPU.

Source: Tillet, Kung and Cox, "Triton: An Intermediate Language and Compiler for Tiled Neural
Network Computations", MAPL 2019; CUDA C++ Programming Guide, "Compute Capabilities".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels import compile_case
from kernels.binary import KINDS
from kernels.compile import compile_all
from kernels.occupancy import LIMITS
from tracegen.events import Event, Scenario


@dataclass(frozen=True, slots=True)
class Launched(Event):
    """One kernel of the eager form ran, or the one fused kernel would (`form` "fused").

    `at_line` is the line of this file that launched it. Bytes count each operand and each result
    once.
    """

    form: str
    kernel: str
    at_line: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class Limits(Event):
    """What one multiprocessor of an architecture has; `device` is one that is built so."""

    arch: str
    device: str
    registers: int
    registers_per_thread: int
    shared_bytes: int
    block_shared_bytes: int
    warp_size: int
    warps: int


@dataclass(frozen=True, slots=True)
class Compiled(Event):
    """One kernel with one configuration became a binary; with `error` it did not."""

    op: str
    variant: str
    arch: str
    shipped: bool
    block_m: int | None
    block_n: int | None
    head_dim: int | None
    config: str
    num_warps: int
    num_stages: int
    threads: int
    registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int
    blocks: int
    occupancy: float
    limited_by: tuple[str, ...]
    tensor_core_names: tuple[str, ...]
    tensor_core: int
    async_copy: int
    global_load: int
    global_store: int
    shared_load: int
    shared_store: int
    error: str


# --8<-- [start:eager]
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """RMSNorm as models write it. x: (tokens, width); weight: (width,). Returns x's shape."""
    wide = x.float()
    square = wide.pow(2)
    variance = square.mean(-1, keepdim=True)
    root = torch.rsqrt(variance + eps)
    normed = wide * root
    narrow = normed.to(x.dtype)
    return weight * narrow


def w4a16(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """y = W x with 4-bit weights, unpacked first. x: (K,); packed: (N, K/8) int32;
    scale, zero: (N, groups) of x's dtype. Returns (N,)."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    shifted = packed.unsqueeze(-1) >> shifts
    nibbles = shifted & 15
    numbers = nibbles.to(x.dtype)
    grouped = numbers.view(*scale.shape, -1)
    centred = grouped - zero.unsqueeze(-1)
    weights = centred * scale.unsqueeze(-1)
    return weights.view(len(packed), -1) @ x


# --8<-- [end:eager]

EAGER: dict[str, Callable[..., Tensor]] = {"rms_norm": rms_norm, "w4a16": w4a16}


class CountLaunches(TorchDispatchMode):
    """Notes every operation that torch runs inside: its name, its line here, and its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launched] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`; a view of an operand moves nothing and is not noted."""
        result = func(*args, **(kwargs or {}))
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        held = {tensor.untyped_storage().data_ptr() for tensor in operands}
        if result.untyped_storage().data_ptr() not in held:
            read = sum(map(moved_bytes, operands))
            name = func.overloadpacket.__name__
            self.launches.append(Launched("eager", name, here(), read, moved_bytes(result)))
        return result


def moved_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's numbers, each once however often it is broadcast."""
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())


def here() -> int:
    """The innermost line of `rms_norm` or `w4a16` that is running."""
    frame = sys._getframe()
    while frame.f_code not in (rms_norm.__code__, w4a16.__code__):
        assert frame.f_back is not None, "called outside the eager forms"
        frame = frame.f_back
    return frame.f_lineno


@dataclass(frozen=True, kw_only=True)
class Eager(Scenario):
    """An eager form beside its fused kernel, on bf16: `tokens` rows of `width` numbers."""

    op: Literal["rms_norm", "w4a16"]
    tokens: int
    width: int
    group: int = 128


@dataclass(frozen=True, kw_only=True)
class Ahead(Scenario):
    """Binaries: those that ops launch, or those that are only looked at."""

    shipped: bool


SCENARIOS = [
    Eager(name="rms_norm", op="rms_norm", tokens=2048, width=4096),
    Eager(name="w4a16", op="w4a16", tokens=1, width=4096),
    Ahead(name="shipped", shipped=True),
    Ahead(name="sweep", shipped=False),
]


def run(s: Eager | Ahead) -> Generator[Event, None, None]:
    """Say what each eager kernel moved, or what each binary holds."""
    if isinstance(s, Eager):
        yield from launches(s)
        return
    for arch, has in LIMITS.items():
        yield Limits(
            arch,
            has.device,
            has.registers,
            has.registers_per_thread,
            has.shared_bytes,
            has.shared_bytes_per_block,
            has.warp_size,
            has.warps,
        )
    for one in binaries():
        if one.shipped == s.shipped:
            yield describe(one)


@torch.inference_mode(False)  # in it, torch would name some operations otherwise
def launches(s: Eager) -> list[Launched]:
    """Run the eager form under the counter, then count the fused kernel's operands and result."""
    random = torch.Generator().manual_seed(s.seed)
    x = torch.randn(s.tokens, s.width, generator=random).bfloat16()
    if s.op == "rms_norm":
        operands = [x, torch.ones(s.width, dtype=x.dtype)]
    else:
        packed = torch.randint(
            -(2**31), 2**31, (s.width, s.width // 8), generator=random, dtype=torch.int32
        )
        groups = torch.rand(2, s.width, s.width // s.group, generator=random).to(x.dtype)
        operands = [x[0], packed, groups[0], groups[1].clone()]
    with CountLaunches() as counter:
        result = EAGER[s.op](*operands)
    read = sum(tensor.numel() * tensor.itemsize for tensor in operands)
    return [*counter.launches, Launched("fused", s.op, 0, read, moved_bytes(result))]


@cache
def binaries() -> tuple[compile_case.Compiled, ...]:
    """All cases of all ops, compiled once a process."""
    return tuple(compile_all(sweep=True))


def describe(one: compile_case.Compiled) -> Compiled:
    """The event of one binary."""
    binary, sizes = one.binary, one.config | one.shape
    fits = one.occupancy if binary else None
    counts = binary.instructions if binary else {}
    return Compiled(
        op=one.op,
        variant=one.variant,
        arch=one.arch,
        shipped=one.shipped,
        block_m=sizes.get("BLOCK_M"),
        block_n=sizes.get("BLOCK_N"),
        head_dim=sizes.get("head_dim"),
        config=", ".join(f"{name}={value}" for name, value in one.config.items()),
        num_warps=one.num_warps,
        num_stages=one.num_stages,
        threads=one.threads,
        registers=binary.registers if binary else 0,
        stack_bytes=binary.stack_bytes if binary else 0,
        spilled_bytes=binary.spilled_bytes if binary else 0,
        shared_bytes=one.shared_bytes,
        blocks=fits.blocks if fits else 0,
        occupancy=fits.occupancy if fits else 0.0,
        limited_by=fits.limited_by if fits else (),
        tensor_core_names=tuple(binary.tensor_cores) if binary else (),
        **{kind: counts.get(kind, 0) for kind in KINDS},
        error=one.error,
    )
