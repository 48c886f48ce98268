"""The HTML of one figure on a page.

All that a reader needs without JavaScript is in it: title, kind, posters, caption, code, links.
assets/figure.js turns the element `<lab-figure>` live. URLs begin with ROOT, which the MkDocs hook
replaces by the way from the page to the site's root.
"""

from __future__ import annotations

from html import escape
from typing import Any

from docs.figures.api import Text
from docs.figures.build import Choice
from docs.figures.posters import Poster

ROOT = "lab-root:"

# The 16 × 16 outlines of the step controls.
ICONS = {
    "first": "M3 3h2v10H3zM13 3v10L6 8z",
    "previous": "M11 3v10L4 8z",
    "play": "M4 2.5v11L13 8z",
    "next": "M5 3v10l7-5z",
    "last": "M11 3h2v10h-2zM3 3v10l7-5z",
}


def figure_html(choice: Choice, t: Text) -> str:
    """The whole element."""
    payload = choice.payload
    stepper = payload["start"] is not None
    attributes = {
        "data-figure": payload["figure"],
        "data-src": f"{ROOT}{choice.path.rpartition('/')[0]}/",
        "data-root": ROOT,
        "data-machine": payload["machine"] or "",
        "data-variant": payload["variant"] or "",
        "data-play": t("Play", "播放"),
        "data-pause": t("Pause", "暂停"),
        "data-position": t("{n} of {count}", "第 {n} 步，共 {count} 步"),
        "data-failed": t(
            "The live figure could not be loaded; what you see is its still picture.",
            "交互图加载失败，当前显示的是静态图。",
        ),
        "data-rows": t(
            "The first {n} of {count} rows; the Parquet file has them all.",
            "仅列出前 {n} 行，共 {count} 行；完整数据见 Parquet 文件。",
        ),
    }
    kind = " lab-stepper" if stepper else ""
    return (
        f'<lab-figure class="lab-figure{kind}" {attribute_text(attributes)}><figure>'
        f"{head(choice, t)}{stage(choice, t)}"
        f"{controls(payload, t) if stepper else ''}"
        f"{code(payload, t) if payload['code'] else ''}"
        f'<figcaption class="lab-notice">{escape(payload["notice"])}</figcaption>'
        f"{foot(payload, t)}</figure></lab-figure>"
    )


def head(choice: Choice, t: Text) -> str:
    """Title, kind of the numbers, machine, variants."""
    payload = choice.payload
    machine = escape(payload["machine_name"] or "")
    if len(choice.machines) > 1:
        machine = picker("machine", t("Machine", "机器"), choice.machines, payload["machine"])
    variants = ""
    if choice.variants:
        variants = picker("variant", t("Show", "显示"), choice.variants, payload["variant"])
    return (
        f'<div class="lab-head"><p class="lab-title">{escape(payload["title"])}</p>'
        f'<p class="lab-origin">{badge(payload)}'
        f'<span class="lab-machine">{machine}</span>{variants}</p></div>'
    )


def badge(payload: dict[str, Any]) -> str:
    """How the numbers came to be, as a word that leads to its explanation."""
    return (
        f'<a class="lab-kind" data-kind="{payload["kind"]}" href="{ROOT}how-to-read/#kinds">'
        f"{payload['kind_word']}</a>"
    )


def picker(name: str, label: str, options: dict[str, str], chosen: str) -> str:
    """A labelled choice."""
    items = "".join(
        f'<option value="{escape(key)}"{" selected" * (key == chosen)}>{escape(text)}</option>'
        for key, text in options.items()
    )
    return (
        f'<label class="lab-picker"><span>{label}</span>'
        f'<select data-pick="{name}" autocomplete="off">{items}</select></label>'
        f"<noscript>{escape(options[chosen])}</noscript>"
    )


