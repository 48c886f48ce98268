"""Blocks a multiprocessor, against numbers that can be done by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.occupancy import ARCHITECTURES, LIMITS, occupancy


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "columns", "blocks", "limited_by"),
    [
        ("sm_80", 128, 32, 0, 0, 16, ("registers", "threads")),  # 64 warps of 1,024 registers
        ("sm_80", 128, 33, 0, 0, 12, ("registers",)),  # 1,280 a warp: 12 in each partition
        ("sm_80", 128, 255, 0, 0, 2, ("registers",)),  # 8,192 a warp: 2 in each partition
        ("sm_80", 32, 16, 0, 0, 32, ("blocks",)),
        ("sm_80", 128, 32, 163 * 1024, 0, 1, ("shared memory",)),
        ("sm_80", 128, 32, 81 * 1024, 0, 2, ("shared memory",)),  # 2 · (81 + 1) = 164 KB
        ("sm_80", 128, 32, 81 * 1024 + 1, 0, 1, ("shared memory",)),
        ("sm_80", 128, 32, 163 * 1024 + 1, 0, 0, ("shared memory",)),
        ("sm_90", 128, 168, 75 * 1024, 0, 3, ("registers", "shared memory")),
        ("sm_100", 128, 64, 1024, 128, 4, ("tensor memory",)),
        ("gfx942", 256, 128, 0, 0, 4, ("registers",)),  # 512 / 128 waves a SIMD
        ("gfx942", 256, 129, 0, 0, 3, ("registers",)),
        ("gfx942", 256, 512, 65536, 0, 1, ("registers", "shared memory")),
        ("gfx942", 64, 16, 0, 0, 32, ("threads", "blocks")),
    ],
)
def test_known(arch, threads, registers, shared, columns, blocks, limited_by):
    found = occupancy(
        arch,
        threads=threads,
        registers=registers,
        shared_bytes=shared,
        tensor_memory_columns=columns,
    )
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.occupancy == blocks * threads / LIMITS[arch].warp_size / LIMITS[arch].warps


@settings(max_examples=100, deadline=None)
@given(
    arch=st.sampled_from(ARCHITECTURES),
    warps=st.integers(1, 16),
    registers=st.integers(1, 255),
    shared=st.integers(0, 64 * 1024),
)
def test_as_many_as_can_be_placed_one_warp_after_another(arch, warps, registers, shared):
    has = LIMITS[arch]
    free_registers = [has.registers // 4] * 4  # of the four partitions
    free_warps, free_shared, placed = has.warps, has.shared_bytes, 0
    warp_registers = math.ceil(registers * has.warp_size / has.register_unit) * has.register_unit
    block_shared = math.ceil((shared + has.reserved_shared_bytes) / has.shared_unit)
    while placed < (has.blocks if warps > 1 or arch != "gfx942" else 32):
        for _ in range(warps):
            emptiest = free_registers.index(max(free_registers))
            free_registers[emptiest] -= warp_registers
        free_warps -= warps
        free_shared -= block_shared * has.shared_unit
        if min(*free_registers, free_warps, free_shared) < 0:
            break
        placed += 1
    found = occupancy(arch, threads=warps * has.warp_size, registers=registers, shared_bytes=shared)
    assert found.blocks == placed


def test_more_registers_never_hold_more_blocks():
    for arch in ARCHITECTURES:
        counts = [
            occupancy(arch, threads=256, registers=n, shared_bytes=0).blocks for n in range(1, 256)
        ]
        assert counts == sorted(counts, reverse=True)


def test_more_registers_than_a_thread_may_have():
    found = occupancy("sm_90", threads=128, registers=256, shared_bytes=0)
    assert (found.blocks, found.limited_by) == (0, ("registers",))
