"""Steps of a stepper from rows of a trace: which lines ran, and in which functions they count."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any

from docs.figures.api import Step
from tracegen.trace import Trace


def function_lines(trace: Trace, names: Collection[str]) -> set[int]:
    """Line numbers of the functions and methods called `names` in the trace's source."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(trace.meta["source"]["text"])):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            body = node.body
            if ast.get_docstring(node) and len(body) > 1:
                body = body[1:]  # a docstring is no line that runs
            found.add(node.lineno)
            found.update(range(body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return found


def steps_of(
    trace: Trace, rows: list[dict[str, Any]], narrations: list[str], shown: Collection[str]
) -> tuple[Step, ...]:
    """One Step a row (with its `line` and `lines`); only lines of the functions `shown` count."""
    allowed = function_lines(trace, shown)
    return tuple(
        Step(
            row["line"] if row["line"] in allowed else None,
            tuple(line for line in row["lines"] if line in allowed),
            narration,
        )
        for row, narration in zip(rows, narrations, strict=True)
    )
