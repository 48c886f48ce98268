"""Benches of all kernels beside their peers: `python -m kernels.bench [--only op] [--json FILE]`.

Needs a GPU. Every time is a median with a cold L2 cache; every row is set beside its best peer and
the machine's ceilings, measured in the same run. An aim is only a wish until a row shows it met.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import torch

from kernels.bench.measure import Bench, Row
from kernels.launch import INTERPRETED
from tracegen.machine import Machine, measure

FOLDER = Path(__file__).parent
HEADER = (
    "op",
    "shape",
    "ours ms",
    "best peer",
    "peer ms",
    "ratio",
    "GB/s",
    "TFLOP/s",
    "of ceiling",
)


def bench_names() -> list[str]:
    """Ops that have a bench."""
    return sorted(p.stem for p in FOLDER.glob("[a-z]*.py") if p.stem != "measure")


def rows_of(names: list[str], bench: Bench) -> Iterator[Row]:
    """The rows of each op's bench, in order."""
    for name in names:
        yield from import_module(f"kernels.bench.{name}").rows(bench)


def share_of_ceiling(row: Row, machine: Machine) -> float:
    """Time that the busier of memory and arithmetic needs at the measured ceilings, over ours."""
    rate = max(machine.matmul_flops_per_s.values())
    least = max(row.nbytes / machine.copy_bytes_per_s, row.flops / rate)
    return least / (float(row.ours_ms or 0) / 1e3)


def cells(row: Row, machine: Machine) -> tuple[str, ...]:
    """One line of the table."""
    ours = float(row.ours_ms or 0)
    timed = {name: ms for name, ms in row.peers_ms.items() if ms is not None}
    best = min(timed, key=timed.__getitem__, default="")
    return (
        row.op,
        row.shape,
        f"{ours:.4f}",
        best or "none ran",
        f"{timed[best]:.4f}" if best else "",
        f"{timed[best] / ours:.2f}x" if best else "",
        f"{row.nbytes / ours / 1e6:,.0f}",
        f"{row.flops / ours / 1e9:,.1f}",
        f"{share_of_ceiling(row, machine):.0%}" + (f"   aim: {row.aim}" if row.aim else ""),
    )


def table(lines: list[tuple[str, ...]]) -> str:
    """Columns side by side, as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write the rows down. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument("--only", choices=bench_names(), help="bench this op")
    parser.add_argument("--json", type=Path, help="also write rows and ceilings to this file")
    args = parser.parse_args(argv)
    if INTERPRETED or not torch.cuda.is_available():
        print("error: benches need a GPU; tests hold them on a CPU: make test", file=sys.stderr)
        return 2
    bench = Bench(torch.device("cuda"))
    machine = measure(bench.device)
    rows = []
    for row in rows_of([args.only] if args.only else bench_names(), bench):
        rows.append(row)
        print("  ".join(cells(row, machine)), file=sys.stderr, flush=True)
    if args.json:
        found = {"machine": machine.as_dict(), "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    rates = ", ".join(f"{k} {v / 1e12:,.0f}" for k, v in machine.matmul_flops_per_s.items())
    print(f"{machine.name}: copy {machine.copy_bytes_per_s / 1e9:,.0f} GB/s; TFLOP/s {rates}")
    print(table([HEADER, *(cells(row, machine) for row in rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
