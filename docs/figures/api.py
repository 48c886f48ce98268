"""What a figure is: a function of a trace that returns a View.

    @figure(variants=lambda trace, t: {"mha": t("multi-head", "多头")})
    def kv_bytes(trace: Trace, t: Text, variant: str | None) -> View: ...

Its id is `<module>.<function>`, and a page asks for it by that id in a ```figure block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tracegen.trace import Trace

Kind = Literal["measured", "counted", "modelled", "quoted"]
KIND_WORDS: dict[Kind, tuple[str, str]] = {
    "measured": ("measured", "实测"),
    "counted": ("counted", "计数"),
    "modelled": ("modelled", "推算"),
    "quoted": ("quoted", "引用"),
}


@dataclass(frozen=True)
class Text:
    """Chooses between the two languages of the site: `t("token", "词元")`."""

    lang: Literal["en", "zh"]

    def __call__(self, en: str, zh: str) -> str:
        return zh if self.lang == "zh" else en


@dataclass(frozen=True)
class Step:
    """One step of a stepper.

    `line` is the source line that the technique stood on, `lines` are those that ran to get there
    (both 1-based, in the technique's file); `narration` is one sentence for the reader.
    """

    line: int | None
    lines: tuple[int, ...]
    narration: str


@dataclass(frozen=True)
class View:
    """What a figure shows.

    `title` is the takeaway in one sentence, computed from the trace; `notice` tells the reader what
    to look at; `columns` maps the fields of the chart's main dataset to labels for "show data".
    A View with `steps` needs a chart with a Vega-Lite parameter `step` (0-based, see
    `theme.step_param`), and its picture must be a function of that parameter alone.
    """

    chart: Any  # an altair chart without size, config or theme
    title: str
    kind: Kind
    notice: str
    columns: dict[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


Draw = Callable[[Trace, Text, str | None], View]
Variants = Callable[[Trace, Text], dict[str, str]]


@dataclass(frozen=True)
class Figure:
    """A drawing function with the variants that it offers."""

    draw: Draw
    list_variants: Variants | None

    def variants(self, trace: Trace, t: Text) -> dict[str | None, str]:
        """{id: label}; the first is the default. A figure without variants has one: None."""
        if self.list_variants is None:
            return {None: ""}
        return dict(self.list_variants(trace, t).items())


def figure(variants: Variants | None = None) -> Callable[[Draw], Figure]:
    """Mark a drawing function as a figure that pages can ask for; write `@figure()`."""

    def mark(draw: Draw) -> Figure:
        return Figure(draw, variants)

    return mark
