"""What every op must compute, in plain torch and float64: shared by tests and techniques."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def visible(
    queries: int, keys: int, *, causal: bool, window: int | None, device: torch.device | str = "cpu"
) -> Tensor:
    """Which key each query sees, (queries, keys) bool, aligned at the bottom right.

    Query i stands at position `i + keys - queries`. Causal: it sees no later key. A window of w
    keys: it sees only the last w up to its own position (it implies causal).
    """
    position = torch.arange(queries, device=device)[:, None] + keys - queries
    key = torch.arange(keys, device=device)
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if causal or window is not None:
        seen &= key <= position
    if window is not None:
        seen &= key > position - window
    return seen


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(scale · q kᵀ) v and its log-sum-exp, both float64.

    q: (batch, heads, queries, head_dim); k, v: (batch, kv_heads, keys, head_dim); query head h
    reads key/value head h // (heads / kv_heads). `scale` defaults to 1/√head_dim. A query that sees
    no key gives 0, and -inf as its log-sum-exp. Returns (batch, heads, queries, head_dim) and
    (batch, heads, queries).
    """
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    seen = visible(q.shape[2], k.shape[2], causal=causal, window=window, device=q.device)
    scores = (q @ k.mT * scale).masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1).nan_to_num(neginf=0.0)).exp()
    return weights @ v, lse


def paged_attention(
    q: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    """Attention of one query a sequence over its blocks, gathered and dense, float64.

    q: (batch, heads, head_dim); pools: (num_blocks, kv_heads, block_size, head_dim); block_tables:
    (batch, max_blocks); lengths: (batch,). Returns (batch, heads, head_dim), 0 where length is 0.
    """
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for row, length in enumerate(lengths.tolist()):
        blocks = block_tables[row, : math.ceil(length / key_pool.shape[2])].long()
        k, v = (pool[blocks].transpose(0, 1).flatten(1, 2) for pool in (key_pool, value_pool))
        one = q[row, None, :, None]
        out[row] = attention(one, k[None, :, :length], v[None, :, :length], scale=scale)[0][0, :, 0]
    return out


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, float64."""
    x = x.double()
    normed = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return normed if weight is None else normed * weight.double()


def rope(
    x: Tensor, cos: Tensor, sin: Tensor, *, weight: Tensor | None = None, eps: float = 1e-6
) -> Tensor:
    """x (batch, heads, new, head_dim) turned by its position, half-split form, float64.

    cos and signed sin: (new, head_dim) or (batch, 1, new, head_dim), as the decoder's tables: the
    sine of the first half is negative. With a weight (head_dim,) each head is RMS-normed before.
    """
    x = x.double() if weight is None else rms_norm(x, weight, eps)
    return x * cos.double() + x.roll(x.shape[-1] // 2, dims=-1) * sin.double()


def dequantize(packed: Tensor, scales: Tensor, zeros: Tensor, group_size: int) -> Tensor:
    """(nibble − zero) · scale, float64 (out, in), from linear int32 words (out, in / 8).

    Weight k of a row belongs to group k // group_size; scales, zeros: (out, groups).
    """
    nibbles = (packed.long().unsqueeze(-1) >> (4 * torch.arange(8, device=packed.device))) & 15
    nibbles = nibbles.flatten(-2)
    group = torch.arange(nibbles.shape[1], device=packed.device) // group_size
    return (nibbles.double() - zeros.double()[:, group]) * scales.double()[:, group]


def w4a16_matmul(
    x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, group_size: int
) -> Tensor:
    """x (tokens, in) times the dequantized weights, transposed: float64 (tokens, out)."""
    return x.double() @ dequantize(packed, scales, zeros, group_size).T


def w8a8_matmul(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """(x wᵀ) · x_scale · w_scale + bias, float64 (tokens, out); x (tokens, in), w (out, in) int8.

    The sums are exact: products of int8 stay below 2³¹ for any length we accept, float64 holds 2⁵³.
    """
    y = (x.double() @ w.double().T) * x_scale.double()[:, None] * w_scale.double()[None, :]
    return y if bias is None else y + bias.double()


def quantize_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of x (tokens, in) as int8 and its scale, amax / 127 in fp32; zero rows stay zero."""
    scale = x.float().abs().amax(1) / 127
    q = x.float() / torch.where(scale > 0, scale, 1.0)[:, None]
    return q.round().clamp(-127, 127).to(torch.int8), scale
