"""Logarithmic axes: sizes that double, and quantities over decades."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import altair as alt


def decades(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: powers of ten, with 2 and 5 between where the span is short."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 300 else (1,)
    ticks = [step * 10.0**exponent for exponent in exponents for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def doubling_x(field: str, title: str, values: Iterable[float], **axis: Any) -> alt.X:
    """A size that was recorded at `values`, each about twice the one before; a tick for each."""
    return alt.X(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=sorted(set(values)), **axis),
    )


def decades_scale(low: float, high: float) -> dict[str, Any]:
    """Scale and axis of a quantity from `low` to `high`, as keyword arguments of X or Y."""
    return {
        "scale": alt.Scale(type="log", domain=[low, high], nice=False),
        "axis": alt.Axis(values=decades(low, high), format=",~g"),
    }


def decades_y(field: str, title: str, low: float, high: float) -> alt.Y:
    """A quantity from `low` to `high`."""
    return alt.Y(f"{field}:Q", title=title, **decades_scale(low, high))
