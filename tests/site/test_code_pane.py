"""The code pane shows the functions that ran, with their own line numbers."""

from __future__ import annotations

import pytest
from bs4 import BeautifulSoup

from docs.figures import code_pane
from tests.site.toy_site import SOURCE


@pytest.mark.parametrize(
    ("lines", "spans"),
    [
        ({8}, [(6, 11)]),
        ({8, 15, 9}, [(6, 11), (14, 15)]),
        ({20}, [(19, 20)]),  # the method, not its class
        ({3}, []),  # outside all functions
        (set(), []),
    ],
)
def test_spans(lines: set[int], spans: list[tuple[int, int]]) -> None:
    assert code_pane.spans(SOURCE, lines) == spans


def test_nested_functions_are_shown_once() -> None:
    source = "def outer():\n    def inner():\n        return 1\n    return inner()\n"
    assert code_pane.spans(source, {3}) == [(2, 3)]
    assert code_pane.spans(source, {3, 4}) == [(1, 4)]


def test_every_line_is_the_one_it_says() -> None:
    source = 'def f():\n    """Two\n    lines."""\n\n    return "<b>"\n'
    soup = BeautifulSoup(code_pane.render(source, {5}, 5, {5}), "html.parser")
    shown = {int(str(line["data-line"])): line.code.text for line in soup.select(".line")}  # type: ignore[union-attr]
    assert {n: text.strip() for n, text in shown.items()} == {
        n: text.strip() for n, text in enumerate(source.splitlines(), 1)
    }
    assert [line["data-line"] for line in soup.select(".now")] == ["5"]
