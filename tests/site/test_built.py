"""What a build writes: payloads, posters, links, budgets."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import altair as alt
import pytest
from bs4 import BeautifulSoup

from docs.figures import theme
from docs.figures.spec import WIDTH
from tests.site.building import LANGUAGES, html_files

pytestmark = pytest.mark.xdist_group("site")


def payloads(site: Path) -> list[tuple[Path, dict[str, Any]]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = [
        (path, json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse))
        for lang in LANGUAGES
        for path in sorted((site / lang / "figures").rglob("*.json"))
    ]
    assert found
    return found


def test_payloads_are_complete_and_small(site: Path) -> None:
    for path, payload in payloads(site):
        assert len(gzip.compress(path.read_bytes())) <= 200_000, path
        assert payload["title"], path
        assert payload["kind_word"], path
        if payload["columns"]:
            rows = payload["spec"]["datasets"][payload["dataset"]]
            assert set(payload["columns"]) <= set(rows[0]), path
        if payload["start"] is not None:
            assert 0 <= payload["start"] < len(payload["steps"]), path
            assert all(step["text"] for step in payload["steps"]), path


def test_lines_of_steps_are_in_the_code_pane(site: Path) -> None:
    for path, payload in payloads(site):
        shown = {int(n) for n in re.findall(r'data-line="(\d+)"', payload["code"])}
        for step in payload["steps"]:
            assert step["line"] is None or step["line"] in shown, path


def test_specs_are_valid_vega_lite(site: Path) -> None:
    for _, payload in payloads(site):
        text = json.dumps(payload["spec"]).replace(f'"{WIDTH}"', "300")
        alt.Chart.from_dict(json.loads(text) | {"config": theme.config()}, validate=True)


def test_posters_fit_a_phone(site: Path) -> None:
    for lang in LANGUAGES:
        for path in (site / lang / "figures").rglob("*.light-narrow.svg"):
            width = re.search(r'width="([\d.]+)"', path.read_text(encoding="utf-8")[:400])
            assert width, path
            assert float(width.group(1)) <= theme.NARROW + 12, path


def test_both_languages_have_the_same_figures(site: Path) -> None:
    en, zh = (
        {str(p.relative_to(site / lang)) for p in (site / lang / "figures").rglob("*.json")}
        for lang in LANGUAGES
    )
    assert en == zh


def test_links_lead_somewhere(site: Path) -> None:
    pages = {
        path: BeautifulSoup(path.read_text("utf-8"), "html.parser") for path in html_files(site)
    }
    anchors = {path: {e["id"] for e in soup.select("[id]")} for path, soup in pages.items()}
    for path, soup in pages.items():
        for tag, attribute in (
            ("a", "href"),
            ("link", "href"),
            ("script", "src"),
            ("img", "src"),
            ("source", "srcset"),
        ):
            for element in soup.select(f"{tag}[{attribute}]"):
                address, fragment = urldefrag(str(element[attribute]))
                if re.match(r"[a-z]+:", address) or element.get("rel") == ["canonical"]:
                    continue
                target = (path.parent / unquote(address)).resolve() if address else path
                target = target / "index.html" if target.is_dir() else target
                assert target.is_file(), f"{path}: {element[attribute]}"
                if fragment and target in anchors and not fragment.startswith("__"):
                    assert unquote(fragment) in anchors[target], f"{path}: {element[attribute]}"


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for path in html_files(site):
        soup = BeautifulSoup(path.read_text("utf-8"), "html.parser")
        policy = soup.select_one('meta[http-equiv="Content-Security-Policy"]')
        assert policy is not None, path
        assert "unsafe-eval" not in str(policy["content"])
        for element in soup.select("script[src], img[src], link[rel=stylesheet], source[srcset]"):
            address = str(element.get("src") or element.get("href") or element.get("srcset"))
            assert not re.match(r"(https?:)?//", address), f"{path}: {address}"


def test_labs_carry_no_notebook_baggage(site: Path) -> None:
    for lang in LANGUAGES:
        for path in (site / lang / "labs").glob("*/index.html"):
            text = path.read_text("utf-8")
            assert "jp-" not in text
            assert "<lab-figure" in text
            assert len(gzip.compress(text.encode())) < 40_000


@pytest.mark.parametrize("lang", LANGUAGES)
def test_search_index_is_small(site: Path, lang: str) -> None:
    text = (site / lang / "search" / "search_index.json").read_text("utf-8")
    assert len(text.encode()) < 1_000_000
    assert "$schema" not in text
    assert "datasets" not in text
