"""The stepper of the page "Prefill and decode": a generation, pass by pass."""

from __future__ import annotations

from typing import Any

import altair as alt

from docs.figures import theme
from docs.figures.api import Text, View, figure
from docs.figures.passes import phase_color, phase_names
from docs.figures.steps import steps_of
from docs.figures.tokens import shown, token_flow
from docs.figures.units import bytes_text, count_text, significant, time_text
from tracegen.trace import Trace

STORY_FUNCTIONS = ("run", "prefill", "decode")


def stories(trace: Trace, t: Text) -> dict[str, str]:
    """The recorded generations a reader can step through."""
    labels = {
        "story_plants": t("a question, greedy", "问答（贪心）"),
        "story_kettle": t("a poem, sampled at temperature 0.8", "写诗（温度 0.8 采样）"),
    }
    return {name: labels[name] for name in labels if name in trace.meta["scenarios"]}


@figure(variants=stories)
def decode_stepper(trace: Trace, t: Text, variant: str | None) -> View:
    """One generation, pass by pass."""
    rows = trace.query(
        """SELECT step, event, line, lines, phase, new_tokens, context_tokens, flops, weight_bytes,
                  kv_read_bytes, bytes_read, text, tokens, reason, output_tokens,
                  median(dur_ns) AS ns
           FROM trace WHERE scenario = $story GROUP BY ALL ORDER BY step""",
        story=variant,
    )
    names = phase_names(t)
    work = [
        {
            "step": row["step"],
            "phase": names[row["phase"]],
            "tokens": row["new_tokens"],
            "ms": row["ns"] / 1e6,
            "weights_mb": row["weight_bytes"] / 1e6,
            "kv_mb": row["kv_read_bytes"] / 1e6,
            "mb": row["bytes_read"] / 1e6,
            "text": row["text"],
        }
        for row in rows
        if row["event"] == "Pass"
    ]
    prefill, decodes = work[0], work[1:]
    decode_ms = sum(row["ms"] for row in decodes) / len(decodes)
    ratio = decode_ms / (prefill["ms"] / prefill["tokens"])
    chart = alt.vconcat(
        token_flow(token_rows(rows)),
        bars(work, "ms", t("time of the pass (ms)", "该次前向耗时 (ms)"), None, t),
        bars(work, "mb", t("bytes read (MB)", "读取字节 (MB)"), t("pass", "第几次前向"), t),
    ).add_params(theme.step_param(min(6, len(rows) - 1)))
    return View(
        chart,
        title=t(
            f"Prefill processes {prefill['tokens']} tokens in {significant(prefill['ms'])} ms; decode takes "
            f"{significant(decode_ms)} ms for each one: {significant(ratio, 2)}× as long per token",
            f"预填充用 {significant(prefill['ms'])} ms 处理 {prefill['tokens']} 个 token；解码每个 token "
            f"要 {significant(decode_ms)} ms，单 token 耗时是前者的 {significant(ratio, 2)} 倍",
        ),
        kind="measured",
        notice=t(
            "Blue: read by prefill. Orange: fed to this decode pass. Pale blue: already in the KV "
            "cache. Outlined: just sampled, fed next. Every pass reads all weights, whether for "
            "one token or for forty.",
            "蓝色：预填充读入的 token；橙色：本次解码送入的 token；浅蓝：已在 KV 缓存中；"
            "空框：刚采样出来，下一次才送入。无论一次处理一个还是几十个 token，都要把全部权重读一遍。",
        ),
        columns={
            "step": t("step", "步"),
            "phase": t("phase", "阶段"),
            "tokens": t("tokens in", "送入 token 数"),
            "ms": t("time (ms)", "耗时 (ms)"),
            "weights_mb": t("weights read (MB)", "读权重 (MB)"),
            "kv_mb": t("KV read (MB)", "读 KV (MB)"),
            "text": t("sampled", "采样结果"),
        },
        steps=steps_of(trace, rows, [narrate(row, rows, t) for row in rows], STORY_FUNCTIONS),
    )


def narrate(row: dict[str, Any], rows: list[dict[str, Any]], t: Text) -> str:
    """What one step did, in a sentence or two."""
    if row["event"] == "Encoded":
        count = len(row["tokens"])
        return t(
            f"The prompt becomes {count} tokens. The model has not run yet.",
            f"提示词被切成 {count} 个 token，模型还没有运行。",
        )
    if row["event"] == "Finished":
        stop = row["reason"] == "stop token"
        return t(
            f"Finished after {row['output_tokens']} tokens: "
            + ("the model sampled its stop token." if stop else "the length limit was reached."),
            f"共生成 {row['output_tokens']} 个 token 后结束："
            + ("模型采样到了结束符。" if stop else "达到长度上限。"),
        )
    sampled, time = shown(row["text"]), time_text(row["ns"])
    flops, weights = count_text(row["flops"]), bytes_text(row["weight_bytes"])
    if row["phase"] == "prefill":
        return t(
            f"Prefill: all {row['new_tokens']} prompt tokens go through the model in one pass. "
            f"{flops}FLOP for {weights} of weights, {time}. It samples “{sampled}”.",
            f"预填充：{row['new_tokens']} 个提示词 token 一次前向全部算完，{flops}FLOP，"
            f"读权重 {weights}，用时 {time}，采样得到 “{sampled}”。",
        )
    number = row["step"] - 1
    fed = shown(rows[row["step"] - 1]["text"])
    return t(
        f"Decode {number}: one token, “{fed}”, goes in. {flops}FLOP, yet the same {weights} of "
        f"weights and {bytes_text(row['kv_read_bytes'])} of cached keys and values are read: "
        f"{time}. It samples “{sampled}”.",
        f"解码第 {number} 步：只送入一个 token “{fed}”，{flops}FLOP，却同样要读 {weights} 权重，"
        f"外加 {bytes_text(row['kv_read_bytes'])} 的 KV 缓存，用时 {time}，采样得到 “{sampled}”。",
    )


def bars(
    work: list[dict[str, Any]], field: str, title: str, x_title: str | None, t: Text
) -> alt.Chart:
    """One bar a pass, up to the current one, which is the strong one."""
    last = work[-1]["step"]
    return (
        alt.Chart(alt.InlineData(values=work, name="passes"))
        .transform_filter("datum.step <= step")
        .mark_bar()
        .encode(
            x=alt.X(
                "step:O",
                scale=alt.Scale(domain=list(range(1, last + 1)), paddingInner=0.25),
                title=x_title,
                axis=alt.Axis(labelAngle=0, ticks=False, labels=x_title is not None),
            ),
            y=alt.Y(
                f"{field}:Q",
                title=title,
                scale=alt.Scale(domain=[0, 1.08 * max(row[field] for row in work)], nice=False),
                axis=alt.Axis(tickCount=3),
            ),
            color=phase_color(t, legend=None),
            opacity=alt.condition("datum.step == step", alt.value(1), alt.value(0.5)),
        )
        .properties(height=84)
    )


def token_rows(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """(text, born, fed) of every token: the step that shows it, and the one that feeds it."""
    prompt = [(text, 0, 1) for text in rows[0]["tokens"]]
    return prompt + [(r["text"], r["step"], r["step"] + 1) for r in rows if r["event"] == "Pass"]
