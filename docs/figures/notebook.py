"""Charts in notebooks: what a lab's cells call.

In your own Jupyter a chart stays Altair's own. While the site is being built, `setup` makes charts
come out as their bare specs, which lab_page.py turns into the site's figure element.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import altair as alt

from docs.figures.api import Kind

BUILDING = "IOL_SITE_BUILD"  # set by the MkDocs hook, inherited by the notebook's kernel
CHART_CLASS = "lab-chart"


def setup() -> Path:
    """Prepare the notebook; call it in the first cell. Returns the repository's folder."""
    if os.environ.get(BUILDING):
        alt.renderers.register("lab", as_spec)
        alt.renderers.enable("lab")
    return Path(__file__).resolve().parents[2]


def show(
    chart: Any,
    *,
    title: str,
    kind: Kind,
    notice: str = "",
    columns: dict[str, str] | None = None,
    parquet: Path | None = None,
) -> Any:
    """The chart, with what a figure of this site says beside it.

    `title` is the takeaway, `notice` what to look at, `columns` (field -> label) the table under
    the chart, `parquet` the trace it was drawn from.
    """
    details = {"kind": kind, "columns": columns or {}, "parquet": str(parquet or "")}
    return chart.properties(title=title, description=notice, usermeta=details)


def as_spec(spec: dict[str, Any], **_: Any) -> dict[str, str]:
    """An Altair renderer that writes the spec into the page, for the build to pick up."""
    text = json.dumps(spec, allow_nan=False).replace("<", "\\u003c")
    return {"text/html": f'<script type="application/json" class="{CHART_CLASS}">{text}</script>'}
