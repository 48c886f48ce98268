"""The stepper of the page "Inside the kernels": eager launches one by one, then the fused kernel."""

from __future__ import annotations

from typing import Any

import altair as alt

from docs.figures import theme
from docs.figures.api import Step, Text, View, figure
from docs.figures.units import bytes_text, significant
from tracegen.trace import Trace

KERNEL_NAMES = {
    "_to_copy": ("cast", "转换类型"),
    "pow": ("square", "平方"),
    "mean": ("mean of a row", "按行求均值"),
    "add": ("add epsilon", "加 ε"),
    "rsqrt": ("reciprocal root", "开方取倒数"),
    "mul": ("multiply", "相乘"),
    "sub": ("subtract zero", "减零点"),
    "arange": ("shift amounts", "生成移位量"),
    "__rshift__": ("shift", "移位"),
    "bitwise_and": ("mask 4 bits", "取低 4 位"),
    "mv": ("matrix × vector", "矩阵乘向量"),
}


def launch_rows(trace: Trace, scenario: str) -> list[dict[str, Any]]:
    """The launches of one scenario in order; the last is the fused kernel."""
    return trace.query(
        """SELECT step, form, kernel, at_line, bytes_read, bytes_written,
                  bytes_read + bytes_written AS moved
           FROM trace WHERE event = 'Launched' AND scenario = $scenario AND repeat = 0
           ORDER BY step""",
        scenario=scenario,
    )


def totals(rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Bytes that the eager form moved, and those of the fused kernel."""
    return sum(row["moved"] for row in rows[:-1]), rows[-1]["moved"]


def forms(trace: Trace, t: Text) -> dict[str, str]:
    """What can be stepped through."""
    return {
        "rms_norm": t("RMSNorm", "RMSNorm"),
        "w4a16": t("4-bit weights, one token", "4 比特权重，单个 token"),
    }


@figure(variants=forms)
def launches(trace: Trace, t: Text, variant: str | None) -> View:
    """Bytes of each launch, up to the current one."""
    rows = launch_rows(trace, str(variant))
    eager, fused = totals(rows)
    labels = {
        "eager": t("eager: one kernel an operation", "逐算子执行：每步一个内核"),
        "fused": t("one fused kernel", "融合成一个内核"),
    }
    bars = [
        {
            "step": index,
            "kernel": kernel_label(index, row, t),
            "form": labels[row["form"]],
            "read": row["bytes_read"] / 1e6,
            "written": row["bytes_written"] / 1e6,
            "mb": row["moved"] / 1e6,
        }
        for index, row in enumerate(rows)
    ]
    order = [bar["kernel"] for bar in bars]
    chart = (
        alt.Chart(alt.InlineData(values=bars, name="launches"))
        .transform_filter("datum.step <= step")
        .mark_bar(height={"band": 0.7})
        .encode(
            x=alt.X(
                "mb:Q",
                title=t("bytes read and written (MB)", "读写字节 (MB)"),
                scale=alt.Scale(domain=[0, 1.05 * max(bar["mb"] for bar in bars)], nice=False),
            ),
            y=alt.Y(
                "kernel:N",
                title=None,
                scale=alt.Scale(domain=order),
                axis=alt.Axis(minExtent=110, labelOverlap=False),
            ),
            color=alt.Color(
                "form:N",
                scale=theme.color_scale(
                    {labels["eager"]: theme.IDLE, labels["fused"]: theme.ACCEPTED}
                ),
                title=None,
                legend=alt.Legend(columns=1),
            ),
            opacity=alt.condition("datum.step == step", alt.value(1), alt.value(0.55)),
        )
        .properties(height=25 * len(bars))
        .add_params(theme.step_param(len(bars) - 1))
    )
    times = significant(eager / fused, 2)
    count = len(rows) - 1
    return View(
        chart,
        title=t(
            f"{count} launches move {bytes_text(eager)} where one fused kernel moves "
            f"{bytes_text(fused)}: {times} times as much",
            f"{count} 个内核共搬运 {bytes_text(eager)}，融合成一个只搬 {bytes_text(fused)}：相差 {times} 倍",
        ),
        kind="counted",
        notice=t(
            "Every launch reads its operands from memory and writes its result back, even when the "
            "next launch needs it at once. Counted from the operations that torch really ran on "
            "bfloat16 input, each operand and result once. A compiler such as torch.compile fuses "
            "much of this too.",
            "每个内核都从显存读入操作数、把结果写回显存，哪怕下一个内核马上就要用。字节数由 torch 实际执行的"
            "算子统计而来（输入为 bfloat16），每个操作数和结果各计一次。torch.compile 之类的编译器也能融合其中很大一部分。",
        ),
        columns={
            "kernel": t("kernel", "内核"),
            "form": t("form", "方式"),
            "read": t("read (MB)", "读 (MB)"),
            "written": t("written (MB)", "写 (MB)"),
        },
        steps=tuple(
            Step(
                row["at_line"] or None,
                (row["at_line"],) if row["at_line"] else (),
                narrate(rows, index, t),
            )
            for index, row in enumerate(rows)
        ),
    )


def kernel_label(index: int, row: dict[str, Any], t: Text) -> str:
    """A launch as the axis names it."""
    if row["form"] == "fused":
        return t("fused", "融合内核")
    return f"{index + 1} {t(*KERNEL_NAMES.get(row['kernel'], (row['kernel'],) * 2))}"


def narrate(rows: list[dict[str, Any]], index: int, t: Text) -> str:
    """What one launch moved, in a sentence or two."""
    row = rows[index]
    read, written = bytes_text(row["bytes_read"]), bytes_text(row["bytes_written"])
    if row["form"] == "fused":
        eager, fused = totals(rows)
        return t(
            f"The fused kernel reads its operands once, {read}, keeps everything between in "
            f"registers, and writes the result, {written}. The eager form moved "
            f"{significant(eager / fused, 2)} times as much.",
            f"融合内核把操作数读一遍（{read}），中间结果都留在寄存器里，最后写出结果（{written}）。"
            f"逐算子执行的搬运量是它的 {significant(eager / fused, 2)} 倍。",
        )
    name = t(*KERNEL_NAMES.get(row["kernel"], (row["kernel"],) * 2))
    so_far = bytes_text(sum(earlier["moved"] for earlier in rows[: index + 1]))
    return t(
        f"Launch {index + 1}, {name}: {read} are read and {written} written. {so_far} so far.",
        f"第 {index + 1} 个内核，{name}：读 {read}，写 {written}。累计 {so_far}。",
    )
