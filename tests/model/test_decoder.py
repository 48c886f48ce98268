"""The decoder against a naive one, with and without a cache, with rows of different lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from tests.model.tiny import TINY, RaggedCache, naive_logits, tiny_model, with_heads
from tracegen.errors import UserError
from tracegen.model import GrowingCache
from tracegen.model.decoder import rotary_tables

PROMPT = [3, 1, 4, 1, 5, 9]


def batch(*rows: list[int]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (6, 3)])
def test_agrees_with_the_naive_decoder(heads, kv_heads):
    model = tiny_model(with_heads(heads, kv_heads))
    expected = torch.tensor(naive_logits(model, PROMPT))
    assert_close(model.forward(batch(PROMPT))[0], expected, atol=1e-4, rtol=1e-5)


def test_tied_embeddings():
    model = tiny_model(replace(TINY, tied_embeddings=True))
    expected = torch.tensor(naive_logits(model, PROMPT))
    assert_close(model.forward(batch(PROMPT))[0], expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("make_cache", [GrowingCache, lambda: RaggedCache(TINY, 1, 16)])
def test_cached_steps_equal_recomputation(make_cache):
    model, cache = tiny_model(), make_cache()
    tokens, starts = list(PROMPT), [cache.lengths[0]]
    logits = model.forward(batch(tokens), cache)
    for _ in range(3):
        starts.append(cache.lengths[0])
        tokens.append(int(logits[0, -1].argmax()))
        logits = model.forward(batch(tokens[-1:]), cache)
        assert_close(logits[0, -1], model.forward(batch(tokens))[0, -1])
    assert starts == [0, 6, 7, 8]
    assert cache.lengths == [9]


def test_a_later_chunk_sees_the_past_and_not_the_future():
    model, cache = tiny_model(), GrowingCache()
    first = model.forward(batch(PROMPT[:2]), cache)
    second = model.forward(batch(PROMPT[2:]), cache)
    whole = model.forward(batch(PROMPT))
    assert_close(torch.cat((first, second), dim=1), whole)


def test_ragged_rows_equal_their_own_runs():
    """Rows of 3 and 5 tokens, padded at the right; their next tokens stand at positions 3 and 5."""
    model = tiny_model()
    rows = [[7, 2, 9], [1, 8, 2, 8, 4]]
    alone = [GrowingCache(), GrowingCache()]
    together = RaggedCache(TINY, batch=2, room=16)
    logits = model.forward(batch(*rows), together, lengths=[3, 5])
    own = [model.forward(batch(row), cache) for row, cache in zip(rows, alone, strict=True)]
    assert_close(logits[0, :3], own[0][0])
    assert_close(logits[1], own[1][0])
    for expected_starts in ([3, 5], [4, 6]):
        assert together.lengths == expected_starts == [cache.lengths[0] for cache in alone]
        logits = model.forward(torch.tensor([[5], [6]]), together)
        for row, token in enumerate((5, 6)):
            assert_close(logits[row], model.forward(torch.tensor([[token]]), alone[row])[0])


def test_ragged_chunks_after_a_ragged_prompt():
    model, cache = tiny_model(), RaggedCache(TINY, batch=2, room=16)
    model.forward(batch([7, 2, 9], [1]), cache, lengths=[3, 1])
    logits = model.forward(batch([4, 4], [3, 6, 1]), cache, lengths=[2, 3])
    assert_close(logits[0, :2], model.forward(batch([7, 2, 9, 4, 4]))[0, 3:])
    assert_close(logits[1], model.forward(batch([1, 3, 6, 1]))[0, 1:])


def test_last_only_gives_each_rows_last_real_token():
    model = tiny_model()
    tokens, lengths = batch([7, 2, 9], [1, 8, 2, 8, 4]), [3, 5]
    last = model.forward(tokens, lengths=lengths, last_only=True)
    every = model.forward(tokens, lengths=lengths)
    assert last.shape == (2, 1, TINY.vocab_size)
    assert_close(last[:, 0], torch.stack((every[0, 2], every[1, 4])))


def test_logits_are_float32_and_model_keeps_its_dtype():
    model = tiny_model(dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert model.forward(batch(PROMPT)).dtype == torch.float32


def test_rotary_tables_grow_past_their_first_size():
    config = replace(TINY, max_positions=4096)
    model = tiny_model(config)
    assert model._rotary.shape[1] == 1024
    cos, sin = model._rotary_at([2000], 3)
    expected = rotary_tables(config, 2003)[:, 2000:]
    assert_close(torch.stack((cos, sin)), expected)
    ragged_cos, _ = model._rotary_at([2000, 5], 3)
    assert ragged_cos.shape == (2, 1, 3, config.head_dim)
    assert_close(ragged_cos[0, 0], expected[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.forward(torch.empty(1, 0, dtype=torch.int64)), "at least one token"),
        (lambda m: m.forward(torch.zeros(1, 2, dtype=torch.int64), lengths=[0]), "at least one"),
        (lambda m: m.forward(torch.zeros(1, 2, dtype=torch.int64), lengths=[3]), "at least one"),
        (lambda m: m.forward(torch.zeros(1, 2, dtype=torch.int64), lengths=[1, 1]), "one of each"),
        (lambda m: m.forward(torch.zeros(3, 2, dtype=torch.int64), GrowingCache()), "one of each"),
        (
            lambda m: m.forward(torch.zeros(1, 33, dtype=torch.int64)),
            "33 tokens exceed the context",
        ),
    ],
)
def test_impossible_passes_are_refused(call, message):
    with pytest.raises(UserError, match=message):
        call(tiny_model())


def test_growing_cache_refuses_ragged_rows():
    with pytest.raises(ValueError, match="one length"):
        GrowingCache(2).advance([1, 2])
