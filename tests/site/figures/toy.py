"""Small figures of every build: plain, with variants, a stepper, and faulty ones."""

from __future__ import annotations

import altair as alt

from docs.figures import theme
from docs.figures.api import Step, Text, View, figure
from tracegen.trace import Trace

ROWS = [{"step": n, "ms": 10.0 + n, "phase": "decode" if n else "prefill"} for n in range(4)]
COLUMNS = {"step": "step", "ms": "time (ms)"}


def bars() -> alt.Chart:
    """Four bars."""
    return alt.Chart(alt.Data(values=ROWS)).mark_bar().encode(x="step:O", y="ms:Q", color="phase:N")


@figure()
def plain(trace: Trace, t: Text, variant: str | None) -> View:
    """A chart with text that HTML must escape."""
    return View(bars(), t("Bars < 5 & more", "柱子 < 5"), "counted", t("Look.", "看。"), COLUMNS)


@figure(variants=lambda trace, t: {"a": t("first", "甲"), "b": t("second", "乙")})
def varied(trace: Trace, t: Text, variant: str | None) -> View:
    """One title a variant."""
    return View(bars(), f"variant {variant}", "modelled", "", COLUMNS)


@figure()
def stepper(trace: Trace, t: Text, variant: str | None) -> View:
    """Bars up to the step; stands on lines of `run` in the trace's source."""
    chart = bars().transform_filter("datum.step <= step").add_params(theme.step_param(1))
    steps = tuple(Step(8, (7, 8), t(f"Step {n}.", f"第 {n} 步。")) for n in range(4))
    return View(chart, "Steps", "measured", "", COLUMNS, steps)


@figure()
def without_param(trace: Trace, t: Text, variant: str | None) -> View:
    """Steps, but a chart that cannot follow them."""
    return View(bars(), "", "counted", "", COLUMNS, (Step(1, (), ""),))


@figure()
def nameless(trace: Trace, t: Text, variant: str | None) -> View:
    """A column that the chart does not have."""
    return View(bars(), "", "counted", "", {"nothing": "nothing"})


@figure()
def unkind(trace: Trace, t: Text, variant: str | None) -> View:
    """A kind that does not exist."""
    return View(bars(), "", "guessed", "", COLUMNS)  # type: ignore[arg-type]
