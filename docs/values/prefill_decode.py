"""Numbers that the page "Prefill and decode" says."""

from __future__ import annotations

from statistics import median
from typing import Any

from docs.figures.api import Text
from docs.figures.passes import device_of, element_bytes, passes
from docs.figures.sweeps import bound_ms
from docs.figures.units import bytes_text, count_text, significant
from docs.figures.values import value
from tracegen.roofline import datasheet_devices
from tracegen.trace import Trace

STORY = "story_plants"


def story(trace: Trace, phase: str) -> list[dict[str, Any]]:
    """Passes of the question's generation, by phase, in order."""
    return trace.query(
        """SELECT step, any_value(new_tokens) AS new_tokens, any_value(flops) AS flops,
                  any_value(bytes_read) AS bytes_read, any_value(bytes_written) AS bytes_written,
                  any_value(weight_bytes) AS weight_bytes, median(dur_ns) AS ns
           FROM trace WHERE scenario = $story AND event = 'Pass' AND phase = $phase
           GROUP BY step ORDER BY step""",
        story=STORY,
        phase=phase,
    )


def typical_decode(trace: Trace) -> dict[str, Any]:
    """The middle decode step of the question's generation, with the median time of all."""
    steps = story(trace, "decode")
    return steps[len(steps) // 2] | {"ns": median(row["ns"] for row in steps)}


def intensity(row: dict[str, Any]) -> float:
    """FLOPs per byte moved."""
    return row["flops"] / (row["bytes_read"] + row["bytes_written"])


def batch_row(trace: Trace, batch: int) -> dict[str, Any]:
    """The decode step of the batch sweep with `batch` sequences."""
    return next(r for r in passes(trace, f"batch_{batch}") if r["phase"] == "decode")


@value("counted")
def prompt_tokens(trace: Trace, t: Text) -> str:
    return str(story(trace, "prefill")[0]["new_tokens"])


@value("counted")
def prefill_flops(trace: Trace, t: Text) -> str:
    return count_text(story(trace, "prefill")[0]["flops"]) + "FLOP"


@value("counted")
def decode_flops(trace: Trace, t: Text) -> str:
    return count_text(typical_decode(trace)["flops"]) + "FLOP"


@value("counted")
def weight_bytes(trace: Trace, t: Text) -> str:
    return bytes_text(typical_decode(trace)["weight_bytes"])


@value("counted")
def prefill_bytes(trace: Trace, t: Text) -> str:
    row = story(trace, "prefill")[0]
    return bytes_text(row["bytes_read"] + row["bytes_written"])


@value("counted")
def decode_bytes(trace: Trace, t: Text) -> str:
    row = typical_decode(trace)
    return bytes_text(row["bytes_read"] + row["bytes_written"])


@value("counted")
def prefill_intensity(trace: Trace, t: Text) -> str:
    return significant(intensity(story(trace, "prefill")[0]))


@value("counted")
def decode_intensity(trace: Trace, t: Text) -> str:
    return significant(intensity(typical_decode(trace)), 2)


@value("measured")
def prefill_ms(trace: Trace, t: Text) -> str:
    return f"{significant(story(trace, 'prefill')[0]['ns'] / 1e6)} ms"


@value("measured")
def decode_ms(trace: Trace, t: Text) -> str:
    return f"{significant(typical_decode(trace)['ns'] / 1e6)} ms"


@value("modelled")
def prefill_bound_ms(trace: Trace, t: Text) -> str:
    return f"{significant(bound_ms(trace, story(trace, 'prefill')[0]))} ms"


@value("modelled")
def decode_bound_ms(trace: Trace, t: Text) -> str:
    return f"{significant(bound_ms(trace, typical_decode(trace)))} ms"


@value("measured")
def token_ratio(trace: Trace, t: Text) -> str:
    row = story(trace, "prefill")[0]
    return significant(typical_decode(trace)["ns"] / (row["ns"] / row["new_tokens"]), 2)


@value("measured")
def bandwidth(trace: Trace, t: Text) -> str:
    return bytes_text(device_of(trace, None)[0].bytes_per_s) + "/s"


@value("measured")
def flop_rate(trace: Trace, t: Text) -> str:
    device, dtype = device_of(trace, None)
    return count_text(device.flops_per_s[dtype]) + "FLOP/s"


@value("measured")
def ridge(trace: Trace, t: Text) -> str:
    device, dtype = device_of(trace, None)
    return significant(device.ridge(dtype), 2)


@value("modelled")
def critical_tokens(trace: Trace, t: Text) -> str:
    """Tokens a pass at which both ceilings meet: intensity 2 T / e = ridge."""
    device, dtype = device_of(trace, None)
    return significant(device.ridge(dtype) * element_bytes(dtype) / 2, 2)


@value("measured")
def batch_one_ms(trace: Trace, t: Text) -> str:
    return f"{significant(batch_row(trace, 1)['ns'] / 1e6)} ms"


@value("measured")
def batch_many_ms(trace: Trace, t: Text) -> str:
    return f"{significant(batch_row(trace, 32)['ns'] / 1e6)} ms"


@value("measured")
def batch_many_slower(trace: Trace, t: Text) -> str:
    return significant(batch_row(trace, 32)["ns"] / batch_row(trace, 1)["ns"], 2)


@value("measured")
def batch_many_gain(trace: Trace, t: Text) -> str:
    return significant(32 * batch_row(trace, 1)["ns"] / batch_row(trace, 32)["ns"], 2)


@value("measured")
def last_doubling_slower(trace: Trace, t: Text) -> str:
    """How much longer prefill takes for the last doubling of the batch."""
    times = {r["batch"]: r["ns"] for r in passes(trace, "batch_%") if r["phase"] == "prefill"}
    return significant(times[32] / times[16], 2)


def critical_batch(key: str, trace: Trace) -> str:
    """Peak FLOP rate over bandwidth: the batch at which bfloat16 decode stops being free."""
    return f"{datasheet_devices()[key].ridge('bfloat16'):.0f}"


@value("modelled")
def critical_a100(trace: Trace, t: Text) -> str:
    return critical_batch("a100-80g", trace)


@value("modelled")
def critical_h100(trace: Trace, t: Text) -> str:
    return critical_batch("h100-sxm", trace)


@value("modelled")
def critical_h200(trace: Trace, t: Text) -> str:
    return critical_batch("h200", trace)


@value("modelled")
def h100_decode_us(trace: Trace, t: Text) -> str:
    """One decode step of this model on an H100, at best, with bfloat16 weights."""
    row = typical_decode(trace)
    shrink = element_bytes("bfloat16") / element_bytes(trace.meta["model"]["dtype"])
    moved = (row["bytes_read"] + row["bytes_written"]) * shrink
    seconds = datasheet_devices()["h100-sxm"].seconds(row["flops"], moved, "bfloat16")
    return f"{significant(seconds * 1e6)} µs"


@value("counted")
def model_name(trace: Trace, t: Text) -> str:
    return str(trace.meta["model"]["name"])


@value("counted")
def machine_name(trace: Trace, t: Text) -> str:
    return str(trace.meta["machine"]["name"])


@value("counted")
def flops_per_weight(trace: Trace, t: Text) -> str:
    """FLOPs of a decode step for each weight it reads."""
    row = typical_decode(trace)
    return significant(
        row["flops"] / (row["weight_bytes"] / element_bytes(trace.meta["model"]["dtype"])), 3
    )


@value("counted")
def batch_many_intensity(trace: Trace, t: Text) -> str:
    """FLOPs per byte of a decode step with 32 sequences."""
    return significant(intensity(batch_row(trace, 32)))
