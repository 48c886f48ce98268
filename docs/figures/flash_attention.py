"""Figures of the page "FlashAttention": the tiles, step by step."""

from __future__ import annotations

import json
from typing import Any

import altair as alt

from docs.figures import theme
from docs.figures.api import Text, View, figure
from docs.figures.steps import steps_of
from docs.figures.units import bytes_text, significant
from tracegen.score_grid import Grid
from tracegen.trace import Trace

SHOWN = ("run", "attend_tile", "empty_state", "finish")


def tile_rows(trace: Trace) -> list[dict[str, Any]]:
    """The events of the walk over tiles, in order."""
    return trace.query(
        """SELECT * EXCLUDE (repeat, t_ns, dur_ns) FROM trace
           WHERE scenario = 'tiles' AND repeat = 0 ORDER BY step"""
    )


def grid_of(rows: list[dict[str, Any]]) -> Grid:
    """The grid that the recording walked over."""
    count, block = len(rows[0]["tokens"]), rows[0]["block"]
    return Grid(count, count, block, block, causal=True)


def totals(rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Bytes that all tiles moved, and what writing the scores out would have moved."""
    naive = grid_of(rows).naive_cost(rows[0]["head_dim"], rows[0]["element_bytes"])
    moved = sum(row["bytes_read"] + row["bytes_written"] for row in rows[1:])
    return moved, naive.bytes_read + naive.bytes_written


@figure()
def tiles(trace: Trace, t: Text, variant: str | None) -> View:
    """The score matrix filling tile by tile, with what a row remembers."""
    rows = tile_rows(trace)
    attended = [row for row in rows if row["event"] == "TileAttended"]
    skipped = sum(len(row["skipped"]) for row in rows if row["event"] == "RowTileDone")
    grid = grid_of(rows)
    chart = alt.vconcat(
        score_matrix(rows, t),
        remembered(rows, "maximum", t("largest score so far, m", "目前的最大分数 m"), None, t),
        remembered(
            rows,
            "total",
            t("sum of exponentials, ℓ", "指数之和 ℓ"),
            t("tile of keys", "键的分块"),
            t,
        ),
        spacing=26,
    ).add_params(theme.step_param(min(12, len(rows) - 1)))
    return View(
        chart,
        title=t(
            f"{len(attended)} of {len(attended) + skipped} tiles are computed, one at a time; the other "
            f"{skipped} lie in the future and are never loaded",
            f"{len(attended) + skipped} 个分块只算 {len(attended)} 个，一次一个；"
            f"其余 {skipped} 个全被因果掩码遮住，根本不加载",
        ),
        kind="counted",
        notice=t(
            f"Each square is one score: how much the token on the left (query) looks at the token "
            f"above (key); bluer is larger. Only the outlined tile of {grid.block_q} × {grid.block_k} is on the chip; "
            "faded ones are drawn for you, the chip has forgotten them. The bars are two of the three things "
            "that the bottom row of the current tile remembers; the third is a vector.",
            f"每个方格是一个分数：左边的 token（查询）对上方的 token（键）有多关注，颜色越蓝分数越大。片上只有描边的"
            f"那块 {grid.block_q} × {grid.block_k}，用完就丢。下面的柱子是当前分块最后一行保留的 m 和 ℓ；除此之外只保留 V 的加权和 o（未画出）。",
        ),
        columns={
            "query_token": t("query", "查询"),
            "key_token": t("key", "键"),
            "score": t("score", "分数"),
            "born": t("computed in step", "计算于第几步"),
        },
        steps=steps_of(trace, rows, [narrate(row, rows, t) for row in rows], SHOWN),
    )


def score_matrix(rows: list[dict[str, Any]], t: Text) -> alt.LayerChart | alt.FacetChart:
    """Cells of all scores, the current tile outlined, skipped tiles crossed."""
    tokens, block, last = rows[0]["tokens"], rows[0]["block"], len(rows[0]["tokens"])
    cells, frames, crossed = [], [], []
    for row in rows[1:]:
        top = row["row_tile"] * block
        bottom = min(top + block, last)
        if row["event"] == "RowTileDone":
            crossed += [
                {"x": c * block, "x2": min((c + 1) * block, last), "y": top, "y2": bottom}
                | {"born": row["step"], "mark": t("skipped", "跳过") * ((c + 1) * block <= last)}
                for c in row["skipped"]
            ]
            continue
        left = row["column_tile"] * block
        frame = {"x": left, "x2": min(left + block, last), "y": top, "y2": bottom}
        frames.append(frame | {"born": row["step"], "zero": 0, "watched": bottom - 1})
        cells += [
            {"x": key, "y": query, "score": score, "born": row["step"]}
            | {"query_token": tokens[query].strip(), "key_token": tokens[key].strip()}
            for query, key, score in zip(row["query_of"], row["key_of"], row["scores"], strict=True)
        ]
    names = json.dumps([token.strip() for token in tokens], ensure_ascii=False)
    labels = f"{names}[floor(datum.value)]"
    domain = alt.Scale(domain=[0, last], nice=False)
    middle = [index + 0.5 for index in range(last)]
    axis: dict[str, Any] = {
        "values": middle,
        "tickCount": last,  # or Vega thins them to its default count
        "labelExpr": labels,
        "ticks": False,
        "domain": False,
        "grid": False,
    }
    x_axis = alt.Axis(orient="top", labelAngle=-90, labelOverlap=False, title=None, **axis)
    y_axis = alt.Axis(labelOverlap=False, minExtent=52, title=None, **axis)
    x = alt.X("x:Q", scale=domain, axis=x_axis)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[last, 0], nice=False), axis=y_axis)
    box = {"x": x, "x2": "x2:Q", "y": y, "y2": "y2:Q"}
    squares = (
        alt.Chart(alt.InlineData(values=cells, name="cells"))
        .transform_calculate(x2="datum.x + 1", y2="datum.y + 1")
        .mark_rect(stroke=theme.RULE, strokeWidth=0.5)
        .encode(
            **box,
            fill=alt.condition(
                "datum.born <= step",
                alt.Fill(
                    "score:Q",
                    scale=alt.Scale(range=[theme.GRID, theme.PREFILL], interpolate="rgb"),
                    title=t("score q·k / √d", "分数 q·k / √d"),
                    legend=alt.Legend(gradientLength=140, tickCount=3, offset=10),
                ),
                alt.value(theme.FREE),
            ),
            fillOpacity=alt.condition("datum.born < step", alt.value(0.55), alt.value(1)),
        )
    )
    skips = alt.Chart(alt.InlineData(values=crossed, name="skipped")).transform_filter(
        "datum.born <= step"
    )
    grey = skips.mark_rect(fill=theme.IDLE, fillOpacity=0.22, stroke=theme.RULE).encode(**box)
    word = (
        skips.transform_calculate(cx="(datum.x + datum.x2) / 2", cy="(datum.y + datum.y2) / 2")
        .mark_text(color=theme.MUTED, fontSize=10.5, baseline="middle")
        .encode(x=alt.X("cx:Q", axis=x_axis), y=alt.Y("cy:Q", axis=y_axis), text="mark:N")
    )
    current = alt.Chart(alt.InlineData(values=frames, name="frames")).transform_filter(
        "datum.born == step"
    )
    outline = current.mark_rect(fill=None, stroke=theme.INK, strokeWidth=2.5).encode(**box)
    watched = current.mark_rect(fill=None, stroke=theme.INK, strokeDash=[3, 2]).encode(
        x=alt.X("zero:Q", axis=x_axis), x2="x2:Q", y=alt.Y("watched:Q", axis=y_axis), y2="y2:Q"
    )
    return alt.layer(squares, grey, word, watched, outline).properties(height=290)


def remembered(
    rows: list[dict[str, Any]], field: str, title: str, x_title: str | None, t: Text
) -> alt.LayerChart | alt.FacetChart:
    """One number that the bottom row of the current tile keeps, after each tile of its row."""
    attended = [row for row in rows if row["event"] == "TileAttended"]
    ends = {row["row_tile"]: row["step"] for row in rows if row["event"] == "RowTileDone"}
    values = [
        {
            "tile": row["column_tile"] + 1,
            "born": row["step"],
            "ends": ends[row["row_tile"]],
            "begins": row["step"] - row["column_tile"],
            "maximum": row["maxima"][-1],
            "total": row["totals"][-1],
            "kept": kept_text(row, field),
        }
        for row in attended
    ]
    low = min(0.0, *(value[field] for value in values))
    high = 1.25 * max(value[field] for value in values)
    base = (
        alt.Chart(alt.InlineData(values=values, name="remembered"))
        .transform_filter("datum.begins <= step && datum.born <= step && step <= datum.ends")
        .encode(
            x=alt.X(
                "tile:O",
                scale=alt.Scale(domain=list(range(1, len(ends) + 1)), paddingInner=0.3),
                title=x_title,
                axis=alt.Axis(labelAngle=0, ticks=False, labels=x_title is not None),
            ),
            y=alt.Y(
                f"{field}:Q",
                title=title,
                scale=alt.Scale(domain=[low, high], nice=False),
                axis=alt.Axis(tickCount=3),
            ),
        )
    )
    bars = base.mark_bar(color=theme.PREFILL).encode(
        opacity=alt.condition("datum.born == step", alt.value(1), alt.value(0.4))
    )
    text = base.mark_text(dy=-6, fontSize=11).encode(text="kept:N")
    return alt.layer(bars, text).properties(height=64)


def kept_text(row: dict[str, Any], field: str) -> str:
    """The value, and for the sum what share of the one before was kept."""
    if field == "maximum":
        return f"{row['maxima'][-1]:.2f}"
    kept = row["rescales"][-1]
    share = f" (×{kept:.2f})" if row["column_tile"] else ""
    return f"{row['totals'][-1]:.2f}{share}"


def narrate(row: dict[str, Any], rows: list[dict[str, Any]], t: Text) -> str:
    """What one step did."""
    tokens, block = rows[0]["tokens"], rows[0]["block"]
    count = len(tokens)
    if row["event"] == "Started":
        return t(
            f"{count} tokens have reached one attention head: {count} × {count} scores, to be taken in "
            f"tiles of {block} × {block}. Nothing is computed yet.",
            f"{count} 个 token 进入一个注意力头，共 {count} × {count} 个分数，按 {block} × {block} 分块处理。还没有开始算。",
        )
    first = row["row_tile"] * block
    stop = min(first + block, count)
    queries = span(first, stop)
    if row["event"] == "RowTileDone":
        return narrate_done(row, rows, queries, t)
    left = row["column_tile"] * block
    keys = span(left, min(left + block, count))
    name, m, kept = tokens[stop - 1].strip(), row["maxima"][-1], row["rescales"][-1]
    total, moved = row["totals"][-1], bytes_text(row["bytes_read"])
    before = rows[row["step"] - 1]
    if row["column_tile"] == 0:
        change = t("nothing to keep yet", "此前还没有累加结果")
    elif kept == 1:
        change = t(
            "no larger score, so all before stays as it is",
            "没有出现更大的分数，之前的结果原样保留",
        )
    else:
        change = t(
            f"m rises from {before['maxima'][-1]:.2f}, so all before is shrunk to {kept:.2f} of itself",
            f"m 由 {before['maxima'][-1]:.2f} 升上来，之前的结果先乘以 {kept:.2f}",
        )
    return t(
        f"Tile of queries {queries} and keys {keys}, {moved} read: {count_of(row, t)}. "
        f"Last row, “{name}”: m = {m:.2f}, ℓ = {total:.2f}; {change}.",
        f"查询 {queries} × 键 {keys}（读 {moved}），{count_of(row, t)}。"
        f"最后一行“{name}”：m = {m:.2f}，ℓ = {total:.2f}；{change}。",
    )


def narrate_done(row: dict[str, Any], rows: list[dict[str, Any]], queries: str, t: Text) -> str:
    """A finished row of tiles; after the last one, the bytes of all."""
    written, skipped = bytes_text(row["bytes_written"]), len(row["skipped"])
    said = t(
        f"The weighted sums of values of queries {queries} are divided by ℓ and written: {written}.",
        f"查询 {queries} 的 V 加权和除以 ℓ，写回 {written}。",
    )
    if skipped:
        return said + t(
            f" {skipped} {'tile' if skipped == 1 else 'tiles'} to the right {'has' if skipped == 1 else 'have'} only later keys: "
            "skipped.",
            f"右边 {skipped} 个分块全是后面的键，跳过。",
        )
    moved, naive = totals(rows)
    return said + t(
        f" In all {bytes_text(moved)} moved; writing all scores out would move {bytes_text(naive)}. "
        + (
            f"With {significant(rows[0]['head_dim'])} numbers per token and so few tokens, tiles do not pay yet."
            if moved >= naive
            else ""
        ),
        f"全程搬运 {bytes_text(moved)}；若把分数全部写出再读回，则是 {bytes_text(naive)}。"
        + (
            f"head_dim 为 {rows[0]['head_dim']}，token 又这么少，分块还不划算。"
            if moved >= naive
            else ""
        ),
    )


def count_of(row: dict[str, Any], t: Text) -> str:
    """How many scores of a tile a query may see."""
    seen = len(row["scores"])
    return t(f"{seen} visible {'score' if seen == 1 else 'scores'}", f"有 {seen} 个可见分数")


def span(first: int, stop: int) -> str:
    """1-based numbers of a tile's tokens: "5–8"."""
    return str(stop) if stop == first + 1 else f"{first + 1}–{stop}"
