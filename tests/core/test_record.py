"""The recorder: times, source lines, lines that ran, determinism."""

import inspect
import itertools
from dataclasses import dataclass

import pyarrow as pa
import pytest

from tests.core import toy
from tracegen.errors import UserError
from tracegen.events import Event, Scenario, deterministic, is_measured
from tracegen.record import record_table


def source_line(mark: str) -> int:
    """Number of the toy's source line that carries the comment `# line: mark`."""
    lines = inspect.getsource(toy).splitlines()
    return next(n for n, text in enumerate(lines, 1) if text.endswith(f"# line: {mark}"))


def record(scenarios=toy.SCENARIOS, technique=toy, repeats=2, **kwargs) -> pa.Table:
    return record_table(
        technique, scenarios, {}, repeats=repeats, synchronize=lambda: None, **kwargs
    )


def measured_columns(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if is_measured(name)]


def test_rows_steps_and_repeats():
    table = record()
    rows = table.select(["scenario", "repeat", "step", "event"]).to_pylist()
    assert len(rows) == 2 * (4 + 7)
    assert [r["step"] for r in rows[:4]] == [0, 1, 2, 3]
    assert {r["repeat"] for r in rows} == {0, 1}
    assert [r["event"] for r in rows[:4]] == ["Counted", "Counted", "Counted", "Slept"]


def test_line_follows_yield_from_to_the_innermost_generator():
    rows = record().slice(0, 4).to_pylist()
    assert [r["function"] for r in rows] == ["inner", "inner", "inner", "run"]
    assert rows[0]["line"] == source_line("inner")
    assert rows[3]["line"] == source_line("run")


def test_lines_that_ran_since_the_event_before():
    rows = record().slice(0, 4).to_pylist()
    assert {source_line("inner") - 1, source_line("inner")} <= set(rows[1]["lines"])
    assert source_line("run") not in rows[1]["lines"]
    assert {source_line("run") - 1, source_line("run")} <= set(rows[3]["lines"])
    assert source_line("inner") not in rows[3]["lines"]


def test_time_belongs_to_the_event_after_the_work():
    rows = record().slice(0, 4).to_pylist()
    assert rows[3]["dur_ns"] >= 20e6 > 10e6 > max(r["dur_ns"] for r in rows[:3])
    ends = [r["t_ns"] for r in rows]
    assert ends == sorted(ends)
    assert all(r["t_ns"] >= r["dur_ns"] for r in rows)


def test_fields_an_event_lacks_are_null():
    rows = record().slice(0, 4).to_pylist()
    assert rows[0]["text"] is None
    assert rows[0]["parts"] == [0, 0]
    assert rows[3]["value"] is None


def test_two_recordings_agree_in_all_but_measured_columns():
    first, second = record(), record()
    assert measured_columns(first) == ["t_ns", "dur_ns"]
    assert first.drop_columns(measured_columns(first)).equals(
        second.drop_columns(measured_columns(second))
    )


def test_a_technique_that_differs_between_passes_is_refused():
    class Drifting:
        counter = itertools.count()

        @staticmethod
        def run(s):
            yield toy.Counted(1, ())
            yield toy.Counted(next(Drifting.counter), ())

    Drifting.Counted = toy.Counted
    Drifting.__name__ = toy.__name__
    with pytest.raises(UserError, match=r"not deterministic: repeat 0 .* step 1"):
        record([Scenario(name="any")], technique=Drifting)


@dataclass(frozen=True, slots=True)
class Seen(Event):
    tile: int
    start_ns: int | None
    core_measured: int | None


def test_measured_fields_may_differ_between_passes_and_are_kept():
    class FromInside:
        counter = itertools.count()

        @staticmethod
        def run(s):
            yield Seen(7, next(FromInside.counter), 3)

    FromInside.Seen, FromInside.__name__ = Seen, Seen.__module__
    table = record([Scenario(name="any")], technique=FromInside)
    assert [name for name in table.column_names if is_measured(name)] == [
        "t_ns",
        "dur_ns",
        "start_ns",
        "core_measured",
    ]
    assert table["start_ns"].to_pylist() == [1, 2]  # the warm-up saw 0
    assert deterministic(Seen(7, 1, 3)) == deterministic(Seen(7, 2, None)) != Seen(7, 1, 3)


def test_the_device_is_waited_for_before_every_clock_reading():
    waits = itertools.count()
    record_table(toy, toy.SCENARIOS[:1], {}, repeats=3, synchronize=lambda: next(waits))
    assert next(waits) == 3 * (1 + 4)


def test_on_pass_counts_warm_up_and_repeats():
    passes = itertools.count()
    record(on_pass=lambda: next(passes))
    assert next(passes) == 2 * (1 + 2)
