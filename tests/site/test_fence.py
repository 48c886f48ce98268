"""The figure block: from Markdown to the element on the page, and its errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag
from markdown import Markdown

from docs.figures.build import Figures
from docs.figures.fence import FigureElement, FigureError, fence_for, parse
from tests.site.toy_site import toy_figures
from tracegen.errors import UserError


def render(text: str, figures: Figures) -> str:
    """Markdown as a page would have it."""
    md = Markdown(
        extensions=["pymdownx.superfences", FigureElement()],
        extension_configs={"pymdownx.superfences": {"custom_fences": [fence_for(figures)]}},
    )
    return md.convert(text)


def element(block: str, figures: Figures) -> Tag:
    """The element of one figure block."""
    html = render(f"Before.\n\n```figure\n{block}\n```\n\nAfter.", figures)
    found = BeautifulSoup(html, "html.parser").select_one("lab-figure")
    assert found is not None
    assert "<p><lab-figure" not in html
    return found


def test_parse() -> None:
    assert parse("toy.plain\n") == ("toy.plain", {})
    assert parse("toy.plain\nvariant: a\n\n machine: m ") == (
        "toy.plain",
        {"variant": "a", "machine": "m"},
    )


@pytest.mark.parametrize("block", ["", "  \n", "toy.plain\nsize: 3", "toy.plain\nvariant"])
def test_parse_refuses(block: str) -> None:
    with pytest.raises(UserError):
        parse(block)


def test_everything_is_there_without_javascript(tmp_path: Path) -> None:
    figure = element("toy.plain", toy_figures(tmp_path, "m1"))
    title = figure.select_one(".lab-title")
    assert title is not None
    assert title.text == "Bars < 5 & more"
    assert [badge.text for badge in figure.select(".lab-kind")] == ["counted"]
    assert figure.select_one(".lab-machine").text == "The m1"  # type: ignore[union-attr]
    assert figure.select_one("figcaption").text == "Look."  # type: ignore[union-attr]
    assert "make traces ONLY=toy" in figure.text
    assert figure.select_one('a[href$="traces/m1/toy.parquet"]')
    assert not figure.select(".lab-controls")


def test_posters_cannot_make_the_page_jump(tmp_path: Path) -> None:
    figure = element("toy.plain", toy_figures(tmp_path, "m1"))
    images = figure.select("picture img")
    assert len(images) == 2, "light and dark"
    for image in [*images, *figure.select("picture source")]:
        assert int(str(image["width"])) > 300
        assert int(str(image["height"])) > 100
    assert all(image["loading"] == "lazy" for image in images)
    assert all(str(image["alt"]).startswith("Bars < 5 & more") for image in images)


def test_stepper_shows_its_first_picture_and_code(tmp_path: Path) -> None:
    figure = element("toy.stepper", toy_figures(tmp_path, "m1"))
    assert figure.select_one(".lab-narration").text == "Step 1."  # type: ignore[union-attr]
    slider = figure.select_one('input[type="range"]')
    assert slider is not None
    assert (slider["value"], slider["max"]) == ("2", "4")
    assert all(button["aria-label"] for button in figure.select("button"))
    assert [line["data-line"] for line in figure.select(".line.now")] == ["8"]
    assert [line["data-line"] for line in figure.select(".line.ran")] == ["7", "8"]


def test_machine_and_variant_can_be_chosen(tmp_path: Path) -> None:
    figures = toy_figures(tmp_path, "m1", "m2")
    figure = element("toy.varied\nvariant: b\nmachine: m2", figures)
    assert figure.select_one(".lab-title").text == "variant b"  # type: ignore[union-attr]
    assert figure["data-machine"] == "m2"
    chosen = {s["data-pick"]: s.select_one("[selected]")["value"] for s in figure.select("select")}  # type: ignore[index]
    assert chosen == {"machine": "m2", "variant": "b"}


def test_chinese(tmp_path: Path) -> None:
    figure = element("toy.plain", toy_figures(tmp_path, "m1", lang="zh"))
    assert figure.select_one(".lab-title").text == "柱子 < 5"  # type: ignore[union-attr]
    assert figure.select_one(".lab-kind").text == "计数"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("toy.nothing", "no figure toy.nothing; toy has plain"),
        ("nowhere.plain", "docs/figures has no nowhere.py"),
        ("Toy", "write <technique>.<figure>"),
        ("toy.varied\nvariant: c", "no variant c; there are a, b"),
        ("toy.plain\nmachine: m9", "no machine m9; there are m1"),
        ("toy.without_param", "`step`"),
        ("toy.nameless", "no dataset of the chart holds all of: nothing"),
        ("toy.unkind", "kind 'guessed' is none of measured"),
    ],
)
def test_faults_end_the_build_in_one_line(tmp_path: Path, block: str, says: str) -> None:
    with pytest.raises(FigureError, match=re.escape(says)) as caught:
        render(f"```figure\n{block}\n```", toy_figures(tmp_path, "m1"))
    assert "\n" not in str(caught.value)


def test_no_trace(tmp_path: Path) -> None:
    with pytest.raises(FigureError, match="no trace of toy; run `make traces` first"):
        render("```figure\ntoy.plain\n```", toy_figures(tmp_path))
