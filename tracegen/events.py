"""What a technique yields: events, and the Arrow columns that hold them.

An event is a frozen, slotted dataclass whose fields are scalars or tuples of scalars:

    @dataclass(frozen=True, slots=True)
    class BlockTaken(Event):
        request: int
        blocks: tuple[int, ...]

Fields are deterministic, and time is the recorder's business: two runs of one scenario on one kind
of machine yield equal events, and the recorder checks it. Only what a kernel saw from inside (the
multiprocessor it ran on, its start by the GPU's own timer) cannot be asked for later: such a field
has a name that ends in `_ns` or `_measured`, and the check leaves it out.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

ARROW_TYPES: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
}


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of all events; it only marks them."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A named, seeded input of a technique.

    `preset` is "quick" for what every recording holds, "full" for what only long ones hold.
    """

    name: str
    preset: Literal["quick", "full"] = "quick"
    seed: int = 0


def is_measured(name: str) -> bool:
    """Whether a column of this name holds measurements, which differ from run to run."""
    return name.endswith(("_ns", "_measured"))


def deterministic(event: Event) -> Event:
    """The event without its measured fields, for comparing."""
    measured = {f.name: None for f in fields(event) if is_measured(f.name)}
    return replace(event, **measured) if measured else event


def arrow_type(annotation: Any) -> pa.DataType:
    """The Arrow type of a field's annotation: a scalar, `X | None` or `tuple[X, ...]`.

    Raises TypeError for anything else, so that no object column can reach a trace.
    """
    if annotation in ARROW_TYPES:
        return ARROW_TYPES[annotation]
    arguments = get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [a for a in arguments if a is not type(None)]
        if len(inner) == 1:
            return arrow_type(inner[0])
    if get_origin(annotation) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return pa.list_(arrow_type(arguments[0]))
    raise TypeError(f"an event field cannot be {annotation!r}: use a scalar or a tuple of scalars")


def event_fields(event_types: Iterable[type[Event]]) -> list[pa.Field]:
    """One nullable Arrow field for each field name of `event_types`, in order of first use.

    Raises TypeError when two events give one name different types.
    """
    columns: dict[str, pa.DataType] = {}
    for event_type in event_types:
        hints = get_type_hints(event_type)
        for field in fields(event_type):
            found = arrow_type(hints[field.name])
            if columns.setdefault(field.name, found) != found:
                raise TypeError(
                    f"{event_type.__name__}.{field.name} is {found}, "
                    f"but another event has it as {columns[field.name]}"
                )
    return [pa.field(name, kind) for name, kind in columns.items()]


def event_types(module: types.ModuleType) -> list[type[Event]]:
    """The event classes that `module` itself defines, in source order."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Event)
        and value.__module__ == module.__name__
    ]
