"""The recorder: drives a technique's generator and turns what it yields into an Arrow table.

    Iterator[Event] ─▶ rows ─▶ Arrow table ─▶ Parquet

A technique holds no tracing code. From outside, the recorder gets
- the time: it waits for the device and reads a monotonic clock around each resumption, with the
  garbage collector held off, in `repeats` runs after an unrecorded warm-up;
- the source line: it follows `gi_yieldfrom` to the innermost paused generator;
- the lines that ran: the warm-up runs under `sys.settrace`, the timed repeats do not;
- determinism: every repeat must yield the very events of the warm-up, measured fields apart.
"""

from __future__ import annotations

import gc
import inspect
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, fields
from functools import partial
from types import FrameType, ModuleType
from typing import Any

import pyarrow as pa

from tracegen.errors import UserError
from tracegen.events import Event, Scenario, deterministic, event_fields, event_types
from tracegen.trace import COMMON_COLUMNS

Events = Generator[Event, None, None]


@dataclass(frozen=True, slots=True)
class Row:
    """One event with where and when it happened."""

    event: Event
    function: str
    line: int
    t_ns: int
    dur_ns: int


def innermost_frame(generator: Any) -> FrameType:
    """The frame of a paused generator that yielded: through `yield from`, to the last one."""
    while inspect.isgenerator(generator.gi_yieldfrom):
        generator = generator.gi_yieldfrom
    frame: FrameType = generator.gi_frame
    return frame


def drive(events: Events, synchronize: Callable[[], None]) -> list[Row]:
    """Run the generator to its end, timing every resumption in nanoseconds."""
    rows = []
    gc.collect()
    gc.disable()
    try:
        synchronize()
        began = before = time.perf_counter_ns()
        for event in events:
            synchronize()
            after = time.perf_counter_ns()
            frame = innermost_frame(events)
            rows.append(
                Row(event, frame.f_code.co_name, frame.f_lineno, after - began, after - before)
            )
            before = time.perf_counter_ns()
    finally:
        gc.enable()
    return rows


def drive_traced(events: Events, source_path: str) -> tuple[list[Event], list[list[int]]]:
    """Run the generator untimed; return its events and, for each, the lines of `source_path`
    that ran since the event before."""
    ran: set[int] = set()

    def on_line(frame: FrameType, what: str, _: Any) -> Any:
        if what == "line":
            ran.add(frame.f_lineno)
        return on_line

    def on_call(frame: FrameType, _what: str, _arg: Any) -> Any:
        return on_line if frame.f_code.co_filename == source_path else None

    found, lines = [], []
    previous = sys.gettrace()
    sys.settrace(on_call)
    try:
        for event in events:
            found.append(event)
            lines.append(sorted(ran))
            ran.clear()
    finally:
        sys.settrace(previous)
    return found, lines


def record_scenario(
    start: Callable[[], Events],
    source_path: str,
    *,
    repeats: int,
    synchronize: Callable[[], None],
    on_pass: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, int, Row, list[int]]]:
    """Record one scenario; yields (repeat, step, row, lines).

    `start()` makes a fresh generator. `on_pass` is called after the warm-up and each repeat.
    Raises UserError when two passes yield different events.
    """
    warm_up, lines = drive_traced(start(), source_path)
    expected = [deterministic(event) for event in warm_up]
    on_pass()
    for repeat in range(repeats):
        rows = drive(start(), synchronize)
        found = [deterministic(row.event) for row in rows]
        if found != expected:
            step = first_difference(found, expected)
            raise UserError(
                f"not deterministic: repeat {repeat} differs from the warm-up at step {step}; "
                "seed every random choice and keep measured values out of events"
            )
        on_pass()
        for step, (row, ran) in enumerate(zip(rows, lines, strict=True)):
            yield repeat, step, row, ran


def first_difference(left: list[Event], right: list[Event]) -> int:
    """Index of the first place where the two lists differ."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def record_table(
    technique: ModuleType,
    scenarios: list[Scenario],
    inputs: dict[str, Any],
    *,
    repeats: int,
    synchronize: Callable[[], None],
    on_pass: Callable[[], None] = lambda: None,
    rank: int = 0,
) -> pa.Table:
    """Record `scenarios` of a technique module; `inputs` are the keyword arguments of its `run`."""
    schema = pa.schema([*COMMON_COLUMNS, *event_fields(event_types(technique))])
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    source_path = technique.run.__code__.co_filename
    for scenario in scenarios:
        recorded = record_scenario(
            partial(technique.run, scenario, **inputs),
            source_path,
            repeats=repeats,
            synchronize=synchronize,
            on_pass=on_pass,
        )
        for repeat, step, row, lines in recorded:
            values = {
                "scenario": scenario.name,
                "repeat": repeat,
                "rank": rank,
                "step": step,
                "event": type(row.event).__name__,
                "function": row.function,
                "line": row.line,
                "lines": lines,
                "t_ns": row.t_ns,
                "dur_ns": row.dur_ns,
            } | {f.name: getattr(row.event, f.name) for f in fields(row.event)}
            for name, column in columns.items():
                column.append(values.get(name))
    return pa.table(columns, schema=schema)
