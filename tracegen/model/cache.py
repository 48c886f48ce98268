"""What the decoder asks of a key/value cache, and the simplest cache that answers."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Cache(Protocol):
    """Keys and values of past tokens.  A token's position is its slot; there is no left padding.

    `lengths` holds the number of tokens kept for each row *before* the running pass, as Python
    integers, so that reading it never waits for the device.  Slot j of row b is visible to the
    pass's query i if and only if `j <= lengths[b] + i`.
    """

    lengths: list[int]

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store `k` and `v` (batch, kv_heads, new, head_dim) at each row's own next slots.

        Returns all keys and values held, the new ones included, (batch, kv_heads, held, head_dim)
        with `held >= max(lengths) + new`.  Slots that hold no token must be finite: attention
        gives them weight 0, and 0 times NaN is NaN.
        """
        ...

    def advance(self, counts: list[int]) -> None:
        """Count the pass's real tokens of each row.  The decoder calls it after the last layer."""
        ...


class GrowingCache:
    """Appends with `torch.cat`, which copies the whole cache at every step.  Equal rows only."""

    def __init__(self, batch: int = 1) -> None:
        self.lengths = [0] * batch
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if layer == len(self.keys):
            self.keys.append(k)
            self.values.append(v)
        else:
            self.keys[layer] = torch.cat((self.keys[layer], k), dim=2)
            self.values[layer] = torch.cat((self.values[layer], v), dim=2)
        return self.keys[layer], self.values[layer]

    def advance(self, counts: list[int]) -> None:
        if len(set(counts)) != 1:
            raise ValueError(f"GrowingCache keeps rows of one length, got {counts}")
        self.lengths = [held + new for held, new in zip(self.lengths, counts, strict=True)]
