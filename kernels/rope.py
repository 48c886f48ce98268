"""Rotary positions of queries and keys in one launch, with their RMSNorm fused in front.

Half-split form: dimension i of a head turns with i + d/2 by the angle of its position,

    y[i] = x[i] cos − x[i + d/2] sin,    y[i + d/2] = x[i + d/2] cos + x[i] sin,

and not with its neighbour i + 1, as in the interleaved form. With weights (QK-norm, as in Qwen 3),
each head is RMS-normed over its d numbers before.

Bytes, with n numbers of e bytes in q and k together (the tables are smaller by the heads):

                         eager, one pass an operation                       fused
    rotate               · cos 2, roll 2, add the product with sin 4 = 8 n e    2 n e  (in, out)
    norm, then rotate    norm 7, rotate 8 = 15 n e                              2 n e

FLOPs: 3 n, and 4 n more for the norm.

Sources: Su et al., "RoFormer", 2021, section 3.4; Qwen Team, "Qwen3 Technical Report", 2025.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import Config

from kernels.launch import Case, Cases, require, tuned

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@triton.jit
def _turn(
    x_ptr, out_ptr, weight_ptr, cos_ptr, sin_ptr, tile, heads, new, batch, position, eps,
    stride_batch, stride_head, stride_new, stride_dim, stride_weight,
    stride_cos_dim, stride_sin_dim,
    HEAD_DIM: tl.constexpr, NORM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """Turn BLOCK_HEADS heads of one token. cos_ptr and sin_ptr point at its row of the tables."""
    HALF: tl.constexpr = HEAD_DIM // 2
    head = (tile * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)).to(tl.int64)[:, None]
    low = tl.arange(0, BLOCK_HALF).to(tl.int64)
    high = low + HALF
    real = low < HALF
    mask = (head < heads) & real

    # Load both halves of each head, (BLOCK_HEADS, BLOCK_HALF), and the token's angles.
    x_ptr += batch * stride_batch + position * stride_new + head * stride_head
    x_low = tl.load(x_ptr + low * stride_dim, mask=mask, other=0.0).to(tl.float32)
    x_high = tl.load(x_ptr + high * stride_dim, mask=mask, other=0.0).to(tl.float32)
    cos_low = tl.load(cos_ptr + low * stride_cos_dim, mask=real, other=0.0).to(tl.float32)
    cos_high = tl.load(cos_ptr + high * stride_cos_dim, mask=real, other=0.0).to(tl.float32)
    sin_low = tl.load(sin_ptr + low * stride_sin_dim, mask=real, other=0.0).to(tl.float32)
    sin_high = tl.load(sin_ptr + high * stride_sin_dim, mask=real, other=0.0).to(tl.float32)

    # Compute in float32.
    if NORM:
        weight_low = tl.load(weight_ptr + low * stride_weight, mask=real, other=0.0)
        weight_high = tl.load(weight_ptr + high * stride_weight, mask=real, other=0.0)
        mean_square = (tl.sum(x_low * x_low, 1) + tl.sum(x_high * x_high, 1)) / HEAD_DIM
        inverse = tl.rsqrt(mean_square + eps)[:, None]
        x_low *= inverse * weight_low.to(tl.float32)
        x_high *= inverse * weight_high.to(tl.float32)
    y_low = x_low * cos_low + x_high * sin_low  # the tables' first half of sin is negative
    y_high = x_high * cos_high + x_low * sin_high

    # Store, (batch, heads, new, head_dim).
    out_ptr += ((batch * heads + head) * new + position) * HEAD_DIM
    tl.store(out_ptr + low, y_low.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptr + high, y_high.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rope_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_weight_ptr, k_weight_ptr, q_out_ptr, k_out_ptr,
    heads, kv_heads, new, eps,
    stride_q_batch, stride_q_head, stride_q_new, stride_q_dim,
    stride_k_batch, stride_k_head, stride_k_new, stride_k_dim,
    stride_cos_batch, stride_cos_new, stride_cos_dim,
    stride_sin_batch, stride_sin_new, stride_sin_dim,
    stride_q_weight, stride_k_weight,
    HEAD_DIM: tl.constexpr, NORM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """Grid (batch * new, tiles of query heads, then tiles of key heads)."""
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, position = token // new, token % new
    cos_ptr += batch * stride_cos_batch + position * stride_cos_new
    sin_ptr += batch * stride_sin_batch + position * stride_sin_new
    query_tiles = tl.cdiv(heads, BLOCK_HEADS)
    if tile < query_tiles:
        _turn(
            q_ptr, q_out_ptr, q_weight_ptr, cos_ptr, sin_ptr,
            tile, heads, new, batch, position, eps,
            stride_q_batch, stride_q_head, stride_q_new, stride_q_dim, stride_q_weight,
            stride_cos_dim, stride_sin_dim, HEAD_DIM, NORM, BLOCK_HEADS, BLOCK_HALF,
        )  # fmt: skip
    else:
        _turn(
            k_ptr, k_out_ptr, k_weight_ptr, cos_ptr, sin_ptr,
            tile - query_tiles, kv_heads, new, batch, position, eps,
            stride_k_batch, stride_k_head, stride_k_new, stride_k_dim, stride_k_weight,
            stride_cos_dim, stride_sin_dim, HEAD_DIM, NORM, BLOCK_HEADS, BLOCK_HALF,
        )  # fmt: skip


# A warp for four heads: 16 numbers a thread at head_dim 128. The first guess first.
CONFIGS = [
    Config({"BLOCK_HEADS": 4 * warps}, num_warps=warps, num_stages=1) for warps in (2, 4, 1, 8)
]


def suitable(heads: int) -> list[Config]:
    """Configurations whose tile is not longer than the heads are, rounded up to a tile."""
    most = max(4, triton.next_power_of_2(heads))
    return [config for config in CONFIGS if config.kwargs["BLOCK_HEADS"] <= most]


def choose(arguments: dict[str, Any]) -> list[Config]:
    """The configurations for this call's number of query heads."""
    return suitable(arguments["heads"])


