"""The stepper of the page "The KV cache": slots of a ragged batch."""

from __future__ import annotations

from typing import Any

import altair as alt

from docs.figures import theme
from docs.figures.api import Text, View, figure
from docs.figures.steps import steps_of
from docs.figures.units import bytes_text
from tracegen.trace import Trace

SLOT_HEIGHT = 26
SLOT_FUNCTIONS = ("fill_slots", "update", "_start_pass", "get", "advance", "__init__")


@figure()
def slots(trace: Trace, t: Text, variant: str | None) -> View:
    """Slots of three rows of different lengths, pass by pass."""
    rows = trace.query(
        """SELECT step, event, line, lines, written, lengths, bytes_read, used_bytes, texts,
                  cache_bytes, capacity_tokens, batch
           FROM trace WHERE scenario = 'slots' AND repeat = 0 ORDER BY step"""
    )
    capacity, batch = rows[0]["capacity_tokens"], rows[0]["batch"]
    reserved = rows[0]["cache_bytes"]
    cells = [
        {"row": f"{t('row', '第')} {r + 1}{t('', ' 行')}", "slot": slot, "written": written}
        for r in range(batch)
        for slot in range(capacity)
        for written in [first_written(rows, r, slot)]
    ]
    names = {
        "prefill": t("prefill writes", "预填充写入"),
        "decode": t("this step writes", "本步写入"),
        "held": t("held, read again", "已缓存，再读"),
        "free": t("empty", "空闲"),
    }
    state = (
        f"datum.written > step ? '{names['free']}' : datum.written < step ? '{names['held']}' : "
        f"step == 1 ? '{names['prefill']}' : '{names['decode']}'"
    )
    scale = theme.color_scale(
        {
            names["prefill"]: theme.PREFILL,
            names["decode"]: theme.DECODE,
            names["held"]: theme.CACHED,
            names["free"]: theme.FREE,
        }
    )
    grid = (
        alt.Chart(alt.InlineData(values=cells, name="slots"))
        .transform_calculate(state=state)
        .mark_rect(strokeWidth=1, stroke=theme.RULE, cornerRadius=1)
        .encode(
            x=alt.X(
                "slot:O",
                title=t("slot = position of the token", "槽位（即 token 位置）"),
                scale=alt.Scale(paddingInner=0.12),
                axis=alt.Axis(labelAngle=0, labelOverlap=True, domain=False, ticks=False),
            ),
            y=alt.Y(
                "row:N",
                title=None,
                scale=alt.Scale(paddingInner=0.2),
                axis=alt.Axis(minExtent=50),
            ),
            fill=alt.Fill("state:N", scale=scale, title=None, legend=alt.Legend(columns=2)),
        )
        .properties(height=batch * SLOT_HEIGHT + 12)
        .add_params(theme.step_param(4))
    )
    final = next(row for row in reversed(rows) if row["event"] == "Stepped")
    used = sum(final["lengths"]) / (batch * capacity)
    return View(
        grid,
        title=t(
            f"When the longest row is full, {used:.0%} of the reserved slots hold a token",
            f"最长的一行写满时，预留的槽位只有 {used:.0%} 存了 token",
        ),
        kind="counted",
        notice=t(
            "Each square is one slot: the keys and values of one token in all layers. A decode step "
            "writes one slot per row and needs every slot that the row holds. A token's slot never "
            "changes once written. (Padding is neither drawn nor counted: prefill fills some later "
            "slots of short rows with it, and attention masks them.)",
            "每个方格是一个槽位，存放一个 token 在所有层的 K 和 V。每步解码每行只写一个槽位，"
            "却要用到该行已有的全部槽位；token 的槽位一旦写入就不再改动。（padding 未画出也不计数："
            "预填充时短行后面的部分槽位会写入 padding，由注意力掩码屏蔽。）",
        ),
        columns={
            "row": t("row", "行"),
            "slot": t("slot", "槽位"),
            "written": t("written in step", "写入的步"),
        },
        steps=steps_of(trace, rows, [narrate(row, reserved, t) for row in rows], SLOT_FUNCTIONS),
    )


def first_written(rows: list[dict[str, Any]], row: int, slot: int) -> int:
    """The step that wrote a slot; one after the last when none did."""
    for event in rows:
        if event["event"] == "Stepped" and event["lengths"][row] > slot:
            return int(event["step"])
    return len(rows)


def narrate(row: dict[str, Any], reserved: int, t: Text) -> str:
    """What one step did to the slots."""
    if row["event"] == "Allocated":
        slots, size = row["batch"] * row["capacity_tokens"], bytes_text(reserved)
        return t(
            f"Room is reserved for {row['batch']} rows of {row['capacity_tokens']} slots: {size}. "
            "Nothing is written yet.",
            f"先为 {row['batch']} 行各预留 {row['capacity_tokens']} 个槽位，共 {slots} 个、{size}，还没有写入任何内容。",
        )
    lengths = ", ".join(map(str, row["lengths"]))
    if row["event"] == "Refused":
        return t(
            f"The rows hold {lengths} of {row['capacity_tokens']} slots: one more does not fit the "
            "longest row. The cache refuses before it writes, so nothing is lost.",
            f"各行已占 {lengths} 个槽位（上限 {row['capacity_tokens']}）：最长的一行再也放不下。"
            "缓存在写入之前就拒绝，已有内容不会损坏。",
        )
    used, share = bytes_text(row["used_bytes"]), row["used_bytes"] / reserved
    if row["step"] == 1:
        return t(
            f"Prefill writes {lengths} slots in one pass; each row starts at slot 0 and keeps its "
            f"own length. {used} of the reservation are used ({share:.0%}).",
            f"预填充一次前向写入 {lengths} 个槽位，每行都从槽位 0 开始、各记各的长度。"
            f"已用 {used}，占预留的 {share:.0%}。",
        )
    return t(
        f"One token per row is written, at slots {', '.join(str(n - 1) for n in row['lengths'])}; "
        f"all slots up to there are read. {used} in use ({share:.0%}).",
        f"每行写入一个 token，位于槽位 {'、'.join(str(n - 1) for n in row['lengths'])}，"
        f"并读取此前的全部槽位。已用 {used}（{share:.0%}）。",
    )
