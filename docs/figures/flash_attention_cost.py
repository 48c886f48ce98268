"""Figures of the page "FlashAttention": bytes and time."""

from __future__ import annotations

from typing import Any

import altair as alt

from docs.figures import theme
from docs.figures.api import Text, View, figure
from docs.figures.axes import decades_y, doubling_x
from docs.figures.flash_attention_kernel import rounding, schedule
from docs.figures.passes import DEVICES, element_bytes
from docs.figures.units import bytes_text, significant
from tracegen.roofline import Device, datasheet_devices
from tracegen.trace import Trace

__all__ = ["rounding", "schedule", "times", "traffic"]

MODELLED_DTYPE = "bfloat16"


def traffic_rows(trace: Trace) -> list[dict[str, Any]]:
    """Bytes and FLOPs of one head by method, on-chip size and length."""
    return trace.query(
        """SELECT method, on_chip_bytes, queries AS tokens, max(block) AS block,
                  any_value(head_dim) AS head_dim, any_value(element_bytes) AS element_bytes,
                  sum(bytes_read + bytes_written)::BIGINT AS moved, sum(flops)::BIGINT AS flops
           FROM trace WHERE scenario = 'traffic' AND repeat = 0
           GROUP BY method, on_chip_bytes, queries ORDER BY on_chip_bytes, queries"""
    )


def theorem_bytes(row: dict[str, Any], on_chip_bytes: int) -> float:
    """N² d² / M numbers, as bytes: theorem 2 of FlashAttention, without its constant."""
    e = row["element_bytes"]
    return float((row["tokens"] * row["head_dim"]) ** 2 / (on_chip_bytes / e) * e)


def shades(first: str, last: str, count: int) -> list[str]:
    """`count` colours from one to the other, both "#rrggbb"."""
    ends = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in (first, last)]
    steps = [n / max(1, count - 1) for n in range(count)]
    mixed = [[round(a + (b - a) * s) for a, b in zip(*ends, strict=True)] for s in steps]
    return ["#" + "".join(f"{part:02x}" for part in color) for color in mixed]


@figure()
def traffic(trace: Trace, t: Text, variant: str | None) -> View:
    """Bytes to and from memory against length: naive, and tiled for sizes of on-chip memory."""
    found = traffic_rows(trace)
    sizes = sorted({row["on_chip_bytes"] for row in found if row["on_chip_bytes"]})
    names = {0: t("naive", "朴素实现")} | {
        size: t(f"tiled, {size // 1024} KiB on chip", f"分块，片上 {size // 1024} KiB")
        for size in sizes
    }
    points = [
        {"way": names[row["on_chip_bytes"]], "tokens": row["tokens"], "mb": row["moved"] / 1e6}
        | {"block": row["block"]}
        for row in found
    ]
    longest = max(row["tokens"] for row in found)
    line = [
        {"tokens": row["tokens"], "mb": theorem_bytes(row, sizes[-1]) / 1e6}
        for row in found
        if row["on_chip_bytes"] == sizes[-1]
        and row["tokens"] * row["head_dim"] * row["element_bytes"] >= sizes[-1]
    ]
    moved = {(row["on_chip_bytes"], row["tokens"]): row["moved"] for row in found}
    low, high = min(p["mb"] for p in points + line) / 1.6, max(p["mb"] for p in points) * 1.6
    x = doubling_x("tokens", t("tokens", "token 数"), {p["tokens"] for p in points})
    y = decades_y("mb", t("bytes moved per head (MB)", "每个头搬运的字节 (MB)"), low, high)
    colors = [theme.REJECTED, *shades(theme.CACHED, theme.PREFILL, len(sizes))]
    shapes = ["triangle", "diamond", "square", "cross", "circle"]
    shown = list(names.values())
    curves = (
        alt.Chart(alt.InlineData(values=points, name="traffic"))
        .mark_line(point=alt.OverlayMarkDef(size=45, filled=True))
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "way:N",
                scale=alt.Scale(domain=shown, range=colors),
                title=None,
                legend=alt.Legend(columns=2),
            ),
            shape=alt.Shape(
                "way:N", scale=alt.Scale(domain=shown, range=shapes[: len(shown)]), title=None
            ),
        )
    )
    theorem = (
        alt.Chart(alt.InlineData(values=line, name="theorem"))
        .mark_line(strokeDash=[4, 3], color=theme.MUTED)
        .encode(x=x, y=y)
    )
    label = (
        alt.Chart(alt.InlineData(values=[line[0] | {"name": "N²d²/M"}], name="label"))
        .mark_text(align="left", dx=4, dy=14, color=theme.MUTED)
        .encode(x=x, y=y, text="name:N")
    )
    least, most = moved[sizes[-1], longest], moved[sizes[0], longest]
    return View(
        alt.layer(theorem, label, curves).properties(height=300),
        title=t(
            f"At {longest:,} tokens writing the scores out moves {bytes_text(moved[0, longest])} per "
            f"head; tiles move {bytes_text(least)}, 1/{significant(moved[0, longest] / least, 2)} of it",
            f"{longest:,} 个 token 时，把分数写出再读回，每个头要搬 {bytes_text(moved[0, longest])}；"
            f"分块只搬 {bytes_text(least)}，是前者的 1/{significant(moved[0, longest] / least, 2)}",
        ),
        kind="counted",
        notice=t(
            f"Both axes are logarithmic; head_dim {found[0]['head_dim']}, 2-byte numbers, no mask. Tiled bytes still grow with "
            f"N², but with a factor that on-chip memory divides: {significant(sizes[-1] / sizes[0], 2)} times the memory, "
            f"{significant(most / least, 2)} times fewer bytes at the right end. Dashed: N²d²/M for the largest M, the bound of "
            "theorem 2 without its constant.",
            f"两轴均为对数；head_dim {found[0]['head_dim']}，每个数 2 字节，无掩码。分块的字节数仍随 N² 增长，但系数与片上存储"
            f"成反比：片上存储增至 {significant(sizes[-1] / sizes[0], 2)} 倍，最右端的字节数降到 1/{significant(most / least, 2)}。"
            "虚线是最大 M 对应的 N²d²/M，即定理 2 的界（不含常数）。",
        ),
        columns={
            "way": t("method", "方式"),
            "tokens": t("tokens", "token 数"),
            "mb": t("moved (MB)", "搬运 (MB)"),
            "block": t("queries per tile", "每块查询数"),
        },
    )


