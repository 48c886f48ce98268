"""Line breaks between Chinese characters vanish, all others stay."""

from __future__ import annotations

import pytest
from markdown import markdown

from docs.cjk import ChineseLinesExtension


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("一行，\n又一行", "一行，又一行"),
        ("用 token\n计数", "用 token\n计数"),
        ("按 GB\nGB", "按 GB\nGB"),
        ("这是\n**重点**\n所在", "这是<strong>重点</strong>所在"),
        ("**重点\n所在**", "<strong>重点所在</strong>"),
        ("见\n[这里](a.html)。", '见<a href="a.html">这里</a>。'),
        ("见\n`code`\n吧", "见\n<code>code</code>\n吧"),
    ],
)
def test_lines(source: str, shown: str) -> None:
    assert markdown(source, extensions=[ChineseLinesExtension()]) == f"<p>{shown}</p>"


def test_code_blocks_keep_their_lines() -> None:
    html = markdown("```\n# 一\n二\n```", extensions=["fenced_code", ChineseLinesExtension()])
    assert "# 一\n二" in html
