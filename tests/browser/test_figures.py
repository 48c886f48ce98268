"""Every figure of every page draws, in both languages and palettes, at every size."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator

from tests.browser.conftest import OpenPage, figures, wake
from tests.site.building import urls

ENGLISH = pytest.mark.parametrize("path", [url for url in urls() if url.startswith("en/")])
ALL = pytest.mark.parametrize("path", urls())
PHONE = {"viewport": {"width": 375, "height": 740}, "has_touch": True, "is_mobile": True}


def height(figure: Locator) -> float:
    """Height of an element in CSS pixels."""
    return float(figure.evaluate("e => e.getBoundingClientRect().height"))


@ALL
def test_every_figure_draws_and_follows_the_palette(open_page: OpenPage, path: str) -> None:
    page = open_page(path, color_scheme="light")
    for figure in figures(page):
        before = height(figure)
        chart = wake(figure)
        assert abs(height(figure) - before) <= 24, "nothing jumps when a figure comes to life"
        box = chart.bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["height"] > 50
        assert chart.locator("path[d], text, rect").count() > 3
        stage = figure.locator(".lab-stage")
        assert stage.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), "fits its room"
        assert not figure.locator(".lab-poster").first.is_visible()
    page.locator("[for=__palette_1]").click()
    for figure in figures(page):
        # axis labels in the dark palette's grey
        figure.locator('.lab-live text[fill="#a09c92"]').first.wait_for(state="attached")
    assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"


@ALL
def test_phone(open_page: OpenPage, path: str) -> None:
    page = open_page(path, color_scheme="dark", **PHONE)
    wide = "document.documentElement.scrollWidth > innerWidth"
    assert not page.evaluate(wide)
    for figure in figures(page):
        assert figure.locator(".lab-poster-dark").is_visible()
        figure.scroll_into_view_if_needed()
        figure.locator(".lab-stage").tap()
        figure.locator(".lab-stage.is-live").wait_for()
        assert figure.locator(".lab-stage").evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    assert not page.evaluate(wide)


@ENGLISH
def test_without_javascript(open_page: OpenPage, path: str) -> None:
    page = open_page(path, java_script_enabled=False)
    for figure in figures(page):
        assert figure.locator(".lab-poster-light").is_visible()
        image = figure.locator(".lab-poster-light img")
        image.scroll_into_view_if_needed()
        assert figure.locator(".lab-title").is_visible()
        assert figure.locator(".lab-kind").is_visible()
        for control in figure.locator(".lab-controls, .lab-data, select").all():
            assert not control.is_visible()


@ENGLISH
def test_show_data(open_page: OpenPage, path: str) -> None:
    page = open_page(path)
    for figure in figures(page):
        details = figure.locator(".lab-data")
        if details.count():
            details.locator("summary").click()
            details.locator("tbody tr").first.wait_for()
            heads = details.locator("th").all_inner_texts()
            assert len(heads) == details.locator("tbody tr").first.locator("td").count()
            assert all(heads)


def test_a_figure_in_closed_details_draws_when_opened(open_page: OpenPage) -> None:
    page = open_page("en/techniques/prefill-decode/")
    page.evaluate("""() => {
        const details = document.createElement("details");
        details.id = "folded";
        details.append(document.createElement("summary"), document.querySelector("lab-figure"));
        document.querySelector("article").prepend(details);
    }""")
    figure = page.locator("#folded lab-figure")
    figure.evaluate("e => e.wake()")
    page.wait_for_timeout(500)
    page.locator("#folded > summary").click()
    chart = figure.locator(".is-live svg.marks")
    chart.wait_for()
    assert (chart.bounding_box() or {})["width"] > 200


def test_resizing_redraws(open_page: OpenPage) -> None:
    page = open_page("en/techniques/prefill-decode/")
    figure = figures(page)[1]
    chart = wake(figure)
    wide = (chart.bounding_box() or {})["width"]
    page.set_viewport_size({"width": 500, "height": 800})
    page.wait_for_function(
        "([e, wide]) => e.querySelector('.lab-live svg').clientWidth < wide - 100",
        arg=[figure.element_handle(), wide],
    )
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


@ENGLISH
def test_labels_do_not_depend_on_the_time_zone(open_page: OpenPage, path: str) -> None:
    def labels(zone: str) -> list[list[str]]:
        page = open_page(path, timezone_id=zone)
        return [wake(figure).locator("text").all_inner_texts() for figure in figures(page)]

    assert labels("America/Los_Angeles") == labels("Asia/Kolkata")
