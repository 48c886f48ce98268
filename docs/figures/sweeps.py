"""Sweeps: time of a pass against one quantity, measured over what the roofline allows."""

from __future__ import annotations

from typing import Any

import altair as alt

from docs.figures.api import Text
from docs.figures.axes import decades_y, doubling_x
from docs.figures.passes import device_of, passes, phase_color, phase_names
from tracegen.trace import Trace


def bound_ms(trace: Trace, row: dict[str, Any]) -> float:
    """The least time of a pass under this machine's measured ceilings."""
    device, dtype = device_of(trace, None)
    moved = row["bytes_read"] + row["bytes_written"]
    return device.seconds(row["flops"], moved, dtype) * 1e3


def sweep_chart(
    rows: list[dict[str, Any]], x: str, x_title: str, y_title: str, t: Text
) -> alt.LayerChart | alt.FacetChart:
    """Measured times (points, solid) over their bounds (dashed), both axes logarithmic."""
    times = [row[key] for row in rows for key in ("ms", "bound_ms")]
    base = alt.Chart(alt.InlineData(values=rows, name="sweep")).encode(
        x=doubling_x(x, x_title, {row[x] for row in rows}),
        color=phase_color(t),
    )
    low, high = min(times) / 1.4, max(times) * 1.2
    line = base.mark_line(point=alt.OverlayMarkDef(size=45, filled=True)).encode(
        y=decades_y("ms", y_title, low, high)
    )
    bound = base.mark_line(strokeDash=[4, 3], strokeWidth=1.25).encode(
        y=decades_y("bound_ms", y_title, low, high)
    )
    return alt.layer(bound, line).properties(height=280)


def sweep_columns(t: Text) -> dict[str, str]:
    """Labels of the sweeps' data tables."""
    return {
        "phase": t("phase", "阶段"),
        "batch": t("batch", "批大小"),
        "prompt": t("prompt tokens", "提示词 token 数"),
        "ms": t("time (ms)", "耗时 (ms)"),
        "bound_ms": t("roofline bound (ms)", "屋顶线下限 (ms)"),
    }


def sweep(trace: Trace, scenarios: str, t: Text) -> list[dict[str, Any]]:
    """Prefill and median decode time of each scenario of a sweep."""
    names = phase_names(t)
    prompts = {name: s["prompt_tokens"] for name, s in trace.meta["scenarios"].items()}
    rows = [
        {
            "phase": names[row["phase"]],
            "batch": row["batch"],
            "prompt": prompts[row["scenario"]],
            "ms": row["ns"] / 1e6,
            "bound_ms": bound_ms(trace, row),
        }
        for row in passes(trace, scenarios)
    ]
    return sorted(rows, key=lambda row: (row["prompt"], row["batch"]))
