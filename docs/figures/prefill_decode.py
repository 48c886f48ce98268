"""Figures of the page "Prefill and decode"."""

from __future__ import annotations

import altair as alt

from docs.figures import theme
from docs.figures.api import Text, View, figure
from docs.figures.axes import decades_scale, decades_y
from docs.figures.decode_story import decode_stepper
from docs.figures.passes import (
    DEVICES,
    device_of,
    element_bytes,
    passes,
    phase_color,
    phase_names,
)
from docs.figures.sweeps import sweep, sweep_chart, sweep_columns
from docs.figures.units import significant
from tracegen.trace import Trace

__all__ = ["decode_stepper", "roofline", "time_by_batch", "time_by_prompt"]


@figure(variants=lambda trace, t: {"measured": trace.meta["machine"]["name"], **DEVICES})
def roofline(trace: Trace, t: Text, variant: str | None) -> View:
    """Every recorded pass under the two ceilings."""
    measured = variant == "measured"
    device, dtype = device_of(trace, variant)
    names = phase_names(t)
    shrink = element_bytes(dtype) / element_bytes(trace.meta["model"]["dtype"])
    points = []
    for row in passes(trace):
        moved = (row["bytes_read"] + row["bytes_written"]) * shrink
        seconds = row["ns"] / 1e9 if measured else device.seconds(row["flops"], moved, dtype)
        points.append(
            {
                "phase": names[row["phase"]],
                "tokens": row["batch"] * row["new_tokens"],
                "intensity": row["flops"] / moved,
                "gflops": row["flops"] / seconds / 1e9,
                "ms": seconds * 1e3,
            }
        )
    peak, ridge = device.flops_per_s[dtype] / 1e9, device.ridge(dtype)
    low = min(p["intensity"] for p in points) / 1.5
    high = max(*(p["intensity"] for p in points), ridge) * 1.5
    roof = [
        {"intensity": x, "gflops": min(peak, x * device.bytes_per_s / 1e9)}
        for x in (low, ridge, high)
    ]
    floor = min(p["gflops"] for p in points) / 2
    x = alt.X(
        "intensity:Q",
        title=t("FLOPs per byte moved", "每搬 1 字节做的 FLOP（算术强度）"),
        **decades_scale(low, high),
    )
    y = decades_y("gflops", "GFLOP/s", floor, 1.6 * peak)
    line = alt.Chart(alt.InlineData(values=roof, name="roof")).mark_line(
        color=theme.MUTED, strokeWidth=1.5
    )
    ridge_rule = (
        alt.Chart(alt.InlineData(values=[{"ridge": ridge}], name="ridge"))
        .mark_rule(color=theme.RULE, strokeDash=[3, 3])
        .encode(x="ridge:Q")
    )
    dots = (
        alt.Chart(alt.InlineData(values=points, name="points"))
        .mark_point(size=60, filled=True, opacity=0.9)
        .encode(
            x=x,
            y=y,
            color=phase_color(t),
            shape=alt.Shape(
                "phase:N",
                scale=alt.Scale(domain=list(names.values()), range=["circle", "square"]),
                title=None,
            ),
            tooltip=[
                alt.Tooltip("phase:N", title=t("phase", "阶段")),
                alt.Tooltip("tokens:Q", title=t("tokens in the pass", "本次 token 数")),
                alt.Tooltip("ms:Q", title="ms", format=".3~g"),
                alt.Tooltip("gflops:Q", title="GFLOP/s", format=".3~g"),
            ],
        )
    )
    first = min(points, key=lambda p: p["intensity"])
    top = max(points, key=lambda p: p["gflops"])
    bandwidth_share = first["gflops"] / first["intensity"] * 1e9 / device.bytes_per_s
    if measured:
        fast = bandwidth_share >= 1  # a pass can beat the median of the probe
        decoding = t(
            f"moves bytes as fast as this machine's best plain read or copy ({bandwidth_share:.0%})"
            if fast
            else f"takes {bandwidth_share:.0%} of this machine's memory bandwidth",
            f"搬运速度已达到本机单纯读取或拷贝的水平（{bandwidth_share:.0%}）"
            if fast
            else f"用到了本机内存带宽的 {bandwidth_share:.0%}",
        )
        title = t(
            f"Decoding one sequence {decoding} but uses only {first['gflops'] / peak:.1%} of its FLOP "
            f"rate; the best prefill uses {top['gflops'] / peak:.0%} of that",
            f"单条序列解码{decoding}，却只用到算力的 {first['gflops'] / peak:.1%}；"
            f"预填充最高用到算力的 {top['gflops'] / peak:.0%}",
        )
    else:
        beyond = sum(p["intensity"] > ridge for p in points if p["phase"] == names["decode"])
        title = t(
            f"On {device.name} a pass needs about {ridge:.0f} tokens before arithmetic limits it; "
            + (
                f"{beyond} recorded decode steps have that many"
                if beyond
                else "no recorded decode step has that many"
            ),
            f"在 {device.name} 上，一次前向大约要 {ridge:.0f} 个 token 才会受限于算力；"
            + (f"录制的解码步中有 {beyond} 个达到" if beyond else "录制的解码步都远未达到"),
        )
    return View(
        alt.layer(line.encode(x=x, y=y), ridge_rule, dots).properties(height=300),
        title=title,
        kind="measured" if measured else "modelled",
        notice=t(
            "Higher is more arithmetic per second; the grey line is the roof. Left of the dashed line a pass waits for memory, right of it for arithmetic. Points "
            "that carry more tokens lie further right. Choose a datasheet device to see where the "
            "same passes would lie at best (in bfloat16).",
            "纵轴越高，每秒做的计算越多；灰线就是屋顶。虚线左侧的前向在等内存，右侧的在等算力；一次处理的 token 越多，点越靠右。"
            "也可以选一款 GPU，看同样的前向按官方规格（bfloat16）最好能落在哪里。",
        ),
        columns={
            "phase": t("phase", "阶段"),
            "tokens": t("tokens", "token 数"),
            "intensity": t("FLOP/byte", "FLOP/字节"),
            "gflops": "GFLOP/s",
            "ms": t("time (ms)", "耗时 (ms)"),
        },
    )


