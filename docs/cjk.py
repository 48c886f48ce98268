"""Chinese lines: a line break between two Chinese characters is no space.

Sources wrap at 100 columns. A browser shows each break as a space, which Chinese does not have.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

CJK = r"[\u2018-\u201d\u2026\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"
INSIDE = re.compile(rf"(?<={CJK})\n(?={CJK})")
AT_END = re.compile(rf"(?<={CJK})\n$")
AT_START = re.compile(rf"^\n(?={CJK})")
STARTS = re.compile(CJK)


def join_lines(element: Element, before: str = "") -> str:
    """Join the lines below `element`, which follows the text `before`; returns its last text."""
    element.text = last = joined(element.text, before, following(element, 0))
    for index, child in enumerate(element):
        last = join_lines(child, last) or last
        child.tail = joined(child.tail, last, following(element, index + 1))
        last = child.tail or last
    return last


def following(parent: Element, index: int) -> str:
    """The text that the child `index` of `parent` begins with."""
    return (parent[index].text or "") if index < len(parent) else ""


def joined(text: str | None, before: str, after: str) -> str:
    """`text` without the breaks between Chinese, at its ends too."""
    text = INSIDE.sub("", text or "")
    if STARTS.match(after):
        text = AT_END.sub("", text)
    if before and STARTS.match(before[-1]):
        text = AT_START.sub("", text)
    return text


class ChineseLines(Treeprocessor):
    """Runs last, when code has already been put aside."""

    def run(self, root: Element) -> None:
        """Called by Markdown."""
        for block in root.iter():
            if block.tag in ("p", "li", "td", "dd", "h1", "h2", "h3", "summary"):
                join_lines(block)


class ChineseLinesExtension(Extension):
    """Python-Markdown extension."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Called by Markdown."""
        md.treeprocessors.register(ChineseLines(md), "chinese-lines", 0)
