"""How figures look: colours with a meaning, and one Vega-Lite config for all charts.

Colours that depend on the palette (INK, MUTED, RULE, GRID, PAPER) are written in their light form;
`in_dark` swaps them, here for posters and in assets/chart.js for live charts. The semantic colours
(Okabe-Ito, safe for colour-blind readers) are the same in both palettes; let shape, pattern or a
label repeat what they say.
"""

from __future__ import annotations

from typing import Any

import altair as alt

PREFILL = "#0072B2"
DECODE = "#E69F00"
CACHED = "#56B4E9"
ACCEPTED = "#009E73"
REJECTED = "#D55E00"
COMMUNICATION = "#CC79A7"
IDLE = "#999999"
FREE = "transparent"

ON_COLOR = "#1a1917"  # text on an opaque semantic colour, dark in either palette

INK = "#1c1b19"
MUTED = "#66635c"
RULE = "#b9b5aa"
GRID = "#e7e3d9"
PAPER = "#fdfcf8"
DARK = {INK: "#e7e4dc", MUTED: "#a09c92", RULE: "#5a5953", GRID: "#2d2e31", PAPER: "#17181b"}

FONT = (
    "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', Arial, "
    "'PingFang SC', 'Hiragino Sans GB', 'Microsoft YaHei', 'Noto Sans CJK SC', sans-serif"
)
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"

WIDE, BESIDE_CODE, NARROW = 680, 560, 340  # poster widths in CSS pixels


def in_dark(text: str) -> str:
    """`text` (a spec or config as JSON) with the palette's colours in their dark form."""
    for light, dark in DARK.items():
        text = text.replace(light, dark)
    return text


def config(*, narrow: bool = False) -> dict[str, Any]:
    """The Vega-Lite config of every chart; `narrow` is for phones."""
    label = {"labelColor": MUTED, "labelFontSize": 11.5, "labelFontWeight": 400}
    title = {"titleColor": INK, "titleFontSize": 12, "titleFontWeight": 400}
    return {
        "background": "transparent",
        "font": FONT,
        "padding": {"left": 1, "top": 4, "right": 6, "bottom": 2},
        "view": {"stroke": None, "continuousHeight": 260, "continuousWidth": 300},
        "axis": {
            **label,
            **title,
            "domainColor": RULE,
            "tickColor": RULE,
            "gridColor": GRID,
            "tickSize": 4,
            "labelPadding": 5,
            "titlePadding": 8,
            "labelOverlap": True,
        },
        "axisX": {
            "grid": False,
            "labelAngle": 0,
            "titleAnchor": "end",
            "tickCount": 5 if narrow else 8,
        },
        "axisQuantitative": {"labelFlush": False},
        "axisY": {
            "domain": False,
            "ticks": False,
            # the title stands level above the axis, where it can be read
            "titleAngle": 0,
            "titleAlign": "left",
            "titleAnchor": "end",
            "titleBaseline": "bottom",
            "titleX": 0,
            "titleY": -8,
            "tickCount": 5,
        },
        "legend": {
            **label,
            **title,
            "labelColor": INK,
            "orient": "top",
            "direction": "horizontal",
            "columns": 2 if narrow else 6,
            "titleOrient": "top",
            "titleLimit": 600,
            "labelLimit": 300,
            "symbolSize": 90,
            "symbolStrokeWidth": 1.5,
            "offset": 26,  # clear of the y axis title
            "padding": 0,
            "columnPadding": 16,
        },
        "header": {**label, **title, "labelColor": INK, "labelAnchor": "start"},
        "title": {
            "color": INK,
            "anchor": "start",
            "fontSize": 12.5,
            "fontWeight": 600,
            "subtitleColor": MUTED,
            "subtitleFontSize": 12,
            "offset": 12,
        },
        "mark": {"color": INK, "tooltip": None},
        "line": {"strokeWidth": 1.75, "strokeJoin": "round"},
        "point": {"size": 42, "filled": True, "opacity": 1},
        "bar": {"cornerRadius": 0},
        "rule": {"color": MUTED, "strokeWidth": 1},
        "text": {"color": INK, "fontSize": 12, "font": FONT},
        "area": {"opacity": 0.85},
        "concat": {"spacing": 20},
        "facet": {"spacing": 16},
        "range": {
            "category": [PREFILL, DECODE, ACCEPTED, COMMUNICATION, REJECTED, CACHED, IDLE],
            "ramp": [GRID, PREFILL],
        },
    }


def color_scale(meanings: dict[str, str]) -> alt.Scale:
    """A colour scale from label to semantic colour: `color_scale({"prefill": PREFILL})`."""
    return alt.Scale(domain=list(meanings), range=list(meanings.values()))


def step_param(start: int = 0) -> alt.Parameter:
    """The parameter that a stepper's chart follows; `start` is the step its poster shows."""
    return alt.param(name="step", value=start)
