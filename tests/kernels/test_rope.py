"""RoPE with QK-norm against the float64 reference, and against the decoder that it serves."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import reference
from kernels.bench.measure import Bench
from kernels.bench.rope import rows
from kernels.rope import CONFIGS, cases, rope, suitable
from tracegen.model.decoder import rotate

TOLERANCE = {  # absolute and relative
    torch.float32: (1e-5, 1e-5),
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (3e-2, 1.6e-2),
}


def normal(device, *shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)


def tables(device, positions, head_dim, dtype=torch.float32):
    """cos and signed sin (…, head_dim) of positions (…), base 10,000."""
    frequency = 10000.0 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = positions.double()[..., None] * frequency
    halves = (angle.cos(), angle.cos()), (-angle.sin(), angle.sin())
    return [torch.cat(pair, dim=-1).to(device, dtype) for pair in halves]


def inputs(device, batch, heads, kv_heads, new, head_dim, dtype=torch.float32):
    q = normal(device, batch, heads, new, head_dim, dtype=dtype)
    k = normal(device, batch, kv_heads, new, head_dim, dtype=dtype, seed=1)
    return q, k, *tables(device, torch.arange(5, 5 + new), head_dim, dtype)


def weights(device, head_dim, dtype=torch.float32):
    return {
        "q_weight": normal(device, head_dim, dtype=dtype, seed=2),
        "k_weight": normal(device, head_dim, dtype=dtype, seed=3),
    }


def check(q, k, cos, sin, **options):
    norms = options.get("q_weight"), options.get("k_weight")
    eps = options.get("eps", 1e-6)
    options.setdefault("config", CONFIGS[0])  # one compilation a shape, and no tuning
    turned = rope(q, k, cos, sin, **options)
    for x, y, weight in zip((q, k), turned, norms, strict=True):
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        expected = reference.rope(x, cos, sin, weight=weight, eps=eps)
        atol, rtol = TOLERANCE[x.dtype]
        torch.testing.assert_close(y.double(), expected, atol=atol, rtol=rtol)
    return turned


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("head_dim", [2, 64, 80, 96, 256])
def test_equals_the_reference(device, dtype, norm, head_dim):
    options = weights(device, head_dim, dtype) if norm else {}
    check(*inputs(device, 2, 9, 3, 2, head_dim, dtype), **options)


@settings(max_examples=10, deadline=None)
@given(
    batch=st.integers(0, 2),
    heads=st.integers(1, 20),
    kv_heads=st.integers(1, 9),
    new=st.integers(0, 3),
    half=st.integers(1, 33),
    norm=st.booleans(),
)
def test_any_shape(device, batch, heads, kv_heads, new, half, norm):
    options = weights(device, 2 * half) if norm else {}
    check(*inputs(device, batch, heads, kv_heads, new, 2 * half), **options)


def test_equals_the_decoder_whose_rows_stand_at_different_positions(device):
    q, k, *_ = inputs(device, 2, 4, 2, 3, 16)
    positions = torch.tensor([[0, 1, 2], [40, 41, 42]])
    cos, sin = (table[:, None] for table in tables(device, positions, 16))  # (batch, 1, new, 16)
    for x, y in zip((q, k), check(q, k, cos, sin), strict=True):
        torch.testing.assert_close(y, rotate(x, cos, sin))


def test_a_dimension_turns_with_the_other_half_and_not_with_its_neighbour(device):
    x = torch.zeros(1, 1, 1, 8, device=device)
    x[..., 0] = 1.0
    y, _ = rope(x, x, *tables(device, torch.tensor([1]), 8))
    expected = torch.zeros(8, device=device)
    expected[0], expected[4] = torch.tensor(1.0).cos(), torch.tensor(1.0).sin()
    torch.testing.assert_close(y.flatten(), expected)  # interleaved: the sine would be at 1


def test_position_zero_changes_nothing_and_the_inputs_stay(device):
    q, k, *_ = inputs(device, 1, 3, 2, 1, 16)
    before = q.clone(), k.clone()
    turned = rope(q, k, *tables(device, torch.tensor([0]), 16))
    rope(q, k, *tables(device, torch.tensor([7]), 16))
    for x, y, kept in zip((q, k), turned, before, strict=True):
        assert torch.equal(y, kept)
        assert torch.equal(x, kept)


def test_scores_depend_on_distance_alone(device):
    q, k, *_ = inputs(device, 1, 1, 1, 1, 32)

    def score(query_position, key_position):
        (a, _), (_, b) = (
            rope(q, k, *tables(device, torch.tensor([position]), 32))
            for position in (query_position, key_position)
        )
        return (a * b).sum()

    torch.testing.assert_close(score(9, 4), score(105, 100), atol=1e-4, rtol=1e-4)


def test_a_norm_takes_out_the_scale_of_each_head(device):
    q, k, cos, sin = inputs(device, 2, 3, 1, 2, 16)
    options = weights(device, 16)
    small = check(q, k, cos, sin, eps=1e-12, **options)
    large = check(100 * q, 0.01 * k, cos, sin, eps=1e-12, **options)
    torch.testing.assert_close(small, large)


class Calls(TorchDispatchMode):
    """Names of the torch operations that run inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_views_into_the_qkv_matrix_are_read_where_they_lie(device):
    batch, new, heads, kv_heads, head_dim = 2, 3, 4, 2, 16
    qkv = normal(device, batch * new, (heads + 2 * kv_heads) * head_dim)
    by_head = qkv.view(batch, new, -1, head_dim).transpose(1, 2)
    q, k, _ = by_head.split((heads, kv_heads, kv_heads), dim=1)
    cos, sin = tables(device, torch.arange(new), head_dim)
    check(q, k, cos, sin, **weights(device, head_dim))
    with Calls() as calls:
        rope(q, k, cos, sin, config=CONFIGS[0])
    assert "empty" in calls.names
    assert not {"clone", "_to_copy"} & set(calls.names)  # contiguous() is a clone


