"""From an Altair chart to a Vega-Lite spec whose width is still open.

Every plot without a width of its own gets the placeholder WIDTH. A chart that is `total` pixels
wide then has plots of `(total - margin) / plots` pixels, a rule that holds for layered, stacked
and faceted charts alike. `posters.measure` finds `plots` and `margin`; assets/chart.js applies the
same rule to the width of the reader's screen.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import altair as alt

from tracegen.errors import UserError

WIDTH = "@width"
MAX_ROWS = 5000
NESTED = ("hconcat", "vconcat", "concat")


def to_spec(chart: Any, figure: str) -> dict[str, Any]:
    """An Altair chart, or its dict, as a spec with open width.

    Raises UserError for what a page cannot show.
    """
    with alt.data_transformers.disable_max_rows():  # the limit below holds for inline rows too
        spec: dict[str, Any] = chart if isinstance(chart, dict) else chart.to_dict()
    spec.pop("$schema", None)
    spec.pop("config", None)
    open_width(spec)
    spec["datasets"] = spec.get("datasets", {})
    share_data(spec, spec["datasets"])
    if max(map(len, spec["datasets"].values()), default=0) > MAX_ROWS:
        raise UserError(
            f"{figure}: more than {MAX_ROWS} rows; aggregate them in the query before drawing"
        )
    for encoding in encodings(spec):
        check_time(encoding, figure)
    try:
        json.dumps(spec, allow_nan=False)
    except ValueError as error:
        raise UserError(f"{figure}: the chart holds NaN or infinity") from error
    return spec


def open_width(view: dict[str, Any]) -> None:
    """Put WIDTH on every plot below `view` that has no width of its own."""
    nested = [part for key in NESTED for part in view.get(key, [])]
    if "facet" in view or "repeat" in view:
        nested.append(view["spec"])
    for part in nested:
        open_width(part)
    if not nested:
        view.setdefault("width", WIDTH)


def share_data(view: dict[str, Any], datasets: dict[str, Any]) -> None:
    """Move inline rows below `view` into `datasets`, so that equal ones are sent once."""
    data = view.get("data", {})
    if "values" in data:
        rows = json.dumps(data.pop("values"), sort_keys=True)
        data["name"] = "data-" + hashlib.sha256(rows.encode()).hexdigest()[:12]
        datasets[data["name"]] = json.loads(rows)
    for part in parts_of(view):
        share_data(part, datasets)


def with_width(spec: dict[str, Any], width: float) -> str:
    """The spec as JSON with `width` for every open plot."""
    text = json.dumps(spec, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace(f'"{WIDTH}"', f"{width:g}")


def encodings(view: dict[str, Any]) -> list[dict[str, Any]]:
    """All encodings of a spec, nested ones included."""
    found = [view["encoding"]] if "encoding" in view else []
    return found + [encoding for part in parts_of(view) for encoding in encodings(part)]


def parts_of(view: dict[str, Any]) -> list[dict[str, Any]]:
    """The views directly inside a view."""
    parts = [part for key in (*NESTED, "layer") for part in view.get(key, [])]
    return parts + ([view["spec"]] if "spec" in view else [])


def check_time(encoding: dict[str, Any], figure: str) -> None:
    """A time axis must be in UTC, or its labels would depend on the reader's time zone."""
    for channel, definition in encoding.items():
        if isinstance(definition, dict) and definition.get("type") == "temporal":
            in_utc = (definition.get("scale") or {}).get("type") == "utc"
            if not in_utc and not str(definition.get("timeUnit", "")).startswith("utc"):
                raise UserError(f"{figure}: give the time on {channel} alt.Scale(type='utc')")


def step_start(spec: dict[str, Any]) -> int | None:
    """The value of the chart's `step` parameter; None when it has none."""
    for parameter in spec.get("params", []):
        if parameter.get("name") == "step":
            return int(parameter.get("value", 0))
    return None


def main_dataset(spec: dict[str, Any], columns: dict[str, str], figure: str) -> str | None:
    """Name of the dataset that holds all `columns`; None without columns."""
    if not columns:
        return None
    for name, rows in spec.get("datasets", {}).items():
        if rows and set(columns) <= set(rows[0]):
            return str(name)
    raise UserError(f"{figure}: no dataset of the chart holds all of: {', '.join(columns)}")
