"""FlashAttention: exact attention that never writes the score matrix to memory.

Attention of N queries over N keys makes N² scores. Written to memory, read for the softmax, written
again and read once more, they move far more bytes than Q, K, V and O together. But a softmax can be
taken piece by piece: per query it is enough to remember the largest score so far (m), the sum of
exponentials (l) and the weighted sum of values (o), and to shrink all three when m grows:

    m' = max(m, max S)      r = exp(m - m')      P = exp(S - m')
    l' = r · l + sum P      o' = r · o + P V     at the end: O = o / l,  lse = m + log l

So a tile of queries stays on the chip while tiles of keys and values stream past it.

| symbol | meaning                                                   | shape or unit         |
|--------|-----------------------------------------------------------|-----------------------|
| Q, O   | queries, output                                           | (queries, head_dim)   |
| K, V   | keys, values                                              | (keys, head_dim)      |
| N, d   | length; head_dim                                          | tokens; numbers       |
| S, P   | scores Q Kᵀ / √d of a tile; their exponentials            | (block_q, block_k)    |
| M      | fast memory on the chip that one head's tiles may fill    | numbers               |

Bytes, in numbers: naive 4N² + 4Nd; tiled 2Nd + 2Nd · N/block_q, and as block_q ≈ M/4d, Θ(N²d²/M).

Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Rabe and
Staats, "Self-attention Does Not Need O(n²) Memory", 2021; Dao et al., "FlashAttention", NeurIPS
2022, algorithm 1 and theorem 2; Dao, "FlashAttention-2", 2023: its loop over queries is outside.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tracegen.attention_inputs import first_layer
from tracegen.errors import UserError
from tracegen.events import Event, Scenario
from tracegen.model import Model
from tracegen.score_grid import Grid, row_cost, tile_cost


# --8<-- [start:flash_attention]
class State(NamedTuple):
    """What a tile of queries remembers between tiles of keys."""

    maximum: Tensor  # (…, rows): the largest score so far, -inf before any
    total: Tensor  # (…, rows): sum of exp(score - maximum)
    output: Tensor  # (…, rows, head_dim): sum of exp(score - maximum) · value


def empty_state(q: Tensor, dtype: torch.dtype) -> State:
    """Nothing seen yet, for q (…, rows, head_dim)."""
    zero = torch.zeros_like(q, dtype=dtype)
    return State(torch.full_like(zero[..., 0], -torch.inf), zero[..., 0], zero)


def attend_tile(state: State, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> State:
    """Fold one tile of keys and values, (…, columns, head_dim), into the state of q's rows."""
    dtype = state.output.dtype
    scores = q.to(dtype) @ k.to(dtype).mT / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~seen, -torch.inf)
    maximum = torch.maximum(state.maximum, scores.amax(-1))
    base = maximum.masked_fill(maximum == -torch.inf, 0)  # or a row without keys: -inf - -inf = NaN
    rescale = (state.maximum - base).exp()
    weights = (scores - base[..., None]).exp()
    rounded = weights.to(v.dtype).to(dtype)  # matrix units take both factors in the inputs' dtype
    return State(
        maximum,
        rescale * state.total + weights.sum(-1),
        rescale[..., None] * state.output + rounded @ v.to(dtype),
    )


def finish(state: State) -> tuple[Tensor, Tensor]:
    """Output (…, rows, head_dim) and log-sum-exp (…, rows); 0 and -inf where no key was seen."""
    total = state.total.masked_fill(state.total == 0, 1)
    return state.output / total[..., None], state.maximum + total.log()


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_q: int = 64,
    block_k: int = 64,
    causal: bool = False,
    window: int | None = None,
    state_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / √head_dim) v and its log-sum-exp, tile by tile.

    q: (batch, heads, queries, head_dim); k, v: (batch, kv_heads, keys, head_dim); query head h
    reads key/value head h // (heads / kv_heads). Masks: see Grid. Returns the output as q, and
    (batch, heads, queries) in `state_dtype`, at least float32 if not given. A query that sees no
    key gives 0 and -inf. Raises UserError for shapes that do not fit.
    """
    grid = Grid(q.shape[-2], k.shape[-2], block_q, block_k, causal, window)
    grouped = by_group(q, k, v)
    dtype = state_dtype or torch.promote_types(q.dtype, torch.float32)
    out, lse = torch.empty_like(q), torch.empty_like(q[..., 0], dtype=dtype)
    for rows in grid.row_tiles():
        q_tile = grouped[..., rows, :]
        state = empty_state(q_tile, dtype)
        for columns in grid.column_tiles(rows):
            seen = grid.visible(rows, columns, q.device)
            k_tile, v_tile = k[:, :, None, columns], v[:, :, None, columns]
            state = attend_tile(state, q_tile, k_tile, v_tile, seen)
        out_tile, lse_tile = finish(state)
        out[..., rows, :], lse[..., rows] = out_tile.flatten(1, 2), lse_tile.flatten(1, 2)
    return out, lse


# --8<-- [end:flash_attention]


def by_group(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q as (batch, kv_heads, group, queries, head_dim). Raises UserError if shapes do not fit."""
    fits = q.dim() == k.dim() == 4 and k.shape == v.shape and q.shape[0] == k.shape[0]
    if not (fits and q.shape[3] == k.shape[3] and k.shape[1] and q.shape[1] % k.shape[1] == 0):
        raise UserError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit: give "
            "(batch, heads, length, head_dim), k and v alike, heads a multiple of kv_heads"
        )
    return q.unflatten(1, (k.shape[1], -1))


