"""Trace files: their schema, the only reader, and the atomic writer.

One Parquet file a technique and machine, one row an event:

    scenario repeat rank step event function line lines t_ns dur_ns <event fields>

`t_ns` (since the repeat began) and `dur_ns` (of the work before the event) are measured; every
other column is deterministic. `line` is where the technique paused; `lines` are the lines of its
source that ran since the event before. What the file is, who recorded it and the source text that
ran stand in the file's metadata, as JSON under the key `iol`.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from tracegen.errors import UserError

if TYPE_CHECKING:
    import duckdb

SCHEMA_VERSION = 1
METADATA_KEY = b"iol"
MAX_JSON_INTEGER = 2**53

COMMON_COLUMNS = [
    pa.field("scenario", pa.string(), nullable=False),
    pa.field("repeat", pa.int64(), nullable=False),
    pa.field("rank", pa.int64(), nullable=False),
    pa.field("step", pa.int64(), nullable=False),
    pa.field("event", pa.string(), nullable=False),
    pa.field("function", pa.string(), nullable=False),
    pa.field("line", pa.int32(), nullable=False),
    pa.field("lines", pa.list_(pa.int32()), nullable=False),
    pa.field("t_ns", pa.int64(), nullable=False),
    pa.field("dur_ns", pa.int64(), nullable=False),
]
REQUIRED_METADATA = (
    "schema",
    "technique",
    "preset",
    "machine",
    "model",
    "seed",
    "command",
    "versions",
    "git",
    "threads",
    "source",
    "scenarios",
    "fingerprint",
    "recorded_at",
)


@dataclass(frozen=True)
class Trace:
    """A validated recording: its path, Arrow table and metadata."""

    path: Path
    table: pa.Table
    meta: dict[str, Any]

    def query(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        """Rows of a DuckDB query over the table named `trace`, as dicts; `$name` binds."""
        cursor = self.database.execute(sql, parameters or None)
        names = [column[0] for column in cursor.description or []]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    @cached_property
    def database(self) -> duckdb.DuckDBPyConnection:
        """An in-memory database with the one table."""
        import duckdb  # only readers need it: a recording machine may lack it

        return duckdb.connect().register("trace", self.table)


def write_trace(path: Path, table: pa.Table, meta: dict[str, Any]) -> None:
    """Write `table` under `path` so that a reader sees the old file or the whole new one."""
    encoded = json.dumps(meta, ensure_ascii=False, sort_keys=True, allow_nan=False)
    table = table.replace_schema_metadata({METADATA_KEY: encoded.encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata of a trace file. Raises UserError when `path` is no trace of this schema."""
    if not path.is_file():
        raise UserError(f"{path}: no such trace; record it with `make traces`")
    try:
        stored = pq.read_schema(path).metadata or {}
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file; record it again") from error
    if METADATA_KEY not in stored:
        raise UserError(f"{path}: a Parquet file, but not one that tracegen recorded")
    meta = json.loads(stored[METADATA_KEY])
    if meta.get("schema") != SCHEMA_VERSION:
        raise UserError(
            f"{path}: trace schema {meta.get('schema')}, but this version reads "
            f"{SCHEMA_VERSION}; record it again with `make traces`"
        )
    return meta


def read_trace(path: Path | str) -> Trace:
    """Read and validate one trace file. Raises UserError naming the first fault."""
    path = Path(path)
    meta = read_metadata(path)
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: damaged Parquet data; record it again") from error
    fault = first_fault(table, meta)
    if fault:
        raise UserError(f"{path}: {fault}; record it again with `make traces`")
    return Trace(path, table, meta)


def first_fault(table: pa.Table, meta: dict[str, Any]) -> str | None:
    """What breaks the rules of a trace, in words; None when nothing does."""
    missing = [key for key in REQUIRED_METADATA if key not in meta]
    if missing:
        return f"metadata lacks {', '.join(missing)}"
    source = meta["source"]
    if hashlib.sha256(source["text"].encode()).hexdigest() != source["sha256"]:
        return "the source text does not match its checksum"
    for field in COMMON_COLUMNS:
        if field.name not in table.column_names:
            return f"column {field.name} is missing"
        if table.schema.field(field.name).type != field.type:
            return f"column {field.name} is {table.schema.field(field.name).type}, not {field.type}"
    for name, column in zip(table.column_names, table.columns, strict=True):
        fault = column_fault(name, column)
        if fault:
            return fault
    return None if table.num_rows else "no rows"


def column_fault(name: str, column: pa.ChunkedArray) -> str | None:
    """Why `column` cannot go to a browser: NaN, infinity, or an integer beyond 2^53."""
    values = column.combine_chunks()
    while pa.types.is_list(values.type):
        values = values.flatten()
    values = values.drop_null()
    if pa.types.is_floating(values.type) and not all(pa.compute.is_finite(values).to_pylist()):
        return f"column {name} holds NaN or infinity"
    if pa.types.is_integer(values.type) and len(values):
        extremes = pa.compute.min_max(values).as_py()
        if max(extremes["max"], -extremes["min"]) >= MAX_JSON_INTEGER:
            return f"column {name} holds an integer beyond 2^53"
    return None


def trace_files(folder: Path) -> dict[str, list[Path]]:
    """Trace files below `folder` (traces/), by technique: {technique: [paths]}, sorted."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*/*.parquet")):
        found.setdefault(path.stem, []).append(path)
    return found
