"""The Arrow schema that event annotations give."""

from dataclasses import dataclass

import pyarrow as pa
import pytest

from tests.core import toy
from tracegen.events import Event, arrow_type, event_fields, event_types


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, pa.int64()),
        (bool, pa.bool_()),
        (str | None, pa.string()),
        (tuple[float, ...], pa.list_(pa.float64())),
        (tuple[tuple[int, ...], ...], pa.list_(pa.list_(pa.int64()))),
    ],
)
def test_arrow_type(annotation, expected):
    assert arrow_type(annotation) == expected


@pytest.mark.parametrize("annotation", [dict, list[int], tuple[int, str], object, int | str])
def test_other_annotations_are_refused(annotation):
    with pytest.raises(TypeError, match="scalar"):
        arrow_type(annotation)


def test_fields_come_in_order_of_first_use():
    assert [f.name for f in event_fields(event_types(toy))] == ["value", "parts", "text"]


def test_one_name_has_one_type():
    @dataclass(frozen=True, slots=True)
    class Other(Event):
        value: str

    with pytest.raises(TypeError, match=r"Other\.value is string.*int64"):
        event_fields([toy.Counted, Other])


def test_events_are_hashable_and_hold_no_dict():
    event = toy.Counted(1, (2, 3))
    assert {event: 1}[toy.Counted(1, (2, 3))] == 1
    assert not hasattr(event, "__dict__")
