"""Every kernel compiled ahead of time for four architectures, without any GPU.

    python -m kernels.compile [--only OP] [--arch sm_90] [--sweep] [--json]

A process either interprets kernels or compiles them, so child processes do the compiling:
`compile_all` works from either. Each child takes its share of the cases; Triton's own cache on
disk makes the next time fast. The exit status is 1 when a shipped case does not compile, spills
registers or needs more shared memory than a block may have, and 2 for a wrong argument.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from kernels.binary import Binary
from kernels.compile_case import Compiled, compile_case
from kernels.launch import Case, require
from kernels.occupancy import ARCHITECTURES, LIMITS

WORKERS = min(2, os.cpu_count() or 1)
SOURCES = ("cases", "sweep")  # functions of an op: what it ships, and what is only looked at
COLUMNS = ("op", "case", "arch", "registers", "spilled", "shared", "blocks", "limited by", "cores")


def ops(package: str) -> list[str]:
    """Names of the modules of `package`, those without kernels included."""
    found = importlib.import_module(package)
    return [module.name for module in pkgutil.iter_modules(found.__path__) if not module.ispkg]


def jobs(
    package: str, only: str | None, archs: list[str], sweep: bool
) -> Iterator[tuple[Case, str]]:
    """(case, architecture) of everything asked for, always in the same order."""
    for name in [only] if only else ops(package):
        module = importlib.import_module(f"{package}.{name}")
        for source in SOURCES if sweep else SOURCES[:1]:
            for arch in archs if hasattr(module, source) else []:
                for case in getattr(module, source)(arch):
                    yield case, arch


def compile_all(
    only: str | None = None,
    archs: list[str] | None = None,
    *,
    sweep: bool = False,
    package: str = "kernels",
) -> list[Compiled]:
    """Compile all cases (with `sweep`, also the ones only looked at) in child processes.

    Raises ValueError for an unknown op or architecture, RuntimeError when a child fails.
    """
    archs = archs or list(ARCHITECTURES)
    known = ops(package)
    require(only is None or only in known, f"no op {only!r}; {package} has {', '.join(known)}")
    for arch in archs:
        require(arch in LIMITS, f"no architecture {arch!r}; there are {', '.join(LIMITS)}")
    asked = {"package": package, "only": only, "archs": archs, "sweep": sweep}
    with ThreadPoolExecutor(WORKERS) as pool:
        shares = list(pool.map(partial(in_child, asked=asked), range(WORKERS)))
    count = sum(map(len, shares))
    return [shares[index % WORKERS][index // WORKERS] for index in range(count)]


def in_child(share: int, asked: dict[str, Any]) -> list[Compiled]:
    """Compile one share in a child process. Raises RuntimeError with its last word on failure."""
    child = subprocess.run(
        [sys.executable, "-m", "kernels.compile", "--share", str(share), json.dumps(asked)],
        env={**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"compiling failed: {last}")
    return [
        Compiled(**row, binary=binary and Binary(**binary))
        for row in json.loads(child.stdout)
        for binary in [row.pop("binary")]
    ]


def compile_share(share: int, asked: dict[str, Any]) -> None:
    """In a child: compile every WORKERS-th job and print them as JSON."""
    with contextlib.redirect_stdout(sys.stderr):  # Triton prints when ptxas refuses
        mine = [job for index, job in enumerate(jobs(**asked)) if index % WORKERS == share]
        rows = [asdict(compile_case(case, arch)) for case, arch in mine]
    print(json.dumps(rows))


def table_row(one: Compiled) -> tuple[str, ...]:
    """One line of the table, under COLUMNS."""
    about = (one.op, one.variant, one.arch)
    if one.binary is None:
        return (*about, "-", "-", "-", "-", "does not compile", "-")
    fits = one.occupancy
    cores = " ".join(f"{count} {name}" for name, count in one.binary.tensor_cores.items())
    return (
        *about,
        str(one.binary.registers),
        str(one.binary.spilled_bytes),
        str(one.shared_bytes),
        str(fits.blocks),
        ", ".join(fits.limited_by),
        cores,
    )


def print_table(found: list[Compiled]) -> None:
    """A rich table where rich is installed, aligned text elsewhere."""
    rows = [table_row(one) for one in found]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        for row in (COLUMNS, *rows):
            print("  ".join(map(str.ljust, row, widths)).rstrip())
        return
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row, one in zip(rows, found, strict=True):
        table.add_row(*row, style="red" if one.fault else None)
    # a narrow terminal may break lines, never numbers
    Console(highlight=False, width=sum(widths) + 2 * len(widths)).print(table)


def main(argv: list[str] | None = None) -> int:
    """Compile what is asked for and print it. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kernels.compile", description=__doc__)
    parser.add_argument("--only", metavar="OP", help="only this module of the package")
    parser.add_argument("--arch", action="append", help="only this architecture (repeatable)")
    parser.add_argument("--sweep", action="store_true", help="also what no op would launch")
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    parser.add_argument("--package", default="kernels", help=argparse.SUPPRESS)
    parser.add_argument("--share", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.share:
        compile_share(int(args.share[0]), json.loads(args.share[1]))
        return 0
    try:
        found = compile_all(args.only, args.arch, sweep=args.sweep, package=args.package)
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        print_table(found)
    faults = [one.fault for one in found if one.shipped and one.fault]
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
