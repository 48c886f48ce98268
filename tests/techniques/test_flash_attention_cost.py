"""What FlashAttention costs: counts against theorem 2 and real tiles, errors, the kernel."""

import math
from collections import defaultdict
from dataclasses import replace
from functools import cache

import pytest
import torch

from kernels.launch import INTERPRETED
from kernels.reference import attention
from tracegen.attention_inputs import random_qkv
from tracegen.events import deterministic, event_types
from tracegen.score_grid import Grid
from tracegen.techniques import flash_attention_cost as technique
from tracegen.techniques.flash_attention import attend_tile, empty_state
from tracegen.techniques.flash_attention_cost import (
    SCENARIOS,
    Counted,
    Kernel,
    KernelTile,
    Prepared,
    Rounded,
    Rounding,
    Timed,
    Times,
    Traffic,
    methods,
    run,
)

QUICK = [replace(s, tokens=64) if isinstance(s, Rounding) else s for s in SCENARIOS]
QUICK = [s for s in QUICK if not (isinstance(s, Times) and s.queries > 256)]


@pytest.fixture(scope="module")
def events(tiny):
    """Events of a quick scenario by name, run when first asked for."""
    by_name = {s.name: s for s in QUICK}
    return cache(lambda name: list(run(by_name[name], tiny)))


def test_every_event_type_is_reached(events):
    found = {type(event) for scenario in QUICK for event in events(scenario.name)}
    assert found == set(event_types(technique))


@pytest.mark.parametrize("scenario", QUICK, ids=lambda s: s.name)
def test_every_scenario_repeats(tiny, events, scenario):
    again = [deterministic(event) for event in run(scenario, tiny)]
    assert again == [deterministic(event) for event in events(scenario.name)]


# Traffic.


def moved(event):
    return event.bytes_read + event.bytes_written


def bytes_by(events):
    """{(method, on-chip bytes): {length: bytes of one head}}"""
    found = defaultdict(lambda: defaultdict(int))
    for e in events("traffic"):
        found[e.method, e.on_chip_bytes][e.queries] += moved(e)
    return found


def test_naive_bytes_are_4nn_and_4nd_numbers(events):
    for n, found in bytes_by(events)["naive", 0].items():
        assert found == (4 * n * n + 4 * n * 64) * 2


def test_tiled_bytes_follow_theorem_two(events):
    """Θ(N²d²/M) for d ≤ M ≤ Nd: four times the bytes for twice N, half for twice M. Not 1/√M."""
    found = bytes_by(events)
    small, large = found["tiled", 24 * 1024], found["tiled", 192 * 1024]
    assert small[8192] / small[4096] == pytest.approx(4, rel=0.1)
    assert small[8192] / large[8192] == pytest.approx(8, rel=0.15)  # 1/√M would give 2.8
    for kib in (24, 48, 96, 192):
        numbers = kib * 1024 // 2
        for n in (2048, 4096, 8192):
            assert 64 <= numbers <= n * 64
            ratio = found["tiled", kib * 1024][n] / 2 / (n * n * 64**2 / numbers)
            assert 6 < ratio < 16  # 2 N d · N / (M / 4d) is 8 of them, and the ends


def test_tiled_flops_are_the_naive_ones(events):
    flops = defaultdict(int)
    for e in events("traffic"):
        flops[e.method, e.on_chip_bytes, e.queries] += e.flops
    for (_, _, n), count in flops.items():
        assert count == 4 * n * n * 64


@pytest.mark.parametrize("n", [128, 200])
def test_counting_equals_tiles_that_really_ran(n):
    """Bytes of the very slices that attend_tile gets, without a mask and with."""
    q, k, v = (x[0, 0] for x in random_qkv((1, 1, n, 8), n, seed=0))
    for causal in (False, True):
        grid = Grid(n, n, 48, 32, causal)
        read = 0
        for rows in grid.row_tiles():
            state = empty_state(q[rows], torch.float32)
            read += q[rows].nbytes
            for columns in grid.column_tiles(rows):
                k_tile, v_tile = k[columns], v[columns]
                read += k_tile.nbytes + v_tile.nbytes
                state = attend_tile(state, q[rows], k_tile, v_tile, grid.visible(rows, columns))
        assert grid.tiled_cost(8, 4).bytes_read == read


# Times.


def test_all_methods_compute_the_same():
    for s in (Times(name="t", keys=150, queries=150), Times(name="t", keys=150, queries=1)):
        q, k, v = random_qkv((1, 2, s.queries, 16), s.keys, seed=0)
        expected, _ = attention(q, k, v, causal=True)
        for name, call in methods(s, torch.device("cpu")).items():
            found = call(q, k, v)
            out = found[0] if isinstance(found, tuple) else found
            torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5, msg=name)


