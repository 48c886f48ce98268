"""FlashAttention in torch: against the float64 reference, the listing's faults, what `run` says."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from kernels.reference import attention, visible
from tests.listings import flash_attention as listing
from tests.model.tiny import TINY, tiny_model
from tracegen.attention_inputs import first_layer, random_qkv
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
    attend_tile,
    empty_state,
    finish,
    flash_attention,
    naive_attention,
    run,
)

F64 = torch.float64


def inputs(queries, keys, heads=1, kv_heads=1, head_dim=4, seed=0):
    """Random q, k, v in float64."""
    q, _, _ = random_qkv((2, heads, queries, head_dim), keys, seed=seed, dtype=F64)
    _, k, v = random_qkv((2, kv_heads, queries, head_dim), keys, seed=seed + 1, dtype=F64)
    return q, k, v


def assert_equals_reference(q, k, v, **options):
    masks = {key: options[key] for key in ("causal", "window") if key in options}
    out, lse = flash_attention(q, k, v, **options)
    expected_out, expected_lse = attention(q, k, v, **masks)
    torch.testing.assert_close(out, expected_out, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-10, atol=1e-12)


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


# Faults that people met elsewhere.


def mask_of(queries, keys):
    return Grid(queries, keys, 8, 8, causal=True).visible(slice(0, queries), slice(0, keys)).int()


def test_causal_masks_are_aligned_at_the_bottom_right():
    assert mask_of(2, 5).tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert mask_of(5, 2).tolist() == [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]
    assert mask_of(3, 8).tolist() == [[1] * 6 + [0, 0], [1] * 7 + [0], [1] * 8]


@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (5, 2), (3, 8), (1, 9), (9, 1)])
def test_lengths_that_differ(queries, keys):
    for block in (1, 2, 16):
        assert_equals_reference(*inputs(queries, keys), causal=True, block_q=block, block_k=block)


def test_torchs_causal_mask_is_aligned_at_the_top_left():
    """The trap: one query after nine cached tokens sees only the first of ten keys."""
    q, k, v = inputs(1, 10)
    trap = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(trap, v[:, :, :1])
    out, _ = flash_attention(q, k, v, causal=True)
    assert (out - trap).abs().max() > 0.1
    assert_equals_reference(q, k, v, causal=True)


def test_a_query_without_keys_gives_zero():
    """V is 5 everywhere: 0 is right, 5 is the mean of V, NaN is -inf - -inf."""
    q, k, v = inputs(5, 2)
    out, lse = flash_attention(q, k, torch.full_like(v, 5.0), causal=True, block_q=2, block_k=2)
    assert out[0, 0, :, 0].tolist() == pytest.approx([0, 0, 0, 5, 5])
    assert lse[0, 0, :3].tolist() == [-math.inf] * 3
    assert naive_attention(q, k, v, causal=True)[0, 0, :3].isnan().all()


def test_a_first_tile_without_visible_keys_changes_nothing():
    """With a window, the first tile that a tile of queries visits may be empty for its last row."""
    q, k, v = inputs(8, 8)
    grid = Grid(8, 8, 4, 4, window=2)
    rows = grid.row_tiles()[1]
    first = grid.visible(rows, grid.column_tiles(rows)[0])
    assert first[0].any()
    assert not first[-1].any()
    assert_equals_reference(q, k, torch.full_like(v, 5.0), window=2, block_q=4, block_k=4)


def test_masked_tiles_leave_a_state_as_it_was():
    q, k, v = inputs(4, 4)
    nothing = torch.zeros(4, 4, dtype=torch.bool)
    state = attend_tile(empty_state(q, F64), q, k, v, nothing)
    out, lse = finish(state)
    assert not out.any()
    assert (lse == -math.inf).all()
    seen = attend_tile(state, q, k, v, ~nothing)
    again = attend_tile(seen, q, k, v, nothing)
    assert all(torch.equal(a, b) for a, b in zip(seen, again, strict=True))


def test_a_key_value_head_serves_neighbouring_query_heads():
    """Value ≡ head: heads 0 and 1 read key/value head 0. Sequence and heads differ in number."""
    q, k, v = inputs(3, 3, heads=4, kv_heads=2)
    out, _ = flash_attention(q, k, torch.arange(2.0, dtype=F64)[None, :, None, None].expand_as(v))
    assert out[0, :, 0, 0].tolist() == pytest.approx([0, 0, 1, 1])


def test_small_integers_are_exact_in_half_precision():
    """16 × 16 integers from -2 to 2: every product is exact, whatever the dtype."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randint(-2, 3, (3, 1, 1, 16, 16), generator=generator).double()
    exact = flash_attention(q, k, v)[1]
    for dtype in (torch.float16, torch.bfloat16):
        lse = flash_attention(q.to(dtype), k.to(dtype), v.to(dtype))[1]
        torch.testing.assert_close(lse.double(), exact, rtol=1e-6, atol=1e-6)


