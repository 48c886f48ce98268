"""RMSNorm, with and without the residual addition, beside torch: decode and prefill batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from kernels.bench.measure import Bench, Row
from kernels.rms_norm import rms_norm

EPS = 1e-5


def eager(x: Tensor, weight: Tensor, residual: Tensor | None) -> Tensor:
    """As model code writes it: one torch operation after the other, in float32."""
    wide = (x if residual is None else x + residual).float()
    return (wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()).to(x.dtype) * weight


def fused_norm(x: Tensor, weight: Tensor, residual: Tensor | None) -> Tensor:
    """torch's own RMSNorm; the addition stays a call of its own."""
    return torch.rms_norm(x if residual is None else x + residual, weight.shape, weight, EPS)


def rows(bench: Bench) -> Iterator[Row]:
    """Hidden states of decode (few rows) and prefill (many), bf16."""
    for count, width in bench.pick(full=[(64, 4096), (8192, 4096), (4096, 16384)], dry=[(3, 96)]):
        for with_residual in (False, True):
            yield one_row(bench, count, width, with_residual)


def one_row(bench: Bench, count: int, width: int, with_residual: bool) -> Row:
    """`count` rows of `width` numbers. Bytes: each array once, in or out, and the weight."""
    generator = torch.Generator(bench.device).manual_seed(0)
    new = partial(torch.randn, generator=generator, device=bench.device, dtype=torch.bfloat16)
    x, weight = new(count, width), new(width)
    residual = new(count, width) if with_residual else None
    compiled = torch.compile(eager, backend="eager" if bench.dry else "inductor")

    def ours() -> Tensor:
        if residual is None:
            return rms_norm(x, weight, EPS)
        return rms_norm(x, weight, EPS, residual=residual)[0]

    arrays, operations = (4, 5) if with_residual else (2, 4)
    return bench.row(
        "rms_norm",
        f"{count} × {width} bf16{', residual' if with_residual else ''}",
        ours=ours,
        peers={
            "torch eager": lambda: eager(x, weight, residual),
            "torch.rms_norm": lambda: fused_norm(x, weight, residual),
            "torch.compile": lambda: compiled(x, weight, residual),
        },
        nbytes=2 * (arrays * x.numel() + width),
        flops=operations * x.numel(),
        aim="as fast as torch.compile" if with_residual else "",
        atol=6e-2,  # bf16 is rounded once here, and after each operation there
    )
