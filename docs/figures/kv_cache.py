"""Figures of the page "The KV cache"."""

from __future__ import annotations

from typing import Any

import altair as alt

from docs.figures import theme
from docs.figures.api import Text, View, figure
from docs.figures.axes import decades_y, doubling_x
from docs.figures.kv_slots import slots
from docs.figures.units import bytes_text, significant
from tracegen.roofline import datasheet_devices
from tracegen.trace import Trace

__all__ = ["bytes_by_heads", "cached_or_recomputed", "slots"]

REFERENCE_DEVICE = "h100-sxm"


def cache_names(t: Text) -> dict[str, str]:
    """Labels of the three ways to get past keys and values."""
    return {
        "none": t("recomputed", "重新计算"),
        "growing": t("cached, grown by copying", "缓存（拼接增长）"),
        "contiguous": t("cached, written in place", "缓存（原地写入）"),
    }


def next_token_rows(trace: Trace, t: Text) -> list[dict[str, Any]]:
    """Median time and traffic of one more token after each context, for each kind of cache."""
    names = cache_names(t)
    contexts = {name: s.get("context") for name, s in trace.meta["scenarios"].items()}
    rows = trace.query(
        """SELECT scenario, cache, median(dur_ns) AS ns, median(flops) AS flops,
                  median(bytes_read + bytes_written) AS moved, median(copied_bytes) AS copied
           FROM trace WHERE event = 'Stepped' AND scenario <> 'slots'
                AND (cache = 'none' OR fed_tokens = 1)
           GROUP BY scenario, cache"""
    )
    found = [
        {
            "way": names[row["cache"]],
            "cache": row["cache"],
            "context": contexts[row["scenario"]],
            "ms": row["ns"] / 1e6,
            "gflop": row["flops"] / 1e9,
            "mb": row["moved"] / 1e6,
            "copied_mb": row["copied"] / 1e6,
        }
        for row in rows
    ]
    return sorted(found, key=lambda row: (row["context"], row["cache"]))


@figure()
def cached_or_recomputed(trace: Trace, t: Text, variant: str | None) -> View:
    """Time of the next token against the context, with and without a cache."""
    rows = next_token_rows(trace, t)
    names = cache_names(t)

    def ms(cache: str, context: int) -> float:
        return next(r["ms"] for r in rows if r["cache"] == cache and r["context"] == context)

    contexts = sorted({row["context"] for row in rows})
    short, long = contexts[0], contexts[-1]
    gain_short = ms("none", short) / ms("contiguous", short)
    gain_long = ms("none", long) / ms("contiguous", long)
    low, high = min(r["ms"] for r in rows) / 1.5, max(r["ms"] for r in rows) * 1.5
    scale = theme.color_scale(
        {
            names["none"]: theme.REJECTED,
            names["growing"]: theme.IDLE,
            names["contiguous"]: theme.CACHED,
        }
    )
    chart = (
        alt.Chart(alt.InlineData(values=rows, name="next_token"))
        .mark_line(point=alt.OverlayMarkDef(size=50, filled=True))
        .encode(
            x=doubling_x("context", t("tokens before it", "此前的 token 数"), contexts),
            y=decades_y(
                "ms", t("time of the next token (ms)", "下一个 token 的耗时 (ms)"), low, high
            ),
            color=alt.Color("way:N", scale=scale, title=None, legend=alt.Legend(columns=2)),
            shape=alt.Shape(
                "way:N",
                scale=alt.Scale(
                    domain=list(names.values()), range=["triangle", "square", "circle"]
                ),
                title=None,
            ),
        )
        .properties(height=280)
    )
    return View(
        chart,
        title=t(
            f"After {long} tokens the cache makes the next one {significant(gain_long, 2)}× faster; "
            f"after {short} only {significant(gain_short, 2)}×",
            f"前面有 {long} 个 token 时，有缓存的下一个 token 速度是重新计算的 {significant(gain_long, 2)} 倍；"
            f"只有 {short} 个时，仅 {significant(gain_short, 2)} 倍",
        ),
        kind="measured",
        notice=t(
            "Recomputing feeds all tokens again for each new one. The cached lines stay nearly "
            "flat: a step still reads all weights, and the cache adds little to that.",
            "重新计算意味着每生成一个 token 都把前文整个再算一遍。有缓存时曲线几乎是平的："
            "每步仍要读全部权重，缓存本身增加的读取量很小。",
        ),
        columns={
            "way": t("way", "方式"),
            "context": t("tokens before", "此前 token 数"),
            "ms": t("time (ms)", "耗时 (ms)"),
            "gflop": "GFLOP",
            "mb": t("bytes moved (MB)", "搬运 (MB)"),
            "copied_mb": t("of which copying (MB)", "其中拷贝 (MB)"),
        },
    )


