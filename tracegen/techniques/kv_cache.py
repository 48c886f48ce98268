"""The KV cache: keep the keys and values of past tokens instead of computing them again.

A new token attends to all tokens before it. Their keys and values depend only on those tokens, so
they never change; computing them anew at each step makes the work of an answer quadratic. The
cache keeps them, in slots, one a token:

    bytes = 2 · L · H · D · e · tokens          (keys and values)

| symbol | meaning                | unit    |
|--------|------------------------|---------|
| L      | layers                 | count   |
| H      | key/value heads        | count   |
| D      | head_dim               | numbers |
| e      | size of one number     | bytes   |

Multi-head attention has H = query heads, multi-query H = 1, grouped-query something between.

Sources: Pope et al., "Efficiently Scaling Transformer Inference", MLSys 2023, section 2;
Shazeer, "Fast Transformer Decoding", 2019 (MQA); Ainslie et al., "GQA", EMNLP 2023.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from tracegen.errors import UserError
from tracegen.events import Event, Scenario
from tracegen.model import Cache, GrowingCache, Model, Sampler
from tracegen.model.cost import forward_cost
from tracegen.workloads import filler_tokens


class CacheFull(UserError):
    """A row has no slot left for its new tokens."""


# --8<-- [start:kv_cache]
class KVCache:
    """A contiguous cache: all slots reserved at once, each row filled from slot 0 on.

    `keys` and `values` are (layers, batch, kv_heads, capacity, head_dim). Row b holds `lengths[b]`
    tokens; the slots beyond are zero or left over from padding, and attention masks them.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        batch: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (num_layers, batch, num_kv_heads, capacity, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths = [0] * batch
        self.capacity = capacity

    @property
    def nbytes(self) -> int:
        """Bytes reserved, used or not."""
        return self.keys.nbytes + self.values.nbytes

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v (batch, kv_heads, new, head_dim) at each row's next slots; read it all.

        A pass goes through the layers in order, from 0.  Raises CacheFull before anything is
        written when a row lacks slots (padding takes some too).
        """
        if layer == 0:
            self._start_pass(k.shape[2])
        for rows, new_keys, new_values in self._new:
            new_keys[layer].copy_(k[rows])
            new_values[layer].copy_(v[rows])
        return self._held_keys[layer], self._held_values[layer]

    def _start_pass(self, new: int) -> None:
        """Take all layers' views at once: the slots to fill, and all to read, the new included."""
        end = max(self.lengths) + new
        if end > self.capacity:
            raise CacheFull(
                f"the cache has {self.capacity} slots a row and needs {end}: "
                "make it larger or stop the row"
            )
        self._held_keys = self.keys[:, :, :, :end].unbind()
        self._held_values = self.values[:, :, :, :end].unbind()
        starts: list[tuple[int | slice, int]] = list(enumerate(self.lengths))
        if len(set(self.lengths)) == 1:
            starts = [(slice(None), end - new)]  # all rows with one copy
        self._new = [
            (
                rows,
                self.keys[:, rows, :, start : start + new].unbind(),
                self.values[:, rows, :, start : start + new].unbind(),
            )
            for rows, start in starts
        ]

    def get(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the slots up to the longest row's last, as views."""
        end = max(self.lengths)
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def advance(self, counts: list[int]) -> None:
        """Count each row's new real tokens, once a pass, after its last layer."""
        self.lengths = [held + count for held, count in zip(self.lengths, counts, strict=True)]


# --8<-- [end:kv_cache]


@dataclass(frozen=True, slots=True)
class Allocated(Event):
    """A contiguous cache of this shape was reserved."""

    shape_of: str
    heads: str
    layers: int
    batch: int
    kv_heads: int
    head_dim: int
    capacity_tokens: int
    element_bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class Stepped(Event):
    """One forward pass. `written` and `lengths` are slots a row, new and in all; `copied_bytes` is
    what a growing cache moved only to make room."""

    cache: str
    fed_tokens: int
    written: tuple[int, ...]
    lengths: tuple[int, ...]
    flops: int
    bytes_read: int
    bytes_written: int
    copied_bytes: int
    used_bytes: int
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """The next pass did not fit; nothing was written."""

    lengths: tuple[int, ...]
    capacity_tokens: int


@dataclass(frozen=True, kw_only=True)
class Slots(Scenario):
    """Rows of different lengths in one cache, with `spare` slots beyond the longest prompt,
    decoded until that row is full."""

    prompts: tuple[str, ...] = (
        "The sea",
        "Once upon a time there was",
        "One, two, three, four, five, six,",
    )
    spare: int = 9


@dataclass(frozen=True, kw_only=True)
class Contexts(Scenario):
    """A few steps after `context` tokens, with one kind of cache, or none."""

    cache: str
    context: int
    steps: int = 3


@dataclass(frozen=True, kw_only=True)
class Sizes(Scenario):
    """Caches of known models, reserved on torch's "meta" device: shapes and bytes, no memory."""

    lengths: tuple[int, ...] = tuple(2**n for n in range(10, 18))


# (layers, query heads, key/value heads, head_dim) from each model's config.json
SHAPES = {
    "Llama-3-8B": (32, 32, 8, 128),
    "Qwen3-8B": (36, 32, 8, 128),
    "SmolLM2-135M": (30, 9, 3, 64),
    "OPT-13B": (40, 40, 40, 128),
}

SCENARIOS = [
    Slots(name="slots"),
    *(
        Contexts(
            name=f"{cache}_{context}",
            preset="quick" if context in (16, 64, 256) else "full",
            cache=cache,
            context=context,
        )
        for cache in ("none", "growing", "contiguous")
        for context in (16, 32, 64, 128, 256, 512, 1024)
    ),
    Sizes(name="sizes"),
]


def run(s: Scenario, model: Model) -> Generator[Event, None, None]:
    """Run one scenario of any kind."""
    match s:
        case Slots():
            yield from fill_slots(s, model)
        case Contexts():
            yield from step_on(s, model)
        case Sizes():
            yield from reserve(s)


def fill_slots(s: Slots, model: Model) -> Generator[Event, None, None]:
    """Prefill rows of different lengths, then decode all of them until one is full."""
    prompts = [model.tokenizer.encode(text) for text in s.prompts]
    counts = [len(ids) for ids in prompts]
    cache = new_cache(model, max(counts) + s.spare, batch=len(prompts))
    shape = model.config
    yield Allocated(
        shape_of=model.name,
        heads="own",
        layers=shape.num_layers,
        batch=len(prompts),
        kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        capacity_tokens=cache.capacity,
        element_bytes=model.dtype.itemsize,
        cache_bytes=cache.nbytes,
    )
    padded = torch.tensor([ids + [0] * (max(counts) - len(ids)) for ids in prompts])
    logits = model.forward(padded, cache, lengths=counts, last_only=True)
    token = Sampler()(logits[:, -1])
    yield describe(model, "contiguous", cache, counts, fed=padded.shape[1], token=token)
    while True:
        try:
            logits = model.forward(token[:, None], cache, last_only=True)
        except CacheFull:
            yield Refused(tuple(cache.lengths), cache.capacity)
            return
        token = Sampler()(logits[:, -1])
        yield describe(model, "contiguous", cache, [1] * len(prompts), fed=1, token=token)


def step_on(s: Contexts, model: Model) -> Generator[Event, None, None]:
    """Read `context` tokens, then add a few, with the scenario's cache or by recomputing."""
    ids = filler_tokens(model.tokenizer, s.context)
    if s.cache == "none":
        for _ in range(s.steps):
            logits = model.forward(torch.tensor([ids]), last_only=True)
            token = Sampler()(logits[:, -1])
            yield describe(model, s.cache, None, [len(ids)], fed=len(ids), token=token)
            ids = [*ids, int(token)]
        return
    cache: Cache = GrowingCache()
    if s.cache == "contiguous":
        cache = new_cache(model, s.context + s.steps)
    logits = model.forward(torch.tensor([ids]), cache, last_only=True)
    token = Sampler()(logits[:, -1])
    yield describe(model, s.cache, cache, [len(ids)], fed=len(ids), token=token)
    for _ in range(s.steps):
        logits = model.forward(token[:, None], cache, last_only=True)
        token = Sampler()(logits[:, -1])
        yield describe(model, s.cache, cache, [1], fed=1, token=token)


def reserve(s: Sizes) -> Generator[Event, None, None]:
    """Reserve a cache for each model, kind of heads and length, in bfloat16."""
    for name, (layers, heads, kv_heads, head_dim) in SHAPES.items():
        for kind, count in {"multi-head": heads, "own": kv_heads, "multi-query": 1}.items():
            for length in s.lengths:
                cache = KVCache(
                    layers, count, head_dim, length, dtype=torch.bfloat16, device="meta"
                )
                yield Allocated(name, kind, layers, 1, count, head_dim, length, 2, cache.nbytes)


def new_cache(model: Model, capacity: int, batch: int = 1) -> KVCache:
    """A KVCache of the model's shape, dtype and device."""
    shape = model.config
    return KVCache(
        shape.num_layers,
        shape.num_kv_heads,
        shape.head_dim,
        capacity,
        batch=batch,
        dtype=model.dtype,
        device=model.device,
    )


def describe(
    model: Model, kind: str, cache: Cache | None, counts: list[int], *, fed: int, token: Tensor
) -> Stepped:
    """What a pass wrote and moved, by formula; called after it. `fed` is tokens a row with padding.

    A growing cache reads and writes all it held once more. Without a cache nothing is kept: its
    keys and values are activations, which the formulas leave out.
    """
    shape = model.config
    lengths = cache.lengths if cache else counts
    before = [held - count for held, count in zip(lengths, counts, strict=True)]
    cost = forward_cost(
        shape,
        new_tokens=counts,
        held_tokens=before,
        element_bytes=model.dtype.itemsize,
        last_only=True,
    )
    per_token = cost.kv_written_bytes // sum(counts)
    copied = sum(before) * per_token if kind == "growing" else 0
    kept = cache is not None
    return Stepped(
        cache=kind,
        fed_tokens=fed,
        written=tuple(counts) if kept else (0,) * len(counts),
        lengths=tuple(lengths),
        flops=cost.flops,
        bytes_read=cost.weight_bytes + kept * cost.kv_read_bytes + copied,
        bytes_written=kept * cost.kv_written_bytes + copied,
        copied_bytes=copied,
        used_bytes=kept * sum(lengths) * per_token,
        texts=tuple(model.tokenizer.token_text(t) for t in token.tolist()),
    )