def test_every_stride_counts(device):
    q, k, cos, sin = inputs(device, 2, 3, 2, 4, 8)
    options = weights(device, 8)
    expected = rope(q, k, cos, sin, **options)
    doubled = [torch.stack((x, x + 1), dim=-1)[..., 0] for x in (q, k, cos, sin)]
    norms = {name: torch.stack((w, w), dim=-1)[:, 1] for name, w in options.items()}
    assert doubled[0].stride(-1) == norms["q_weight"].stride(0) == 2
    torch.testing.assert_close(rope(*doubled, **norms), expected)
    flipped = [x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0) for x in (q, k)]
    torch.testing.assert_close(rope(*flipped, cos, sin, **options), expected)


def test_a_head_beyond_two_to_the_31_elements(device):
    far = torch.empty(2**31 + 64, dtype=torch.float16, device=device)  # never touched between
    q = far.as_strided((1, 3, 1, 64), (64, 2**30, 64, 1))  # a stride of 32 bits, an offset of more
    q.copy_(normal(device, 1, 3, 1, 64))
    check(q, q, *tables(device, torch.tensor([3]), 64, torch.float16))


def test_every_configuration_gives_the_same_and_so_does_the_tuned_one(device):
    arguments = inputs(device, 1, 40, 8, 2, 32)
    assert suitable(40) == CONFIGS
    tuned = rope(*arguments)
    for config in CONFIGS:
        torch.testing.assert_close(check(*arguments, config=config), tuned)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_cases_name_every_parameter(arch):
    for case in cases(arch):
        assert list(case.signature) == case.kernel.arg_names
        given = case.constants.keys() | case.config.kwargs.keys()
        assert given == {name for name, kind in case.signature.items() if kind == "constexpr"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.ones(1, 1, 3, 8)}, "give \\(batch, heads, new, head_dim\\)"),
        ({"q": torch.ones(1, 2, 2, 7), "k": torch.ones(1, 2, 2, 7)}, "give an even one"),
        ({"cos": torch.ones(3, 8)}, "give both as \\(2, 8\\) or \\(1, 1, 2, 8\\)"),
        ({"q_weight": torch.ones(8)}, "both None or both \\(8,\\)"),
        ({"q_weight": torch.ones(8), "k_weight": torch.ones(4)}, "both None or both \\(8,\\)"),
        ({"q": torch.ones(1, 2, 2, 8).half()}, "and q as k"),
        ({"cos": torch.ones(2, 8, device="meta")}, "move them to one"),
    ],
)
def test_arguments_that_do_not_belong_together(device, change, message):
    arguments = dict(zip(("q", "k", "cos", "sin"), inputs(device, 1, 2, 1, 2, 8), strict=True))
    moved = {n: t if t.device.type == "meta" else t.to(device) for n, t in change.items()}
    with pytest.raises(ValueError, match=message):
        rope(**(arguments | moved))


def test_bench_agrees_with_its_peers(device):
    plain, normed = rows(Bench(device, dry=True))
    for row in (plain, normed):
        assert set(row.peers_ms) == {"torch eager", "torch.compile"}
        assert not row.unavailable
    numbers = 2 * 3 * (3 + 1) * 16
    assert plain.nbytes == 2 * (2 * numbers + 2 * 3 * 16)
    assert (plain.flops, normed.flops) == (3 * numbers, 7 * numbers)
