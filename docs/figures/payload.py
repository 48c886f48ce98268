"""What the browser gets for one figure on one machine in one variant, as strict JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.figures import code_pane, posters, spec
from docs.figures.api import KIND_WORDS, Text, View
from tracegen.errors import UserError

Payload = dict[str, Any]


@dataclass(frozen=True)
class Origin:
    """What a view was drawn from. `source` is the text of the code that ran, at `source_path`."""

    figure: str
    machine: str
    machine_name: str = ""
    variant: str | None = None
    parquet: str = ""
    command: str = ""
    source: str = ""
    source_path: str = ""


def make_payload(view: View, origin: Origin, t: Text, cache: Path) -> Payload:
    """The payload of a view. Raises UserError for a view that a page cannot show."""
    if view.kind not in KIND_WORDS:
        known = ", ".join(KIND_WORDS)
        raise UserError(f"{origin.figure}: kind {view.kind!r} is none of {known}")
    chart = spec.to_spec(view.chart, origin.figure)
    start = spec.step_start(chart)
    if (start is not None) != bool(view.steps) or not 0 <= (start or 0) < max(1, len(view.steps)):
        raise UserError(f"{origin.figure}: steps and a parameter `step` within them go together")
    sizing = posters.measure(chart, cache)
    now = view.steps[start] if start is not None else None
    touched = [n for s in view.steps for n in (*s.lines, *([s.line] if s.line else []))]
    return {
        "figure": origin.figure,
        "machine": origin.machine,
        "machine_name": origin.machine_name,
        "variant": origin.variant,
        "kind": view.kind,
        "kind_word": t(*KIND_WORDS[view.kind]),
        "title": view.title,
        "notice": view.notice,
        "spec": chart,
        "sizing": {"plots": sizing.plots, "margin": sizing.margin},
        "columns": view.columns,
        "dataset": spec.main_dataset(chart, view.columns, origin.figure),
        "start": start,
        "steps": [{"line": s.line, "lines": s.lines, "text": s.narration} for s in view.steps],
        "code": code_pane.render(origin.source, touched, now.line, now.lines) if now else "",
        "code_path": origin.source_path,
        "parquet": origin.parquet,
        "command": origin.command,
    }


def to_json(value: Any) -> str:
    """Strict, compact JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
