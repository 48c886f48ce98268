"""W4A16 beside 16-bit weights in cuBLAS, and beside unpacking to memory first (torch.compile)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from kernels import reference
from kernels.bench.measure import Bench, Row
from kernels.packing import PER_WORD
from kernels.w4a16_matmul import w4a16_matmul

GROUP = 128
AIMS = {1: "≥ 2.5 × bf16 cuBLAS at batch 1 (H200)"}


def unpack_then_multiply(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """The naive way, in torch: W (out, in) in x's dtype, then one matmul."""
    shifts = 4 * torch.arange(PER_WORD, device=x.device, dtype=torch.int32)
    nibbles = (packed[..., None] >> shifts) & 0xF
    grouped = nibbles.reshape(*scales.shape, GROUP)
    weights = (grouped - zeros[..., None].int()) * scales[..., None]
    return x @ weights.reshape(packed.shape[0], -1).to(x.dtype).T


def nbytes(tokens: int, out_features: int, in_features: int) -> int:
    """Fused: words, bf16 scales and 8-bit zeros once, bf16 x in and y out."""
    weights = out_features * in_features
    return weights // 2 + 3 * weights // GROUP + 2 * tokens * (in_features + out_features)


def rows(bench: Bench) -> Iterator[Row]:
    """Decode with 1 and 16 tokens, prefill with 512: (tokens, out, in)."""
    compiled: Callable[..., Tensor] = (
        unpack_then_multiply if bench.dry else torch.compile(unpack_then_multiply, dynamic=False)
    )
    shapes = bench.pick(
        full=[(1, 4096, 4096), *((tokens, 28672, 8192) for tokens in (1, 16, 512))],
        dry=[(1, 32, 256), (16, 64, 256)],
    )
    made = torch.Generator(bench.device).manual_seed(0)
    new_integers = partial(torch.randint, generator=made, device=bench.device)
    for tokens, out_features, in_features in shapes:
        x = torch.randn(tokens, in_features, generator=made, device=bench.device).bfloat16()
        words = out_features, in_features // PER_WORD
        packed = new_integers(-(2**31), 2**31, words, dtype=torch.int32)
        # Contiguous along out. A nibble's spread is 4.6, so outputs are near 1.
        groups = in_features // GROUP, out_features
        zeros = new_integers(6, 10, groups, dtype=torch.uint8).T
        scales = 0.5 + torch.rand(groups, generator=made, device=bench.device).T
        scales = (scales / (4.6 * in_features**0.5)).bfloat16()
        given = x, packed, scales, zeros
        weights = reference.dequantize(packed, scales, zeros, GROUP).bfloat16()
        yield bench.row(
            "w4a16_matmul",
            f"{tokens} × {in_features} → {out_features}, groups of {GROUP}, bf16",
            ours=partial(w4a16_matmul, *given, group_size=GROUP),
            peers={
                "torch.mm bf16": partial(torch.mm, x, weights.T),
                "torch.compile unpack + mm": partial(compiled, *given),
            },
            nbytes=nbytes(tokens, out_features, in_features),
            flops=2 * tokens * out_features * in_features,
            aim=AIMS.get(tokens, ""),
        )
