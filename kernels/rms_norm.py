"""RMSNorm, with the addition of the residual stream fused in front.

    s = x + residual,    y = s / sqrt(mean(s²) + eps) · weight,    mean over the last dimension

Bytes, with n numbers of e bytes in x (the weight is small beside them):

                     eager, one pass an operation                        fused
    norm             square 2, mean 1, · 1/root 2, · weight 2 = 7 n e    2 n e  (x in, y out)
    add, then norm   add 3, norm 7 = 10 n e                              4 n e  (and residual, s)

FLOPs: 4 n (5 n with the addition) either way, far below what memory allows: bytes are time. A row
stays in registers between its sum of squares and its scaling.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.
"""

from __future__ import annotations

from typing import Any, overload

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import Config

from kernels.launch import Case, Cases, architecture, require, tuned

MAX_WIDTH = 16384  # a longer row would not stay in registers
TILE = 2048  # numbers a program takes at least: several short rows, or one long one
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


# --8<-- [start:kernel]
@triton.jit
def _rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, rows, inner_rows, eps,
    stride_x_outer, stride_x_inner, stride_x_column,
    stride_residual_outer, stride_residual_inner, stride_residual_column, stride_weight,
    WIDTH: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of rows,). x, residual: (outer, inner, WIDTH); out, sum: (rows, WIDTH)."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    outer, inner = (row // inner_rows)[:, None], (row % inner_rows)[:, None]
    column = tl.arange(0, BLOCK_WIDTH).to(tl.int64)
    real = (row < rows)[:, None] & (column < WIDTH)
    out_at = row[:, None] * WIDTH + column

    # Load whole rows, (BLOCK_ROWS, BLOCK_WIDTH).
    at = outer * stride_x_outer + inner * stride_x_inner + column * stride_x_column
    x = tl.load(x_ptr + at, mask=real, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        at = outer * stride_residual_outer + inner * stride_residual_inner
        at += column * stride_residual_column
        x += tl.load(residual_ptr + at, mask=real, other=0.0).to(tl.float32)
        # The norm is of the sum as stored: the same as two calls, whatever the dtype.
        total = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + out_at, total, mask=real)
        x = total.to(tl.float32)
    weight = tl.load(weight_ptr + column * stride_weight, mask=column < WIDTH, other=0.0)

    # Compute in float32; numbers past the width are 0 and add nothing.
    mean_square = tl.sum(x * x, 1) / WIDTH
    y = x * tl.rsqrt(mean_square + eps)[:, None] * weight.to(tl.float32)

    # Store.
    tl.store(out_ptr + out_at, y.to(out_ptr.dtype.element_ty), mask=real)


# --8<-- [end:kernel]

CONFIGS = [Config({}, num_warps=warps) for warps in (2, 4, 8, 16, 32)]


