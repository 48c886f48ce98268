"""W8A8 beside bf16 cuBLAS and beside cuBLAS's int8 product followed by scaling (torch.compile)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from kernels import reference
from kernels.bench.measure import Bench, Row
from kernels.w8a8_matmul import quantize_tokens, w8a8_matmul

AIM = "≥ 1.2 × bf16 cuBLAS in prefill (H200)"


def multiply_then_scale(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor) -> Tensor:
    """The naive way, in torch: int32 sums (tokens, out) to memory, then the scales."""
    return (torch._int_mm(x, w.T).float() * x_scale[:, None] * w_scale).bfloat16()


def int8_in_torch(x: Tensor) -> Tensor:
    """The int8 of `quantize_tokens`, in torch."""
    return reference.quantize_tokens(x)[0]


def int8_of(x: Tensor) -> Tensor:
    """The int8 of ours."""
    return quantize_tokens(x)[0]


def rows(bench: Bench) -> Iterator[Row]:
    """Decode with 16 tokens and prefill: (tokens, out, in). Then the quantization of tokens."""
    multiply: Callable[..., Tensor] = multiply_then_scale
    quantize: Callable[..., Tensor] = int8_in_torch
    if not bench.dry:
        multiply = torch.compile(multiply, dynamic=False)
        quantize = torch.compile(quantize, dynamic=False)
    shapes = bench.pick(
        full=[(16, 4096, 4096), (512, 4096, 4096), (4096, 4096, 4096), (4096, 14336, 4096)],
        dry=[(16, 32, 64), (40, 48, 64)],
    )
    made = torch.Generator(bench.device).manual_seed(0)
    for tokens, out_features, in_features in shapes:
        x16 = torch.randn(tokens, in_features, generator=made, device=bench.device).bfloat16()
        w16 = torch.randn(out_features, in_features, generator=made, device=bench.device)
        w16 = (w16 / in_features**0.5).bfloat16()
        x, x_scale = quantize_tokens(x16)
        w, w_scale = quantize_tokens(w16)
        given = x, x_scale, w, w_scale
        # What the peer multiplies are the quantized values, so that only its rounding differs.
        dense = [(q.float() * scale[:, None]).bfloat16() for q, scale in (given[:2], given[2:])]
        yield bench.row(
            "w8a8_matmul",
            f"{tokens} × {in_features} → {out_features}, bf16 out",
            ours=partial(w8a8_matmul, *given, out_dtype=torch.bfloat16),
            peers={
                "torch.mm bf16": partial(torch.mm, dense[0], dense[1].T),
                "torch._int_mm + scaling": partial(multiply, *given),
            },
            nbytes=(tokens + out_features) * in_features + 2 * tokens * out_features,
            flops=2 * tokens * out_features * in_features,
            aim=AIM if tokens > 64 else "",
        )
    for tokens, in_features in bench.pick(full=[(16, 4096), (4096, 4096)], dry=[(3, 100)]):
        x16 = torch.randn(tokens, in_features, generator=made, device=bench.device).bfloat16()
        yield bench.row(
            "quantize_tokens",
            f"{tokens} × {in_features} bf16",
            ours=partial(int8_of, x16),
            peers={"torch.compile": partial(quantize, x16)},
            nbytes=3 * tokens * in_features + 4 * tokens,
            flops=4 * tokens * in_features,  # magnitude, maximum, quotient, rounding
            atol=1.0,  # a compiled quotient may be one last place off, and round the other way
        )
