"""The KV cache: whole generations against recomputation, the listing's faults, bytes by formula."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.listings import kv_cache as listing
from tracegen.events import event_types
from tracegen.model import GrowingCache
from tracegen.model.decoder import Model
from tracegen.techniques import kv_cache
from tracegen.techniques.kv_cache import (
    SCENARIOS,
    SHAPES,
    Allocated,
    CacheFull,
    Contexts,
    KVCache,
    Refused,
    Slots,
    Stepped,
    new_cache,
    run,
)


def small(capacity=4, batch=1) -> KVCache:
    return KVCache(1, 1, 2, capacity, batch=batch)


def kv(*values: float) -> torch.Tensor:
    """One row of keys: a token for each value, (1, 1, new, 2)."""
    return torch.tensor([[[[v, -v] for v in values]]])


def decode_all(model: Model, cache, prompts: list[list[int]], steps: int) -> torch.Tensor:
    """Logits (batch, 1 + steps, vocab) of a ragged prefill and greedy steps."""
    counts = [len(ids) for ids in prompts]
    padded = torch.tensor([ids + [0] * (max(counts) - len(ids)) for ids in prompts])
    logits = [model.forward(padded, cache, lengths=counts, last_only=True)]
    for _ in range(steps):
        token = logits[-1][:, -1].argmax(-1)
        logits.append(model.forward(token[:, None], cache, last_only=True))
    return torch.cat(logits, dim=1)


def test_cached_equals_recomputed(tiny):
    prompt = [3, 1, 4, 1, 5, 9]
    cache = new_cache(tiny, 16)
    cached = decode_all(tiny, cache, [prompt], 3)
    tokens = prompt + cached[0, :3].argmax(-1).tolist()
    full = tiny.forward(torch.tensor([tokens]))
    assert cache.lengths == [9]
    torch.testing.assert_close(cached[0], full[0, 5:], rtol=0, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=7), min_size=1, max_size=4),
    steps=st.integers(0, 4),
)
def test_every_row_of_a_ragged_batch_equals_that_row_alone(tiny, prompts, steps):
    together = decode_all(tiny, new_cache(tiny, 12, batch=len(prompts)), prompts, steps)
    for row, prompt in enumerate(prompts):
        alone = decode_all(tiny, new_cache(tiny, 12), [prompt], steps)
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-5)


def test_positions_of_rows_of_length_three_and_five(tiny):
    cache = new_cache(tiny, 12, batch=2)
    decode_all(tiny, cache, [[1, 2, 3], [1, 2, 3, 4, 5]], 0)
    assert cache.lengths == [3, 5]  # the next tokens' positions
    decode_all(tiny, cache, [[7], [8]], 0)
    assert cache.lengths == [4, 6]


def test_growing_and_contiguous_caches_hold_the_same(tiny):
    growing, contiguous = GrowingCache(), new_cache(tiny, 20)
    a = decode_all(tiny, growing, [[1, 2, 3, 4]], 5)
    b = decode_all(tiny, contiguous, [[1, 2, 3, 4]], 5)
    assert torch.equal(a, b)
    for layer in range(tiny.config.num_layers):
        keys, values = contiguous.get(layer)
        assert torch.equal(keys, growing.keys[layer])
        assert torch.equal(values, growing.values[layer])


def test_a_full_cache_refuses_before_it_writes(tiny):
    cache = new_cache(tiny, 5)
    decode_all(tiny, cache, [[1, 2, 3, 4]], 1)
    before = cache.keys.clone(), cache.values.clone(), list(cache.lengths)
    with pytest.raises(CacheFull, match="has 5 slots a row and needs 6: make it larger"):
        tiny.forward(torch.tensor([[1]]), cache)
    assert torch.equal(cache.keys, before[0])
    assert torch.equal(cache.values, before[1])
    assert cache.lengths == before[2] == [5]


def test_one_full_row_refuses_for_all():
    cache = small(capacity=3, batch=2)
    cache.lengths = [1, 3]
    with pytest.raises(CacheFull):
        cache.update(0, torch.ones(2, 1, 1, 2), torch.ones(2, 1, 1, 2))
    assert not cache.keys.any()


def test_reserved_bytes():
    cache = KVCache(30, 3, 64, 100, batch=2, dtype=torch.bfloat16)
    assert cache.nbytes == 2 * 30 * 3 * 64 * 2 * 100 * 2
    assert cache.keys.shape == cache.values.shape == (30, 2, 3, 100, 64)


def test_views_not_copies():
    cache = small()
    keys, _ = cache.update(0, kv(1.0), kv(2.0))
    assert keys.data_ptr() == cache.keys.data_ptr()


def test_unwritten_slots_are_finite():
    assert torch.isfinite(small(capacity=1000).values).all()


# The founding listing, run as it was.


def listed() -> listing.KVCache:
    return listing.KVCache(n_layers=1, n_kv_heads=1, head_dim=2, max_seq=4)


def test_listing_overwrites_slot_zero():
    theirs, ours = listed(), small()
    for value in (1.0, 2.0):
        theirs.update(0, torch.full((1, 2), value), torch.full((1, 2), value))
        ours.update(0, kv(value), kv(value))
        ours.advance([1])
    assert theirs.cache_k[0, :, 0, 0].tolist() == [2.0, 0.0, 0.0, 0.0]
    assert ours.keys[0, 0, 0, :, 0].tolist() == [1.0, 2.0, 0.0, 0.0]


def test_listing_leaves_out_the_token_just_written():
    theirs, ours = listed(), small()
    theirs.update(0, torch.ones(1, 2), torch.ones(1, 2))
    assert len(theirs.get(0)[0]) == 0
    keys, _ = ours.update(0, kv(1.0), kv(1.0))
    assert keys.shape[2] == 1


def test_listing_fails_deep_inside_when_full():
    theirs = listed()
    theirs.pos = 4
    with pytest.raises(IndexError):
        theirs.update(0, torch.ones(1, 2), torch.ones(1, 2))


def test_one_position_for_all_rows_reads_padding(tiny):
    """What a shared position does: the short row sees padding, the long one is right."""

    class OnePosition(KVCache):
        def advance(self, counts):
            self.lengths = [max(self.lengths) + max(counts)] * len(self.lengths)

    prompts = [[1, 2, 3], [1, 2, 3, 4, 5]]
    shape = tiny.config
    shared = OnePosition(
        shape.num_layers, shape.num_kv_heads, shape.head_dim, 12, batch=2, dtype=tiny.dtype
    )
    wrong = decode_all(tiny, shared, prompts, 2)
    right = decode_all(tiny, new_cache(tiny, 12, batch=2), prompts, 2)
    torch.testing.assert_close(wrong[1], right[1], rtol=0, atol=1e-5)
    assert (wrong[0, 1:] - right[0, 1:]).abs().max() > 1e-2


# What `run` says.


def test_every_event_type_and_branch_is_reached(tiny):
    found = [event for s in SCENARIOS if s.preset == "quick" for event in run(s, tiny)]
    assert {type(event) for event in found} == set(event_types(kv_cache))
    assert {e.cache for e in found if isinstance(e, Stepped)} == {"none", "growing", "contiguous"}
    assert {e.heads for e in found if isinstance(e, Allocated)} == {
        "own", "multi-head", "multi-query"
    }  # fmt: skip


def test_slots_fill_until_the_longest_row_is_full(tiny):
    allocated, *steps, refused = run(Slots(name="s", prompts=("ab", "abcd"), spare=3), tiny)
    assert allocated.cache_bytes == allocated.batch * 7 * per_token_bytes(tiny)
    assert [s.lengths for s in steps] == [(2, 4), (3, 5), (4, 6), (5, 7)]
    assert [s.written for s in steps] == [(2, 4), (1, 1), (1, 1), (1, 1)]
    assert steps[-1].used_bytes == 12 * per_token_bytes(tiny)
    assert refused == Refused((5, 7), 7)


def per_token_bytes(model: Model) -> int:
    c = model.config
    return 2 * c.num_layers * c.num_kv_heads * c.head_dim * model.dtype.itemsize


def test_three_ways_write_the_same_text(tiny):
    texts = {}
    for cache in ("none", "growing", "contiguous"):
        steps = list(run(Contexts(name=cache, cache=cache, context=20), tiny))
        texts[cache] = [s.texts[0] for s in steps]
    assert texts["none"] == texts["growing"][:3] == texts["contiguous"][:3]


def test_traffic_of_a_step(tiny):
    step = {
        cache: list(run(Contexts(name=cache, cache=cache, context=20), tiny))[-1]
        for cache in ("none", "growing", "contiguous")
    }
    token = per_token_bytes(tiny)
    held = 22  # 20 of the prompt, two generated before the last step
    assert step["growing"].copied_bytes == held * token
    assert step["contiguous"].copied_bytes == 0
    assert step["growing"].bytes_written == (held + 1) * token
    assert step["contiguous"].bytes_written == token
    assert step["growing"].bytes_read - step["contiguous"].bytes_read == held * token
    assert step["none"].flops > 10 * step["contiguous"].flops
    assert step["none"].used_bytes == 0


def test_sizes_of_known_models(tiny):
    sizes = list(run(next(s for s in SCENARIOS if s.name == "sizes"), tiny))
    per_token = {
        (e.shape_of, e.heads): e.cache_bytes / e.capacity_tokens
        for e in sizes
        if e.capacity_tokens == 1024
    }
    assert per_token["OPT-13B", "own"] == 800 * 1024  # the vLLM paper's 800 KB
    assert per_token["Llama-3-8B", "own"] == 128 * 1024
    assert math.isclose(per_token["Llama-3-8B", "multi-head"] / per_token["Llama-3-8B", "own"], 4)
    assert {name for name, _ in per_token} == set(SHAPES)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_every_scenario_repeats(tiny, scenario):
    assert list(run(scenario, tiny)) == list(run(scenario, tiny))
