"""A technique small enough to check the recorder by eye."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass

from tracegen.events import Event, Scenario


@dataclass(frozen=True, slots=True)
class Counted(Event):
    value: int
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slept(Event):
    text: str | None


SCENARIOS = [Scenario(name="short"), Scenario(name="long", preset="full")]


def inner(value: int) -> Generator[Event, None, None]:
    doubled = value * 2
    yield Counted(doubled, (value, value))  # line: inner


def run(s: Scenario) -> Generator[Event, None, None]:
    for value in range(3 if s.name == "short" else 6):
        yield from inner(value)
    time.sleep(0.02)
    yield Slept("rested")  # line: run
