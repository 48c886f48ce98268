"""The two Triton kernels of `kernels.paged_attention`: one split of a sequence's keys; the merge.

Scores are in base 2: the scale that arrives is scale · log2 e, so exp(x) is exp2 of what we hold.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.launch import INTERPRETED

# The interpreter holds bf16 as raw uint16, which tl.dot would multiply as integers (triton#5895).
WIDEN = tl.constexpr(INTERPRETED)


@triton.jit
def paged_attention_kernel(
    q_ptr, key_ptr, value_ptr, table_ptr, length_ptr, out_ptr, lse_ptr, scale_log2,
    stride_q_batch, stride_q_head, stride_q_dim,
    stride_key_block, stride_key_head, stride_key_slot, stride_key_dim,
    stride_value_block, stride_value_head, stride_value_slot, stride_value_dim,
    stride_table_batch, stride_table_block, stride_length,
    HEAD_DIM: tl.constexpr, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    """Grid (batch, kv_heads * tiles of a group, splits); out and lse: (batch, heads, splits, …)."""
    sequence, tile, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    group_tiles: tl.constexpr = tl.cdiv(GROUP, BLOCK_HEADS)
    kv_head = (tile // group_tiles).to(tl.int64)
    member = tile % group_tiles * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    head = kv_head * GROUP + member
    dim = tl.arange(0, BLOCK_DIM).to(tl.int64)
    real_row = (member < GROUP)[:, None]
    real_dim = dim < HEAD_DIM

    # Shares are whole tiles of tokens: only a sequence's last tile is ragged.
    length = tl.load(length_ptr + sequence * stride_length)
    share = tl.cdiv(tl.cdiv(length, BLOCK_TOKENS), tl.num_programs(2)) * BLOCK_TOKENS
    begin = split * share
    end = tl.minimum(begin + share, length)

    # Load the group's queries, (BLOCK_HEADS, BLOCK_DIM).
    q = tl.load(
        q_ptr + sequence * stride_q_batch + head[:, None] * stride_q_head + dim * stride_q_dim,
        mask=real_row & real_dim,
        other=0.0,
    )
    if WIDEN:
        q = q.to(tl.float32)
    key_ptr += kv_head * stride_key_head
    value_ptr += kv_head * stride_value_head
    table_ptr += sequence * stride_table_batch
    running_max = tl.full((BLOCK_HEADS,), float("-inf"), tl.float32)  # of scores, base 2
    running_sum = tl.zeros((BLOCK_HEADS,), tl.float32)
    acc = tl.zeros((BLOCK_HEADS, BLOCK_DIM), tl.float32)

    for start in range(begin, end, BLOCK_TOKENS):
        # Load keys (BLOCK_DIM, BLOCK_TOKENS), values (BLOCK_TOKENS, BLOCK_DIM) through the table.
        # Slots past the end may hold NaN, and 0 · NaN is NaN: they are never loaded.
        token = start + tl.arange(0, BLOCK_TOKENS)
        held = token < end
        index, slot = (token // BLOCK_SIZE).to(tl.int64), (token % BLOCK_SIZE).to(tl.int64)
        block = tl.load(table_ptr + index * stride_table_block, mask=held, other=0).to(tl.int64)
        key_at = block * stride_key_block + slot * stride_key_slot
        value_at = block * stride_value_block + slot * stride_value_slot
        k = tl.load(
            key_ptr + key_at + (dim * stride_key_dim)[:, None],
            mask=held & real_dim[:, None],
            other=0.0,
        )
        v = tl.load(
            value_ptr + value_at[:, None] + dim * stride_value_dim,
            mask=held[:, None] & real_dim,
            other=0.0,
        )
        if WIDEN:
            k, v = k.to(tl.float32), v.to(tl.float32)

        # Compute: one tile of the online softmax.
        scores = tl.dot(q, k, input_precision="ieee") * scale_log2
        scores = tl.where(held, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1))
        rescale = tl.exp2(running_max - new_max)
        weights = tl.exp2(scores - new_max[:, None])
        running_sum = running_sum * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None]
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
        running_max = new_max

    # Store: an empty split (and an empty sequence) is 0 with a log-sum-exp of -inf.
    empty = running_sum == 0
    out = acc / tl.where(empty, 1.0, running_sum)[:, None]
    lse = tl.where(empty, float("-inf"), running_max + tl.log2(tl.where(empty, 1.0, running_sum)))
    heads = tl.num_programs(1) // group_tiles * GROUP
    at = (sequence * heads + head) * tl.num_programs(2) + split
    tl.store(lse_ptr + at, lse, mask=member < GROUP)
    out_at = at[:, None] * HEAD_DIM + dim
    tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=real_row & real_dim)


@triton.jit
def merge_splits_kernel(
    partial_ptr, lse_ptr, out_ptr, splits,
    HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_SPLITS: tl.constexpr,
):  # fmt: skip
    """Grid (batch * heads,); partial: (batch * heads, splits, head_dim), lse: without head_dim."""
    row = tl.program_id(0).to(tl.int64)
    split, dim = tl.arange(0, BLOCK_SPLITS), tl.arange(0, BLOCK_DIM)
    real_split, real_dim = split < splits, dim < HEAD_DIM

    # Load all splits of one query head.
    at = row * splits + split
    lse = tl.load(lse_ptr + at, mask=real_split, other=float("-inf"))
    partial = tl.load(
        partial_ptr + at[:, None] * HEAD_DIM + dim, mask=real_split[:, None] & real_dim, other=0.0
    )

    # Compute: their mean, weighted by the sum of exponentials that each saw.
    largest = tl.max(lse, 0)
    weight = tl.exp2(lse - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(weight, 0)
    out = tl.sum(weight[:, None] * partial, 0) / tl.where(total == 0, 1.0, total)

    # Store.
    tl.store(out_ptr + row * HEAD_DIM + dim, out.to(out_ptr.dtype.element_ty), mask=real_dim)
