"""A trace and a `Figures` over the toy figures."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import pyarrow as pa

from docs.figures.build import Figures
from tracegen.trace import COMMON_COLUMNS, REQUIRED_METADATA, SCHEMA_VERSION, write_trace

SOURCE = '''"""A toy."""

LIMIT = 3


def run(count):
    """Count."""
    total = 1
    for n in range(count):
        total += inner(n)
    return total


def inner(n):
    return n


class Pool:
    def take(self):
        return 1
'''


def write_toy_trace(folder: Path, machine: str, technique: str = "toy") -> Path:
    """A valid trace of one event, recorded on `machine`."""
    row = {
        "scenario": "only",
        "repeat": 0,
        "rank": 0,
        "step": 0,
        "event": "Counted",
        "function": "run",
        "line": 8,
        "lines": [7, 8],
        "t_ns": 1,
        "dur_ns": 1,
    }
    meta = dict.fromkeys(REQUIRED_METADATA, "") | {
        "schema": SCHEMA_VERSION,
        "technique": technique,
        "machine": {"slug": machine, "name": f"The {machine}"},
        "command": "make traces ONLY=toy",
        "source": {
            "path": "tracegen/techniques/toy.py",
            "text": SOURCE,
            "sha256": hashlib.sha256(SOURCE.encode()).hexdigest(),
        },
        "recorded_at": "2026-01-01T00:00:00+00:00",
    }
    path = folder / machine / f"{technique}.parquet"
    write_trace(path, pa.Table.from_pylist([row], schema=pa.schema(COMMON_COLUMNS)), meta)
    return path


def toy_figures(root: Path, *machines: str, lang: Literal["en", "zh"] = "en") -> Figures:
    """Toy figures over toy traces of `machines`, with their cache below `root`."""
    for machine in machines:
        write_toy_trace(root / "traces", machine)
    return Figures(root, lang, root / "traces", package="tests.site.figures")
