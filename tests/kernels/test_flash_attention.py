"""FlashAttention against float64, interpreted or native."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton import Config

from kernels import reference
from kernels.bench.flash_attention import AIM, rows
from kernels.bench.measure import Bench
from kernels.flash_attention import TileLog, flash_attention
from kernels.launch import INTERPRETED
from tests.kernels.attention import (
    DESCRIBED,
    EVERY_KIND,
    SMALL,
    TALL,
    TOLERANCE,
    WALKING,
    agrees,
    inputs,
    usable,
)

# Shapes, dtypes and masks --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("n", [1, 63, 65, 127, 257])
def test_any_length(device, n, dtype):
    agrees(*inputs(device, 1, 1, n, n, 64, dtype), causal=True)


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [(d, torch.bfloat16) for d in (1, 16, 64, 80, 96, 128, 256)]
    + [(80, torch.float32), (256, torch.float32), (96, torch.float16)],
)
def test_any_head_dim(device, head_dim, dtype):
    agrees(*inputs(device, 1, 1, 65, 70, head_dim, dtype))


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_a_group_of_heads_reads_one_key_value_head(device, heads):
    agrees(*inputs(device, 2 * heads, 2, 17, 20, 16), causal=True)


@pytest.mark.parametrize("window", [1, 8, 33, 1000])
@pytest.mark.parametrize("config", EVERY_KIND.values(), ids=EVERY_KIND)
def test_window(device, window, config):
    if usable(config):
        agrees(*inputs(device, 1, 1, 70, 90), window=window, config=config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", EVERY_KIND.values(), ids=EVERY_KIND)
def test_every_kind_of_configuration(device, config, dtype):
    if usable(config):
        agrees(*inputs(device, 2, 1, 40, 70, 80, dtype), causal=True, config=config)


@settings(max_examples=20, deadline=None)
@given(
    queries=st.integers(1, 50),
    keys=st.integers(0, 50),
    head_dim=st.sampled_from([8, 16, 24, 40]),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 2),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 80),
    config=st.sampled_from([SMALL, TALL, WALKING]),
)
def test_any_shape(queries, keys, head_dim, kv_heads, group, causal, window, config):
    place = torch.device("cpu" if INTERPRETED else "cuda")
    q, k, v = inputs(place, kv_heads * group, kv_heads, queries, keys, head_dim)
    agrees(q, k, v, causal=causal, window=window, config=config)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_fastest_configuration(device, dtype):
    q, k, v = inputs(device, 2, 1, 50, 50, 64, dtype)
    out = flash_attention(q, k, v, causal=True)
    torch.testing.assert_close(out, agrees(q, k, v, causal=True), atol=1e-2, rtol=1e-2)


def test_block_sizes_alone_are_a_configuration(device):
    agrees(*inputs(device), config=Config({"BLOCK_M": 16, "BLOCK_N": 16}))


def test_scale(device):
    agrees(*inputs(device), scale=0.37)


def test_a_batch(device):
    q, k, v = (torch.randn(3, 2, 9, 16, device=device) for _ in range(3))
    agrees(q, k, v, causal=True)


# flash-attention#517, #1778, pytorch#108108: where query and key lengths differ ----------------


@pytest.mark.parametrize(
    ("queries", "keys", "seen"),
    [
        (2, 5, ["11110", "11111"]),
        (5, 2, ["00", "00", "00", "10", "11"]),
        (3, 8, ["11111100", "11111110", "11111111"]),  # a chunk after a cached prefix
        (1, 5, ["11111"]),  # a decode step; top-left alignment would see key 0 only
    ],
)
def test_lengths_that_differ_are_aligned_at_the_bottom_right(device, queries, keys, seen):
    q = torch.zeros(1, 1, queries, 16, device=device)  # all scores equal: weights show what is seen
    k = torch.randn(1, 1, keys, 16, device=device)
    v = torch.eye(keys, 16, device=device)[None, None]
    out = flash_attention(q, k, v, causal=True)[0, 0, :, :keys].cpu()
    assert ["".join("1" if w > 0 else "0" for w in row) for row in out] == seen
    assert (out.sum(-1) == torch.tensor([float("1" in row) for row in seen])).all()


# burn#4697, onnxruntime#28904: rows and tiles that see nothing ---------------------------------


@pytest.mark.parametrize("config", EVERY_KIND.values(), ids=EVERY_KIND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_sees_no_key_is_zero_neither_nan_nor_the_mean(device, config, dtype):
    if usable(config):
        q, k, _ = inputs(device, 1, 1, 40, 20, 16, dtype)
        v = torch.full_like(k, 5.0)
        out, lse = flash_attention(q, k, v, causal=True, return_lse=True, config=config)
        assert (out[0, 0, :20] == 0).all()
        torch.testing.assert_close(out[0, 0, 20:], v[0, 0], atol=TOLERANCE[dtype][0], rtol=1e-2)
        assert (lse[0, 0, :20] == -torch.inf).all()
        assert lse[0, 0, 20:].isfinite().all()


@pytest.mark.parametrize("config", [TALL, DESCRIBED], ids=["pointers", "TMA"])
def test_a_first_tile_that_a_row_does_not_see_leaves_no_trace(device, config):
    """Rows 56 … 63 see nothing of keys 32 … 47, the first tile that their query tile visits."""
    if usable(config):
        q, k, _ = inputs(device, 1, 1, 64, 64)
        v = torch.full_like(k, 5.0)
        log = TileLog.empty(q, k, config)
        out = agrees(q, k, v, window=8, log=log)
        torch.testing.assert_close(out, torch.full_like(out, 5.0), atol=2e-6, rtol=0)
        last = log.running_sum[0, 0, 1]  # (key_tiles, 32)
        assert (last[2, 24:] == 0).all()
        assert (log.running_max[0, 0, 1, 2, 24:] == -torch.inf).all()
        assert (last[3, 24:] > 0).all()


def test_no_keys_at_all(device):
    q, k, v = inputs(device, keys=0)
    out, lse = flash_attention(q, k, v, return_lse=True)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


@pytest.mark.parametrize("empty", ["batch", "queries"])
def test_nothing_to_do(device, empty):
    q, k, v = inputs(device)
    q, k, v = (q[:0], k[:0], v[:0]) if empty == "batch" else (q[:, :, :0], k, v)
    out, lse = flash_attention(q, k, v, return_lse=True)
    assert out.shape == q.shape
    assert lse.shape == q.shape[:3]


# Numbers: huge scores, equal scores, and where interpreter and GPU part ------------------------


def test_huge_scores_stay_finite(device):
    """Scores are whole numbers up to ±10⁴ (vllm#56578 overflowed at 5000), so q kᵀ is exact."""
    torch.manual_seed(0)
    q = torch.randint(-25, 26, (1, 1, 70, 16), device=device).float()
    k = torch.randint(-25, 26, (1, 1, 70, 16), device=device).float()
    v = torch.randn(1, 1, 70, 16, device=device)
    q[..., 0, :], k[..., 0, :] = 25, 25  # 16 · 625
    out, lse = flash_attention(q, k, v, scale=1.0, return_lse=True, config=SMALL)
    expected, expected_lse = reference.attention(q, k, v, scale=1.0)
    assert expected_lse.max() == 10000
    torch.testing.assert_close(out.double(), expected, atol=4e-3, rtol=0)
    torch.testing.assert_close(lse.double(), expected_lse, atol=2e-3, rtol=0)


@pytest.mark.parametrize("sign", [-1, 1])
def test_huge_scores_of_one_sign(device, sign):
    q = torch.full((1, 1, 3, 16), 25.0, device=device)
    v = torch.randn(1, 1, 40, 16, device=device)
    k = torch.full_like(v, 25.0 * sign)
    out, lse = flash_attention(q, k, v, scale=1.0, return_lse=True, config=SMALL)
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out), atol=1e-5, rtol=0)
    expected = torch.full_like(lse, 10000 * sign + math.log(40))
    torch.testing.assert_close(lse, expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_equal_scores_give_the_mean(device, dtype):
    q, k, v = inputs(device, 1, 1, 65, 65, 16, dtype)
    out = agrees(q * 0, k, v)
    expected = v.double().mean(2, keepdim=True).expand_as(out)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype][0], rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_small_whole_numbers_are_exact(device, dtype):
    """triton#5895: read as raw bits, bfloat16 gives values near 10¹⁰."""
    torch.manual_seed(0)
    x, y = (torch.randint(-2, 3, (16, 16), device=device) for _ in range(2))
    # q kᵀ: one key a head, so that the log-sum-exp is the score itself.
    q = x.to(dtype).expand(1, 16, 16, 16)
    k = y.to(dtype)[None, :, None]
    _, lse = flash_attention(q, k, k, scale=1.0, return_lse=True)
    torch.testing.assert_close(lse[0].T, (x @ y.T).float(), atol=1e-5, rtol=0)
    # P V: equal weights of 1/16 over 16 keys.
    v = y.to(dtype)[None, None]
    out = flash_attention(v * 0, v, v)
    assert (out.double() == y.double().mean(0)).all()


