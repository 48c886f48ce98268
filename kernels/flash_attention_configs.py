"""Tile sizes of `kernels.flash_attention`: which may run where, and what is compiled ahead of time.

A block holds Q (BLOCK_M, BLOCK_D) and `num_stages` pairs of K and V tiles (BLOCK_N, BLOCK_D) in
shared memory, scores (BLOCK_M, BLOCK_N) and output (BLOCK_M, BLOCK_D) in float32 registers: so the
wider a head, the smaller the tiles. Every candidate below compiles without spilling, causal and
windowed (`block_sizes` shows what others do). Which is fastest, the autotuner finds out.

TMA: K and V come by tensor descriptors (Hopper and later), which spares the registers that hold
addresses. PERSISTENT: as many programs as multiprocessors, each walks over tiles. SPECIALIZE: warps
divide loads, products and softmax among themselves, where the compiler can (Blackwell).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton import Config

from kernels.flash_attention_kernel import _flash_attention_kernel
from kernels.launch import Case, Cases, architecture

MAX_HEAD_DIM = 256
DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
FEW_QUERIES = 16  # the fewest rows that a matrix instruction takes; a decode step has one


def tiles(m: int, n: int, warps: int, stages: int, **variant: bool) -> Config:
    """A configuration with BLOCK_M = m and BLOCK_N = n; `variant`: TMA, PERSISTENT, SPECIALIZE."""
    flags = {"TMA": False, "PERSISTENT": False, "SPECIALIZE": False}
    sizes = {"BLOCK_M": m, "BLOCK_N": n}
    return Config(sizes | flags | variant, num_warps=warps, num_stages=stages)


# (family, bytes an element) -> head_dim at most -> candidates, the best guess first.
CANDIDATES: dict[tuple[str, int], dict[int, list[Config]]] = {
    ("ampere", 2): {
        64: [tiles(128, 64, 8, 3), tiles(64, 32, 4, 3)],
        128: [tiles(64, 32, 4, 3)],
        256: [tiles(64, 32, 8, 2)],
    },
    ("hopper", 2): {
        64: [tiles(128, 128, 8, 3, TMA=True), tiles(128, 128, 8, 3)],
        128: [
            tiles(128, 128, 8, 2, TMA=True),
            tiles(128, 64, 8, 3, TMA=True),
            tiles(128, 128, 8, 2, TMA=True, PERSISTENT=True),
            tiles(128, 64, 8, 3),
        ],
        256: [tiles(128, 64, 8, 2, TMA=True), tiles(64, 64, 8, 2)],
    },
    ("blackwell", 2): {
        64: [
            tiles(128, 64, 8, 3, TMA=True),
            tiles(128, 64, 8, 3, TMA=True, PERSISTENT=True, SPECIALIZE=True),
            tiles(128, 64, 8, 3),
        ],
        128: [tiles(128, 64, 8, 3, TMA=True), tiles(128, 64, 8, 3)],
        256: [tiles(128, 64, 8, 2, TMA=True), tiles(64, 64, 8, 2)],
    },
    ("cdna", 2): {
        64: [tiles(128, 64, 8, 1), tiles(128, 64, 4, 2)],
        128: [tiles(128, 32, 4, 2), tiles(128, 64, 8, 1)],
        256: [tiles(64, 32, 4, 1), tiles(128, 32, 8, 1)],
    },
    ("nvidia", 4): {
        64: [tiles(64, 32, 8, 2), tiles(32, 32, 8, 2)],
        128: [tiles(32, 16, 8, 2)],
        256: [tiles(16, 16, 8, 2)],
    },
    ("cdna", 4): {
        64: [tiles(64, 32, 8, 1)],
        128: [tiles(32, 32, 8, 1)],
        256: [tiles(32, 16, 8, 1)],
    },
}
DECODE: dict[str, dict[int, list[Config]]] = {
    "nvidia": {64: [tiles(16, 64, 4, 2), tiles(16, 32, 4, 3)], 256: [tiles(16, 32, 4, 3)]},
    "cdna": {128: [tiles(16, 64, 4, 1)], 256: [tiles(16, 32, 4, 1)]},
}
INTERPRETED_TILES = [tiles(64, 64, 4, 1)]
CONFIGS = [
    *(config for widths in CANDIDATES.values() for some in widths.values() for config in some),
    *(config for widths in DECODE.values() for some in widths.values() for config in some),
]


def family(arch: str) -> str:
    """Which rows of CANDIDATES serve "sm_90" or "gfx942"."""
    if arch.startswith("gfx"):
        return "cdna"
    return {"sm_90": "hopper", "sm_100": "blackwell", "sm_103": "blackwell"}.get(arch, "ampere")


def candidates(
    arch: str,
    element_bytes: int,
    head_dim: int,
    queries: int,
    *,
    tma: bool,
    windowed: bool = False,
) -> list[Config]:
    """What may run, the best guess first. `tma`: the tensors can be read by descriptors.

    A window adds a third loop, with which specialized warps run out of registers.
    """
    if arch == "interpreter":
        return INTERPRETED_TILES
    kind = family(arch)
    maker = "cdna" if kind == "cdna" else "nvidia"
    if element_bytes == 4:
        widths = CANDIDATES[maker, 4]
    elif queries <= FEW_QUERIES:
        widths = DECODE[maker]
    else:
        widths = CANDIDATES[kind, 2]
    width = min(width for width in widths if width >= head_dim)
    return [
        config
        for config in widths[width]
        if (tma or not config.kwargs["TMA"]) and not (windowed and config.kwargs["SPECIALIZE"])
    ]


def described(x: Tensor) -> bool:
    """Whether TMA can read x (batch, heads, length, head_dim): 16-byte steps, rows contiguous."""
    steps = (x.data_ptr(), *(stride * x.element_size() for stride in x.stride()[:3]))
    return x.numel() > 0 and x.stride(3) == 1 and x.stride(2) > 0 and not any(s % 16 for s in steps)


def choose(arguments: dict[str, Any]) -> list[Config]:
    """The candidates for a launch, from the kernel's arguments by name."""
    q, k, v = arguments["q_ptr"], arguments["k_ptr"], arguments["v_ptr"]
    tma = described(k) and described(v)
    arch = architecture(q.device)
    return candidates(
        arch,
        q.element_size(),
        q.shape[3],
        arguments["queries"],
        tma=tma,
        windowed=arguments["WINDOWED"],
    )


