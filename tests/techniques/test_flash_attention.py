"""FlashAttention in torch: against the float64 reference; what `run` says."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from kernels.reference import attention, visible
from tests.model.tiny import TINY, tiny_model
from tests.techniques.attention import assert_equals_reference, inputs
from tracegen.attention_inputs import first_layer
from tracegen.errors import UserError
from tracegen.events import event_types
from tracegen.model.decoder import Model
from tracegen.score_grid import Cost, Grid, block_sizes
from tracegen.techniques import flash_attention as technique
from tracegen.techniques.flash_attention import (
    SCENARIOS,
    RowTileDone,
    Started,
    TileAttended,
    Tiles,
    empty_state,
    finish,
    flash_attention,
    naive_attention,
    run,
)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 257])
@pytest.mark.parametrize("causal", [False, True])
def test_any_length_equals_the_reference(length, causal):
    assert_equals_reference(*inputs(length, length), causal=causal)


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(1, 20),
    keys=st.integers(1, 20),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    blocks=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 12),
)
def test_any_shape_and_mask_equals_the_reference(
    queries, keys, kv_heads, group, blocks, causal, window
):
    q, k, v = inputs(queries, keys, kv_heads * group, kv_heads)
    assert_equals_reference(
        q, k, v, causal=causal, window=window, block_q=blocks[0], block_k=blocks[1]
    )


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(1, 20),
    keys=st.integers(1, 20),
    blocks=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 12),
)
def test_visited_tiles_hold_every_visible_pair_and_the_ends_are_not_in_vain(
    queries, keys, blocks, causal, window
):
    grid = Grid(queries, keys, *blocks, causal, window)
    found = torch.zeros(queries, keys, dtype=torch.int64)
    for rows in grid.row_tiles():
        columns = grid.column_tiles(rows)
        for tile in columns:
            found[rows, tile] += grid.visible(rows, tile)
        for end in columns[:1] + columns[-1:]:
            assert grid.visible(rows, end).any()
    assert torch.equal(found, visible(queries, keys, causal=causal, window=window).long())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_keeps_its_state_in_float32(dtype):
    q, k, v = (x.to(dtype) for x in inputs(65, 65, head_dim=16))
    out, lse = flash_attention(q, k, v, causal=True)
    expected, expected_lse = attention(q, k, v, causal=True)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=0, atol=1e-5)


def test_huge_scores_do_not_overflow():
    q, k, v = inputs(9, 9)
    assert_equals_reference(1e4 * q, k, v, block_q=4, block_k=4)
    assert torch.isinf((1e4 * q @ k.mT).exp()).any()  # what a softmax without a maximum would do


def test_naive_attention_equals_the_reference():
    q, k, v = inputs(7, 11, heads=4, kv_heads=2)
    for causal in (False, True):
        expected, _ = attention(q, k, v, causal=causal)
        torch.testing.assert_close(naive_attention(q, k, v, causal), expected)


def test_strided_inputs():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs(9, 9, 2, 2))
    assert not q.is_contiguous()
    assert_equals_reference(q, k, v, causal=True, block_q=4, block_k=4)


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((1, 3, 5, 4), (1, 2, 5, 4)), {}, "heads a multiple of kv_heads"),
        (((1, 1, 5, 4), (1, 1, 5, 8)), {}, "do not fit"),
        (((5, 4), (5, 4)), {}, "do not fit"),
        (((1, 1, 0, 4), (1, 1, 5, 4)), {}, "queries is 0: give 1 or more"),
        (((1, 1, 5, 4), (1, 1, 5, 4)), {"window": 0}, "window is 0: give 1 or more"),
        (((1, 1, 5, 4), (1, 1, 5, 4)), {"block_k": 0}, "block_k is 0: give 1 or more"),
    ],
)
def test_bad_input_is_one_clear_line(shapes, options, message):
    q, k = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(UserError, match=message) as caught:
        flash_attention(q, k, k, **options)
    assert "\n" not in str(caught.value)


# What `run` says.


@pytest.fixture(scope="module")
def events(tiny):
    return list(run(SCENARIOS[0], tiny))


def test_every_event_type_is_reached(events):
    assert {type(event) for event in events} == set(event_types(technique))


def test_every_scenario_repeats(tiny, events):
    assert list(run(SCENARIOS[0], tiny)) == events


def test_the_first_layer_gets_these_queries_keys_and_values():
    """A model of one layer, with our attention put into it, must give the model's own logits."""
    model = tiny_model(TINY.__class__(**{**vars_of(TINY), "num_layers": 1}))
    ids = [3, 1, 4, 1, 5]
    out, _ = flash_attention(*first_layer(model, ids), causal=True, block_q=2, block_k=2)
    torch.testing.assert_close(logits_after(model, ids, out), model.forward(torch.tensor([ids]))[0])


def vars_of(config):
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def logits_after(model: Model, ids: list[int], attended: torch.Tensor) -> torch.Tensor:
    """The rest of a one-layer model after its attention (1, heads, length, head_dim)."""
    weights, layer = model.weights, model.weights.layers[0]
    eps, size = model.config.rms_norm_eps, model.config.hidden_size

    def norm(x, weight):
        return torch.rms_norm(x, (size,), weight, eps)

    x = weights.embedding[torch.tensor(ids)]
    x = x + attended[0].transpose(0, 1).flatten(1) @ layer.attention_out
    gate, up = norm(x, layer.mlp_norm) @ layer.gate_up
    x = x + (F.silu(gate) * up) @ layer.down
    return (norm(x, weights.final_norm) @ weights.head).float()


