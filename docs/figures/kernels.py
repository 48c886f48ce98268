"""Figures of the page "Inside the kernels"."""

from __future__ import annotations

from typing import Any

import altair as alt

from docs.figures import theme
from docs.figures.api import Text, View, figure
from docs.figures.kernels_instructions import OPS, devices, instructions, limits
from docs.figures.kernels_launches import launches
from tracegen.trace import Trace

__all__ = ["block_sizes", "instructions", "launches", "shared_memory"]

KIB = 1024


def swept(trace: Trace, arch: str) -> list[dict[str, Any]]:
    """The tiles that were only looked at, smallest first."""
    return trace.query(
        """SELECT DISTINCT block_m, block_n, head_dim, num_warps, threads, registers, spilled_bytes,
                  shared_bytes, blocks, array_to_string(limited_by, ', ') AS limited_by, error
           FROM trace WHERE event = 'Compiled' AND scenario = 'sweep' AND arch = $arch
           ORDER BY block_m * block_n, block_m, num_warps""",
        arch=arch,
    )


def verdict(row: dict[str, Any], has: dict[str, Any]) -> str:
    """ "fits", "spills" or "too large", of one swept tile."""
    if row["error"] or row["shared_bytes"] > has["block_shared_bytes"]:
        return "too large"
    return "spills" if row["spilled_bytes"] else "fits"


def verdict_names(t: Text) -> dict[str, str]:
    """Labels of what can happen to a tile."""
    return {
        "fits": t("fits", "放得下"),
        "spills": t("spills registers", "寄存器溢出"),
        "too large": t("too much shared memory", "共享内存超限"),
    }


def verdict_encodings(t: Text) -> dict[str, Any]:
    """Colour and shape of a verdict, the same in every figure."""
    names = list(verdict_names(t).values())
    colors = [theme.ACCEPTED, theme.REJECTED, theme.IDLE]
    return {
        "color": alt.Color("verdict:N", scale=alt.Scale(domain=names, range=colors), title=None),
        "shape": alt.Shape(
            "verdict:N",
            scale=alt.Scale(domain=names, range=["circle", "triangle-up", "cross"]),
            title=None,
        ),
    }


@figure(variants=devices)
def block_sizes(trace: Trace, t: Text, variant: str | None) -> View:
    """Registers a thread and blocks a multiprocessor, over sizes of tiles."""
    has, names = limits(trace)[str(variant)], verdict_names(t)
    warp_names = {4: t("4 warps", "4 个线程束"), 8: t("8 warps", "8 个线程束")}
    rows = [
        {
            "tile": f"{row['block_m']}×{row['block_n']}",
            "warps": warp_names[row["num_warps"]],
            "registers": row["registers"],
            "spilled": row["spilled_bytes"],
            "shared": row["shared_bytes"] / KIB,
            "blocks": row["blocks"],
            "verdict": names[verdict(row, has)],
        }
        for row in swept(trace, str(variant))
    ]
    ranked = swept(trace, str(variant))
    fitting = [row for row in ranked if verdict(row, has) == "fits"]
    spilling = [row for row in ranked if verdict(row, has) == "spills"]
    tiles = list(dict.fromkeys(row["tile"] for row in rows))
    base = alt.Chart(alt.InlineData(values=rows, name="tiles")).encode(
        x=alt.X("tile:N", sort=tiles, title=None, axis=alt.Axis(labelAngle=0, labelOverlap=False)),
        xOffset=alt.XOffset("warps:N", sort=list(warp_names.values())),
        **verdict_encodings(t),
    )
    top = has["registers_per_thread"]
    registers = alt.Y(
        "registers:Q",
        title=t("registers per thread", "每线程寄存器数"),
        scale=alt.Scale(domain=[0, 1.08 * top], nice=False),
    )
    points = base.mark_point(filled=True, size=80, opacity=1).encode(y=registers)
    stems = (
        base.mark_rule(strokeWidth=1)
        .encode(y=registers, y2=alt.Y2Datum(0))
        .encode(shape=alt.Undefined)
    )
    limit = alt.Chart(alt.InlineData(values=[{"registers": top}], name="limit")).mark_rule(
        strokeDash=[4, 3], color=theme.MUTED
    )
    blocks = base.mark_bar(strokeWidth=1.25).encode(
        stroke=verdict_encodings(t)["color"],
        fillOpacity=alt.condition(  # hollow, so that colour does not say it alone
            f"datum.verdict == '{names['fits']}'", alt.value(1), alt.value(0.2)
        ),
        y=alt.Y(
            "blocks:Q",
            title=t("blocks per multiprocessor", "每个 SM 可驻留的线程块数"),
            axis=alt.Axis(values=list(range(1 + max(row["blocks"] for row in rows))), format="d"),
        ),
        x=alt.X(
            "tile:N",
            sort=tiles,
            title=t(
                "tile: rows of Q × rows of K; left 4 warps, right 8",
                "分块：Q 行数 × K 行数；左为 4 个线程束，右为 8 个",
            ),
            axis=alt.Axis(labelAngle=0, labelOverlap=False),
        ),
        shape=alt.Undefined,
    )
    chart = alt.vconcat(
        alt.layer(limit.encode(y=registers), stems, points).properties(height=170),
        blocks.properties(height=90),
    )
    return View(
        chart,
        title=tile_title(fitting, spilling, len(ranked), has["device"], t),
        kind="counted",
        notice=t(
            "FlashAttention, causal, bfloat16, head dimension "
            f"{ranked[0]['head_dim']}, compiled ten times, without TMA. Dashed: all the registers that a thread may "
            "have. With more warps, each thread holds less of the tile. A spilling kernel may show "
            "few registers: the compiler has given up and keeps nearly everything in memory.",
            f"因果 FlashAttention，bfloat16，head_dim {ranked[0]['head_dim']}，共编译十种配置（不用 TMA）。虚线是单个线程"
            "可用的寄存器上限。线程束越多，每个线程分到的数据越少。溢出的内核也可能显示寄存器很少："
            "编译器已放弃分配，几乎所有变量都放进了内存。",
        ),
        columns={
            "tile": t("tile", "分块"),
            "warps": t("warps", "线程束"),
            "registers": t("registers per thread", "每线程寄存器"),
            "spilled": t("spilled (bytes per thread)", "溢出（每线程字节）"),
            "shared": t("shared memory (KiB)", "共享内存 (KiB)"),
            "blocks": t("blocks", "线程块"),
            "verdict": t("verdict", "结论"),
        },
    )


