"""Numbers that the page "FlashAttention" says about bytes, time, rounding and the kernel."""

from __future__ import annotations

from typing import Any

from docs.figures.api import Text
from docs.figures.flash_attention_cost import modelled, timed_rows, traffic_rows
from docs.figures.flash_attention_kernel import PROCESSORS, busy_share, list_schedule, programs
from docs.figures.units import bytes_text, count_text, significant, time_text
from docs.figures.values import value
from tracegen.roofline import datasheet_devices
from tracegen.trace import Trace

CLAIMED_TOKENS, CLAIMED_HEADS = 1024, 16 * 64  # 16 heads, batch 64


def traffic(trace: Trace, *, tokens: int | None = None, on_chip: str = "largest") -> dict[str, Any]:
    """The row of one length (the longest) and on-chip size ("none": naive)."""
    rows = traffic_rows(trace)
    tokens = tokens or max(row["tokens"] for row in rows)
    sizes = sorted({row["on_chip_bytes"] for row in rows})
    size = {"none": sizes[0], "smallest": sizes[1], "largest": sizes[-1]}[on_chip]
    return next(r for r in rows if r["tokens"] == tokens and r["on_chip_bytes"] == size)


def traffic_gain(trace: Trace, tokens: int | None = None) -> str:
    """Naive bytes over tiled bytes with the largest on-chip memory."""
    naive = traffic(trace, tokens=tokens, on_chip="none")["moved"]
    return significant(naive / traffic(trace, tokens=tokens)["moved"], 2)


def timed(trace: Trace, scenarios: str, method: str, *, longest: bool = True) -> dict[str, Any]:
    """The row of a method at the longest or shortest recorded size."""
    rows = [row for row in timed_rows(trace, scenarios) if row["method"] == method]
    return rows[-1 if longest else 0]


def largest_error(trace: Trace, method: str, dtype: str) -> float:
    """Largest error at the widest spread."""
    rows = trace.query(
        """SELECT max_error AS error FROM trace WHERE event = 'Rounded' AND method = $method
           AND dtype = $dtype ORDER BY spread DESC, repeat LIMIT 1""",
        method=method,
        dtype=dtype,
    )
    return float(rows[0]["error"])


def modelled_share(trace: Trace, *, longest_first: bool) -> str:
    """How busy the modelled multiprocessors are."""
    found = programs(trace)
    list_schedule(found, PROCESSORS, longest_first=longest_first)
    return f"{busy_share(found):.0%}"


def share_of_peak(key: str, tflops: float) -> str:
    """A paper's rate over the datasheet's dense fp16 rate."""
    return f"{tflops * 1e12 / datasheet_devices()[key].flops_per_s['float16']:.0%}"


@value("counted")
def longest(trace: Trace, t: Text) -> str:
    return f"{traffic(trace)['tokens']:,}"


@value("counted")
def shortest(trace: Trace, t: Text) -> str:
    return str(min(row["tokens"] for row in traffic_rows(trace)))


@value("counted")
def naive_bytes(trace: Trace, t: Text) -> str:
    return bytes_text(traffic(trace, on_chip="none")["moved"])


@value("counted")
def tiled_bytes(trace: Trace, t: Text) -> str:
    return bytes_text(traffic(trace)["moved"])


@value("counted")
def gain_longest(trace: Trace, t: Text) -> str:
    return traffic_gain(trace)


@value("counted")
def gain_shortest(trace: Trace, t: Text) -> str:
    return traffic_gain(trace, min(row["tokens"] for row in traffic_rows(trace)))


@value("counted")
def memory_ratio(trace: Trace, t: Text) -> str:
    large, small = traffic(trace), traffic(trace, on_chip="smallest")
    return significant(large["on_chip_bytes"] / small["on_chip_bytes"])


@value("counted")
def bytes_ratio(trace: Trace, t: Text) -> str:
    return significant(traffic(trace, on_chip="smallest")["moved"] / traffic(trace)["moved"], 2)


@value("counted")
def root_ratio(trace: Trace, t: Text) -> str:
    large, small = traffic(trace), traffic(trace, on_chip="smallest")
    return significant((large["on_chip_bytes"] / small["on_chip_bytes"]) ** 0.5, 2)


@value("counted")
def block_largest(trace: Trace, t: Text) -> str:
    return str(traffic(trace)["block"])


@value("counted")
def chip_largest(trace: Trace, t: Text) -> str:
    return f"{traffic(trace)['on_chip_bytes'] // 1024} KiB"


@value("counted")
def claim_naive_bytes(trace: Trace, t: Text) -> str:
    return bytes_text(traffic(trace, tokens=CLAIMED_TOKENS, on_chip="none")["moved"])


@value("counted")
def claim_tiled_bytes(trace: Trace, t: Text) -> str:
    return bytes_text(traffic(trace, tokens=CLAIMED_TOKENS)["moved"])


@value("counted")
def claim_gain(trace: Trace, t: Text) -> str:
    return traffic_gain(trace, CLAIMED_TOKENS)


