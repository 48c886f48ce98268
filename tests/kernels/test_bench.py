"""What a bench checks, counts and prints, without a GPU."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from kernels.bench.__main__ import HEADER, bench_names, cells, main, share_of_ceiling, table
from kernels.bench.measure import Bench, Row
from kernels.compile import ops
from tracegen.machine import Machine

DRY = Bench(torch.device("cpu"), dry=True)
X = torch.arange(6.0)


def machine() -> Machine:
    return Machine(
        slug="m",
        name="M",
        device="cuda",
        cores=1,
        memory_bytes=1,
        copy_bytes_per_s=1e12,
        read_bytes_per_s=1e12,
        matmul_flops_per_s={"float32": 1e13, "bfloat16": 1e14},
    )


def row(**peers):
    return DRY.row("double", "6", ours=lambda: 2 * X, peers=peers, nbytes=48, flops=6)


def test_a_peer_that_agrees_is_kept_and_a_dry_bench_times_nothing():
    found = row(add=lambda: X + X)
    assert found.peers_ms == {"add": None}
    assert found.ours_ms is None


def test_a_peer_that_disagrees_ends_the_bench():
    with pytest.raises(AssertionError, match="double 6: square disagrees"):
        row(square=lambda: X * X)


def test_a_peer_that_this_device_lacks_is_noted():
    def absent():
        raise RuntimeError("no such backend\nlong story")

    assert row(absent=absent).unavailable == {"absent": "no such backend"}


def test_share_of_the_busier_ceiling():
    memory = Row("op", "s", 2.0, {}, nbytes=10**9, flops=0)  # 1 ms at 1 TB/s
    arithmetic = Row("op", "s", 4.0, {}, nbytes=1, flops=10**11)  # 1 ms at 100 TFLOP/s
    assert share_of_ceiling(memory, machine()) == pytest.approx(0.5)
    assert share_of_ceiling(arithmetic, machine()) == pytest.approx(0.25)


def test_the_table_names_the_fastest_peer_and_the_ratio():
    found = Row("op", "s", 2.0, {"slow": 8.0, "fast": 3.0, "dry": None}, 10**9, 10**11, "≥ 2x")
    line = cells(found, machine())
    assert line[3:6] == ("fast", "3.0000", "1.50x")
    assert line[6:8] == ("500", "50.0")
    assert line[8].endswith("aim: ≥ 2x")
    assert table([HEADER, line]).splitlines()[1].startswith("op  s")


def test_every_op_with_a_kernel_has_a_bench():
    modules = {name: import_module(f"kernels.{name}") for name in ops("kernels")}
    assert bench_names() == [name for name in sorted(modules) if hasattr(modules[name], "cases")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_to_do(capsys):
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "error: benches need a GPU; tests hold them on a CPU: make test\n"
    )
