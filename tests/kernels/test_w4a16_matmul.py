"""W4A16 against float64: shapes, groups, splits, strides, and what an interpreter may get wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.bench.measure import Bench
from kernels.bench.w4a16_matmul import rows
from kernels.launch import INTERPRETED
from kernels.packing import AWQ, pack
from kernels.w4a16_matmul import (
    ONE_TOKEN_CONFIGS,
    TOKENS_CONFIGS,
    _tiles,
    cases,
    w4a16_matmul,
)

# (dtype, atol, rtol), where atol is a share of the largest output: the weights and the result are
# rounded to dtype. The interpreter cuts bf16 off instead of rounding it.
PRECISIONS = [(torch.float16, 1e-3, 2e-3), (torch.bfloat16, 8e-3, 1.6e-2)]


def inputs(tokens, out_features, in_features, group_size, dtype, device, seed=0):
    made = torch.Generator().manual_seed(seed)
    groups = -(-in_features // group_size)
    x = torch.randn(tokens, in_features, generator=made).to(dtype)
    packed = pack(torch.randint(0, 16, (out_features, in_features), generator=made))
    scales = (0.01 + 0.1 * torch.rand(out_features, groups, generator=made)).to(dtype)
    zeros = torch.randint(0, 16, (out_features, groups), generator=made, dtype=torch.uint8)
    return [tensor.to(device) for tensor in (x, packed, scales, zeros)]


def close(result, given, group_size, atol, rtol):
    expected = reference.w4a16_matmul(*given, group_size)
    largest = expected.abs().max().item()
    assert result.dtype == given[0].dtype
    torch.testing.assert_close(result.double(), expected, atol=atol * largest, rtol=rtol)


@pytest.mark.parametrize(("dtype", "atol", "rtol"), PRECISIONS)
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize(
    ("tokens", "out_features", "in_features", "splits"),
    [
        (1, 17, 1032, 1),  # one token; rows, tile and group left ragged
        (1, 16, 2048, 3),  # tiles that do not divide among the splits
        (5, 65, 264, 1),
        (16, 33, 520, 4),
        (130, 65, 136, 1),  # more tokens than a tile
    ],
)
def test_against_float64(
    dtype, atol, rtol, group_size, tokens, out_features, in_features, splits, device
):
    given = inputs(tokens, out_features, in_features, group_size, dtype, device)
    result = w4a16_matmul(*given, group_size=group_size, splits=splits)
    close(result, given, group_size, atol, rtol)


@settings(max_examples=15, deadline=None)
@given(
    tokens=st.integers(1, 20),
    out_features=st.integers(1, 40),
    words=st.integers(1, 50),
    group_size=st.sampled_from([32, 64, 128]),
    splits=st.integers(1, 5),
    dtype_at=st.integers(0, 1),
)
def test_any_shape(device, tokens, out_features, words, group_size, splits, dtype_at):
    dtype, atol, rtol = PRECISIONS[dtype_at]
    given = inputs(tokens, out_features, 8 * words, group_size, dtype, device, seed=words)
    result = w4a16_matmul(*given, group_size=group_size, splits=splits)
    close(result, given, group_size, atol, rtol)


@pytest.mark.parametrize(
    ("tokens", "config"),
    [(1, config) for config in ONE_TOKEN_CONFIGS] + [(20, config) for config in TOKENS_CONFIGS],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_every_configuration(tokens, config, device):
    given = inputs(tokens, 70, 1160, 128, torch.float16, device)
    result = w4a16_matmul(*given, group_size=128, config=config)
    close(result, given, 128, 1e-3, 2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 16])
def test_small_integers_are_exact(dtype, tokens, device):
    """All nibbles in all slots of a word, against x of −2 … 2: no rounding can excuse a fault."""
    at = torch.arange(128)
    nibbles = (at[:, None] * 5 + at[None, :] * 3 + at[None, :] // 16) % 16
    x = (torch.arange(tokens)[:, None] * 3 + at[None, :]) % 5 - 2
    ones = torch.ones(128, 1, dtype=dtype)
    zeros = torch.full((128, 1), 8, dtype=torch.uint8)
    given = [tensor.to(device) for tensor in (x.to(dtype), pack(nibbles), ones, zeros)]
    assert len(set(nibbles[:, 0].tolist())) == 16  # all sixteen values do occur
    expected = x.double() @ (nibbles.double() - 8).T
    assert expected.abs().max() < 256  # bf16 holds these integers
    assert torch.equal(w4a16_matmul(*given, group_size=128).double().cpu(), expected)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("place", range(8))
def test_each_slot_of_a_word_meets_its_own_input(tokens, place, device):
    """x picks one weight of each word; slots hold distinct values, so that a swap shows."""
    words = pack(torch.arange(1, 9).repeat(4, 4))  # (4, 32)
    x = torch.zeros(tokens, 32, dtype=torch.float16)
    x[:, 8 + place] = 1
    ones, zeros = torch.ones(4, 1, dtype=torch.float16), torch.zeros(4, 1, dtype=torch.uint8)
    given = [tensor.to(device) for tensor in (x, words, ones, zeros)]
    assert (w4a16_matmul(*given, group_size=32) == place + 1).all()


def test_words_in_awqs_order_give_another_result(device):
    """Nothing can refuse them: the page's warning, held."""
    x, _, scales, zeros = inputs(2, 8, 32, 32, torch.float16, device)
    nibbles = torch.randint(0, 16, (8, 32), generator=torch.Generator().manual_seed(1))
    right, wrong = (
        w4a16_matmul(x, words.to(device), scales, zeros, group_size=32)
        for words in (pack(nibbles), pack(nibbles, AWQ))
    )
    assert (right - wrong).abs().max() > 0.1