# --8<-- [start:naive]
def naive_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """The same with all scores in memory, in q's dtype. Shapes as flash_attention's."""
    queries, keys = q.shape[-2], k.shape[-2]
    scores = by_group(q, k, v) @ k[:, :, None].mT / math.sqrt(q.shape[-1])
    if causal:
        grid = Grid(queries, keys, queries, keys, causal)
        seen = grid.visible(slice(0, queries), slice(0, keys), q.device)
        scores.masked_fill_(~seen, -torch.inf)
    return (scores.softmax(-1) @ v[:, :, None]).flatten(1, 2)


# --8<-- [end:naive]


@dataclass(frozen=True, slots=True)
class Started(Event):
    """One head of the model's first layer gets these tokens."""

    tokens: tuple[str, ...]
    head_dim: int
    block: int
    element_bytes: int


@dataclass(frozen=True, slots=True)
class TileAttended(Event):
    """One tile was folded in. `scores` are of its visible pairs (query_of, key_of); maxima, totals
    and rescales are of its rows, after it. FLOPs and bytes are of this step alone."""

    row_tile: int
    column_tile: int
    query_of: tuple[int, ...]
    key_of: tuple[int, ...]
    scores: tuple[float, ...]
    maxima: tuple[float, ...]
    totals: tuple[float, ...]
    rescales: tuple[float, ...]
    flops: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class RowTileDone(Event):
    """The outputs of a tile of queries are written. Its `skipped` tiles were never loaded."""

    row_tile: int
    skipped: tuple[int, ...]
    lse: tuple[float, ...]
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, kw_only=True)
class Tiles(Scenario):
    """A sentence through one head of the model's first layer, causal, in small tiles. A model with
    fewer heads counts round."""

    text: str = "The cat that chased the mouse was tired because the cat had run all day long."
    head: int = 8
    block: int = 4


SCENARIOS = [Tiles(name="tiles")]


def run(s: Tiles, model: Model) -> Generator[Event, None, None]:
    """The loop of flash_attention over one head, saying what each tile did."""
    ids = model.tokenizer.encode(s.text)
    q, k, v = first_layer(model, ids)
    head, group = s.head % q.shape[1], q.shape[1] // k.shape[1]
    q, k, v = q[0, head], k[0, head // group], v[0, head // group]
    grid = Grid(len(ids), len(ids), s.block, s.block, causal=True)
    texts = tuple(map(model.tokenizer.token_text, ids))
    yield Started(texts, q.shape[-1], s.block, q.element_size())
    for rows in grid.row_tiles():
        state = empty_state(q[rows], torch.float32)
        for columns in grid.column_tiles(rows):
            before, seen = state, grid.visible(rows, columns, q.device)
            state = attend_tile(before, q[rows], k[columns], v[columns], seen)
            yield attended(grid, rows, columns, q, k, before, state)
        _, lse = finish(state)
        yield row_done(grid, rows, q, lse)


def attended(
    grid: Grid, rows: slice, columns: slice, q: Tensor, k: Tensor, before: State, after: State
) -> TileAttended:
    """What one tile did; its scores are computed once more, to be seen."""
    seen = grid.visible(rows, columns, q.device)
    query_of, key_of = seen.nonzero(as_tuple=True)
    scores = q[rows] @ k[columns].mT / math.sqrt(q.shape[-1])
    cost = tile_cost(rows, columns, q.shape[-1], q.element_size())
    return TileAttended(
        row_tile=rows.start // grid.block_q,
        column_tile=columns.start // grid.block_k,
        query_of=tuple((query_of + rows.start).tolist()),
        key_of=tuple((key_of + columns.start).tolist()),
        scores=tuple(scores[seen].tolist()),
        maxima=tuple(after.maximum.tolist()),
        totals=tuple(after.total.tolist()),
        rescales=tuple((before.maximum - after.maximum).exp().tolist()),
        flops=cost.flops,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
    )


def row_done(grid: Grid, rows: slice, q: Tensor, lse: Tensor) -> RowTileDone:
    """What a finished tile of queries wrote, and which tiles of its row were skipped."""
    cost = row_cost(rows, q.shape[-1], q.element_size())
    first, tiles = len(grid.column_tiles(rows)), len(grid.row_tiles())
    return RowTileDone(
        row_tile=rows.start // grid.block_q,
        skipped=tuple(range(first, tiles)),
        lse=tuple(lse.tolist()),
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
    )
