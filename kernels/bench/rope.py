"""RoPE of queries and keys in one launch, with and without QK-norm, beside torch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from kernels.bench.measure import Bench, Row
from kernels.rope import rope

EPS = 1e-6


def eager(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, weights: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """As model code writes it: one torch operation after the other, queries and then keys."""
    q_weight, k_weight = weights or (None, None)
    return turned(q, cos, sin, q_weight), turned(k, cos, sin, k_weight)


def turned(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None) -> Tensor:
    """Norm of each head where there is a weight, then the rotation."""
    if weight is not None:
        x = torch.rms_norm(x, weight.shape, weight, EPS)
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def rows(bench: Bench) -> Iterator[Row]:
    """A Qwen3-8B layer's heads, in decode and in prefill, bf16."""
    for batch, new in bench.pick(full=[(64, 1), (1, 8192)], dry=[(2, 3)]):
        for norm in (False, True):
            yield one_row(bench, batch, new, norm, *((3, 1, 16) if bench.dry else (32, 8, 128)))


def one_row(
    bench: Bench, batch: int, new: int, norm: bool, heads: int, kv_heads: int, head_dim: int
) -> Row:
    """q and k are views into one qkv matrix. Bytes: both once in and once out, and the tables."""
    generator = torch.Generator(bench.device).manual_seed(0)
    make = partial(torch.randn, generator=generator, device=bench.device, dtype=torch.bfloat16)
    qkv = make(batch, new, heads + 2 * kv_heads, head_dim).transpose(1, 2)
    q, k, _ = qkv.split((heads, kv_heads, kv_heads), dim=1)
    angle = make(new, head_dim // 2).float()
    cos = torch.cat((angle.cos(), angle.cos()), dim=-1).bfloat16()
    sin = torch.cat((-angle.sin(), angle.sin()), dim=-1).bfloat16()
    weights = (1 + make(head_dim) / 8, 1 + make(head_dim) / 8) if norm else None
    q_weight, k_weight = weights or (None, None)
    compiled = torch.compile(eager, backend="eager" if bench.dry else "inductor")
    numbers = q.numel() + k.numel()
    return bench.row(
        "rope",
        f"{batch} × {new} tokens, {heads}/{kv_heads} heads of {head_dim}, bf16"
        f"{', QK-norm' if norm else ''}",
        ours=lambda: rope(q, k, cos, sin, q_weight=q_weight, k_weight=k_weight, eps=EPS)[0],
        peers={
            "torch eager": lambda: eager(q, k, cos, sin, weights)[0],
            "torch.compile": lambda: compiled(q, k, cos, sin, weights)[0],
        },
        nbytes=2 * (2 * numbers + cos.numel() + sin.numel()),
        flops=(7 if norm else 3) * numbers,
        aim="as fast as torch.compile",
        atol=0.15,  # bf16 is rounded once here, and after each operation there
    )
