"""Numbers inside sentences: `{{ prefill_decode.decode_ms }}` in Markdown.

The number comes from a function of docs/values/<technique>.py, marked with its kind:

    @value("measured")
    def decode_ms(trace: Trace, t: Text) -> str: ...

It is computed from the trace of the machine that figures show first, and its kind and machine
stand in a tooltip and in its underline.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from mkdocs.exceptions import PluginError

from docs.figures.api import KIND_WORDS, Kind, Text
from docs.figures.build import Figures
from tracegen.errors import UserError
from tracegen.trace import Trace

PATTERN = r"\{\{\s*([a-z_]\w*)\.([a-z_]\w*)\s*\}\}"
PACKAGE = "docs.values"


@dataclass(frozen=True)
class Value:
    """A function of a trace that gives one number as text, and the number's kind."""

    compute: Callable[[Trace, Text], str]
    kind: Kind


def value(kind: Kind) -> Callable[[Callable[[Trace, Text], str]], Value]:
    """Mark a function as a number that pages can say."""
    if kind not in KIND_WORDS:
        raise ValueError(f"kind {kind!r} is none of {', '.join(KIND_WORDS)}")
    return lambda compute: Value(compute, kind)


def find(technique: str, name: str) -> Value:
    """The value `<technique>.<name>`. Raises UserError when there is none."""
    try:
        module = importlib.import_module(f"{PACKAGE}.{technique}")
    except ModuleNotFoundError as error:
        if error.name != f"{PACKAGE}.{technique}":
            raise
        raise UserError(f"no value {technique}.{name}: docs/values has no {technique}.py") from None
    found = getattr(module, name, None)
    if not isinstance(found, Value):
        known = ", ".join(key for key, item in vars(module).items() if isinstance(item, Value))
        raise UserError(f"no value {technique}.{name}; {technique} has {known}")
    return found


def value_html(figures: Figures, technique: str, name: str) -> str:
    """The number in its element. Raises UserError when value or trace is missing."""
    found = find(technique, name)
    trace = figures.first_trace(technique)
    text = found.compute(trace, figures.t)
    origin = figures.t(*KIND_WORDS[found.kind])
    if found.kind == "measured":
        origin += figures.t(" on ", "：") + trace.meta["machine"]["name"]
    return (
        f'<span class="lab-value" data-kind="{found.kind}" title="{escape(origin)}">'
        f"{escape(text)}</span>"
    )


class ValueProcessor(InlineProcessor):
    """Replaces one `{{ … }}`."""

    def __init__(self, md: Markdown, figures: Figures) -> None:
        super().__init__(PATTERN, md)
        self.figures = figures

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override]
        """The number as raw HTML, so that nothing else touches it."""
        try:
            html = value_html(self.figures, m.group(1), m.group(2))
        except UserError as error:
            raise PluginError(f"value: {error}") from error
        return self.md.htmlStash.store(html), m.start(0), m.end(0)


class ValueExtension(Extension):
    """Python-Markdown extension for numbers in sentences."""

    def __init__(self, figures: Figures) -> None:
        super().__init__()
        self.figures = figures

    def extendMarkdown(self, md: Markdown) -> None:
        """Run after code (190), before links and emphasis."""
        md.inlinePatterns.register(ValueProcessor(md, self.figures), "lab-value", 184)
