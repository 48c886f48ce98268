"""W8A8: sums exact to the last bit, scales, tiles that persist; and quantization of tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton import Config

from kernels import reference
from kernels.bench.measure import Bench
from kernels.bench.w8a8_matmul import rows
from kernels.w8a8_matmul import (
    CONFIGS,
    CONFIGS_BY_ARCH,
    MAX_IN_FEATURES,
    _tiles,
    cases,
    quantize_tokens,
    w8a8_matmul,
)

# (out dtype, atol as a share of the largest output, rtol): one rounding of the exact result. The
# interpreter cuts bf16 off instead of rounding it.
PRECISIONS = [
    (torch.float32, 1e-7, 1e-6),
    (torch.float16, 1e-4, 1e-3),
    (torch.bfloat16, 1e-3, 8e-3),
]
# Few steps for long rows: the interpreter pays for each.
DEEP = Config({"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 1024, "PERSISTENT": False}, num_stages=1)
ARCHITECTURES = ["sm_80", "sm_90", "sm_100", "gfx942"]


def int8(*shape, seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, generator=made, dtype=torch.int8)


def inputs(tokens, out_features, in_features, device, seed=0):
    made = torch.Generator().manual_seed(seed)
    given = (
        int8(tokens, in_features, seed=seed),
        0.01 + 0.1 * torch.rand(tokens, generator=made),
        int8(out_features, in_features, seed=seed + 1),
        0.01 + 0.1 * torch.rand(out_features, generator=made),
    )
    return [tensor.to(device) for tensor in given]


def sums(x, w, device, config=None):
    """The accumulators: with scales of one they come out as they are, rounded once to float32."""
    ones = torch.ones(len(x), device=device), torch.ones(len(w), device=device)
    x, w = x.to(device), w.to(device)
    y = w8a8_matmul(x, ones[0], w, ones[1], out_dtype=torch.float32, config=config)
    return y.cpu()


def exact(x, w):
    return (x.long() @ w.long().T).float()


def close(result, expected, dtype, atol, rtol):
    assert result.dtype == dtype
    atol *= expected.abs().max().item()
    torch.testing.assert_close(result.double(), expected, atol=atol, rtol=rtol)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("dtype", "atol", "rtol"), PRECISIONS)
@pytest.mark.parametrize(
    ("tokens", "out_features", "in_features"),
    [(1, 1, 1), (1, 65, 257), (16, 33, 300), (63, 127, 64), (130, 140, 129)],
)
def test_against_float64(tokens, out_features, in_features, dtype, atol, rtol, with_bias, device):
    given = inputs(tokens, out_features, in_features, device)
    bias = 10 * torch.arange(1.0, out_features + 1, device=device) if with_bias else None
    result = w8a8_matmul(*given, out_dtype=dtype, bias=bias.to(dtype) if with_bias else None)
    expected = reference.w8a8_matmul(*given, bias.to(dtype) if with_bias else None)
    close(result, expected, dtype, atol, rtol)


@settings(max_examples=20, deadline=None)
@given(
    tokens=st.integers(1, 80),
    out_features=st.integers(1, 80),
    in_features=st.integers(1, 300),
    seed=st.integers(0, 9),
)
def test_sums_of_any_shape_are_exact(device, tokens, out_features, in_features, seed):
    x, w = int8(tokens, in_features, seed=seed), int8(out_features, in_features, seed=seed + 10)
    assert torch.equal(sums(x, w, device), exact(x, w))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config).replace(" ", ""))
def test_every_configuration_is_exact(config, device):
    if device.type == "cuda" and config not in _shippable(device):
        pytest.skip("a tile of another architecture")
    tokens, out_features, in_features = (config.kwargs[f"BLOCK_{side}"] + 1 for side in "MNK")
    x, w = int8(tokens, in_features), int8(out_features, in_features, seed=1)
    assert torch.equal(sums(x, w, device, config), exact(x, w))


def _shippable(device):
    major, minor = torch.cuda.get_device_capability(device)
    return CONFIGS_BY_ARCH.get(f"sm_{major}{minor}", CONFIGS_BY_ARCH["gfx942"])


def test_persistent_programs_walk_over_every_tile(device):
    """More tiles than programs, so that each has several, in ragged numbers."""
    persistent = [config for config in CONFIGS if config.kwargs["PERSISTENT"]]
    assert persistent
    config = next(c for c in persistent if device.type == "cpu" or c in _shippable(device))
    tiles = 5 if device.type == "cpu" else 50
    x, w = int8(40, 64), int8(128 * tiles * tiles - 5, 64, seed=1)
    assert torch.equal(sums(x, w, device, config), exact(x, w))


@pytest.mark.parametrize(("value", "other"), [(-128, -128), (-128, 127)])
def test_the_longest_rows_do_not_overflow(value, other, device):
    x = torch.full((1, MAX_IN_FEATURES), value, dtype=torch.int8)
    w = torch.full((2, MAX_IN_FEATURES), other, dtype=torch.int8)
    assert sums(x, w, device, DEEP).tolist() == exact(x, w).tolist()
    assert exact(x, w).abs().min() > 2**30


def test_small_remainders_of_large_sums_survive(device):
    """Sums climb to 2²⁹, take 1, 2 or 3, come back to 2²²: fp32, where it steps by 64, loses it."""
    half, middle = 2**15, torch.tensor([1, 2, 3], dtype=torch.int8)
    x = torch.full((1, 2 * half + 1), -128, dtype=torch.int8)
    w = torch.full((3, 2 * half + 1), -128, dtype=torch.int8)
    x[:, half], w[:, half], w[:, half + 1 :] = 1, middle, 127
    assert sums(x, w, device, DEEP).tolist() == [[2**22 + 1, 2**22 + 2, 2**22 + 3]]


def test_a_row_too_long_for_int32_is_refused():
    x = torch.zeros(1, MAX_IN_FEATURES + 1, dtype=torch.int8)
    ones = torch.ones(1)
    with pytest.raises(ValueError, match="overflow int32; split them below 131072"):
        w8a8_matmul(x, ones, x, ones, out_dtype=torch.float32)


def test_each_token_and_each_channel_has_its_own_scale(device):
    x, w = torch.ones(5, 32, dtype=torch.int8), torch.ones(7, 32, dtype=torch.int8)
    x_scale, w_scale = 2.0 ** torch.arange(5), 2.0 ** -torch.arange(7)
    given = [tensor.to(device) for tensor in (x, x_scale, w, w_scale)]
    y = w8a8_matmul(*given, out_dtype=torch.float32)
    assert torch.equal(y.cpu(), 32 * x_scale[:, None] * w_scale[None, :])


def test_strided_inputs(device):
    x, x_scale, w, w_scale = inputs(20, 30, 96, device)
    bias = torch.arange(30.0, device=device)
    expected = w8a8_matmul(x, x_scale, w, w_scale, out_dtype=torch.float32, bias=bias)
    spaced = [torch.stack([t, t * 0 + 1], -1)[..., 0] for t in (x, x_scale, w, w_scale, bias)]
    turned = x.T.contiguous().T, x_scale, w.T.contiguous().T, w_scale, bias
    assert spaced[1].stride() == (2,)
    assert not turned[0].is_contiguous()
    for *others, other_bias in (spaced, turned):
        y = w8a8_matmul(*others, out_dtype=torch.float32, bias=other_bias)
        assert torch.equal(y, expected)


def test_no_tokens_no_outputs_no_inputs(device):
    x, x_scale, w, w_scale = inputs(2, 3, 32, device)
    assert w8a8_matmul(x[:0], x_scale[:0], w, w_scale, out_dtype=torch.float16).shape == (0, 3)
    assert w8a8_matmul(x, x_scale, w[:0], w_scale[:0], out_dtype=torch.float16).shape == (2, 0)
    bias = torch.tensor([1.0, 2.0, 3.0], device=device)
    y = w8a8_matmul(x[:, :0], x_scale, w[:, :0], w_scale, out_dtype=torch.float16, bias=bias)
    assert y.tolist() == [[1.0, 2.0, 3.0]] * 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"x": torch.zeros(2, 8)}, "quantize both"),
        ({"w": torch.zeros(3, 9, dtype=torch.int8)}, "in"),
        ({"x_scale": torch.ones(3)}, "x_scale"),
        ({"w_scale": torch.ones(3, dtype=torch.float16)}, "give float32"),
        ({"out_dtype": torch.int32}, "use float16, bfloat16, float32"),
        ({"bias": torch.ones(2)}, "bias"),
        ({"bias": torch.ones(3, dtype=torch.int32)}, "bias"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(change, told):
    x, x_scale, w, w_scale = inputs(2, 3, 8, "cpu")
    given = {"x": x, "x_scale": x_scale, "w": w, "w_scale": w_scale, "out_dtype": torch.float16}
    with pytest.raises(ValueError, match=told) as refused:
        w8a8_matmul(**given | change)
    assert "\n" not in str(refused.value)


def test_tiles_follow_tokens_and_architecture():
    for arch in (*ARCHITECTURES, "sm_89", "sm_120", "gfx90a", "interpreter"):
        for tokens in (1, 16, 17, 64, 65, 10_000):
            tiles = _tiles(tokens, arch)
            assert tiles
            assert all(config in CONFIGS for config in tiles)
            assert (tiles[0].kwargs["BLOCK_M"] == 16) >= (tokens <= 16)
            persistent = any(config.kwargs["PERSISTENT"] for config in tiles)
            assert persistent == (tokens > 64 and arch in ("sm_90", "sm_100", "interpreter"))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_cases_name_every_parameter(arch):
    found = list(cases(arch))
    assert len({case.variant for case in found}) == len(found) == len(CONFIGS_BY_ARCH[arch]) + 1
    for case in found:
        assert list(case.signature) == case.kernel.arg_names
        constant = {name for name, kind in case.signature.items() if kind == "constexpr"}
        assert constant == {*case.constants, *case.config.kwargs}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("tokens", "in_features"), [(1, 1), (3, 100), (2, 5000), (7, 128)])
def test_quantization_equals_the_reference(tokens, in_features, dtype, device):
    x = torch.randn(tokens, in_features, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = x.to(device)
    q, scale = quantize_tokens(x)
    expected, expected_scale = reference.quantize_tokens(x)
    assert (q.dtype, scale.dtype) == (torch.int8, torch.float32)
    assert torch.equal(scale, expected_scale)
    assert torch.equal(q, expected)
    error = (q.double() * scale.double()[:, None] - x.double()).abs()
    assert (error <= 0.5000001 * scale.double()[:, None]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("amax", [1e-5, 6e-8, 1.0, 3.1, 60000.0])
def test_the_largest_of_either_sign_becomes_127(amax, dtype, device):
    """amax 1e-5 with an fp16 scale would give 168, which wraps to −88."""
    x = torch.tensor([[amax, -amax, 0.0], [-amax, amax / 2, 0.0]]).to(dtype).to(device)
    q, scale = quantize_tokens(x)
    assert q[0].tolist() == [127, -127, 0]
    assert q[1, 0].item() == -127
    assert (scale > 0).all()
    assert (scale.half() != scale).any()  # fp16 could not hold it


def test_ties_round_to_even(device):
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]], device=device)
    assert quantize_tokens(x)[0].tolist() == [[127, 0, 2, 2, 0, -2, -2]]


def test_a_scale_that_rounds_below_its_quotient_is_clamped(device):
    """amax / 127 is subnormal and loses a tenth: the quotient is 143, which wraps to −113."""
    x = torch.tensor([[2e-43, -2e-43]], device=device)
    assert quantize_tokens(x)[0].tolist() == [[127, -127]]


@pytest.mark.filterwarnings("error")  # 0 / 0, which some processors happen to cast to 0
def test_a_row_of_zeros_stays_zero_beside_others(device):
    x = torch.tensor([[0.0, 0.0], [1.0, -0.5], [0.0, -0.0]], device=device)
    q, scale = quantize_tokens(x)
    assert q.tolist() == [[0, 0], [127, -64], [0, 0]]
    assert scale[[0, 2]].tolist() == [0.0, 0.0]
    assert scale.isfinite().all()


def test_quantization_of_strided_and_of_empty_inputs(device):
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).to(device)
    for view in (x[::2], x[:, 1::3], x.T):
        q, scale = quantize_tokens(view)
        expected = quantize_tokens(view.contiguous())
        assert torch.equal(q, expected[0])
        assert torch.equal(scale, expected[1])
    assert [t.shape for t in quantize_tokens(x[:0])] == [(0, 40), (0,)]
    assert quantize_tokens(x[:, :0])[1].tolist() == [0.0] * 6


@pytest.mark.parametrize(
    ("x", "told"), [(torch.zeros(3), "flatten"), (torch.zeros(2, 2, dtype=torch.int8), "float16")]
)
def test_what_cannot_be_quantized_is_refused(x, told):
    with pytest.raises(ValueError, match=told):
        quantize_tokens(x)


def test_quantized_product_is_close_to_the_product(device):
    """The two ops together, as a layer uses them: the error is that of rounding, 1 % here."""
    made = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 512, generator=made).to(device) for n in (20, 40))
    y = w8a8_matmul(*quantize_tokens(x), *quantize_tokens(w), out_dtype=torch.float32)
    expected = x.double() @ w.double().T
    error = (y - expected).norm() / expected.norm()
    assert 1e-4 < error < 2e-2


def test_the_bench_agrees_with_its_peers(device):
    found = list(rows(Bench(device, dry=True)))
    assert {row.op for row in found} == {"w8a8_matmul", "quantize_tokens"}
    for row in found:
        assert row.peers_ms.keys() | row.unavailable.keys()
        assert row.ours_ms is None
        assert row.nbytes > 0
        assert row.flops > 0
