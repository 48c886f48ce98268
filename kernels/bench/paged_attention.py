"""Paged decode attention: how much of the copy bandwidth, and what gathering first would cost.

Bytes: the keys and values that the lengths cover, once, and the queries and results. Two peers. One
is given the dense keys and values for nothing: torch's attention alone, its gather is not timed.
The other gathers the blocks through the table first, as plain torch must, and that is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.bench.measure import Bench, Row
from kernels.paged_attention import paged_attention

BLOCK_SIZE = 16


def gather(pool: Tensor, tables: Tensor) -> Tensor:
    """(batch, kv_heads, tokens, head_dim), dense, of sequences whose blocks are all full."""
    return pool[tables].transpose(1, 2).flatten(2, 3)


def dense_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's attention of one query a sequence; a group's queries are the rows of one product."""
    grouped = q.view(q.shape[0], k.shape[1], -1, q.shape[2])
    return F.scaled_dot_product_attention(grouped, k, v).view_as(q)


def rows(bench: Bench) -> Iterator[Row]:
    """A Llama-3-8B layer, from one long sequence to many short ones."""
    for batch, tokens in bench.pick(
        full=[(1, 32768), (8, 8192), (64, 4096), (256, 1024)], dry=[(2, 48)]
    ):
        yield one_row(bench, batch, tokens, *((4, 2, 16) if bench.dry else (32, 8, 128)))


def one_row(bench: Bench, batch: int, tokens: int, heads: int, kv_heads: int, head_dim: int) -> Row:
    """All sequences equally long, in full blocks scattered over the pool, bf16."""
    generator = torch.Generator(bench.device).manual_seed(0)
    new = partial(torch.randn, generator=generator, device=bench.device, dtype=torch.bfloat16)
    blocks = batch * tokens // BLOCK_SIZE
    q = new(batch, heads, head_dim)
    keys, values = (new(blocks, kv_heads, BLOCK_SIZE, head_dim) for _ in range(2))
    order = torch.randperm(blocks, generator=generator, device=bench.device)
    tables = order.view(batch, -1).int()
    lengths = torch.full((batch,), tokens, dtype=torch.int32, device=bench.device)
    k, v = gather(keys, tables), gather(values, tables)
    return bench.row(
        "paged_attention",
        f"{batch} × {tokens} tokens, {heads}/{kv_heads} heads of {head_dim}, bf16",
        ours=lambda: paged_attention(q, keys, values, tables, lengths),
        peers={
            "SDPA, gathered before": lambda: dense_attention(q, k, v),
            "gather and SDPA": lambda: dense_attention(
                q, gather(keys, tables), gather(values, tables)
            ),
        },
        nbytes=2 * (2 * batch * tokens * kv_heads * head_dim + 2 * q.numel()),
        flops=4 * batch * heads * tokens * head_dim,
        aim="≥ 80 % of copy bandwidth (H200)",
        atol=2e-3,  # a mean over many values is small
    )