def tile_title(
    fitting: list[dict[str, Any]],
    spilling: list[dict[str, Any]],
    total: int,
    device: str,
    t: Text,
) -> str:
    """Which tile is the largest that fits, with how many warps, and what spills first."""
    if not fitting:
        return t(f"On {device} none of these tiles fits", f"在 {device} 上，这些分块都放不下")
    best = max(fitting, key=lambda row: (row["block_m"] * row["block_n"], row["num_warps"]))
    size = f"{best['block_m']}×{best['block_n']}"
    count, large = len(spilling), total - len(fitting) - len(spilling)
    return t(
        f"On {device} the largest tile that fits is {size} with {best['num_warps']} warps; "
        + (f"{count} of the others spill" if count else f"{large} are too large for shared memory"),
        f"在 {device} 上，放得下的最大分块是 {size}（{best['num_warps']} 个线程束）；"
        + (f"其余配置中有 {count} 个溢出" if count else f"有 {large} 个超出共享内存"),
    )


@figure(variants=devices)
def shared_memory(trace: Trace, t: Text, variant: str | None) -> View:
    """Shared memory of every shipped kernel, against what a block may have."""
    has = limits(trace)[str(variant)]
    rows = [
        {
            "op": t(*OPS.get(row["op"], (row["op"], row["op"]))),
            "kernel": row["variant"],
            "kib": row["shared_bytes"] / KIB,
            "registers": row["registers"],
            "blocks": row["blocks"],
            "limited": row["limited_by"],
        }
        for row in trace.query(
            """SELECT DISTINCT op, variant, shared_bytes, registers, blocks,
                      array_to_string(limited_by, ', ') AS limited_by, step
               FROM trace WHERE event = 'Compiled' AND shipped AND arch = $arch ORDER BY step""",
            arch=variant,
        )
    ]
    room = has["block_shared_bytes"] / KIB
    most = max(rows, key=lambda row: row["kib"])
    short = sum("shared memory" in row["limited"] for row in rows)
    order = [t(*names) for names in OPS.values()]
    x = alt.X(
        "kib:Q",
        title=t("shared memory of a block (KiB)", "每个线程块的共享内存 (KiB)"),
        scale=alt.Scale(domain=[0, 1.04 * room], nice=False),
    )
    strip = (
        alt.Chart(alt.InlineData(values=rows, name="shipped"))
        .mark_point(filled=True, size=75, opacity=0.7, color=theme.ACCEPTED)
        .encode(
            x=x,
            y=alt.Y("op:N", sort=order, title=None, axis=alt.Axis(minExtent=92, labelPadding=10)),
            tooltip=[
                alt.Tooltip("kernel:N", title=t("kernel", "内核")),
                alt.Tooltip("kib:Q", title="KiB", format=".3~f"),
                alt.Tooltip("blocks:Q", title=t("blocks", "线程块")),
            ],
        )
    )
    limit = (
        alt.Chart(alt.InlineData(values=[{"kib": room}], name="room"))
        .mark_rule(strokeDash=[4, 3], color=theme.MUTED)
        .encode(x=x)
    )
    return View(
        alt.layer(limit, strip).properties(height=34 * len({row["op"] for row in rows})),
        title=t(
            f"On {has['device']} no shipped kernel takes more than {most['kib'] / room:.0%} of a block's shared "
            f"memory; it is what limits {short} of {len(rows)}",
            f"在 {has['device']} 上，没有内核用到单个线程块共享内存上限的 {most['kib'] / room:.0%} 以上；"
            f"{len(rows)} 个内核中有 {short} 个的线程块数受它限制",
        ),
        kind="counted",
        notice=t(
            "One point is one shipped kernel; dashed is what a block may have. Attention and matrix "
            "products hold several tiles there, so that the next is under way while one is used. "
            "Norms need a few bytes, to add up sums of several warps.",
            "每个点是一个正式使用的内核，虚线为单个线程块的上限。注意力和矩阵乘要在共享内存里同时放好几个分块，"
            "一个在用，下一个已经在路上；归一化只需要几个字节，用来汇总各线程束的部分和。",
        ),
        columns={
            "op": t("operation", "算子"),
            "kernel": t("kernel", "内核"),
            "kib": t("shared memory (KiB)", "共享内存 (KiB)"),
            "registers": t("registers per thread", "每线程寄存器"),
            "blocks": t("blocks per multiprocessor", "每 SM 线程块"),
            "limited": t("limited by", "受限于"),
        },
    )