def method_names(t: Text) -> dict[str, str]:
    """Labels of the ways to compute attention, in the order of a legend."""
    return {
        "naive": t("naive, scores in memory", "朴素实现，分数写入内存"),
        "tiled": t("tiled, a Python loop", "分块，Python 循环"),
        "sdpa": t("torch SDPA, fused", "torch SDPA，融合"),
        "kernel": t("our Triton kernel", "本站 Triton 内核"),
    }


def timed_rows(trace: Trace, scenarios: str) -> list[dict[str, Any]]:
    """Median time and counted work of each method and size; `scenarios` is a LIKE pattern."""
    return trace.query(
        """SELECT method, queries, keys, any_value(heads) AS heads,
                  any_value(head_dim) AS head_dim,
                  any_value(element_bytes) AS element_bytes, any_value(flops) AS flops,
                  any_value(bytes_read + bytes_written) AS moved, median(dur_ns) AS ns
           FROM trace WHERE event = 'Timed' AND scenario LIKE $scenarios
           GROUP BY method, queries, keys ORDER BY keys, method""",
        scenarios=scenarios,
    )


def modelled(rows: list[dict[str, Any]], device: Device) -> list[dict[str, Any]]:
    """Least times on a device by its roofline, in bfloat16: of naive attention, of tiles that read
    K and V anew from memory, and of tiles that find them in a cache from the second time on."""
    e, found = element_bytes(MODELLED_DTYPE), []
    for row in rows:
        if row["method"] not in ("naive", "tiled"):
            continue
        moved = {row["method"]: row["moved"] * e / row["element_bytes"]}
        if row["method"] == "tiled":  # Q and O, K and V, once each
            numbers = 2 * (row["queries"] + row["keys"]) * row["head_dim"] * row["heads"]
            moved["cached"] = numbers * e
        for method, count in moved.items():
            seconds = device.seconds(row["flops"], count, MODELLED_DTYPE)
            found.append(row | {"method": method, "ns": seconds * 1e9})
    return found


