"""Kernels: eager traffic by formula, binaries as events, and the listing's faults."""

import kernels as _chooses_the_path  # noqa: F401, I001  (before Triton is imported)

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from kernels import compile_case
from kernels.binary import KINDS, Binary
from kernels.launch import INTERPRETED
from kernels.occupancy import ARCHITECTURES
from kernels.rms_norm import rms_norm as fused_rms_norm
from tests.listings import kernels as listing
from tracegen.events import event_types
from tracegen.techniques import kernels
from tracegen.techniques.kernels import SCENARIOS, Ahead, Compiled, Eager, Launched, Limits, run

DEVICE = "cpu" if INTERPRETED else "cuda"
EAGER = [
    Eager(name="rms_norm", op="rms_norm", tokens=6, width=256),
    Eager(name="w4a16", op="w4a16", tokens=1, width=256, group=64),
]


@pytest.fixture
def two_binaries(monkeypatch):
    """Stand-ins, so that nothing is compiled: one shipped, one refused in a sweep."""
    binary = Binary(90, 16, 8, 4, 0, dict.fromkeys(KINDS, 0) | {"tensor_core": 3}, {"HGMMA": 3})
    sizes = {"BLOCK_M": 64, "BLOCK_N": 32}
    found = (
        compile_case.Compiled(
            "op", "a", "sm_90", True, {"head_dim": 128}, sizes, 4, 3, 128, 4096, 0, binary
        ),
        compile_case.Compiled("op", "b", "gfx942", False, {}, sizes, 4, 3, error="too odd"),
    )
    monkeypatch.setattr(kernels, "binaries", lambda: found)


def test_eager_bytes_of_rms_norm_by_formula():
    *eager, fused = run(EAGER[0])
    n, width, tokens = 6 * 256, 256, 6
    # cast 2+4, square 4+4, mean 4, · root 4+4, cast 4+2, · weight 2+2 bytes a number; a row's
    # mean is written, + eps, root and read once more
    rows = 4 * tokens * (1 + 2 + 2 + 1)
    assert sum(e.bytes_read + e.bytes_written for e in eager) == 36 * n + rows + 2 * width
    assert fused == Launched("fused", "rms_norm", 0, 2 * n + 2 * width, 2 * n)
    assert [e.kernel for e in eager] == [
        "_to_copy", "pow", "mean", "add", "rsqrt", "mul", "_to_copy", "mul"
    ]  # fmt: skip


def test_eager_bytes_of_four_bit_weights_by_formula():
    *eager, fused = run(EAGER[1])
    n, groups, width = 256 * 256, 2 * 256 * 4, 256
    shifts = 4 * 8
    # shift ½+4, mask 4+4, cast 4+2, − zero 2+2, · scale 2+2, product 2
    total = 28.5 * n + 2 * groups + 2 * (2 * width) + 2 * shifts
    assert sum(e.bytes_read + e.bytes_written for e in eager) == total
    assert fused.bytes_read == n // 2 + 2 * groups + 2 * width
    assert fused.bytes_written == 2 * width


def test_eager_forms_compute_what_they_say():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 64, generator=generator)
    weight = torch.randn(64, generator=generator)
    expected = torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)
    torch.testing.assert_close(kernels.rms_norm(x, weight), expected)
    fused = fused_rms_norm(x.to(DEVICE), weight.to(DEVICE), 1e-6).cpu()
    torch.testing.assert_close(fused, expected)

    nibbles = torch.randint(0, 16, (8, 64), generator=generator)
    shifted = nibbles.view(8, 8, 8) << torch.arange(0, 32, 4)
    packed = shifted.sum(-1).to(torch.int64)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).int()
    scale, zero = torch.rand(2, 8, 2, generator=generator)
    dense = (nibbles.view(8, 2, 32) - zero.unsqueeze(-1)) * scale.unsqueeze(-1)
    x = torch.randn(64, generator=generator)
    torch.testing.assert_close(kernels.w4a16(x, packed, scale, zero), dense.view(8, 64) @ x)


def test_every_launch_knows_its_line():
    source = Path(kernels.__file__).read_text().splitlines()
    *eager, _ = run(EAGER[0])
    assert "pow(2)" in source[eager[1].at_line - 1]
    assert "weight * narrow" in source[eager[-1].at_line - 1]


def test_views_and_broadcasts_move_nothing_twice():
    with kernels.CountLaunches() as counter:
        pass
    assert counter.launches == []
    assert kernels.moved_bytes(torch.ones(4).expand(1000, 4)) == 16
    assert kernels.moved_bytes(torch.ones(8)[:2]) == 8


