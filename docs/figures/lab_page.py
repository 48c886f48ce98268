"""Lab pages: notebooks that mkdocs-jupyter has executed, set like every other page.

mkdocs-jupyter's own HTML brings half a megabyte of styles and scripts from other hosts. Only the
cells' outputs are taken from it: the text goes through the site's Markdown, code becomes ordinary
code blocks, and charts become the site's figures.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import jupytext
from bs4 import BeautifulSoup, Tag

from docs.figures.api import View
from docs.figures.build import Figures
from docs.figures.markup import figure_html
from docs.figures.notebook import CHART_CLASS
from docs.figures.payload import Origin, make_payload
from tracegen.trace import read_metadata


def to_markdown(notebook: Path, executed: str, figures: Figures) -> str:
    """A page's Markdown from a notebook's text and the HTML that mkdocs-jupyter made of it."""
    cells = jupytext.read(notebook).cells
    # a cell's element stands inside another of the same class
    outputs = iter(BeautifulSoup(executed, "html.parser").select(".jp-CodeCell .jp-CodeCell"))
    parts, charts = [], 0
    for cell in cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code" and cell.source.strip():
            parts.append(f"```python\n{cell.source}\n```")
            for output in next(outputs).select(".jp-OutputArea-output"):
                chart = output.select_one(f"script.{CHART_CLASS}")
                if chart is None:
                    parts.append(plain_output(output))
                else:
                    charts += 1
                    parts.append(chart_figure(json.loads(chart.text), notebook, charts, figures))
    return "\n\n".join(parts)


def plain_output(output: Tag) -> str:
    """Text or a table that a cell printed."""
    table = output.select_one("table")
    if table:
        for element in [table, *table.find_all(True)]:
            element.attrs = {}
        inner = str(table)
    else:
        inner = f"<pre>{escape(output.get_text().strip())}</pre>"
    # one line, because a blank line would end the HTML block
    return f'<div class="lab-output">{inner.replace(chr(10), "&#10;")}</div>'


def chart_figure(raw: dict[str, Any], notebook: Path, number: int, figures: Figures) -> str:
    """The site's figure element for one chart of a notebook."""
    details = raw.pop("usermeta", {})
    view = View(
        chart=raw,
        title=raw.pop("title", ""),
        kind=details.get("kind", "counted"),
        notice=raw.pop("description", ""),
        columns=details.get("columns", {}),
    )
    name = re.sub(r"\W", "_", notebook.stem)
    stem = f"chart-{number}"
    path = f"figures/labs/{name}/{stem}"
    origin = Origin(figure=f"labs.{name}_{number}", machine=stem)
    if details.get("parquet"):
        trace = Path(details["parquet"])
        meta = read_metadata(trace)
        origin = replace(
            origin,
            machine_name=meta["machine"]["name"],
            parquet=f"traces/{trace.parent.name}/{trace.name}",
            command=meta["command"],
        )
    figures.payloads[path] = make_payload(view, origin, figures.t, figures.cache)
    return figure_html(figures.show(path, {stem: origin.machine_name}, {}), figures.t)