_launch = tuned(_rope_kernel, CONFIGS, ["heads", "kv_heads", "HEAD_DIM", "NORM"], choose)


def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """q and k, each head turned by its token's position (after its RMSNorm, with weights).

    q: (batch, heads, new, head_dim), k: (batch, kv_heads, new, head_dim), any strides: views into
    the fused qkv matrix are read where they lie. cos and signed sin, as `rotary_tables` of
    `tracegen.model.decoder` makes them (the sine of the first half is negative): (new, head_dim),
    or (batch, 1, new, head_dim) where rows differ. q_weight, k_weight: (head_dim,), both or none.

    Returns new, contiguous tensors of q's and k's shapes and dtype (fp16, bf16 or fp32); q and k
    stay as they are. Raises ValueError for shapes or dtypes that do not belong together.
    """
    check(q, k, cos, sin, q_weight, k_weight)
    batch, heads, new, head_dim = q.shape
    kv_heads = k.shape[1]
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    if batch * new == 0:
        return q_out, k_out
    cos, sin = (table.expand(batch, 1, new, head_dim)[:, 0] for table in (cos, sin))
    # Without a norm the weights are never read, and any pointer will do.
    norms = (cos[0, 0], cos[0, 0]) if q_weight is None or k_weight is None else (q_weight, k_weight)

    def grid(sizes: dict[str, Any]) -> tuple[int, int]:
        tiles = (triton.cdiv(count, sizes["BLOCK_HEADS"]) for count in (heads, kv_heads))
        return batch * new, sum(tiles)

    launch = _launch if config is None else _rope_kernel
    launch[grid](
        q, k, cos, sin, *norms, q_out, k_out, heads, kv_heads, new, eps,
        *q.stride(), *k.stride(), *cos.stride(), *sin.stride(),
        *(weight.stride(0) for weight in norms),
        HEAD_DIM=head_dim, NORM=q_weight is not None,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        **({} if config is None else config.all_kwargs()),
    )  # fmt: skip
    return q_out, k_out


def check(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
) -> None:
    """Raise ValueError, in one line, for arguments that do not belong together."""
    require(
        q.dim() == k.dim() == 4 and q.shape[0] == k.shape[0] and q.shape[2:] == k.shape[2:],
        f"q is {tuple(q.shape)}, k {tuple(k.shape)}: give (batch, heads, new, head_dim) and "
        "(batch, kv_heads, new, head_dim)",
    )
    batch, _, new, head_dim = q.shape
    require(
        head_dim % 2 == 0 and 2 <= head_dim <= 256,
        f"head_dim is {head_dim}: give an even one, 2 to 256",
    )
    require(
        cos.shape == sin.shape and cos.shape in ((new, head_dim), (batch, 1, new, head_dim)),
        f"cos is {tuple(cos.shape)}, sin {tuple(sin.shape)}: give both as {(new, head_dim)} or "
        f"{(batch, 1, new, head_dim)}",
    )
    weights = [weight for weight in (q_weight, k_weight) if weight is not None]
    require(
        len(weights) != 1 and all(weight.shape == (head_dim,) for weight in weights),
        f"q_weight and k_weight must be both None or both ({head_dim},)",
    )
    others = [cos, sin, *weights]
    require(
        q.dtype == k.dtype and all(tensor.dtype in DTYPES for tensor in (q, *others)),
        f"q is {q.dtype}, k {k.dtype}, the others {[t.dtype for t in others]}: give float16, "
        "bfloat16 or float32, and q as k",
    )
    require(
        all(tensor.device == q.device for tensor in (k, *others)),
        "the tensors lie on different devices: move them to one",
    )


def cases(arch: str) -> Cases:
    """What `arch` gets: heads of 128 with and without norm, small heads, the largest in fp32."""
    for kind, heads, head_dim, norm in (
        ("bf16", 32, 128, False),
        ("bf16", 32, 128, True),
        ("fp16", 9, 64, False),
        ("fp32", 8, 256, True),
    ):
        names = _rope_kernel.arg_names
        kinds = {n: f"*{kind}" for n in names if n.endswith("_ptr")}
        strides = [n for n in names if n.startswith("stride")]
        unit = [n for n in strides if n.endswith(("_dim", "_weight"))]
        constants = {"HEAD_DIM": head_dim, "NORM": norm, "BLOCK_HALF": head_dim // 2}
        constants |= dict.fromkeys(unit, 1)
        aligned = (*kinds, *(n for n in strides if n not in unit))
        kinds |= {"eps": "fp32"} | dict.fromkeys((*constants, "BLOCK_HEADS"), "constexpr")
        yield Case(
            op="rope",
            variant=f"{kind} head {head_dim}{', normed' if norm else ''}",
            kernel=_rope_kernel,
            signature={n: kinds.get(n, "i32") for n in names},
            constants=constants,
            config=suitable(heads)[0],
            aligned=aligned,
            shape={"heads": heads, "head_dim": head_dim},
        )
