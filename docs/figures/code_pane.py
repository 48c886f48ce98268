"""The code beside a stepper: the functions that ran, from the trace's own source text.

Line numbers are those of the recorded file. The browser marks lines by their number, so each line
is one element that carries it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

Function = ast.FunctionDef | ast.AsyncFunctionDef


def render(source: str, lines: Iterable[int], current: int | None, ran: Iterable[int]) -> str:
    """HTML of the functions of `source` that contain any of `lines`.

    `current` is marked strongly and `ran` softly, for readers without JavaScript.
    """
    coloured = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).split("\n")
    plain = source.split("\n")
    ran = set(ran)
    parts = []
    for first, last in spans(source, set(lines)):
        rows = []
        for number in range(first, last + 1):
            marks = ["line"] + ["now"] * (number == current) + ["ran"] * (number in ran)
            indent = len(plain[number - 1]) - len(plain[number - 1].lstrip())
            code = coloured[number - 1] or " "
            rows.append(
                f'<span class="{" ".join(marks)}" data-line="{number}" '
                f'style="--indent:{indent}"><i>{number}</i><code>{code}</code></span>'
            )
        parts.append(f'<span class="block">{"".join(rows)}</span>')
    return "".join(parts)


def spans(source: str, lines: set[int]) -> list[tuple[int, int]]:
    """First and last line of each innermost function (with its decorators) that holds a line."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    found = set()
    for line in lines:
        holding = [f for f in functions if f.lineno <= line <= (f.end_lineno or f.lineno)]
        if holding:
            inner = max(holding, key=lambda f: f.lineno)
            first = min([inner.lineno, *(d.lineno for d in inner.decorator_list)])
            found.add((first, inner.end_lineno or inner.lineno))
    # a function inside another that is shown too needs no second showing
    inside = {a for a in found for b in found if a != b and b[0] <= a[0] and a[1] <= b[1]}
    return sorted(found - inside)