def tile(width: int) -> dict[str, int]:
    """Rows and columns of one program's tile."""
    columns = triton.next_power_of_2(width)
    return {"BLOCK_ROWS": max(1, TILE // columns), "BLOCK_WIDTH": columns}


def suitable(arch: str, width: int) -> list[Config]:
    """Configurations in which a thread holds 8 to 32 numbers of the tile, 16 if it can be."""
    warp = 64 if arch.startswith("gfx") else 32
    held = max(TILE, triton.next_power_of_2(width)) // warp
    fits = [c for c in CONFIGS if 8 <= held // c.num_warps <= 32 and c.num_warps * warp <= 1024]
    return sorted(fits, key=lambda config: abs(held // config.num_warps - 16))


def choose(arguments: dict[str, Any]) -> list[Config]:
    """The configurations for this call's row width and architecture."""
    return suitable(architecture(arguments["x_ptr"].device), arguments["WIDTH"])


_launch = tuned(_rms_norm_kernel, CONFIGS, ["WIDTH", "HAS_RESIDUAL"], choose)


@overload
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, residual: None = None, config: Config | None = None
) -> Tensor: ...
@overload
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, residual: Tensor, config: Config | None = None
) -> tuple[Tensor, Tensor]: ...
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    config: Config | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """RMSNorm of x, or of x + residual, over the last dimension.

    x, residual: (…, width) of one dtype (fp16, bf16 or fp32) and shape, width at most 16,384, any
    strides; weight: (width,) of any of these dtypes. Returns y (…, width) of x's dtype; with a
    residual (y, x + residual) in one pass, where y is the norm of the sum as rounded to its dtype.

    Raises ValueError for shapes or dtypes that do not belong together, and for x whose leading
    dimensions torch cannot view as two.
    """
    check(x, weight, residual)
    width = x.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = out if residual is None else torch.empty_like(out)
    if x.numel() > 0:
        x_rows = three_dimensions(x)
        residual_rows = x_rows if residual is None else three_dimensions(residual)
        rows = x.numel() // width
        sizes = tile(width)
        launch = _launch if config is None else _rms_norm_kernel
        launch[(triton.cdiv(rows, sizes["BLOCK_ROWS"]),)](
            x_rows, residual_rows, weight, out, total, rows, x_rows.shape[1], eps,
            *x_rows.stride(), *residual_rows.stride(), *weight.stride(),
            WIDTH=width, HAS_RESIDUAL=residual is not None, **sizes,
            **({} if config is None else config.all_kwargs()),
        )  # fmt: skip
    return out if residual is None else (out, total)


def three_dimensions(x: Tensor) -> Tensor:
    """x (…, width) as (outer, inner, width), a view. Raises ValueError where there is none."""
    if x.dim() < 3:
        return x[(None,) * (3 - x.dim())]
    try:
        return x.view(-1, *x.shape[-2:])
    except RuntimeError:
        raise ValueError(
            f"{tuple(x.shape)} with strides {x.stride()} cannot be viewed as (outer, inner, "
            "width): give at most two leading dimensions, or call contiguous() first"
        ) from None


def check(x: Tensor, weight: Tensor, residual: Tensor | None) -> None:
    """Raise ValueError, in one line, for arguments that do not belong together."""
    require(x.dim() >= 1, "x is a single number: give (…, width)")
    require(
        1 <= x.shape[-1] <= MAX_WIDTH,
        f"rows of {x.shape[-1]} numbers: give 1 to {MAX_WIDTH}, which stay in registers",
    )
    require(
        weight.shape == x.shape[-1:],
        f"weight is {tuple(weight.shape)}: give {tuple(x.shape[-1:])}, a number a column",
    )
    require(
        x.dtype in DTYPES and weight.dtype in DTYPES,
        f"x is {x.dtype}, weight {weight.dtype}: give float16, bfloat16 or float32",
    )
    require(
        residual is None or (residual.shape == x.shape and residual.dtype == x.dtype),
        f"residual must be as x, {tuple(x.shape)} {x.dtype}",
    )
    devices = {t.device for t in (x, weight, residual) if t is not None}
    require(len(devices) == 1, "the tensors lie on different devices: move them to one")


def cases(arch: str) -> Cases:
    """What `arch` gets: hidden states of 4096 and the widest, with and without residual; heads."""
    for kind, width, residual in (
        ("bf16", 4096, False),
        ("bf16", 4096, True),
        ("bf16", MAX_WIDTH, True),
        ("fp32", MAX_WIDTH, True),
        ("bf16", 128, False),
    ):
        names = _rms_norm_kernel.arg_names
        kinds = {n: f"*{kind}" for n in names if n.endswith("_ptr")}
        unit = [n for n in names if n.endswith("_column") or n == "stride_weight"]
        constants = (
            {"WIDTH": width, "HAS_RESIDUAL": residual} | tile(width) | dict.fromkeys(unit, 1)
        )
        aligned = (*kinds, *(n for n in names if n.startswith("stride") and n not in unit))
        kinds |= {"eps": "fp32"} | dict.fromkeys(constants, "constexpr")
        yield Case(
            op="rms_norm",
            variant=f"{kind} width {width}{', residual' if residual else ''}",
            kernel=_rms_norm_kernel,
            signature={n: kinds.get(n, "i32") for n in names},
            constants=constants,
            config=suitable(arch, width)[0],
            aligned=aligned,
            shape={"width": width},
        )