def test_the_narrated_walk_is_flash_attention(tiny, events):
    """Running maxima and sums of every row's last tile give the function's log-sum-exp."""
    scenario = SCENARIOS[0]
    ids = tiny.tokenizer.encode(scenario.text)
    q, k, v = first_layer(tiny, ids)
    q, k, v = (x.float() for x in (q, k, v))
    block = scenario.block
    _, lse = flash_attention(q, k, v, block_q=block, block_k=block, causal=True)
    head = scenario.head % q.shape[1]
    told, from_state = [], []
    for event, after in pairwise(events):
        if isinstance(after, RowTileDone):
            told += after.lse
            from_state += map(lambda m, t: m + math.log(t), event.maxima, event.totals)
    assert from_state == pytest.approx(told, abs=1e-4)
    assert told == pytest.approx(lse[0, head].tolist(), abs=1e-4)


def test_the_walk_covers_the_lower_triangle_once(tiny, events):
    count = len(events[0].tokens)
    assert isinstance(events[0], Started)
    pairs = [
        pair
        for e in events
        if isinstance(e, TileAttended)
        for pair in zip(e.query_of, e.key_of, e.scores, strict=True)
    ]
    assert sorted(p[:2] for p in pairs) == [(i, j) for i in range(count) for j in range(i + 1)]
    tiles = math.ceil(count / SCENARIOS[0].block)
    done = [e for e in events if isinstance(e, RowTileDone)]
    assert [e.skipped for e in done] == [tuple(range(i + 1, tiles)) for i in range(tiles)]


def test_rescales_follow_the_maxima(events):
    for before, after in pairwise(events):
        if isinstance(after, TileAttended) and isinstance(before, TileAttended):
            expected = [math.exp(a - b) for a, b in zip(before.maxima, after.maxima, strict=True)]
            assert after.rescales == pytest.approx(expected, rel=1e-5)
        elif isinstance(after, TileAttended):  # the first of its row: nothing to keep
            assert set(after.rescales) == {0.0}


def test_the_events_costs_add_up_to_the_formula(tiny, events):
    count, e = len(events[0].tokens), events[0].element_bytes
    block = SCENARIOS[0].block
    costs = [x for x in events if not isinstance(x, Started)]
    grid = Grid(count, count, block, block, causal=True)
    assert grid.tiled_cost(events[0].head_dim, e) == Cost(
        sum(getattr(x, "flops", 0) for x in costs),
        sum(x.bytes_read for x in costs),
        sum(x.bytes_written for x in costs),
    )


@settings(max_examples=40, deadline=None)
@given(
    queries=st.integers(1, 30),
    keys=st.integers(1, 30),
    blocks=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 12),
)
def test_counted_costs_are_those_of_tensors_that_tiles_really_touch(
    queries, keys, blocks, causal, window
):
    q, k, v = (x[0, 0].half() for x in inputs(queries, keys))
    grid = Grid(queries, keys, *blocks, causal, window)
    flops = read = written = 0
    for rows in grid.row_tiles():
        read += q[rows].nbytes
        for columns in grid.column_tiles(rows):
            read += k[columns].nbytes + v[columns].nbytes
            flops += 2 * 2 * len(q[rows]) * len(k[columns]) * q.shape[1]
        out, lse = finish(empty_state(q[rows], torch.float32))
        written += out.to(q.dtype).nbytes + lse.nbytes
    assert grid.tiled_cost(4, 2) == Cost(flops, read, written)


def test_naive_costs_are_those_of_its_tensors():
    q, k, v = (x[0, 0].half() for x in inputs(6, 10))
    scores = q @ k.mT
    costs = Grid(6, 10, 1, 1).naive_costs(4, 2)
    assert costs["scores"] == Cost(2 * 6 * 10 * 4, q.nbytes + k.nbytes, scores.nbytes)
    assert costs["weights"] == Cost(0, scores.nbytes, scores.nbytes)
    assert costs["output"] == Cost(2 * 6 * 10 * 4, scores.nbytes + v.nbytes, (scores @ v).nbytes)
    assert (
        Grid(6, 10, 1, 1).naive_cost(4, 2) == costs["scores"] + costs["weights"] + costs["output"]
    )


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_block_sizes_fill_the_chip_but_not_much_more(head_dim):
    """Queries, outputs, keys, values and scores of a tile: within the paper's 5/4 of M."""
    for numbers in (8192, 24576, 98304):
        stays, streams = block_sizes(numbers, head_dim)
        held = 2 * stays * head_dim + 2 * streams * head_dim + stays * streams
        assert numbers / 2 < held < 1.35 * numbers


def test_other_sentences_and_blocks(tiny):
    for text, block in (("a", 4), ("abcde", 2), ("abcdefgh", 4)):
        found = list(run(Tiles(name="t", text=text, block=block, head=1), tiny))
        rows = math.ceil(len(text) / block)
        assert sum(isinstance(e, TileAttended) for e in found) == rows * (rows + 1) // 2