@pytest.mark.parametrize("tokens", [1, 4])
def test_a_group_of_scale_zero_and_a_weight_at_its_zero_point_are_exactly_zero(tokens, device):
    x, packed, scales, zeros = inputs(tokens, 8, 256, 64, torch.float16, device)
    assert (w4a16_matmul(x, packed, scales * 0, zeros, group_size=64) == 0).all()
    sevens = pack(torch.full((8, 256), 7)).to(device)
    at_zero = w4a16_matmul(x, sevens, scales, zeros * 0 + 7, group_size=64)
    assert at_zero.abs().max() <= (1e-5 if tokens == 1 else 0)  # one token: fp32 sums cancel


@pytest.mark.parametrize("tokens", [1, 6])
def test_strided_inputs(tokens, device):
    given = inputs(tokens, 24, 512, 64, torch.float16, device)
    expected = w4a16_matmul(*given, group_size=64)
    columns = [tensor.T.contiguous().T for tensor in given]
    spaced = [torch.stack([tensor, tensor * 0 + 1], -1)[..., 0] for tensor in given]
    assert not columns[1].is_contiguous()
    assert spaced[0].stride(1) == 2
    for other in (columns, spaced):
        torch.testing.assert_close(
            w4a16_matmul(*other, group_size=64), expected, atol=1e-2, rtol=2e-3
        )


@pytest.mark.parametrize("tokens", [1, 16])
def test_splits_do_not_vary_from_run_to_run(tokens, device):
    given = inputs(tokens, 32, 2048, 128, torch.float16, device)
    first, *again = (w4a16_matmul(*given, group_size=128, splits=4) for _ in range(3))
    assert all(torch.equal(first, other) for other in again)


def test_more_splits_than_tiles(device):
    given = inputs(1, 1, 32, 32, torch.float16, device)  # one output: a size that Triton folds
    close(w4a16_matmul(*given, group_size=32, splits=7), given, 32, 1e-3, 2e-3)


@pytest.mark.parametrize(
    ("scales_dtype", "zeros_dtype"), [(torch.float32, torch.int32), (torch.bfloat16, torch.int8)]
)
def test_other_dtypes_of_scales_and_zeros(scales_dtype, zeros_dtype, device):
    x, packed, scales, zeros = inputs(3, 20, 128, 32, torch.float16, device)
    given = x, packed, scales.to(scales_dtype), zeros.to(zeros_dtype)
    close(w4a16_matmul(*given, group_size=32), given, 32, 1e-3, 2e-3)


def test_no_tokens_no_outputs_no_inputs(device):
    x, packed, scales, zeros = inputs(2, 8, 64, 32, torch.float16, device)
    assert w4a16_matmul(x[:0], packed, scales, zeros, group_size=32).shape == (0, 8)
    assert w4a16_matmul(x, packed[:0], scales[:0], zeros[:0], group_size=32).shape == (2, 0)
    empty = w4a16_matmul(x[:, :0], packed[:, :0], scales[:, :0], zeros[:, :0], group_size=32)
    assert empty.tolist() == [[0.0] * 8] * 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"group_size": 48}, "use 32, 64 or 128"),
        ({"x": torch.zeros(2, 64)}, "float16 or bfloat16"),
        ({"x": torch.zeros(64, dtype=torch.float16)}, "flatten"),
        ({"x": torch.zeros(2, 60, dtype=torch.float16)}, "pad both"),
        ({"packed": torch.zeros(8, 8, dtype=torch.int64)}, "int32"),
        ({"scales": torch.zeros(8, 3)}, "scales"),
        ({"scales": torch.zeros(8, 2, dtype=torch.int32)}, "scales"),
        ({"zeros": torch.zeros(8, 1, dtype=torch.uint8)}, "zeros"),
        ({"zeros": torch.zeros(8, 2)}, "zeros"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(change, told):
    x, packed, scales, zeros = inputs(2, 8, 64, 32, torch.float16, "cpu")
    given = {"x": x, "packed": packed, "scales": scales, "zeros": zeros, "group_size": 32} | change
    with pytest.raises(ValueError, match=told) as refused:
        w4a16_matmul(**given)
    assert "\n" not in str(refused.value)


def test_tiles_follow_tokens_and_architecture():
    for arch in ("sm_80", "sm_90", "sm_100", "gfx942", "sm_120", "interpreter"):
        for tokens in (2, 16, 17, 64, 65, 10_000):
            tiles = _tiles(tokens, arch)
            assert tiles
            assert all(config in TOKENS_CONFIGS for config in tiles)
            assert (tiles[0].kwargs["BLOCK_M"] == 16) == (tokens <= 16)
    assert _tiles(512, "sm_90")[0].kwargs["BLOCK_M"] > _tiles(512, "sm_80")[0].kwargs["BLOCK_M"]
    assert all(config.num_stages == 2 for config in _tiles(512, "gfx942"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_cases_name_every_parameter(arch):
    found = list(cases(arch))
    assert len({case.variant for case in found}) == len(found) >= 5
    for case in found:
        assert list(case.signature) == case.kernel.arg_names
        constant = {name for name, kind in case.signature.items() if kind == "constexpr"}
        assert constant == {*case.constants, *case.config.kwargs}


def test_the_bench_agrees_with_its_peers(device):
    found = list(rows(Bench(device, dry=True)))
    assert {row.op for row in found} == {"w4a16_matmul"}
    assert [row for row in found if row.aim]
    for row in found:
        assert {"torch.mm bf16"} <= row.peers_ms.keys() | row.unavailable.keys()
        assert row.ours_ms is None
        assert row.nbytes > 0
        assert row.flops > 0
    assert INTERPRETED or not any(row.unavailable for row in found)
