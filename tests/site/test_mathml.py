"""Formulas become MathML; what only looks like one stays text."""

from __future__ import annotations

import pytest
from markdown import markdown

from docs.mathml import MathExtension


def convert(text: str) -> str:
    return markdown(text, extensions=[MathExtension(), "fenced_code"])


def test_inline_and_block() -> None:
    assert 'display="inline"' in convert("Intensity $I = 2T/e$ is low.")
    block = convert("$$\nt \\ge \\max(a, b)\n$$")
    assert 'display="block"' in block
    assert "$" not in block.replace('alttext="t', "")


def test_the_source_stays_with_the_formula() -> None:
    assert 'alttext="a &lt; \\frac{1}{2}"' in convert("$a < \\frac{1}{2}$")


def test_emphasis_inside_is_left_alone() -> None:
    assert "<em>" not in convert("$a_1 * b_2 * c_3$ and $x_i$")


@pytest.mark.parametrize(
    "text", ["It costs $5 or $10.", "`$x$`", "```\n$x$\n```", r"\$x\$", "$ x $", "a $HOME b"]
)
def test_not_a_formula(text: str) -> None:
    assert "<math" not in convert(text)
