"""Prefill and decode: against naive generation, the listing's faults, events against formulas."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.listings import prefill_decode as listing
from tests.model.tiny import naive_logits
from tracegen.errors import UserError
from tracegen.events import event_types
from tracegen.model import Sampler
from tracegen.model.cost import forward_cost
from tracegen.techniques import prefill_decode
from tracegen.techniques.prefill_decode import (
    SCENARIOS,
    Encoded,
    Finished,
    Generation,
    Pass,
    generate,
    run,
)

STORY = Generation(name="story", question="plants", max_new_tokens=6)
FILLER = Generation(name="filler", prompt_tokens=9, batch=3, max_new_tokens=4)


def naive_generate(model, prompt, count):
    """Greedy, recomputing everything, with the loops of tests/model/tiny.py."""
    tokens = list(prompt)
    for _ in range(count):
        last = naive_logits(model, tokens)[-1]
        tokens.append(max(range(len(last)), key=last.__getitem__))
    return tokens[len(prompt) :]


def test_generate_equals_naive_generation(tiny):
    assert generate(tiny, [3, 1, 4, 1, 5], 7, stop_ids=()) == naive_generate(
        tiny, [3, 1, 4, 1, 5], 7
    )


@settings(max_examples=25, deadline=None)
@given(prompt=st.lists(st.integers(0, 10), min_size=1, max_size=8), count=st.integers(0, 5))
def test_any_prompt_gives_the_tokens_of_full_recomputation(tiny, prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(tiny.forward(torch.tensor([tokens]))[0, -1].argmax()))
    assert generate(tiny, prompt, count, stop_ids=()) == tokens[len(prompt) :]


def test_a_stop_token_ends_the_answer_and_is_its_last_item(tiny):
    free = generate(tiny, [1, 2, 3], 8, stop_ids=())
    stop = free[3]
    assert generate(tiny, [1, 2, 3], 8, stop_ids={stop}) == free[: free.index(stop) + 1]


def test_stop_tokens_default_to_the_models(tiny):
    free = generate(tiny, [1, 2, 3], 8, stop_ids=())
    ends = [i for i, token in enumerate(free) if token in tiny.config.eos_ids]
    expected = free[: ends[0] + 1] if ends else free
    assert generate(tiny, [1, 2, 3], 8) == expected


def test_sampling_is_seeded(tiny):
    def sample(seed):
        return generate(tiny, [1, 2, 3], 12, Sampler(1.0, seed=seed), stop_ids=())

    assert sample(1) == sample(1)
    assert len({tuple(sample(seed)) for seed in range(8)}) > 1


@pytest.mark.parametrize(
    ("prompt", "count", "message"),
    [
        ([], 3, "the prompt is empty: give at least one token"),
        ([1] * 4000, 97, "4000 prompt tokens and 97 new ones exceed the context of 4096"),
        ([1], -1, "max_new_tokens is -1"),
    ],
)
def test_bad_input_is_one_clear_line(tiny, prompt, count, message):
    with pytest.raises(UserError, match=message) as caught:
        generate(tiny, prompt, count)
    assert "\n" not in str(caught.value)


def test_a_prompt_that_just_fits(tiny):
    assert len(generate(tiny, [1] * 4090, 6, stop_ids=())) == 6


# The founding listing, run as it was.


class ListingModel:
    """A model for the listing: "next = last + 1" over ten tokens, token 9 ends the text."""

    kv_cache = None

    def forward(self, tokens, kv_cache=None):
        return [[float(i == (token + 1) % 10) for i in range(10)] for token in tokens]


def test_listing_produces_a_token_when_none_is_wanted(tiny):
    assert len(listing.generate(ListingModel(), [0], 0)) == 1
    assert generate(tiny, [0], 0) == []


def test_listing_does_not_stop(tiny):
    babble = listing.generate(ListingModel(), [7], 6)
    assert babble.index(9) == 1
    assert len(babble) == 6
    first = generate(tiny, [7], 1, stop_ids=())[0]
    assert generate(tiny, [7], 6, stop_ids={first}) == [first]


# What `run` says.


@pytest.fixture(scope="module")
def events(tiny):
    return {s.name: list(run(s, tiny)) for s in (STORY, FILLER)}


def test_every_event_type_is_reached(events):
    reached = {type(event) for found in events.values() for event in found}
    assert reached == set(event_types(prefill_decode))


def test_run_and_generate_agree(tiny, events):
    prompt = tiny.tokenizer.encode(tiny.tokenizer.chat(prefill_decode.QUESTIONS["plants"]))
    passes = [event for event in events["story"] if isinstance(event, Pass)]
    assert [event.token_ids[0] for event in passes] == generate(tiny, prompt, 6)


def test_one_prefill_then_one_pass_a_token(events):
    encoded, *passes, finished = events["filler"]
    assert isinstance(encoded, Encoded)
    assert isinstance(finished, Finished)
    assert [p.phase for p in passes] == ["prefill", "decode", "decode", "decode"]
    assert [p.new_tokens for p in passes] == [9, 1, 1, 1]
    assert [p.context_tokens for p in passes] == [9, 10, 11, 12]
    assert finished == Finished("length", 4)
    assert all(len(p.token_ids) == 3 and len(set(p.token_ids)) == 1 for p in passes)


def test_a_stop_token_is_reported(tiny, events):
    first = next(e for e in events["story"] if isinstance(e, Pass)).token_ids[0]
    config = tiny.config
    try:
        tiny.config = replace(config, eos_ids=(first,))
        found = list(run(STORY, tiny))
    finally:
        tiny.config = config
    assert found[-1] == Finished("stop token", 1)


def test_counts_follow_the_formulas(tiny, events):
    prefill, first_decode = [e for e in events["filler"] if isinstance(e, Pass)][:2]
    for event, new, held in ((prefill, 9, 0), (first_decode, 1, 9)):
        cost = forward_cost(tiny.config, [new] * 3, [held] * 3, 8, last_only=True)
        assert (event.flops, event.weight_bytes) == (cost.flops, cost.weight_bytes)
        assert event.bytes_read == cost.weight_bytes + cost.kv_read_bytes
        assert event.bytes_written == cost.kv_written_bytes
    assert prefill.flops > 5 * first_decode.flops  # nine tokens against one, less their logits


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_every_scenario_runs_and_repeats(tiny, scenario):
    assert list(run(scenario, tiny)) == list(run(scenario, tiny))


def test_sweeps_cover_what_the_page_shows():
    lengths = [s.prompt_tokens for s in SCENARIOS if s.name.startswith("prompt_")]
    batches = [s.batch for s in SCENARIOS if s.name.startswith("batch_")]
    assert (min(lengths), max(lengths)) == (8, 2048)
    assert batches == [1, 2, 4, 8, 16, 32]