def shape_names(trace: Trace, t: Text) -> dict[str, str]:
    """The models whose caches were reserved."""
    rows = trace.query(
        """SELECT shape_of, min(step) AS first FROM trace
           WHERE scenario = 'sizes' GROUP BY shape_of ORDER BY first"""
    )
    return {row["shape_of"]: row["shape_of"] for row in rows}


@figure(variants=shape_names)
def bytes_by_heads(trace: Trace, t: Text, variant: str | None) -> View:
    """Reserved bytes against length, for three kinds of heads."""
    rows = trace.query(
        """SELECT DISTINCT heads, kv_heads, capacity_tokens AS tokens, cache_bytes AS bytes
           FROM trace WHERE scenario = 'sizes' AND shape_of = $model ORDER BY kv_heads DESC, tokens""",
        model=variant,
    )
    query_heads = max(row["kv_heads"] for row in rows)
    own = next(row["kv_heads"] for row in rows if row["heads"] == "own")
    own_kind = t("multi-head", "多头") if own == query_heads else t("grouped-query", "分组查询")
    kinds = {
        "multi-head": t("multi-head", "多头") + f" ({query_heads})",
        "own": f"{own_kind} ({own})",
        "multi-query": t("multi-query", "多查询") + " (1)",
    }
    points = [
        {"kind": kinds[row["heads"]], "tokens": row["tokens"], "gb": row["bytes"] / 1e9}
        for row in rows
        if row["heads"] != "multi-head" or own != query_heads
    ]
    per_token = next(r["bytes"] / r["tokens"] for r in rows if r["heads"] == "own")
    device = datasheet_devices()[REFERENCE_DEVICE]
    longest = max(row["tokens"] for row in rows)
    fits = int(device.memory_bytes / (per_token * longest))
    low, high = min(p["gb"] for p in points) / 1.5, max(max(p["gb"] for p in points), 100) * 1.5
    colors = [theme.REJECTED, theme.PREFILL, theme.ACCEPTED]
    shown = [kinds[key] for key in kinds if key != "multi-head" or own != query_heads]
    scale = alt.Scale(domain=shown, range=colors[-len(shown) :])
    y = decades_y("gb", t("cache of one sequence (GB)", "一条序列的缓存 (GB)"), low, high)
    lines = (
        alt.Chart(alt.InlineData(values=points, name="sizes"))
        .mark_line(point=alt.OverlayMarkDef(size=40, filled=True))
        .encode(
            x=doubling_x(
                "tokens",
                t("tokens", "token 数"),
                {row["tokens"] for row in rows},
                labelExpr="datum.value / 1024 + 'K'",
            ),
            y=y,
            color=alt.Color(
                "kind:N", scale=scale, title=t("key/value heads", "KV 头（个数）"), sort=shown
            ),
        )
    )
    memory = alt.Chart(
        alt.InlineData(
            values=[
                {
                    "gb": device.memory_bytes / 1e9,
                    "name": f"{device.name}, {bytes_text(device.memory_bytes)}",
                }
            ],
            name="memory",
        )
    )
    limit = memory.mark_rule(strokeDash=[4, 3], color=theme.MUTED).encode(y=y)
    label = memory.mark_text(align="left", dy=9, x=4, color=theme.MUTED).encode(y=y, text="name:N")
    return View(
        alt.layer(limit, label, lines).properties(height=280),
        title=t(
            f"{variant} keeps {bytes_text(per_token)} per token: "
            + (
                f"{fits} sequences of {longest:,} tokens would fill an 80 GB GPU"
                if fits
                else f"not one sequence of {longest:,} tokens fits an 80 GB GPU"
            ),
            f"{variant} 每个 token 占 {bytes_text(per_token)}："
            + (
                f"{fits} 条 {longest:,} token 的序列就能占满一张 80 GB 的 GPU"
                if fits
                else f"一张 80 GB 的 GPU连一条 {longest:,} token 的序列都放不下"
            ),
        ),
        kind="counted",
        notice=t(
            "Bytes reserved by KVCache for one sequence in bfloat16, weights not included. The "
            "model's own number of key/value heads beside what the same model would need with one "
            "for every query head, or with a single one. Dashed: all memory of that GPU.",
            "KVCache 为一条序列预留的字节数（bfloat16，不含权重）。图中对比模型自身的 KV 头数，"
            "以及同一模型若改用多头或单个 KV 头所需的大小。虚线为该 GPU 的全部显存。",
        ),
        columns={
            "kind": t("key/value heads", "KV 头"),
            "tokens": t("tokens", "token 数"),
            "gb": "GB",
        },
    )
