"""Trace files: round trip, atomic writing, and every way a foreign file is refused."""

import hashlib
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.core import toy
from tracegen.errors import UserError
from tracegen.record import record_table
from tracegen.trace import REQUIRED_METADATA, read_trace, trace_files, write_trace

ROOT = Path(__file__).parent.parent.parent


def meta(**changes) -> dict:
    text = "print('技术')\n"
    source = {"path": "a.py", "text": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return dict.fromkeys(REQUIRED_METADATA, "x") | {"schema": 1, "source": source} | changes


@pytest.fixture
def table() -> pa.Table:
    return record_table(toy, toy.SCENARIOS, {}, repeats=1, synchronize=lambda: None)


def test_round_trip(tmp_path, table):
    path = tmp_path / "machine" / "toy.parquet"
    write_trace(path, table, meta())
    trace = read_trace(path)
    assert trace.table.equals(table)
    assert trace.meta == meta()
    assert trace.query("SELECT count(*) AS n FROM trace WHERE event = $e", e="Slept") == [{"n": 2}]
    assert trace_files(tmp_path) == {"toy": [path]}
    assert [p.name for p in path.parent.iterdir()] == ["toy.parquet"]


def test_other_readers_keep_metadata_and_read_two_machines_together(tmp_path, table):
    for machine in "ab":
        write_trace(tmp_path / machine / "toy.parquet", table, meta(machine=machine))
    both = pa.concat_tables(
        [pq.read_table(tmp_path / m / "toy.parquet") for m in "ab"], promote_options="default"
    )
    assert both.num_rows == 2 * table.num_rows
    assert b"iol" in pq.read_schema(tmp_path / "b" / "toy.parquet").metadata


def test_a_failed_write_leaves_the_earlier_file(tmp_path, table, monkeypatch):
    path = tmp_path / "toy.parquet"
    write_trace(path, table, meta())
    before = path.read_bytes()

    def fail(*_args, **_kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("tracegen.trace.pq.write_table", fail)
    with pytest.raises(OSError, match="disk full"):
        write_trace(path, table.slice(0, 1), meta())
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["toy.parquet"]


def test_a_writer_killed_half_way_leaves_the_earlier_file(tmp_path, table):
    path = tmp_path / "machine" / "toy.parquet"
    write_trace(path, table, meta())
    before = path.read_bytes()
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from tracegen import trace

        def slow(table, file, **_):
            file.write(b"PAR1 half a file")
            file.flush()
            print("writing", flush=True)
            time.sleep(60)

        trace.pq.write_table = slow
        path = Path(sys.argv[1])
        trace.write_trace(path, trace.pq.read_table(path), {})
        """
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert writer.stdout.readline() == b"writing\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert path.read_bytes() == before
    read_trace(path)
    assert trace_files(tmp_path)["toy"] == [path]


def test_no_such_file(tmp_path):
    with pytest.raises(UserError, match="no such trace; record it with"):
        read_trace(tmp_path / "none.parquet")


def test_not_parquet(tmp_path):
    path = tmp_path / "text.parquet"
    path.write_text("hello")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        read_trace(path)


def test_truncated(tmp_path, table):
    path = tmp_path / "toy.parquet"
    write_trace(path, table, meta())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="not a readable Parquet file"):
        read_trace(path)


def test_foreign_parquet(tmp_path, table):
    path = tmp_path / "foreign.parquet"
    pq.write_table(table, path)
    with pytest.raises(UserError, match="not one that tracegen recorded"):
        read_trace(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 99}, "trace schema 99, but this version reads 1; record it again"),
        ({"source": {"path": "a", "text": "b", "sha256": "c"}}, "does not match its checksum"),
    ],
)
def test_wrong_metadata(tmp_path, table, changes, message):
    write_trace(tmp_path / "toy.parquet", table, meta(**changes))
    with pytest.raises(UserError, match=message):
        read_trace(tmp_path / "toy.parquet")


def test_missing_metadata(tmp_path, table):
    incomplete = meta()
    del incomplete["seed"], incomplete["machine"]
    write_trace(tmp_path / "toy.parquet", table, incomplete)
    with pytest.raises(UserError, match="metadata lacks machine, seed"):
        read_trace(tmp_path / "toy.parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["line"]), "column line is missing"),
        (lambda t: t.set_column(1, "repeat", t["repeat"].cast(pa.int32())), "repeat is int32"),
        (lambda t: t.append_column("x", [[math.nan] * len(t)]), "x holds NaN"),
        (lambda t: t.append_column("x", [[[1.0, -math.inf]] * len(t)]), "x holds NaN or infinity"),
        (lambda t: t.append_column("x", [[2**53] * len(t)]), r"x holds an integer beyond 2\^53"),
        (lambda t: t.append_column("x", [[-(2**60)] * len(t)]), "x holds an integer beyond"),
        (lambda t: t.slice(0, 0), "no rows"),
    ],
)
def test_wrong_tables(tmp_path, table, change, message):
    write_trace(tmp_path / "toy.parquet", change(table), meta())
    with pytest.raises(UserError, match=message):
        read_trace(tmp_path / "toy.parquet")


def test_reading_needs_no_torch():
    code = "import sys, tracegen.trace, tracegen.roofline; sys.exit('torch' in sys.modules)"
    started = time.perf_counter()
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
    assert time.perf_counter() - started < 30
