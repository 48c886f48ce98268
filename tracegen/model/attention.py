"""Attention of a pass: torch's own, or this lab's Triton kernel. Both see the same keys.

Query i of row b stands at position `starts[b] + i` and sees the key slots up to there.
A `Prepare` looks at a pass once, before its first layer, and returns what every layer calls:
q (batch, heads, new, head_dim); k, v (batch, kv_heads, held, head_dim); the result is each token's
heads side by side, (batch * new, heads * head_dim). Query head h reads key/value head
`h // (heads / kv_heads)`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor
from torch.nn import functional as F

from tracegen.errors import UserError

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Prepare = Callable[[list[int], int, int, torch.device], Attend]


def sdpa(starts: list[int], new: int, held: int, device: torch.device) -> Attend:
    """torch.nn.functional.scaled_dot_product_attention."""
    mask, causal = visibility(starts, new, held, device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, new, head_dim = q.shape
        if new == 1:  # the queries of a group become the rows of one attention: keys are read once
            grouped = q.reshape(batch, k.shape[1], -1, head_dim)
            return F.scaled_dot_product_attention(grouped, k, v, mask).reshape(batch, -1)
        out = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=causal, enable_gqa=heads != k.shape[1]
        )
        return side_by_side(out)

    return attend


def flash(starts: list[int], new: int, held: int, device: torch.device) -> Attend:
    """kernels/flash_attention.py: no mask at all, only lengths, aligned at the bottom right.

    Imported by name, so that only passes that use the kernel depend on it.
    """
    flash_attention = import_module("kernels.flash_attention").flash_attention
    ends = [start + new for start in starts]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if len(set(ends)) == 1:
            end = ends[0]
            return side_by_side(flash_attention(q, k[:, :, :end], v[:, :, :end], causal=True))
        rows = [
            flash_attention(q[row, None], k[row, None, :, :end], v[row, None, :, :end], causal=True)
            for row, end in enumerate(ends)
        ]
        return side_by_side(torch.cat(rows))

    return attend


ATTENTIONS: dict[str, Prepare] = {"sdpa": sdpa, "triton": flash}


def attention_named(name: str) -> Prepare:
    """The attention of that name. Raises UserError."""
    if name not in ATTENTIONS:
        raise UserError(f"no attention {name!r}; there are: {', '.join(ATTENTIONS)}")
    return ATTENTIONS[name]


def side_by_side(out: Tensor) -> Tensor:
    """(batch, heads, new, head_dim) as (batch * new, heads * head_dim)."""
    batch, _, new, _ = out.shape
    return out.transpose(1, 2).reshape(batch * new, -1)


def visibility(
    starts: list[int], new: int, held: int, device: torch.device
) -> tuple[Tensor | None, bool]:
    """Which key slots each query sees, as (mask, is_causal) for scaled_dot_product_attention.

    No mask is needed for one query that sees all, nor for a pass that starts from nothing (causal).
    torch's causal mask is aligned to the top left, so every other case gets an explicit one,
    (batch or 1, 1, new, held) bool.
    """
    same_start = len(set(starts)) == 1
    if same_start and new == 1 and held == starts[0] + 1:
        return None, False
    if same_start and starts[0] == 0 and held == new:
        return None, True
    first = torch.tensor(starts[:1] if same_start else starts, device=device)
    last_visible = first[:, None] + torch.arange(new, device=device)
    return (torch.arange(held, device=device) <= last_visible[..., None]).unsqueeze(1), False