def stage(choice: Choice, t: Text) -> str:
    """The posters, and the room of the live chart."""
    payload = choice.payload
    alt = escape(f"{payload['title']} {payload['notice']}")
    pictures = "".join(
        picture(scheme, choice.posters, f"{ROOT}{choice.path}", alt) for scheme in ("light", "dark")
    )
    focus = (
        f' tabindex="0" role="group" aria-label="{escape(payload["title"])}" '
        f'aria-description="{t("Arrow keys step, space plays", "方向键逐步浏览，空格键播放")}"'
        if payload["start"] is not None
        else ""
    )
    return f'<div class="lab-stage"{focus}>{pictures}<div class="lab-live"></div></div>'


def picture(scheme: str, posters: dict[str, Poster], url: str, alt: str) -> str:
    """The poster of one palette; the browser takes the narrow one on phones."""
    wide, narrow = posters[f"{scheme}-wide"], posters[f"{scheme}-narrow"]
    return (
        f'<picture class="lab-poster lab-poster-{scheme}">'
        f'<source media="(max-width: 599px)" srcset="{url}.{scheme}-narrow.svg" '
        f'width="{narrow.width}" height="{narrow.height}">'
        f'<img src="{url}.{scheme}-wide.svg" alt="{alt}" loading="lazy" decoding="async" '
        f'width="{wide.width}" height="{wide.height}"></picture>'
    )


def controls(payload: dict[str, Any], t: Text) -> str:
    """Step buttons and slider (only with JavaScript), and the narration."""
    names = {
        "first": t("First step", "第一步"),
        "previous": t("Previous step", "上一步"),
        "play": t("Play", "播放"),
        "next": t("Next step", "下一步"),
        "last": t("Last step", "最后一步"),
    }
    buttons = "".join(
        f'<button type="button" data-action="{action}" aria-label="{name}" title="{name}">'
        f'<svg viewBox="0 0 16 16" aria-hidden="true"><path d="{ICONS[action]}"/></svg></button>'
        for action, name in names.items()
    )
    count, start = len(payload["steps"]), payload["start"]
    position = t(f"{start + 1} of {count}", f"第 {start + 1} 步，共 {count} 步")
    return (
        f'<div class="lab-controls" data-search-exclude>{buttons}'
        f'<input type="range" min="1" max="{count}" value="{start + 1}" autocomplete="off" '
        f'aria-label="{t("Step", "步骤")}"><output>{position}</output></div>'
        f'<p class="lab-narration" aria-live="polite">{escape(payload["steps"][start]["text"])}</p>'
    )


def code(payload: dict[str, Any], t: Text) -> str:
    """The functions that ran."""
    label = t("Code that ran", "运行的代码")
    return (
        f'<section class="lab-code" data-search-exclude><p class="lab-code-path">{label} '
        f"<span>{escape(payload['code_path'])}</span></p>"
        f'<div class="lab-code-pane" tabindex="0" role="region" aria-label="{label}">'
        f'<div class="highlight">{payload["code"]}</div></div></section>'
    )


def foot(payload: dict[str, Any], t: Text) -> str:
    """Data table (with JavaScript), Parquet file, recording command."""
    data = reproduce = ""
    if payload["columns"]:
        data = (
            f'<details class="lab-data"><summary>{t("Show data", "查看数据")}</summary>'
            '<div class="lab-table"></div></details>'
        )
    if payload["parquet"]:
        command = f"<code>{escape(payload['command'])}</code>"
        file = f'<a href="{ROOT}{payload["parquet"]}" download>{escape(payload["parquet"])}</a>'
        said = t(f"{command} recorded {file}.", f"用 {command} 录制，存为 {file}。")
        reproduce = (
            f'<details class="lab-source"><summary>{t("Reproduce", "复现")}</summary>'
            f"<p>{said}</p></details>"
        )
    # the search plugin stops excluding at the first inner element of the same name
    return f'<footer class="lab-foot" data-search-exclude>{data}{reproduce}</footer>'


def attribute_text(attributes: dict[str, str]) -> str:
    """HTML attributes, escaped."""
    return " ".join(f'{name}="{escape(value)}"' for name, value in attributes.items())
