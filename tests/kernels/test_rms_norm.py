"""RMSNorm against the float64 reference: widths, dtypes, strides, the fused residual."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.bench.measure import Bench
from kernels.bench.rms_norm import rows
from kernels.launch import architecture
from kernels.rms_norm import MAX_WIDTH, cases, rms_norm, suitable

EPS = 1e-5
TOLERANCE = {  # absolute and relative
    torch.float32: (1e-6, 1e-5),
    torch.float16: (1e-3, 2e-3),
    torch.bfloat16: (1e-2, 1.6e-2),
}


def normal(device, *shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)


def check(x, weight, eps=EPS, **options):
    # One compilation a shape, and no tuning.
    options.setdefault("config", suitable(architecture(x.device), x.shape[-1])[0])
    y = rms_norm(x, weight, eps, **options)
    atol, rtol = TOLERANCE[x.dtype]
    assert y.dtype == x.dtype
    torch.testing.assert_close(y.double(), reference.rms_norm(x, weight, eps), atol=atol, rtol=rtol)
    return y


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [1, 63, 576, 4096, MAX_WIDTH])
def test_equals_the_reference(device, dtype, width):
    check(normal(device, 5, width, dtype=dtype), normal(device, width, dtype=dtype, seed=1))


@settings(max_examples=15, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), max_size=3),
    width=st.integers(1, 300),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_any_shape_and_scale(device, shape, width, scale):
    check(scale * normal(device, *shape, width), normal(device, width, seed=1), eps=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_with_a_residual_it_is_the_sum_and_the_norm_of_the_sum(device, dtype):
    x, residual = (normal(device, 7, 200, dtype=dtype, seed=seed) for seed in (0, 1))
    weight = normal(device, 200, dtype=dtype, seed=2)
    before = x.clone(), residual.clone()
    y, total = rms_norm(x, weight, EPS, residual=residual)
    atol, rtol = TOLERANCE[dtype]
    torch.testing.assert_close(total.double(), x.double() + residual.double(), atol=atol, rtol=rtol)
    assert torch.equal(y, rms_norm(total, weight, EPS))  # to the bit: the norm of what is stored
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_rows_of_zeros_stay_zero(device):
    assert rms_norm(torch.zeros(3, 40, device=device), normal(device, 40), EPS).eq(0).all()


def test_the_weight_may_be_wider_than_the_states(device):
    check(normal(device, 2, 33, dtype=torch.bfloat16), normal(device, 33, seed=1))


def test_one_row_does_not_touch_the_next(device):
    x = normal(device, 9, 70)
    x[4] = torch.nan
    y = rms_norm(x, normal(device, 70, seed=1), EPS)
    assert y[4].isnan().all()
    assert y[[0, 1, 2, 3, 5, 6, 7, 8]].isfinite().all()


def test_strided_states_and_weights(device):
    wide = normal(device, 4, 6, 100)
    every_other = wide[:, 1:5, 3:83:2]
    weight = normal(device, 80, seed=1)[::2]
    residual = normal(device, 4, 40, 4, seed=2).transpose(1, 2)
    check(every_other, weight)
    y, total = rms_norm(every_other, weight, EPS, residual=residual)
    torch.testing.assert_close(total, every_other + residual)
    torch.testing.assert_close(y, rms_norm(total, weight, EPS))
    check(wide.transpose(0, 1), normal(device, 100, seed=1))
    check(wide[None].expand(3, -1, -1, -1)[:1], normal(device, 100, seed=1))


def test_a_row_beyond_two_to_the_31_elements(device):
    far = torch.empty(2**31 + 64, dtype=torch.float16, device=device)  # never touched between
    x = far.as_strided((3, 64), (2**30, 1))  # a stride of 32 bits, an offset of more
    x.copy_(normal(device, 3, 64))
    weight = normal(device, 64, dtype=torch.float16, seed=1)
    check(x, weight)
    by_column = far.as_strided((1, 64), (1, 2**31 // 63 + 1))
    by_column.copy_(normal(device, 1, 64))
    check(by_column, weight)


def test_every_configuration_gives_the_same_and_so_does_the_tuned_one(device):
    x, weight = normal(device, 3, 4096), normal(device, 4096, seed=1)
    tuned = rms_norm(x, weight, EPS)
    configs = suitable(architecture(device), 4096)
    assert len(configs) == 3
    for config in configs:
        torch.testing.assert_close(check(x, weight, config=config), tuned)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942", "interpreter"])
def test_every_width_has_a_configuration(arch):
    for width in (1, 128, 2048, 2049, 8192, MAX_WIDTH):
        warp = 64 if arch == "gfx942" else 32
        assert suitable(arch, width)
        assert all(config.num_warps * warp <= 1024 for config in suitable(arch, width))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_cases_name_every_parameter(arch):
    for case in cases(arch):
        assert list(case.signature) == case.kernel.arg_names
        given = case.constants.keys() | case.config.kwargs.keys()
        assert given == {name for name, kind in case.signature.items() if kind == "constexpr"}


@pytest.mark.parametrize(
    ("x", "weight", "residual", "message"),
    [
        (torch.ones(()), torch.ones(1), None, "give \\(…, width\\)"),
        (torch.ones(2, 0), torch.ones(0), None, f"give 1 to {MAX_WIDTH}"),
        (torch.ones(1, MAX_WIDTH + 1), torch.ones(MAX_WIDTH + 1), None, f"give 1 to {MAX_WIDTH}"),
        (torch.ones(2, 8), torch.ones(1, 8), None, "a number a column"),
        (torch.ones(2, 8).double(), torch.ones(8), None, "give float16, bfloat16 or float32"),
        (torch.ones(2, 8), torch.ones(8), torch.ones(8), "residual must be as x"),
        (torch.ones(2, 8), torch.ones(8), torch.ones(2, 8).half(), "residual must be as x"),
        (torch.ones(2, 3, 4, 8).transpose(1, 2)[::2], torch.ones(8), None, None),
        (torch.ones(2, 3, 4, 8).transpose(0, 1), torch.ones(8), None, "contiguous\\(\\) first"),
        (torch.ones(2, 8), torch.ones(8, device="meta"), None, "move them to one"),
    ],
)
def test_arguments_that_do_not_belong_together(device, x, weight, residual, message):
    given = [
        t if t is None or t.device.type == "meta" else t.to(device) for t in (x, weight, residual)
    ]
    if message is None:  # leading dimensions that torch can view as two
        check(*given[:2])
        return
    with pytest.raises(ValueError, match=message):
        rms_norm(*given[:2], EPS, residual=given[2])


def test_bench_agrees_with_its_peers(device):
    alone, fused = rows(Bench(device, dry=True))
    for row in (alone, fused):
        assert set(row.peers_ms) == {"torch eager", "torch.rms_norm", "torch.compile"}
        assert not row.unavailable
    assert fused.nbytes - alone.nbytes == 2 * (2 * 3 * 96)  # residual in, sum out, bf16
    assert (alone.flops, fused.flops) == (4 * 3 * 96, 5 * 3 * 96)
