"""Forward passes of a trace, condensed: medians over repeats and over equal decode steps."""

from __future__ import annotations

from typing import Any

import altair as alt

from docs.figures import theme
from docs.figures.api import Text
from tracegen.roofline import Device, datasheet_devices, measured_device
from tracegen.trace import Trace

DEVICES = {key: device.name for key, device in datasheet_devices().items()}
MODELLED_DTYPE = "bfloat16"


def element_bytes(dtype: str) -> int:
    """Bytes of one number."""
    return {"float32": 4, "bfloat16": 2, "float16": 2}[dtype]


def device_of(trace: Trace, variant: str | None) -> tuple[Device, str]:
    """The device a figure draws, with its dtype: the recording machine, or a datasheet's."""
    if variant in DEVICES:
        return datasheet_devices()[variant], MODELLED_DTYPE
    return measured_device(trace.meta["machine"]), trace.meta["model"]["dtype"]


def passes(trace: Trace, scenarios: str = "%") -> list[dict[str, Any]]:
    """One row a scenario, phase and pass size: medians of time and counts.

    `scenarios` is a SQL LIKE pattern. Keys: scenario, phase, batch, new_tokens, context_tokens,
    flops, bytes_read, bytes_written, weight_bytes, kv_read_bytes, ns.
    """
    return trace.query(
        """SELECT scenario, phase, batch, new_tokens, median(context_tokens) AS context_tokens,
                  median(flops) AS flops, median(bytes_read) AS bytes_read,
                  median(bytes_written) AS bytes_written, median(weight_bytes) AS weight_bytes,
                  median(kv_read_bytes) AS kv_read_bytes, median(dur_ns) AS ns
           FROM trace WHERE event = 'Pass' AND scenario LIKE $scenarios
           GROUP BY scenario, phase, batch, new_tokens
           ORDER BY batch, new_tokens, phase, scenario""",
        scenarios=scenarios,
    )


def phase_names(t: Text) -> dict[str, str]:
    """Labels of both phases."""
    return {"prefill": t("prefill", "预填充"), "decode": t("decode", "解码")}


def phase_color(t: Text, **legend: Any) -> alt.Color:
    """Colour by phase, the same in every figure."""
    names = phase_names(t)
    scale = theme.color_scale({names["prefill"]: theme.PREFILL, names["decode"]: theme.DECODE})
    return alt.Color("phase:N", scale=scale, **({"title": None, "legend": alt.Legend()} | legend))