def case(
    arch: str,
    dtype: str,
    head_dim: int,
    config: Config,
    *,
    causal: bool = True,
    windowed: bool = False,
    log: bool = False,
    shipped: bool = True,
) -> Case:
    """One binary: contiguous head_dim, everything else known only when launched."""
    sizes = config.kwargs
    constants: dict[str, Any] = {
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        "CAUSAL": causal,
        "WINDOWED": windowed,
        "PRECISION": "ieee",
        "LOG": log,
        **{f"stride_{x}d": 1 for x in "qkvo"},
    }
    types = {"lse_ptr": "*fp32", "scale_log2": "fp32"}
    logs = {"max": "*fp32", "sum": "*fp32", "sm": "*i32", "start": "*i64", "end": "*i64"}
    clocked = ("max", "sum") if arch.startswith("gfx") else tuple(logs)
    for name, pointer in logs.items():
        if log and name in clocked:
            types[f"log_{name}_ptr"] = pointer
        else:
            constants[f"log_{name}_ptr"] = None
    signature = {
        name: "constexpr"
        if name in constants or name in sizes
        else types.get(name, f"*{dtype}" if name.endswith("_ptr") else "i32")
        for name in _flash_attention_kernel.arg_names
    }
    aligned = tuple(
        name
        for name, kind in signature.items()
        if kind != "constexpr" and (name.endswith("_ptr") or name.startswith("stride_"))
    )
    mask = "window" if windowed else "causal" if causal else "full"
    flags = [name for name in ("TMA", "PERSISTENT", "SPECIALIZE") if sizes[name]]
    words = [
        dtype, f"D={head_dim}", mask, f"{sizes['BLOCK_M']}×{sizes['BLOCK_N']}",
        f"{config.num_warps} warps", *flags, *(["log"] if log else []),
    ]  # fmt: skip
    shape = {"BLOCK_M": sizes["BLOCK_M"], "BLOCK_N": sizes["BLOCK_N"], "head_dim": head_dim}
    variant = " ".join(words)
    return Case(
        "flash_attention", variant, _flash_attention_kernel, signature, constants, config,
        aligned, shipped, shape,
    )  # fmt: skip


def shipped(arch: str) -> Cases:
    """The best guess for each kind of head, and the variant that most strains the registers."""
    wide = candidates(arch, 2, 128, 4096, tma=True)
    yield case(arch, "bf16", 64, candidates(arch, 2, 64, 4096, tma=True)[0])
    yield case(arch, "bf16", 128, wide[0])
    yield case(arch, "bf16", 256, candidates(arch, 2, 256, 4096, tma=True)[0])
    yield case(arch, "fp32", 64, candidates(arch, 4, 64, 4096, tma=True)[0])
    yield case(arch, "bf16", 128, wide[-1], windowed=True)
    for head_dim in (64, 128):
        for config in candidates(arch, 2, head_dim, 4096, tma=True):
            if config.kwargs["PERSISTENT"]:
                yield case(arch, "bf16", head_dim, config)
                return
    yield case(arch, "bf16", 128, candidates(arch, 2, 128, 1, tma=True)[0])


def block_sizes(arch: str) -> Cases:
    """Causal bf16 attention with head_dim 128 in ten sizes of tiles: some spill, as one can see."""
    for m, n in ((64, 32), (64, 64), (128, 32), (128, 64), (128, 128)):
        for warps in (4, 8):
            yield case(arch, "bf16", 128, tiles(m, n, warps, 2), shipped=False)
