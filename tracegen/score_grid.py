"""Attention's score matrix as a grid of tiles: who sees whom, and what a pass over it costs.

Shared by everything that walks over scores in tiles. Costs are of one head, by formula: products
of matrices are counted (2 FLOPs for each number multiplied and added), exponentials are not; bytes
are those that cross to memory, without caches between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tracegen.errors import UserError

LSE_BYTES = 4  # the log-sum-exp of a row is kept in float32


@dataclass(frozen=True, slots=True)
class Cost:
    """Arithmetic and memory traffic."""

    flops: int
    bytes_read: int
    bytes_written: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )

    def __mul__(self, times: int) -> Cost:
        return Cost(self.flops * times, self.bytes_read * times, self.bytes_written * times)


@dataclass(frozen=True, slots=True)
class Grid:
    """The scores (queries, keys) in tiles of (block_q, block_k), the last ones ragged.

    Query i stands at position `i + keys - queries`: aligned at the bottom right. Causal: it sees no
    later key. A window of w: only the last w keys up to its own position (this implies causal).
    Raises UserError for a size below 1.
    """

    queries: int
    keys: int
    block_q: int
    block_k: int
    causal: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("queries", "keys", "block_q", "block_k", "window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}: give 1 or more")

    # --8<-- [start:tiles]
    def row_tiles(self) -> list[slice]:
        """The tiles of queries."""
        return cut(0, self.queries, self.block_q, self.queries)

    def column_tiles(self, rows: slice) -> list[slice]:
        """The tiles of keys in which some query of `rows` sees a key. The others are skipped."""
        first, stop, shift = 0, self.keys, self.keys - self.queries
        if self.causal or self.window is not None:
            stop = rows.stop + shift
        if self.window is not None:
            first = max(0, rows.start + shift - self.window + 1)
        return cut(first // self.block_k * self.block_k, stop, self.block_k, self.keys)

    def visible(self, rows: slice, columns: slice, device: torch.device | str = "cpu") -> Tensor:
        """Which key of a tile each query sees, (rows, columns) bool."""
        position = torch.arange(rows.start, rows.stop, device=device)[:, None]
        position += self.keys - self.queries
        key = torch.arange(columns.start, columns.stop, device=device)
        seen = torch.ones(len(position), len(key), dtype=torch.bool, device=device)
        if self.causal or self.window is not None:
            seen &= key <= position
        if self.window is not None:
            seen &= key > position - self.window
        return seen

    # --8<-- [end:tiles]

    def tiled_cost(self, head_dim: int, element_bytes: int) -> Cost:
        """All tiles: queries once, keys and values once a tile of queries, outputs once."""
        total = Cost(0, 0, 0)
        for rows in self.row_tiles():
            total += row_cost(rows, head_dim, element_bytes)
            columns = self.column_tiles(rows)
            if columns:  # they follow one another
                whole = slice(columns[0].start, columns[-1].stop)
                total += tile_cost(rows, whole, head_dim, element_bytes)
        return total

    def naive_costs(self, head_dim: int, element_bytes: int) -> dict[str, Cost]:
        """Three passes over the whole matrix, mask or not: by what each writes."""
        pairs, e = self.queries * self.keys, element_bytes
        q_bytes, k_bytes = self.queries * head_dim * e, self.keys * head_dim * e
        return {
            "scores": Cost(2 * pairs * head_dim, q_bytes + k_bytes, pairs * e),
            "weights": Cost(0, pairs * e, pairs * e),
            "output": Cost(2 * pairs * head_dim, pairs * e + k_bytes, q_bytes),
        }

    def naive_cost(self, head_dim: int, element_bytes: int) -> Cost:
        """The sum of these passes."""
        return sum(self.naive_costs(head_dim, element_bytes).values(), Cost(0, 0, 0))


def cut(first: int, stop: int, block: int, end: int) -> list[slice]:
    """Slices of `block` numbers from `first` on that cover all before `stop`, none past `end`."""
    return [slice(i, min(i + block, end)) for i in range(first, stop, block)]


def size(part: slice) -> int:
    """How many rows or columns a tile has."""
    return int(part.stop - part.start)


def row_cost(rows: slice, head_dim: int, element_bytes: int) -> Cost:
    """Reading a tile of queries; writing its outputs and their log-sum-exp."""
    q_bytes = size(rows) * head_dim * element_bytes
    return Cost(0, q_bytes, q_bytes + size(rows) * LSE_BYTES)


def tile_cost(rows: slice, columns: slice, head_dim: int, element_bytes: int) -> Cost:
    """Reading keys and values of `columns`, and both products with all of `rows`."""
    return Cost(
        flops=4 * size(rows) * size(columns) * head_dim,
        bytes_read=2 * size(columns) * head_dim * element_bytes,
        bytes_written=0,
    )


def block_sizes(on_chip_numbers: int, head_dim: int) -> tuple[int, int]:
    """(block_q, block_k) that fill a fast memory of M numbers: ⌈M / 4d⌉, and at most d of them.

    Dao et al., "FlashAttention", algorithm 1, line 1, where the tile that stays is of keys; here
    queries stay, so the two change places.
    """
    stays = math.ceil(on_chip_numbers / (4 * head_dim))
    return stays, min(stays, head_dim)