@pytest.mark.parametrize("shipped", [True, False])
def test_binaries_become_events(two_binaries, shipped):
    events = list(run(Ahead(name="a", shipped=shipped)))
    limits, (one,) = events[: len(ARCHITECTURES)], events[len(ARCHITECTURES) :]
    assert [e.arch for e in limits] == list(ARCHITECTURES)
    assert all(isinstance(e, Limits) for e in limits)
    if shipped:
        assert (one.block_m, one.block_n, one.head_dim) == (64, 32, 128)
        assert (one.registers, one.stack_bytes, one.spilled_bytes) == (90, 16, 12)
        assert (one.blocks, one.limited_by) == (5, ("registers",))
        assert (one.tensor_core, one.tensor_core_names) == (3, ("HGMMA",))
        assert one.error == ""
    else:
        assert (one.registers, one.blocks, one.error) == (0, 0, "too odd")


def test_every_event_type_is_reached_and_repeats(two_binaries):
    scenarios = [*EAGER, *(s for s in SCENARIOS if isinstance(s, Ahead))]
    found = [event for s in scenarios for event in run(s)]
    assert {type(event) for event in found} == set(event_types(kernels))
    assert found == [event for s in scenarios for event in run(s)]
    assert {e.shipped for e in found if isinstance(e, Compiled)} == {True, False}


def test_scenarios_are_named_after_what_they_run():
    assert [s.name for s in SCENARIOS] == ["rms_norm", "w4a16", "shipped", "sweep"]
    assert all(s.name == s.op for s in SCENARIOS if isinstance(s, Eager))


# The listing, run as it was.


def listed(x, block):
    """The listing on x (rows, width) with weight 1; y has one number more, to see what is hit."""
    x = x.to(DEVICE)
    weight = torch.ones(block, dtype=x.dtype, device=DEVICE)
    room = torch.zeros(x.numel() + block, dtype=x.dtype, device=DEVICE)
    padded = torch.cat([x.flatten(), torch.full((block,), 50.0, dtype=x.dtype, device=DEVICE)])
    listing.rms_norm_kernel[(len(x),)](padded, weight, room, x.shape[1], 0.0, BLOCK=block)
    return room.cpu()


def ours(x):
    return fused_rms_norm(
        x.to(DEVICE), torch.ones(x.shape[1], dtype=x.dtype, device=DEVICE), 0.0
    ).cpu()


def test_listing_is_right_where_the_width_is_the_block():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.0]])
    torch.testing.assert_close(listed(x, 4)[:8].view(2, 4), ours(x))


def test_listing_reads_and_writes_into_the_next_row():
    x = torch.tensor([[2.0, 2.0, 2.0]])
    out = listed(x, 4)
    assert out[3] != 0  # past the row
    assert not torch.allclose(out[:3], torch.ones(3))  # the mean took in what lies there
    torch.testing.assert_close(ours(x), torch.ones(1, 3))


def test_listing_squares_in_half_precision():
    x = torch.full((1, 4), 300.0, dtype=torch.float16)
    assert listed(x, 4)[:4].tolist() == [0.0] * 4
    assert ours(x).tolist() == [[1.0] * 4]


@triton.jit
def _offsets_kernel(out_ptr, row, width):
    tl.store(out_ptr, row * width)
    tl.store(out_ptr + 1, row.to(tl.int64) * width)


def test_listing_multiplies_offsets_in_32_bits():
    out = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    _offsets_kernel[(1,)](out, 2**20, 4096)
    assert out.tolist() == [0, 2**32]


# Where the interpreter is not the GPU.


@triton.jit
def _dot_kernel(x_ptr, y_ptr, out_ptr):
    row = tl.arange(0, 16)
    at = row[:, None] * 16 + row[None, :]
    product = tl.dot(tl.load(x_ptr + at), tl.load(y_ptr + at))
    tl.store(out_ptr + at, product)


def dot(dtype, value):
    x = torch.full((16, 16), value, dtype=dtype, device=DEVICE)
    y = torch.eye(16, dtype=dtype, device=DEVICE)
    out = torch.zeros(16, 16, device=DEVICE)
    _dot_kernel[(1,)](x, y, out)
    return out[0, 0].item()


def test_bfloat16_in_a_dot():
    """2.0 is the pattern 0x4000 and 1.0 is 0x3F80: the interpreter multiplies those."""
    assert dot(torch.bfloat16, 2.0) == (0x4000 * 0x3F80 if INTERPRETED else 2.0)


def test_tf32_in_a_dot():
    exact = 1 + 2.0**-12
    keeps_fp32 = INTERPRETED or torch.version.hip is not None  # the default on AMD is IEEE
    assert (dot(torch.float32, exact) == exact) == keeps_fp32
    assert dot(torch.float32, 2.0) == 2.0  # a small whole number hides it


@pytest.mark.parametrize("op", ["rms_norm", "w4a16"])
def test_inference_mode_names_the_same_operations(op):
    scenario = next(s for s in EAGER if s.name == op)
    expected = list(run(scenario))
    with torch.inference_mode():
        assert list(run(scenario)) == expected
