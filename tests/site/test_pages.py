"""The sources of the two sites mirror each other."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from docs.figures.api import Figure
from docs.figures.site import REPOSITORY
from docs.figures.values import Value
from tests.site.building import sources

WITH_ID = re.compile(r"\{\s*#([a-z0-9-]+)\s*\}\s*$")
FIGURE = re.compile(r"```figure\n(.*?)```", re.DOTALL)
VALUE = re.compile(r"\{\{\s*(\w+\.\w+)\s*\}\}")


def text(lang: str, source: str) -> str:
    return (REPOSITORY / "docs" / lang / source).read_text(encoding="utf-8")


def headings(page: str, *, notebook: bool) -> list[tuple[int, str]]:
    """Level and id of every heading; a heading without an id fails."""
    if notebook:  # headings stand in comments; code has comments of its own
        cells = re.split(r"^# %%", page, flags=re.MULTILINE)
        page = "\n".join(cell for cell in cells if cell.startswith(" [markdown]"))
        page = re.sub(r"^# ?", "", page, flags=re.MULTILINE)
    page = re.sub(r"^( *)(```|~~~).*?^\1\2", "", page, flags=re.MULTILINE | re.DOTALL)
    found = []
    for match in re.finditer(r"^(#{1,6}) .+$", page, re.MULTILINE):
        identity = WITH_ID.search(match.group(0))
        assert identity, f"no {{ #id }} on: {match.group(0)}"
        found.append((len(match.group(1)), identity.group(1)))
    return found


def test_same_files() -> None:
    def files(lang: str) -> set[str]:
        folder = REPOSITORY / "docs" / lang
        return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}

    assert files("en") == files("zh")


@pytest.mark.parametrize("source", sources())
def test_same_headings_figures_and_values(source: str) -> None:
    notebook = source.endswith(".py")
    en, zh = text("en", source), text("zh", source)
    assert headings(en, notebook=notebook) == headings(zh, notebook=notebook)
    assert FIGURE.findall(en) == FIGURE.findall(zh)
    assert set(VALUE.findall(en)) == set(VALUE.findall(zh))


@pytest.mark.parametrize("source", sources())
def test_one_title(source: str) -> None:
    levels = [level for level, _ in headings(text("en", source), notebook=source.endswith(".py"))]
    assert levels[0] == 1
    assert levels.count(1) == 1


@pytest.mark.parametrize("source", sources())
def test_chinese_is_chinese(source: str) -> None:
    page = text("zh", source)
    assert len(re.findall(r"[\u4e00-\u9fff]", page)) > 50
    assert not re.search(r"[\u4e00-\u9fff][,;?!]", page), "half-width punctuation after Chinese"


def test_every_value_and_figure_is_on_a_page() -> None:
    pages = [text("en", source) for source in sources()]
    said = {name for page in pages for name in VALUE.findall(page)}
    shown = {block.split()[0] for page in pages for block in FIGURE.findall(page)}
    for package, kind, found in (("values", Value, said), ("figures", Figure, shown)):
        techniques = {name.split(".")[0] for name in found}
        made = {
            f"{technique}.{name}"
            for technique in techniques
            for name, item in vars(import_module(f"docs.{package}.{technique}")).items()
            if isinstance(item, kind)
        }
        assert made == found