def test_bfloat16_is_rounded_not_cut(device):
    """(1 + 1/128 + 1 + 2/128) / 2 = 1 + 1.5/128 rounds to even, 1 + 2/128; cut, it is 1 + 1/128."""
    v = torch.tensor([1 + 1 / 128, 1 + 2 / 128], device=device, dtype=torch.bfloat16)
    v = v[None, None, :, None].expand(1, 1, 2, 16)
    out = flash_attention(torch.zeros_like(v), v, v)
    assert (out.float() == 1 + 2 / 128).all()


def test_float32_products_are_not_tf32_unless_asked(device):
    """1 + 2⁻¹² has 12 bits of mantissa, TF32 keeps 10; small whole numbers would hide it."""
    q = torch.full((1, 1, 16, 16), 1 + 2**-12, device=device)
    k = torch.ones(1, 1, 1, 16, device=device)
    exact, cut = 16 + 16 * 2**-12, 16.0
    _, lse = flash_attention(q, k, k, scale=1.0, return_lse=True)
    torch.testing.assert_close(lse, torch.full_like(lse, exact), atol=1e-4, rtol=0)
    _, lse = flash_attention(q, k, k, scale=1.0, return_lse=True, allow_tf32=True)
    expected = exact if INTERPRETED else cut
    torch.testing.assert_close(lse, torch.full_like(lse, expected), atol=1e-4, rtol=0)


# The bench -------------------------------------------------------------------------------------


def test_the_bench_agrees_with_its_peers(device):
    found = list(rows(Bench(device, dry=True)))
    assert [row.op for row in found] == ["flash_attention"] * 3
    for row in found:
        assert row.ours_ms is None
        assert row.flops > 0
        assert row.nbytes > 0
        assert set(row.peers_ms) - set(row.unavailable)
    assert {"sdpa math", "torch.compile"} <= set(found[0].peers_ms)
    assert found[0].flops == 4 * 2 * 48 * 48 * 128 // 2
    assert "0.8×" in AIM
