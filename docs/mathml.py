"""Formulas as MathML: `$…$` in a line, `$$…$$` on its own.

Browsers draw MathML themselves, so that a page with formulas needs no JavaScript and no fonts.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

INLINE = r"(?<![\\$])\$(?![\s$])((?:\\.|[^\\$\n])+?)(?<!\s)\$(?![\d$])"
BLOCK = r"(?<![\\$])\$\$((?:\\.|[^\\$])+?)\$\$"


class Formula(InlineProcessor):
    """Turns a match into a MathML element."""

    def __init__(self, pattern: str, md: Markdown, display: str) -> None:
        super().__init__(pattern, md)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override]
        """The formula as raw HTML, so that nothing else touches it."""
        latex = m.group(1).strip()
        mathml = convert(latex, display=self.display)
        # the source stays with the formula, for search, copying and screen readers
        mathml = mathml.replace("<math ", f'<math alttext="{attribute(latex)}" ', 1)
        return self.md.htmlStash.store(mathml), m.start(0), m.end(0)


def attribute(text: str) -> str:
    """`text` for a double-quoted attribute."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


class MathExtension(Extension):
    """Python-Markdown extension for formulas."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Run before emphasis and escapes, after code."""
        md.inlinePatterns.register(Formula(BLOCK, md, "block"), "math-block", 186)
        md.inlinePatterns.register(Formula(INLINE, md, "inline"), "math-inline", 185)


def makeExtension(**kwargs: Any) -> MathExtension:
    """Entry point for Markdown's own extension loading."""
    return MathExtension(**kwargs)
