"""Figures of the page "FlashAttention": tiles on multiprocessors, rounding."""

from __future__ import annotations

import heapq
from typing import Any

import altair as alt

from docs.figures import theme
from docs.figures.api import Text, View, figure
from docs.figures.units import significant
from tracegen.score_grid import Grid
from tracegen.trace import Trace

PROCESSORS = 8  # of the modelled schedule: few enough to be seen one by one


def programs(trace: Trace) -> list[dict[str, Any]]:
    """One row a program of the kernel, of the last repeat: head, tile, visited tiles of keys, and
    natively the multiprocessor, start and end. Where Triton does not run: what it would visit."""
    found = trace.query(
        """SELECT head, row_tile, len(maxima) AS visited, multiprocessor_measured AS sm,
                  started_ns, ended_ns
           FROM trace WHERE event = 'KernelTile' AND repeat = (SELECT max(repeat) FROM trace)
           ORDER BY step"""
    )
    return found or planned(trace.meta["scenarios"]["kernel"])


def planned(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """The programs of the interpreter's input."""
    tokens, block = scenario["interpreted_tokens"], scenario["interpreted_block"]
    grid = Grid(tokens, tokens, block, block, causal=True)
    return [
        {"head": head, "row_tile": i, "visited": len(grid.column_tiles(rows)), "sm": None}
        for head in range(scenario["interpreted_heads"])
        for i, rows in enumerate(grid.row_tiles())
    ]


def list_schedule(found: list[dict[str, Any]], processors: int, *, longest_first: bool) -> None:
    """Give each program a processor, start and end, in place: head by head, each program to the
    first processor that is free; a tile of keys takes one unit of time."""
    free = [(0, processor) for processor in range(processors)]

    def order(row: dict[str, Any]) -> tuple[int, int]:
        return row["head"], -row["row_tile"] if longest_first else row["row_tile"]

    for row in sorted(found, key=order):
        start, processor = heapq.heappop(free)
        row |= {"lane": processor, "start": start, "end": start + row["visited"]}
        heapq.heappush(free, (row["end"], processor))


def busy_share(found: list[dict[str, Any]]) -> float:
    """Share of the lanes' time, until the last program ends, in which some program runs there."""
    busy = 0.0
    for lane in {row["lane"] for row in found}:
        reached = 0.0
        for row in sorted((r for r in found if r["lane"] == lane), key=lambda r: r["start"]):
            busy += max(0, row["end"] - max(row["start"], reached))
            reached = max(reached, row["end"])
    return float(busy / (len({row["lane"] for row in found}) * max(row["end"] for row in found)))


def schedule_variants(trace: Trace, t: Text) -> dict[str, str]:
    """What the GPU did, where one was there; and two orders of programs to compare."""
    modelled = {
        "longest": t("modelled, long rows first", "推算，长行优先"),
        "shortest": t("modelled, short rows first", "推算，短行优先"),
    }
    if programs(trace)[0]["sm"] is None:
        return modelled
    return {"measured": trace.meta["machine"]["name"], **modelled}


@figure(variants=schedule_variants)
def schedule(trace: Trace, t: Text, variant: str | None) -> View:
    """Which multiprocessor works on which tile of queries, from when to when."""
    found = programs(trace)
    measured = variant == "measured"
    if measured:
        lanes = {sm: lane for lane, sm in enumerate(sorted({row["sm"] for row in found}))}
        for row in found:
            row |= {"lane": lanes[row["sm"]], "start": row["started_ns"] / 1e3}
            row["end"] = row["ended_ns"] / 1e3
    else:
        list_schedule(found, PROCESSORS, longest_first=variant == "longest")
    bars = [
        {key: row[key] for key in ("lane", "start", "end", "head", "row_tile", "visited")}
        for row in found
    ]
    lane_count, last = len({row["lane"] for row in bars}), max(row["end"] for row in bars)
    height = max(3, min(26, 420 // lane_count))
    chart = (
        alt.Chart(alt.InlineData(values=bars, name="programs"))
        .mark_bar(stroke=theme.PAPER, strokeWidth=0.0 if measured else 1.5)
        .encode(
            x=alt.X(
                "start:Q",
                scale=alt.Scale(domain=[0, last], nice=False),
                title=t("time (µs)", "时间 (µs)")
                if measured
                else t("time, in tiles of keys", "时间（以键的分块计）"),
            ),
            x2="end:Q",
            y=alt.Y(
                "lane:O",
                title=t("multiprocessor", "流式多处理器 (SM)"),
                axis=alt.Axis(labels=lane_count <= 16, minExtent=24),
            ),
            fill=alt.Fill(
                "visited:Q",
                scale=alt.Scale(range=[theme.CACHED, theme.PREFILL], interpolate="rgb"),
                title=t("tiles of keys that it visits", "要访问的键分块数"),
                legend=alt.Legend(gradientLength=140, tickCount=4),
            ),
            opacity=alt.value(0.8 if measured else 1),
            tooltip=[
                alt.Tooltip("head:Q", title=t("head", "头")),
                alt.Tooltip("row_tile:Q", title=t("tile of queries", "查询分块")),
                alt.Tooltip("visited:Q", title=t("tiles of keys", "键分块数")),
            ],
        )
        .properties(height=height * lane_count)
    )
    return View(
        chart,
        title=schedule_title(found, variant or "", t),
        kind="measured" if measured else "modelled",
        notice=schedule_notice(found, measured, t),
        columns={
            "lane": t("multiprocessor", "SM"),
            "start": t("start", "开始"),
            "end": t("end", "结束"),
            "head": t("head", "头"),
            "row_tile": t("tile of queries", "查询分块"),
            "visited": t("tiles of keys", "键分块数"),
        },
    )


def schedule_title(found: list[dict[str, Any]], variant: str, t: Text) -> str:
    """How busy the multiprocessors are until the last one ends."""
    share, count = f"{busy_share(found):.0%}", len(found)
    most, least = max(r["visited"] for r in found), min(r["visited"] for r in found)
    if variant == "measured":
        last = significant(max(row["end"] for row in found))
        lanes = len({row["lane"] for row in found})
        return t(
            f"{count} tiles of queries on {lanes} multiprocessors take {last} µs and keep them {share} busy",
            f"{count} 个查询分块在 {lanes} 个 SM 上用了 {last} µs，利用率 {share}",
        )
    order = (
        t("Long rows first", "长行优先")
        if variant == "longest"
        else t("Short rows first", "短行优先")
    )
    return t(
        f"{order}: {PROCESSORS} multiprocessors would be {share} busy with {count} programs, the longest "
        f"{significant(most / least, 2)}× the shortest",
        f"{order}：{count} 个程序实例里，最长的耗时是最短的 {significant(most / least, 2)} 倍；"
        f"{PROCESSORS} 个 SM 的利用率为 {share}",
    )


def schedule_notice(found: list[dict[str, Any]], measured: bool, t: Text) -> str:
    """What a bar is, and what the model assumes."""
    heads = max(row["head"] for row in found) + 1
    tiles = max(row["row_tile"] for row in found) + 1
    said = t(
        f"A bar is one program of the Triton kernel: one tile of queries of one of {heads} heads "
        f"({tiles} tiles each), over all tiles of keys that it may see. Under the causal mask later queries "
        "see more keys. ",
        f"每个横条是 Triton 内核的一个程序实例：{heads} 个头之一的一个查询分块（每头 {tiles} 块），遍历它能看到的所有键分块。"
        "因果掩码下，越靠后的查询看到的键越多。",
    )
    if measured:
        return said + t(
            "The kernel wrote down its multiprocessor and the GPU's own timer, whose resolution may be a microsecond.",
            "内核自己记下了所在的 SM 和 GPU 计时器的读数（分辨率可能只有 1 微秒）。",
        )
    return said + t(
        "The programs and the tiles they visit are the kernel's; when and where they run is modelled: head after head, each program goes "
        f"to the first free one of {PROCESSORS} multiprocessors, and a tile of keys takes one unit of time.",
        "程序实例和它们访问的分块取自内核；何时、在哪里运行则是推算：按头的顺序，依次把程序派给 "
        f"{PROCESSORS} 个 SM 中最先空闲的一个，每个键分块算一个时间单位。",
    )


@figure()
def rounding(trace: Trace, t: Text, variant: str | None) -> View:
    """Largest error of three softmaxes in three dtypes, for narrow and wide scores."""
    names = {
        "two-pass": t("two passes, scores stored", "两遍法，分数写回显存"),
        "online": t("online, state in float32", "在线，状态用 float32"),
        "online, narrow state": t("online, state in the inputs' dtype", "在线，状态与输入同类型"),
    }
    rows = trace.query(
        """SELECT method, dtype, spread, max_error AS error FROM trace
           WHERE event = 'Rounded' AND repeat = 0 ORDER BY step"""
    )
    error = {(row["method"], row["dtype"], row["spread"]): row["error"] for row in rows}
    widest = max(row["spread"] for row in rows)
    points = [row | {"way": names[row["method"]], "spread": f"{row['spread']:g}"} for row in rows]
    low, high = min(p["error"] for p in points) / 2, max(p["error"] for p in points) * 2
    spreads = sorted({row["spread"] for row in rows})
    gain = error["two-pass", "bfloat16", widest] / error["online", "bfloat16", widest]
    chart = (
        alt.Chart(alt.InlineData(values=points, name="errors"))
        .mark_line(point=alt.OverlayMarkDef(size=60, filled=True))
        .encode(
            x=alt.X(
                "spread:O",
                sort=[f"{spread:g}" for spread in spreads],
                title=t("spread of scores", "分数标准差"),
                axis=alt.Axis(labelAngle=0),
            ),
            y=alt.Y(
                "error:Q",
                title=None,
                scale=alt.Scale(type="log", domain=[low, high], nice=False),
                axis=alt.Axis(values=[10.0**n for n in range(-8, 1)], format="~e"),
            ),
            color=alt.Color(
                "way:N",
                scale=theme.color_scale(
                    {
                        names["two-pass"]: theme.REJECTED,
                        names["online"]: theme.PREFILL,
                        names["online, narrow state"]: theme.CACHED,
                    }
                ),
                title=None,
                legend=alt.Legend(columns=1),
            ),
            shape=alt.Shape(
                "way:N",
                scale=alt.Scale(
                    domain=list(names.values()), range=["triangle", "circle", "square"]
                ),
                title=None,
            ),
            facet=alt.Facet(
                "dtype:N", title=None, sort=["float32", "float16", "bfloat16"], columns=3
            ),
        )
        .properties(height=230, title=t("largest error, by dtype", "最大误差（按数据类型）"))
    )
    return View(
        chart,
        title=t(
            "Tiles lose no precision: with its state in float32, the online softmax has 1/"
            f"{significant(gain, 2)} of the error of two passes in bfloat16"
            if gain >= 1
            else f"In bfloat16 the online softmax errs {significant(1 / gain, 2)}× more than two passes",
            f"分块不损失精度：bfloat16 下，状态用 float32 的在线 softmax，误差只有两遍法的 1/{significant(gain, 2)}"
            if gain >= 1
            else f"bfloat16 下，在线 softmax 的误差是两遍法的 {significant(1 / gain, 2)} 倍",
        ),
        kind="counted",
        notice=t(
            "Random inputs, largest error of any output against float64; the same inputs in each dtype. Two "
            "passes round every score when they store it. Tiles keep scores on the chip in float32, and "
            "would lose that advantage with their state in 16 bits (pale blue). In float32 all three agree.",
            "随机输入，取所有输出相对 float64 的最大误差，各数据类型用同一组输入。两遍法把每个分数存下来时都要舍入一次；"
            "分块时分数留在片上、保持 float32。若状态也只用 16 位（浅蓝），这个优势就没了。float32 下三者一致。",
        ),
        columns={
            "way": t("softmax", "softmax"),
            "dtype": "dtype",
            "spread": t("spread", "标准差"),
            "error": t("largest error", "最大误差"),
        },
    )