def times_notice(heads: int, measured: bool, t: Text) -> str:
    """What to look at: where a clock saw it, or what the model leaves out."""
    said = t(
        f"Causal attention, {heads} heads, head_dim 64. ",
        f"因果注意力，{heads} 个头，head_dim 64。",
    )
    if measured:
        return said + t(
            "The tiled line is the loop that this page shows. It does the work of a fused kernel, but starts "
            "several torch calls for each tile. Choose a datasheet device for the least time by its roofline.",
            "“分块”就是本页给出的那个循环：做的事和融合内核一样，但每块都要发起好几次 torch 调用。"
            "也可以选一款 GPU，看按官方规格的屋顶线推算的最短时间。",
        )
    return said + t(
        "The least time by counted FLOPs and bytes in bfloat16, tiles of 128 × 128; launches and exponentials "
        "are left out. Tiles of queries run side by side, so most of their keys and values come from the "
        "on-chip L2 cache: a real kernel lies between the two tiled lines at best.",
        "由 FLOP 与字节数（bfloat16，128 × 128 的块）推算的最短时间，不含启动开销和指数运算。"
        "许多查询块同时运行，K、V 多半来自片上的 L2 缓存：实际内核再快，也只能落在两条“分块”曲线之间。",
    )


@figure(variants=lambda trace, t: {"measured": trace.meta["machine"]["name"], **DEVICES})
def times(trace: Trace, t: Text, variant: str | None) -> View:
    """Time of causal attention against length, by method."""
    rows, names = timed_rows(trace, "times_%"), method_names(t)
    device = datasheet_devices().get(variant or "")
    if device is not None:
        names["tiled"] = t("tiled, keys re-read from memory", "分块，K、V 每次从显存重读")
        names["cached"] = t("tiled, keys re-read from a cache", "分块，K、V 从缓存重读")
        rows = modelled(rows, device)
    points = [
        {"way": names[row["method"]], "tokens": row["keys"], "ms": row["ns"] / 1e6} for row in rows
    ]
    longest, heads = rows[-1]["keys"], rows[-1]["heads"]
    ns = {row["method"]: row["ns"] for row in rows if row["keys"] == longest}
    best = next(method for method in ("kernel", "cached", "sdpa") if method in ns)
    gain = significant(ns["naive"] / ns[best], 2)
    winner = {"kernel": t("our Triton kernel", "本站的 Triton 内核"), "sdpa": "torch SDPA"}
    if device is None:
        title = t(
            f"At {longest:,} tokens {winner[best]} is {gain}× as fast here as naive attention",
            f"{longest:,} 个 token 时，在这台机器上 {winner[best]} 的速度是朴素实现的 {gain} 倍",
        )
    else:
        title = t(
            f"On {device.name} naive attention waits for its scores to move; at {longest:,} tokens tiles could be {gain}× as fast",
            f"在 {device.name} 上，朴素实现的时间主要花在搬运分数上；{longest:,} 个 token 时，分块最快可达它的 {gain} 倍",
        )
    low, high = min(p["ms"] for p in points) / 1.5, max(p["ms"] for p in points) * 1.5
    present = {key: label for key, label in names.items() if any(r["method"] == key for r in rows)}
    look = {
        "naive": (theme.REJECTED, "triangle"),
        "tiled": (theme.CACHED, "square"),
        "sdpa": (theme.IDLE, "diamond"),
        "kernel": (theme.PREFILL, "circle"),
        "cached": (theme.PREFILL, "circle"),
    }
    chart = (
        alt.Chart(alt.InlineData(values=points, name="times"))
        .mark_line(point=alt.OverlayMarkDef(size=50, filled=True))
        .encode(
            x=doubling_x("tokens", t("tokens", "token 数"), {p["tokens"] for p in points}),
            y=decades_y(
                "ms", t(f"time, {heads} heads (ms)", f"耗时，{heads} 个头 (ms)"), low, high
            ),
            color=alt.Color(
                "way:N",
                scale=theme.color_scale({present[key]: look[key][0] for key in present}),
                title=None,
                legend=alt.Legend(columns=1),
            ),
            shape=alt.Shape(
                "way:N",
                scale=alt.Scale(
                    domain=list(present.values()), range=[look[key][1] for key in present]
                ),
                title=None,
            ),
        )
        .properties(height=280)
    )
    return View(
        chart,
        title=title,
        kind="measured" if device is None else "modelled",
        notice=times_notice(heads, device is None, t),
        columns={
            "way": t("method", "方式"),
            "tokens": t("tokens", "token 数"),
            "ms": t("time (ms)", "耗时 (ms)"),
        },
    )
