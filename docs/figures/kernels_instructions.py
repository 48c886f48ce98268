"""What one source becomes on four architectures; and the names that figures of kernels share."""

from __future__ import annotations

from typing import Any

import altair as alt

from docs.figures import theme
from docs.figures.api import Text, View, figure
from tracegen.trace import Trace

OPS = {
    "rms_norm": ("RMSNorm", "RMSNorm"),
    "rope": ("RoPE", "RoPE"),
    "flash_attention": ("FlashAttention", "FlashAttention"),
    "paged_attention": ("paged attention", "分页注意力"),
    "w4a16_matmul": ("4-bit weights", "W4A16 矩阵乘"),
    "w8a8_matmul": ("8-bit matmul", "W8A8 矩阵乘"),
}
INSTRUCTIONS = ("tensor_core", "async_copy", "global_load", "shared_load", "shared_store")


def limits(trace: Trace) -> dict[str, dict[str, Any]]:
    """What each architecture's multiprocessor has, in the order of recording."""
    rows = trace.query(
        """SELECT DISTINCT arch, device, registers, registers_per_thread, shared_bytes,
                  block_shared_bytes, warp_size, warps, step
           FROM trace WHERE event = 'Limits' ORDER BY step"""
    )
    return {row["arch"]: row for row in rows}


def devices(trace: Trace, t: Text) -> dict[str, str]:
    """Architectures with a device that is built so."""
    return {arch: f"{row['device']} ({arch})" for arch, row in limits(trace).items()}


def mixed_ops(trace: Trace, t: Text) -> dict[str, str]:
    """Ops whose kernels use tensor cores."""
    rows = trace.query(
        """SELECT op, min(step) AS first FROM trace
           WHERE event = 'Compiled' AND shipped AND tensor_core > 0 GROUP BY op ORDER BY first"""
    )
    return {row["op"]: t(*OPS.get(row["op"], (row["op"], row["op"]))) for row in rows}


def with_tensor_cores(trace: Trace, op: str) -> list[dict[str, Any]]:
    """Each architecture's first shipped kernel of `op` that uses tensor cores."""
    named = devices(trace, Text("en"))
    found: dict[str, dict[str, Any]] = {}
    for row in trace.query(
        f"""SELECT DISTINCT step, arch, variant, tensor_core_names, {", ".join(INSTRUCTIONS)}
            FROM trace WHERE event = 'Compiled' AND shipped AND op = $op AND tensor_core > 0
            ORDER BY step""",
        op=op,
    ):
        found.setdefault(row["arch"], row | {"device": named[row["arch"]].split(" (")[0]})
    return list(found.values())


def core_names(row: dict[str, Any]) -> str:
    """The tensor-core instructions of a kernel, without their shapes."""
    names = ("MFMA" if name.startswith("v_") else name for name in row["tensor_core_names"])
    return ", ".join(dict.fromkeys(names))


@figure(variants=mixed_ops)
def instructions(trace: Trace, t: Text, variant: str | None) -> View:
    """What one source becomes on four architectures: instructions of each kind."""
    kinds = {
        "tensor_core": t("tensor core", "张量核心"),
        "async_copy": t("global to shared", "全局→共享（异步）"),
        "global_load": t("global to registers", "全局→寄存器"),
        "shared_load": t("shared to registers", "共享→寄存器"),
        "shared_store": t("registers to shared", "寄存器→共享"),
    }
    found = with_tensor_cores(trace, str(variant))
    rows = [
        {
            "device": f"{row['device']}: {core_names(row)}",
            "kind": label,
            "count": row[kind],
            "kernel": row["variant"],
        }
        for row in found
        for kind, label in kinds.items()
    ]
    colors = [theme.ACCEPTED] + 4 * [theme.COMMUNICATION]
    chart = (
        alt.Chart(alt.InlineData(values=rows, name="instructions"))
        .mark_bar()
        .encode(
            x=alt.X("count:Q", title=t("instructions in the binary", "二进制中的指令条数")),
            y=alt.Y("kind:N", sort=list(kinds.values()), title=None),
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=list(kinds.values()), range=colors),
                legend=None,
            ),
            row=alt.Row(
                "device:N",
                sort=[f"{row['device']}: {core_names(row)}" for row in found],
                title=None,
                header=alt.Header(labelOrient="top", labelPadding=4),
            ),
        )
        .properties(height=84)
    )
    listed = ", ".join(f"{row['tensor_core']} {core_names(row)}" for row in found)
    own = len({core_names(row) for row in found}) == len(found)
    return View(
        chart,
        title=t(
            "The same source becomes "
            + ("other instructions on each chip" if own else "the same instruction on some chips")
            + f": {listed}",
            (
                "同一份源码在每种芯片上生成不同的指令："
                if own
                else "同一份源码在其中几种芯片上生成同一种指令："
            )
            + "、".join(
                f"{row['device']} 为 {row['tensor_core']} 条 {core_names(row)}" for row in found
            ),
        ),
        kind="counted",
        notice=t(
            "Green multiplies, pink moves data. For each architecture, the first shipped kernel that uses tensor cores; sizes of tiles "
            "are chosen for each. Counts are of instructions in the binary, however often a loop "
            "runs them. One HGMMA does the work of many HMMA: a whole warp group multiplies, "
            "straight from shared memory.",
            "绿色做乘法，粉色搬数据。每种架构取第一个用到张量核心的正式内核，分块大小各自选定。条数是二进制里的静态条数，与循环执行多少次无关。"
            "一条 HGMMA 抵得上许多条 HMMA：整个线程束组一起做乘法，操作数直接取自共享内存。",
        ),
        columns={
            "device": t("device and instruction", "设备与指令"),
            "kind": t("kind", "种类"),
            "count": t("instructions", "条数"),
            "kernel": t("kernel", "内核"),
        },
    )
