"""The ```figure block of a page.

    ```figure
    prefill_decode.decode_stepper
    variant: batch_8
    ```

The first line is the figure's id; `variant` and `machine` choose what is shown first. `fence_for`
gives a custom fence for pymdownx.superfences; nothing here knows MkDocs.
"""

from __future__ import annotations

from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from mkdocs.exceptions import PluginError
from pymdownx.superfences import SuperFencesException

from docs.figures.build import Figures
from docs.figures.markup import figure_html
from tracegen.errors import UserError

OPTIONS = ("variant", "machine")


class FigureError(SuperFencesException, PluginError):
    """A figure block that cannot be shown. Passes through SuperFences, ends a build in one line."""


def parse(block: str) -> tuple[str, dict[str, str]]:
    """Figure id and options of a block. Raises UserError."""
    lines = [line.strip() for line in block.strip().splitlines() if line.strip()]
    if not lines:
        raise UserError("an empty figure block; write <technique>.<figure> in it")
    options = {}
    for line in lines[1:]:
        name, separator, value = line.partition(":")
        if not separator or name not in OPTIONS:
            raise UserError(f"{lines[0]}: {line!r} is none of the options {', '.join(OPTIONS)}")
        options[name] = value.strip()
    return lines[0], options


class FigureElement(Extension):
    """Tells Markdown that <lab-figure> is a block, which must not end up in a paragraph."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Called by Markdown."""
        md.block_level_elements.append("lab-figure")


def fence_for(figures: Figures) -> dict[str, Any]:
    """The custom fence `figure`, drawing with `figures`."""

    def to_html(source: str, *_: Any, **__: Any) -> str:
        try:
            figure_id, options = parse(source)
            choice = figures.choose(figure_id, options.get("machine"), options.get("variant"))
            return figure_html(choice, figures.t)
        except UserError as error:
            raise FigureError(f"figure: {error}") from error

    return {"name": "figure", "class": "figure", "format": to_html}