def test_float32_products_are_not_rounded_to_tf32():
    """1 + 2⁻¹² needs more bits than TF32 has; small integers would not show the difference."""
    fine = 1 + 2.0**-12
    q = torch.full((1, 1, 1, 1), fine)
    _, lse = flash_attention(q, q, q)
    assert lse.item() == pytest.approx(fine * fine, abs=1e-6)


def test_capping_scores_by_exponentials_overflows():
    """What models that cap scores must not do; tanh itself gives cap · tanh(5000 / 50) = 50."""
    x = torch.tensor(5000.0) / 50
    assert ((2 * x).exp() - 1).div((2 * x).exp() + 1).isnan()
    assert 50 * x.tanh() == 50


# The founding listing, run as it was.


def test_listing_agrees_where_it_works():
    q, k, v = (x[0, 0].float() for x in inputs(128, 128))
    expected, _ = attention(*(x[None, None] for x in (q, k, v)))
    torch.testing.assert_close(listing.flash_attention(q, k, v), expected[0, 0].float())


@pytest.mark.parametrize("length", [1, 63, 65, 100])
def test_listing_needs_a_length_that_divides(length):
    q, k, v = inputs(length, length)
    with pytest.raises(RuntimeError):
        listing.flash_attention(q[0, 0].float(), k[0, 0].float(), v[0, 0].float())
    assert_equals_reference(q, k, v)


def test_listing_takes_the_mean_of_v_where_nothing_is_visible():
    """Its -1e9 is finite: where all scores are that, as its style would mask, all weigh alike."""
    q, v = torch.full((64, 4), 1.0), inputs(64, 64)[2][0, 0].float()
    masked_key = torch.full((64, 4), -1e9 / 2)  # times 4, over √4
    out = listing.flash_attention(q, masked_key, v)
    torch.testing.assert_close(out, v.mean(0).expand_as(out))
    nothing = torch.zeros(64, 64, dtype=torch.bool)
    state = attend_tile(empty_state(q, torch.float32), q, q, v, nothing)
    assert not finish(state)[0].any()


def test_listing_sees_the_future():
    q, k, v = (x[0, 0].float() for x in inputs(64, 64))
    changed = v.clone()
    changed[-1] += 1
    assert not torch.equal(
        listing.flash_attention(q, k, v)[0], listing.flash_attention(q, k, changed)[0]
    )
    ours = [
        flash_attention(*(x[None, None] for x in (q, k, y)), causal=True)[0] for y in (v, changed)
    ]
    assert torch.equal(ours[0][0, 0, :-1], ours[1][0, 0, :-1])


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize("shape", [(2, 64, 4), (1, 2, 64, 4)])
def test_listing_knows_no_heads(shape):
    x = torch.ones(shape)
    with pytest.raises((RuntimeError, IndexError)):
        listing.flash_attention(x, x, x, block_size=32)


def test_listing_cannot_have_other_lengths_of_keys():
    """It walks over keys by the number of queries: further keys are never seen."""
    q, k, v = (x[0, 0].float() for x in inputs(64, 128))
    few = listing.flash_attention(q, k[:64], v[:64])
    assert torch.equal(listing.flash_attention(q, k, v), few)


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