def test_what_a_clock_cannot_see_is_counted_or_left_out(events):
    prepared, *found = events("times_256")
    assert prepared == Prepared("float32")  # the tiny model is on the CPU
    timed = {e.method: e for e in found}
    e = timed["naive"].element_bytes
    naive = Grid(256, 256, 256, 256).naive_cost(64, e) * 4
    tiled = Grid(256, 256, 128, 128, causal=True).tiled_cost(64, e) * 4
    assert (timed["naive"].flops, moved(timed["naive"])) == (
        naive.flops,
        naive.bytes_read + naive.bytes_written,
    )
    assert (timed["tiled"].flops, moved(timed["tiled"])) == (
        tiled.flops,
        tiled.bytes_read + tiled.bytes_written,
    )
    assert timed["sdpa"].bytes_read is None
    assert all(isinstance(event, Timed) for event in found)


def test_one_query_has_no_matrix_to_save(events):
    """Decode: the scores are one row, so tiles move hardly fewer bytes."""
    decode = {e.method: e for e in events("decode_4096")[1:]}
    assert decode["tiled"].flops == decode["naive"].flops
    assert 0.9 < moved(decode["tiled"]) / moved(decode["naive"]) < 1


# Rounding.


def test_online_softmax_in_float32_is_no_worse_than_two_passes(events):
    errors = {(e.method, e.dtype, e.spread): e.max_error for e in events("rounding")}
    assert len(errors) == 3 * 3 * 3
    for (method, dtype, spread), error in errors.items():
        assert math.isfinite(error)
        assert error < 100 * spread * torch.finfo(getattr(torch, dtype)).eps, (method, dtype)
    for dtype in ("float16", "bfloat16"):
        for spread in (4.0, 16.0):
            assert errors["online", dtype, spread] < errors["two-pass", dtype, spread]
        assert errors["online", dtype, 1.0] < errors["online, narrow state", dtype, 1.0]
    assert all(isinstance(event, Rounded) for event in events("rounding"))


# The kernel.


def test_the_kernel_remembers_tile_by_tile_what_the_torch_loop_does(events):
    scenario = next(s for s in QUICK if isinstance(s, Kernel))
    programs = events("kernel")
    assert {e.path for e in programs} == {"interpreter" if INTERPRETED else "native"}
    tokens = scenario.interpreted_tokens if INTERPRETED else scenario.tokens
    heads = scenario.interpreted_heads if INTERPRETED else scenario.heads
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    q, k, v = random_qkv((1, heads, tokens, 64), tokens, seed=0, dtype=dtype)
    grid = Grid(tokens, tokens, programs[0].block_q, programs[0].block_k, causal=True)
    assert len(programs) == heads * len(grid.row_tiles())
    for e in programs[:: 1 if INTERPRETED else 16]:
        rows = grid.row_tiles()[e.row_tile]
        q_tile = q[0, e.head, rows]
        state = empty_state(q_tile, torch.float32)
        assert len(e.maxima) == len(e.totals) == len(grid.column_tiles(rows))
        for j, columns in enumerate(grid.column_tiles(rows)):
            seen = grid.visible(rows, columns)
            state = attend_tile(state, q_tile, k[0, e.head, columns], v[0, e.head, columns], seen)
            assert e.maxima[j] == pytest.approx(state.maximum[-1].item(), abs=1e-3)
            assert e.totals[j] == pytest.approx(state.total[-1].item(), rel=1e-3)


def test_a_kernel_on_a_gpu_says_where_and_when(events):
    """Under the interpreter there is no multiprocessor and no timer: None, not a made-up value."""
    for e in events("kernel"):
        assert isinstance(e, KernelTile)
        if INTERPRETED or torch.version.hip:
            assert (e.multiprocessor_measured, e.started_ns, e.ended_ns) == (None, None, None)
        else:
            assert e.multiprocessor_measured >= 0
            assert 0 <= e.started_ns <= e.ended_ns


def test_sweeps_cover_what_the_page_shows():
    assert [s.keys for s in SCENARIOS if s.name.startswith("times_")] == [
        128, 256, 512, 1024, 2048, 4096
    ]  # fmt: skip
    traffic = next(s for s in SCENARIOS if isinstance(s, Traffic))
    assert (min(traffic.lengths), max(traffic.lengths)) == (128, 8192)
    assert all(isinstance(event, Counted) for event in run(traffic, None))
