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

Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Rabe and Staats,
"Self-attention Does Not Need O(n²) Memory", 2021; Dao et al., "FlashAttention", NeurIPS 2022 (algorithm
1, theorem 2); Dao, "FlashAttention-2", 2023: its order of loops, queries outside, is the one here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tracegen.errors import UserError
from tracegen.events import Event, Scenario
from tracegen.model import Model
from tracegen.model.decoder import rotary_tables, rotate
from tracegen.model.norm import RMSNorm
from tracegen.score_grid import Cost, Grid, block_sizes, row_cost, size, tile_cost

Step = Generator[Event, None, None]


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

    q: (batch, heads, queries, head_dim); k, v: (batch, kv_heads, keys, head_dim); query head h reads
    key/value head h // (heads / kv_heads). Returns the output as q, and (batch, heads, queries) in
    `state_dtype`: at least float32 if not given. Masks: see Grid. Raises UserError for other shapes.
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
    """q as (batch, kv_heads, group, queries, head_dim). Raises UserError where shapes do not fit."""
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
    """Queries and keys of one head of the model's first layer, for these tokens, and their tiles."""

    tokens: tuple[str, ...]
    head: int
    head_dim: int
    block_q: int
    block_k: int
    element_bytes: int


@dataclass(frozen=True, slots=True)
class TileAttended(Event):
    """One tile was folded in. `scores` are of the visible pairs (query_of, key_of); the rest is a
    number for each row of the tile, after it. Bytes and FLOPs are of this step alone."""

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
class TilesSkipped(Event):
    """The rest of a row of tiles holds no visible pair: neither loaded nor computed."""

    row_tile: int
    column_tiles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowTileDone(Event):
    """The outputs of a tile of queries were divided by their sums and written."""

    row_tile: int
    lse: tuple[float, ...]
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class Counted(Event):
    """What one head costs by formula. `phase` is what the pass writes; `on_chip_bytes` is 0 where
    the size of fast memory does not matter."""

    method: str
    phase: str
    queries: int
    head_dim: int
    element_bytes: int
    on_chip_bytes: int
    block_q: int
    block_k: int
    flops: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class Timed(Event):
    """One call of one method; the recorder's clock says how long. Bytes are None where the tiles
    are not ours to know."""

    method: str
    queries: int
    keys: int
    heads: int
    head_dim: int
    dtype: str
    flops: int
    bytes_read: int | None
    bytes_written: int | None


@dataclass(frozen=True, slots=True)
class Rounded(Event):
    """Largest error of an output against float64; `spread` is the scores' standard deviation."""

    method: str
    dtype: str
    spread: float
    max_error: float


@dataclass(frozen=True, slots=True)
class KernelTile(Event):
    """One program of the Triton kernel: a tile of queries over its tiles of keys. `maxima` and
    `totals` are of its last row after each. Native on NVIDIA: the multiprocessor it ran on, and
    when, since the first program's start, by the GPU's own timer."""

    path: str
    head: int
    row_tile: int
    block_q: int
    block_k: int
    maxima: tuple[float, ...]
    totals: tuple[float, ...]
    multiprocessor_measured: int | None
    started_ns: int | None
    ended_ns: int | None


@dataclass(frozen=True, kw_only=True)
class Tiles(Scenario):
    """A sentence through one head of the model's first layer, causal, in small tiles."""

    text: str = "The cat that chased the mouse was tired because the cat had run all day long."
    head: int = 0
    block: int = 4


@dataclass(frozen=True, kw_only=True)
class Traffic(Scenario):
    """Bytes of naive and tiled attention without a mask, for sizes of on-chip memory."""

    lengths: tuple[int, ...] = tuple(2**n for n in range(7, 14))
    on_chip_kib: tuple[int, ...] = (24, 48, 96, 192)
    head_dim: int = 64
    element_bytes: int = 2


@dataclass(frozen=True, kw_only=True)
class Times(Scenario):
    """Causal attention of `queries` last tokens over `keys`, by every method there is here."""

    keys: int
    queries: int
    heads: int = 4
    head_dim: int = 64
    block: int = 128


@dataclass(frozen=True, kw_only=True)
class Rounding(Scenario):
    """Random scores of some spreads, in three dtypes, causal; always on the CPU."""

    spreads: tuple[float, ...] = (1.0, 4.0, 16.0)
    tokens: int = 512
    head_dim: int = 64


@dataclass(frozen=True, kw_only=True)
class Kernel(Scenario):
    """The Triton kernel with its tile log; the interpreter gets the small input."""

    tokens: int = 4096
    heads: int = 8
    interpreted_tokens: int = 96
    interpreted_heads: int = 2


SCENARIOS = [
    Tiles(name="tiles"),
    Traffic(name="traffic"),
    *(
        Times(name=f"times_{n}", preset="quick" if n <= 2048 else "full", keys=n, queries=n)
        for n in (128, 256, 512, 1024, 2048, 4096)
    ),
    *(Times(name=f"decode_{n}", keys=n, queries=1) for n in (1024, 4096)),
    Rounding(name="rounding"),
    Kernel(name="kernel"),
]


def run(s: Scenario, model: Model) -> Step:
    """Run one scenario of any kind."""
    match s:
        case Tiles():
            yield from walk(s, model)
        case Traffic():
            yield from count(s)
        case Times():
            yield from clock(s, model.device)
        case Rounding():
            yield from compare(s)
        case Kernel():
            yield from look_inside(s)


def walk(s: Tiles, model: Model) -> Step:
    """flash_attention's loop over one head, saying what each tile did; then the naive passes."""
    ids = model.tokenizer.encode(s.text)
    q, k, v = (x[0, s.head % x.shape[1]] for x in first_layer(model, ids))
    grid = Grid(len(ids), len(ids), s.block, s.block, causal=True)
    d, e = q.shape[-1], q.element_size()
    texts = tuple(model.tokenizer.token_text(i) for i in ids)
    yield Started(texts, s.head, d, s.block, s.block, e)
    for i, rows in enumerate(grid.row_tiles()):
        state, visited = empty_state(q[rows], torch.float32), grid.column_tiles(rows)
        for j, columns in enumerate(visited):
            seen, before = grid.visible(rows, columns), state
            state = attend_tile(before, q[rows], k[columns], v[columns], seen)
            yield describe(grid, (i, j), q, k, before, state)
        if skipped := tuple(range(len(visited), len(grid.row_tiles()))):
            yield TilesSkipped(i, skipped)
        cost, (_, lse) = row_cost(rows, d, e), finish(state)
        yield RowTileDone(i, tuple(lse.tolist()), cost.bytes_read, cost.bytes_written)
    for phase, cost in grid.naive_costs(d, e).items():
        yield counted("naive", phase, grid, d, e, cost)