def extra_flops(trace: Trace) -> float:
    """One more product of queries and keys in a head: half of the forward pass's two."""
    return float(traffic(trace, tokens=CLAIMED_TOKENS, on_chip="none")["flops"] / 2)


@value("counted")
def claim_extra_flops(trace: Trace, t: Text) -> str:
    return count_text(extra_flops(trace)) + "FLOP"


@value("counted")
def claim_extra_all(trace: Trace, t: Text) -> str:
    return count_text(extra_flops(trace) * CLAIMED_HEADS) + "FLOP"


@value("quoted")
def claim_v2_share(trace: Trace, t: Text) -> str:
    return share_of_peak("a100-80g", 230)


@value("quoted")
def claim_v3_share(trace: Trace, t: Text) -> str:
    return share_of_peak("h100-sxm", 740)


@value("counted")
def timed_longest(trace: Trace, t: Text) -> str:
    return f"{timed(trace, 'times_%', 'naive')['keys']:,}"


@value("measured")
def naive_time(trace: Trace, t: Text) -> str:
    return time_text(timed(trace, "times_%", "naive")["ns"])


@value("measured")
def tiled_time(trace: Trace, t: Text) -> str:
    return time_text(timed(trace, "times_%", "tiled")["ns"])


@value("measured")
def sdpa_time(trace: Trace, t: Text) -> str:
    return time_text(timed(trace, "times_%", "sdpa")["ns"])


@value("counted")
def naive_flops(trace: Trace, t: Text) -> str:
    return count_text(timed(trace, "times_%", "naive")["flops"]) + "FLOP"


@value("counted")
def tiled_flops(trace: Trace, t: Text) -> str:
    return count_text(timed(trace, "times_%", "tiled")["flops"]) + "FLOP"


@value("counted")
def naive_moved(trace: Trace, t: Text) -> str:
    return bytes_text(timed(trace, "times_%", "naive")["moved"])


@value("counted")
def tiled_moved(trace: Trace, t: Text) -> str:
    return bytes_text(timed(trace, "times_%", "tiled")["moved"])


@value("measured")
def short_naive_time(trace: Trace, t: Text) -> str:
    return time_text(timed(trace, "times_%", "naive", longest=False)["ns"])


@value("measured")
def short_tiled_time(trace: Trace, t: Text) -> str:
    return time_text(timed(trace, "times_%", "tiled", longest=False)["ns"])


@value("counted")
def timed_shortest(trace: Trace, t: Text) -> str:
    return str(timed(trace, "times_%", "naive", longest=False)["keys"])


@value("counted")
def decode_keys(trace: Trace, t: Text) -> str:
    return f"{timed(trace, 'decode_%', 'naive')['keys']:,}"


@value("counted")
def decode_naive_moved(trace: Trace, t: Text) -> str:
    return bytes_text(timed(trace, "decode_%", "naive")["moved"])


@value("counted")
def decode_tiled_moved(trace: Trace, t: Text) -> str:
    return bytes_text(timed(trace, "decode_%", "tiled")["moved"])


@value("measured")
def decode_naive_time(trace: Trace, t: Text) -> str:
    return time_text(timed(trace, "decode_%", "naive")["ns"])


@value("measured")
def decode_tiled_time(trace: Trace, t: Text) -> str:
    return time_text(timed(trace, "decode_%", "tiled")["ns"])


def h100_times(trace: Trace, method: str) -> str:
    """Naive over tiled time at the longest length: K and V "cached", or from memory ("tiled")."""
    rows = modelled(timed_rows(trace, "times_%"), datasheet_devices()["h100-sxm"])
    ns = {row["method"]: row["ns"] for row in rows if row["keys"] == rows[-1]["keys"]}
    return significant(ns["naive"] / ns[method], 2)


@value("modelled")
def h100_gain(trace: Trace, t: Text) -> str:
    return h100_times(trace, "cached")


@value("modelled")
def h100_gain_memory(trace: Trace, t: Text) -> str:
    return h100_times(trace, "tiled")


@value("counted")
def error_two_pass(trace: Trace, t: Text) -> str:
    return significant(largest_error(trace, "two-pass", "bfloat16"), 2)


@value("counted")
def error_online(trace: Trace, t: Text) -> str:
    return significant(largest_error(trace, "online", "bfloat16"), 2)


@value("counted")
def error_narrow(trace: Trace, t: Text) -> str:
    return significant(largest_error(trace, "online, narrow state", "bfloat16"), 2)


@value("modelled")
def busy_longest_first(trace: Trace, t: Text) -> str:
    return modelled_share(trace, longest_first=True)


@value("modelled")
def busy_shortest_first(trace: Trace, t: Text) -> str:
    return modelled_share(trace, longest_first=False)


@value("counted")
def visits_most(trace: Trace, t: Text) -> str:
    return str(max(row["visited"] for row in programs(trace)))


@value("counted")
def visits_least(trace: Trace, t: Text) -> str:
    return str(min(row["visited"] for row in programs(trace)))


@value("counted")
def machine_name(trace: Trace, t: Text) -> str:
    return str(trace.meta["machine"]["name"])