@figure()
def time_by_prompt(trace: Trace, t: Text, variant: str | None) -> View:
    """Time of prefill and of one decode step after it, against the prompt's length."""
    rows = sweep(trace, "prompt_%", t)
    names = phase_names(t)
    pre = [row for row in rows if row["phase"] == names["prefill"]]
    dec = [row for row in rows if row["phase"] == names["decode"]]
    longer = pre[-1]["prompt"] / pre[0]["prompt"]
    return View(
        sweep_chart(
            rows,
            "prompt",
            t("prompt tokens", "提示词 token 数"),
            t("time of the pass (ms)", "该次前向耗时 (ms)"),
            t,
        ),
        title=t(
            f"A {significant(longer)}× longer prompt makes prefill take {significant(pre[-1]['ms'] / pre[0]['ms'], 2)}× as long, "
            f"but the decode step after it only {significant(dec[-1]['ms'] / dec[0]['ms'], 2)}×",
            f"提示词长度变为 {significant(longer)} 倍时，预填充耗时变为 {significant(pre[-1]['ms'] / pre[0]['ms'], 2)} 倍，"
            f"其后一步解码变为 {significant(dec[-1]['ms'] / dec[0]['ms'], 2)} 倍",
        ),
        kind="measured",
        notice=t(
            "Solid: measured, batch 1. Dashed: what the roofline of this machine allows at best "
            "(modelled from counted FLOPs and bytes). Left of the bend the dashed line is flat: the "
            "weights must be read anyway. Right of it, time grows with length.",
            "实线为实测（批大小 1），虚线是本机屋顶线给出的下限（由 FLOP 与字节数推算）。"
            "拐点左侧虚线是平的：权重反正都要读一遍；过了拐点，耗时才随长度增长。",
        ),
        columns=sweep_columns(t),
    )


@figure()
def time_by_batch(trace: Trace, t: Text, variant: str | None) -> View:
    """Time of a decode step and of prefill against the number of sequences."""
    rows = sweep(trace, "batch_%", t)
    dec = [row for row in rows if row["phase"] == phase_names(t)["decode"]]
    first, last = dec[0], dec[-1]
    slower = last["ms"] / first["ms"]
    return View(
        sweep_chart(
            rows,
            "batch",
            t("sequences in the batch", "批中的序列数"),
            t("time of the pass (ms)", "该次前向耗时 (ms)"),
            t,
        ),
        title=t(
            f"Decoding {last['batch']} sequences takes {significant(slower, 2)}× the time of one: "
            f"{significant(last['batch'] / slower, 2)}× the tokens per second",
            f"同时解码 {last['batch']} 条序列，每步耗时只有一条的 {significant(slower, 2)} 倍，"
            f"吞吐提高到 {significant(last['batch'] / slower, 2)} 倍",
        ),
        kind="measured",
        notice=t(
            "All sequences share one read of the weights, so decode (orange) rises slowly at "
            "first. Prefill of 32 tokens each (blue) is already bound by arithmetic and grows "
            "with the batch. Dashed: roofline bound, modelled.",
            "批中所有序列共用一次权重读取，所以解码（橙）一开始涨得很慢；每条 32 个 token 的预填充"
            "（蓝）已受算力限制，随批大小增长。虚线为屋顶线下限（推算）。",
        ),
        columns=sweep_columns(t),
    )
