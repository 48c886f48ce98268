"""Faults of attention that people met elsewhere, and those of the founding listing."""

import math

import pytest
import torch
from torch.nn import functional as F

from kernels.reference import attention
from tests.listings import flash_attention as listing
from tests.techniques.attention import F64, assert_equals_reference, inputs
from tracegen.score_grid import Grid
from tracegen.techniques.flash_attention import (
    attend_tile,
    empty_state,
    finish,
    flash_attention,
    naive_attention,
)

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
