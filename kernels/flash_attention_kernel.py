"""The Triton kernel of `kernels.flash_attention`: one query tile against the key tiles it sees.

Online softmax (Milakov and Gimelshein 2018; FlashAttention-2, Dao 2023, algorithm 1): with m the
running maximum of a row, l its running sum and O its unnormalised output, a tile of scores S does

    m' = max(m, max S),  P = exp(S − m'),  α = exp(m − m'),  l' = α l + Σ P,  O' = α O + P V.

The kernel computes in base 2: exp(x) = exp2(x · log2 e), and log2 e is folded into the scale.
Key tiles come in three runs: cut by the window's edge, wholly visible (no mask at all), and cut by
the diagonal or by the last key. Tiles that no row of the query tile sees are never loaded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.launch import INTERPRETED

LN2 = tl.constexpr(0.6931471805599453)

# The interpreter holds bf16 as raw uint16, which tl.dot would multiply as integers (triton#5895).
WIDEN = tl.constexpr(INTERPRETED)


@triton.jit
def _load_rows(
    ptr, first, rows, stride_n, stride_d,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, TAIL: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    """(ROWS, BLOCK_D) of a (rows, HEAD_DIM) matrix, from row `first` on; 0 beyond its edges.

    Only with TAIL may `first + ROWS` exceed `rows`. With TMA `ptr` is a tensor descriptor.
    """
    if TMA:
        x = ptr.load([tl.cast(first, tl.int32), 0])
    else:
        row = tl.arange(0, ROWS)[:, None]
        column = tl.arange(0, BLOCK_D)[None, :]
        start = ptr + tl.cast(first, tl.int64) * stride_n
        at = start + row.to(tl.int64) * stride_n + column.to(tl.int64) * stride_d
        if TAIL:
            x = tl.load(at, mask=(first + row < rows) & (column < HEAD_DIM), other=0.0)
        elif HEAD_DIM != BLOCK_D:
            x = tl.load(at, mask=column < HEAD_DIM, other=0.0)
        else:
            x = tl.load(at)
    if WIDEN and x.dtype == tl.bfloat16:
        x = x.to(tl.float32)
    return x


@triton.jit
def _attend(
    acc, running_max, running_sum, start, stop,
    q, k_ptr, v_ptr, log_max_ptr, log_sum_ptr,
    stride_kn, stride_kd, stride_vn, stride_vd,
    position, in_tile, keys, window, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr, LOG: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, SPECIALIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the key tiles from `start` to `stop` into a row's state, in log2 units."""
    for first in tl.range(start, stop, BLOCK_N, warp_specialize=SPECIALIZE):
        # Load K (BLOCK_N, BLOCK_D); scores (BLOCK_M, BLOCK_N) in float32, not yet scaled.
        k = _load_rows(
            k_ptr, first, keys, stride_kn, stride_kd, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED, TMA
        )
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if MASKED:
            key = first + tl.arange(0, BLOCK_N)[None, :]
            seen = key < keys
            if CAUSAL:
                seen = seen & (key <= position[:, None])
            if WINDOWED:
                seen = seen & (key > position[:, None] - window)
            scores = tl.where(seen, scores, -float("inf"))

        # Compute the new maximum, and what it does to all that came before.
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)
        base = new_max
        if MASKED:  # a row that has seen no key yet: −inf − (−inf) would be NaN
            base = tl.where(new_max == -float("inf"), 0.0, new_max)
        p = tl.exp2(scores * scale_log2 - base[:, None])
        alpha = tl.exp2(running_max - base)
        running_sum = running_sum * alpha + tl.sum(p, 1)
        running_max = new_max
        acc = acc * alpha[:, None]

        # Load V (BLOCK_N, BLOCK_D); rows beyond the last key are 0, since 0 · NaN is NaN.
        v = _load_rows(
            v_ptr, first, keys, stride_vn, stride_vd, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED, TMA
        )
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)

        if LOG:  # store the state after this tile: the maximum in natural units
            at = tl.cast(first // BLOCK_N, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
            tl.store(log_max_ptr + at, running_max * LN2, mask=in_tile)
            tl.store(log_sum_ptr + at, running_sum, mask=in_tile)
    return acc, running_max, running_sum


@triton.jit
def _query_tile(
    tile, q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    log_max_ptr, log_sum_ptr, log_sm_ptr, log_start_ptr, log_end_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_on, stride_od,
    heads, group, queries, keys, window, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr, LOG: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """Attend from BLOCK_M queries of one head. Within a head the longest rows go first."""
    query_tiles = tl.cdiv(queries, BLOCK_M)
    head_of_batch = tile // query_tiles
    m = query_tiles - 1 - tile % query_tiles
    batch = (head_of_batch // heads).to(tl.int64)
    head = (head_of_batch % heads).to(tl.int64)
    kv_head = head // group
    log_row = head_of_batch.to(tl.int64) * query_tiles + m
    if LOG and log_start_ptr is not None:
        sm = tl.inline_asm_elementwise(
            "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
        begun = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
        tl.store(log_sm_ptr + log_row, sm)
        tl.store(log_start_ptr + log_row, begun)

    # Which keys some row of this tile sees, [start, stop), and which all of them see, in tiles.
    first_row = m * BLOCK_M
    row = first_row + tl.arange(0, BLOCK_M)
    in_tile = row < queries
    shift = keys - queries
    last_row = tl.minimum(first_row + BLOCK_M, queries) - 1
    start, all_start, stop, all_stop = 0, 0, keys, keys
    if CAUSAL:
        stop = tl.maximum(last_row + shift + 1, 0)
        all_stop = tl.maximum(first_row + shift + 1, 0)
    if WINDOWED:
        start = tl.maximum(first_row + shift - window + 1, 0) // BLOCK_N * BLOCK_N
        all_start = tl.cdiv(tl.maximum(last_row + shift - window + 1, 0), BLOCK_N) * BLOCK_N
    all_stop = tl.maximum(all_stop // BLOCK_N * BLOCK_N, all_start)

    # Load Q (BLOCK_M, BLOCK_D): it stays.
    q = _load_rows(
        q_ptr + batch * stride_qb + head * stride_qh,
        first_row, queries, stride_qn, stride_qd, BLOCK_M, HEAD_DIM, BLOCK_D, True, False,
    )  # fmt: skip
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    if TMA:
        k = tl.make_tensor_descriptor(
            k_ptr, [keys, HEAD_DIM], [tl.cast(stride_kn, tl.int64), 1], [BLOCK_N, BLOCK_D]
        )
        v = tl.make_tensor_descriptor(
            v_ptr, [keys, HEAD_DIM], [tl.cast(stride_vn, tl.int64), 1], [BLOCK_N, BLOCK_D]
        )
    else:
        k, v = k_ptr, v_ptr
    if LOG:
        log_max_ptr += log_row * tl.cdiv(keys, BLOCK_N) * BLOCK_M
        log_sum_ptr += log_row * tl.cdiv(keys, BLOCK_N) * BLOCK_M

    # Compute over the three runs of key tiles.
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    running_max = tl.full([BLOCK_M], -float("inf"), tl.float32)
    running_sum = tl.zeros([BLOCK_M], tl.float32)
    if WINDOWED:
        acc, running_max, running_sum = _attend(
            acc, running_max, running_sum, start, tl.minimum(all_start, stop),
            q, k, v, log_max_ptr, log_sum_ptr,
            stride_kn, stride_kd, stride_vn, stride_vd, row + shift, in_tile, keys, window,
            scale_log2, HEAD_DIM, BLOCK_D, CAUSAL, WINDOWED, PRECISION, LOG, BLOCK_M, BLOCK_N,
            TMA, False, True,
        )  # fmt: skip
    acc, running_max, running_sum = _attend(
        acc, running_max, running_sum, all_start, all_stop,
        q, k, v, log_max_ptr, log_sum_ptr,
        stride_kn, stride_kd, stride_vn, stride_vd, row + shift, in_tile, keys, window,
        scale_log2, HEAD_DIM, BLOCK_D, CAUSAL, WINDOWED, PRECISION, LOG, BLOCK_M, BLOCK_N,
        TMA, SPECIALIZE, False,
    )  # fmt: skip
    acc, running_max, running_sum = _attend(
        acc, running_max, running_sum, all_stop, stop,
        q, k, v, log_max_ptr, log_sum_ptr,
        stride_kn, stride_kd, stride_vn, stride_vd, row + shift, in_tile, keys, window,
        scale_log2, HEAD_DIM, BLOCK_D, CAUSAL, WINDOWED, PRECISION, LOG, BLOCK_M, BLOCK_N,
        TMA, False, True,
    )  # fmt: skip

    # Store O and the log-sum-exp; a row that saw no key has sum 0 and maximum −inf: 0 and −inf.
    running_sum = tl.where(running_sum == 0.0, 1.0, running_sum)
    acc = acc / running_sum[:, None]
    column = tl.arange(0, BLOCK_D)[None, :]
    at = o_ptr + batch * stride_ob + head * stride_oh
    at += row.to(tl.int64)[:, None] * stride_on + column.to(tl.int64) * stride_od
    tl.store(at, acc.to(o_ptr.dtype.element_ty), mask=in_tile[:, None] & (column < HEAD_DIM))
    if lse_ptr is not None:
        lse = (running_max + tl.log2(running_sum)) * LN2
        tl.store(lse_ptr + (head_of_batch.to(tl.int64) * queries + row), lse, mask=in_tile)
    if LOG and log_end_ptr is not None:
        ended = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
        tl.store(log_end_ptr + log_row, ended)


@triton.jit(do_not_specialize=["queries", "keys", "window", "tuning_class"])
def _flash_attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    log_max_ptr, log_sum_ptr, log_sm_ptr, log_start_ptr, log_end_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_on, stride_od,
    batch, heads, group, queries, keys, window, scale_log2, tuning_class,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr = False, PERSISTENT: tl.constexpr = False,
    SPECIALIZE: tl.constexpr = False, LOG: tl.constexpr = False,
):  # fmt: skip
    """Query tiles of all heads: one a program, or every `num_programs`-th if persistent.

    `tuning_class` is read by the autotuner only. The log pointers may be None unless LOG.
    """
    if PERSISTENT:
        tiles = batch * heads * tl.cdiv(queries, BLOCK_M)
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
            _query_tile(
                tl.cast(tile, tl.int32), q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
                log_max_ptr, log_sum_ptr, log_sm_ptr, log_start_ptr, log_end_ptr,
                stride_qb, stride_qh, stride_qn, stride_qd,
                stride_kb, stride_kh, stride_kn, stride_kd,
                stride_vb, stride_vh, stride_vn, stride_vd,
                stride_ob, stride_oh, stride_on, stride_od,
                heads, group, queries, keys, window, scale_log2, HEAD_DIM, BLOCK_D, CAUSAL,
                WINDOWED, PRECISION, LOG, BLOCK_M, BLOCK_N, TMA, SPECIALIZE,
            )  # fmt: skip
    else:
        _query_tile(
            tl.program_id(0), q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
            log_max_ptr, log_sum_ptr, log_sm_ptr, log_start_ptr, log_end_ptr,
            stride_qb, stride_qh, stride_qn, stride_qd,
            stride_kb, stride_kh, stride_kn, stride_kd,
            stride_vb, stride_vh, stride_vn, stride_vd,
            stride_ob, stride_oh, stride_on, stride_od,
            heads, group, queries, keys, window, scale_log2, HEAD_DIM, BLOCK_D, CAUSAL,
            WINDOWED, PRECISION, LOG, BLOCK_M, BLOCK_N, TMA, SPECIALIZE,
        )  # fmt: skip
