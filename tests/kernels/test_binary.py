"""What is read from a binary: kernels whose content is known, and what the compilers say."""

import json
import os
import subprocess
import sys

import pytest

from kernels.binary import KINDS, amd_bytes, read_amdgcn, read_binary, read_cubin, sass_bytes
from kernels.compile import compile_all
from kernels.occupancy import ARCHITECTURES

pytestmark = pytest.mark.xdist_group("compile")
TENSOR_CORES = {"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA", "gfx942": "v_mfma_"}


@pytest.fixture(scope="module")
def toys():
    found = compile_all("tiles", sweep=True, package="tests.kernels.toys")
    return {(one.variant, one.arch): one for one in found}


def test_all_cases_come_in_order(toys):
    assert list(toys) == [
        *((variant, arch) for arch in ARCHITECTURES for variant in ("dot", "add")),
        *(("long row", arch) for arch in ARCHITECTURES),
    ]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_dot_runs_on_the_architectures_own_tensor_cores(toys, arch):
    binary = toys["dot", arch].binary
    assert len(binary.tensor_cores) == 1
    (name,) = binary.tensor_cores
    assert name.startswith(TENSOR_CORES[arch])
    assert binary.instructions["tensor_core"] == binary.tensor_cores[name] > 0
    assert binary.spilled_bytes == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_addition_has_loads_and_stores_and_no_more(toys, arch):
    # 1024 fp32 by 4 warps: each thread moves 8 numbers (4 on a warp of 64), 4 at a time
    binary = toys["add", arch].binary
    each = 1 if arch == "gfx942" else 2
    assert binary.instructions == dict.fromkeys(KINDS, 0) | {
        "global_load": 2 * each,
        "global_store": each,
    }
    assert toys["add", arch].shared_bytes == binary.stack_bytes == binary.spilled_bytes == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_a_pipelined_dot_copies_to_shared_memory_past_the_registers(toys, arch):
    instructions = toys["dot", arch].binary.instructions
    assert instructions["async_copy"] > 0
    assert instructions["global_load"] == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_too_long_a_row_spills(toys, arch):
    one = toys["long row", arch]
    assert one.binary.spill_store_bytes > 0
    assert one.binary.spill_load_bytes > 0
    assert one.binary.stack_bytes > 0
    assert not one.shipped
    assert "spills" in one.fault


def test_the_compilers_say_the_same():
    """ptxas: registers, stack, spill stores, spill loads. LLVM: scratch, waves a SIMD."""
    said = subprocess.run(
        [sys.executable, "-m", "tests.kernels.peers"],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = json.loads(said.splitlines()[-1])
    assert len(rows) == 3 * len(ARCHITECTURES)
    for row in rows:
        assert row["ours"] == row["theirs"], row


def test_predicates_suffixes_and_widths_of_sass():
    assert [sass_bytes(s) for s in ("", ".LU", ".64", ".LU.128", ".U8", ".S16")] == [
        4, 4, 8, 16, 1, 2
    ]  # fmt: skip


def test_widths_of_amd_scratch():
    names = ("scratch_load_dword", "scratch_store_dwordx4", "scratch_load_ushort_d16")
    assert [amd_bytes(name) for name in names] == [4, 16, 2]


def test_an_amd_load_that_ends_in_lds_skips_the_registers():
    text = (
        "\tbuffer_load_dword v1, s[0:3], 0 offen lds\n"
        "\tbuffer_load_dword v1, v2, s[0:3], 0 offen\n"
        "    .vgpr_count: 4\n    .private_segment_fixed_size: 0\n    .group_segment_fixed_size: 0\n"
    )
    instructions = read_amdgcn(text).instructions
    assert (instructions["async_copy"], instructions["global_load"]) == (1, 1)


def test_a_binary_is_read_once(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    text = "\tds_read_b32 v1\n" + "".join(
        f"    .{name}: 4\n"
        for name in ("vgpr_count", "private_segment_fixed_size", "group_segment_fixed_size")
    )
    first = read_binary({"amdgcn": text})
    assert first == read_amdgcn(text)
    monkeypatch.setattr("kernels.binary.read_amdgcn", None)
    assert read_binary({"amdgcn": text}) == first
    with pytest.raises(TypeError):  # other code is read anew
        read_binary({"amdgcn": text + "\tds_read_b32 v1\n"})


def test_what_is_no_binary_is_said_to_be_none():
    with pytest.raises(RuntimeError, match="cuobjdump cannot read this binary"):
        read_cubin(b"nothing")
    with pytest.raises(RuntimeError, match=r"has no \.vgpr_count"):
        read_amdgcn("\ts_endpgm\n")
