"""The site around the figures: navigation, languages, search, print, budgets, the promise."""

from __future__ import annotations

import gzip
import re

import pytest
from playwright.sync_api import Browser, Page, expect

from docs.figures import theme
from tests.browser.conftest import OpenPage, figures, stepper, wake
from tests.site.building import urls

PAGE = "en/techniques/prefill-decode/"
MAX_BYTES, MAX_REQUESTS = 350_000, 25


def test_instant_navigation_keeps_figures_alive(open_page: OpenPage) -> None:
    page = open_page("en/")
    page.evaluate("window.sameDocument = true")

    def drawn() -> None:
        for figure in figures(page):
            wake(figure)
            assert figure.locator(".lab-live").count() == 1
            assert figure.locator("svg.marks").count() == 1, "no doubles"

    drawn()
    page.locator('a[href$="techniques/prefill-decode/"]:visible').first.click()
    page.wait_for_url(re.compile(r".*/prefill-decode/"))
    expect(page.locator("h1")).to_have_attribute("id", "prefill-and-decode")
    drawn()
    page.go_back()
    page.wait_for_url(re.compile(r".*/en/(#.*)?$"))
    page.wait_for_timeout(500)
    drawn()
    page.go_forward()
    page.wait_for_url(re.compile(r".*/prefill-decode/"))
    page.wait_for_timeout(500)
    drawn()
    assert page.evaluate("window.sameDocument"), "the page was never reloaded"


def test_back_shows_the_step_that_was_left(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    figure = stepper(page)
    wake(figure)
    figure.locator('[data-action="last"]').click()
    left = figure.locator("output").inner_text()
    page.wait_for_timeout(300)
    page.locator('a[href*="techniques/kv-cache"]:visible').first.click()
    page.wait_for_url("**/techniques/kv-cache/")
    page.go_back()
    page.wait_for_url(re.compile(r".*/prefill-decode/\?.*"))
    expect(stepper(page).locator("output")).to_have_text(left)
    stepper(page).locator(".is-live").wait_for()


def test_a_jump_within_the_page_keeps_the_figure(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    figure = stepper(page)
    wake(figure)
    figure.locator('[data-action="last"]').click()
    page.wait_for_timeout(300)
    figure.evaluate("e => { e.marked = true }")
    page.locator('.md-nav--secondary a[href*="#"]').nth(1).click()
    page.wait_for_timeout(500)
    assert figure.evaluate("e => e.marked"), "the same element, not a new copy of the page"


@pytest.mark.parametrize(("here", "there"), [("en", "zh"), ("zh", "en")])
def test_language_switch_keeps_page_and_picture(open_page: OpenPage, here: str, there: str) -> None:
    page = open_page(f"{here}/")
    page.locator('a[href$="techniques/prefill-decode/"]:visible').first.click()
    expect(page.locator("h1")).to_have_attribute("id", "prefill-and-decode")
    figure = stepper(page)
    wake(figure)
    figure.locator('[data-action="last"]').click()
    page.wait_for_timeout(300)
    page.locator(".lab-language a").click()
    page.wait_for_url(f"**/{there}/techniques/prefill-decode/?*")
    again = stepper(page)
    again.locator(".is-live").wait_for()
    assert again.locator('input[type="range"]').input_value() == str(
        again.locator('input[type="range"]').get_attribute("max")
    )
    assert (page.locator("html").get_attribute("lang") or "").startswith(there)


@pytest.mark.parametrize(("locale", "folder"), [("en-GB", "en"), ("zh-CN", "zh"), ("de-DE", "en")])
def test_the_front_door_chooses_the_language(open_page: OpenPage, locale: str, folder: str) -> None:
    page = open_page("", locale=locale)
    page.wait_for_url(f"**/{folder}/")


@pytest.mark.parametrize(("path", "words"), [("en/", "decode"), ("zh/", "显存"), ("zh/", "解码")])
def test_search_finds(open_page: OpenPage, path: str, words: str) -> None:
    page = open_page(path)
    page.locator("input.md-search__input").click()
    page.keyboard.type(words)
    page.keyboard.press("Shift")  # Material listens to keys, which typed Chinese does not press
    result = page.locator(".md-search-result__link").first
    result.wait_for()
    assert words[0] in page.locator(".md-search-result__list").inner_text()


@pytest.mark.parametrize("path", [url for url in urls() if url.startswith("en/")])
def test_print_from_the_dark(open_page: OpenPage, path: str) -> None:
    page = open_page(path, color_scheme="dark")
    live, still = figures(page)[::2], figures(page)[1::2]
    for figure in live:
        wake(figure)
    page.emulate_media(media="print", color_scheme="dark")
    dark = ", ".join(
        f'.lab-live [{a}="{c}"]' for c in theme.DARK.values() for a in ("fill", "stroke")
    )
    light = {rgb(colour) for colour in theme.DARK}
    for figure in live:
        assert figure.locator(".lab-live").is_visible(), "the step that was reached"
        assert not figure.locator(".lab-poster-light, .lab-poster-dark").first.is_visible()
        for mark in figure.locator(dark).all()[:40]:
            fill, stroke = mark.evaluate(
                "e => [getComputedStyle(e).fill, getComputedStyle(e).stroke]"
            )
            assert {fill, stroke} & light, (fill, stroke)
    for figure in still:
        assert not figure.locator(".lab-poster-dark").is_visible()
        poster = figure.locator(".lab-poster-light img")
        assert poster.is_visible()
        poster.scroll_into_view_if_needed()  # it loads lazily; printing loads all
        page.wait_for_function("e => e.complete && e.naturalWidth > 0", arg=poster.element_handle())
    luminance = """e => getComputedStyle(e).color.match(/\\d+/g).slice(0, 3)
        .reduce((sum, c) => sum + Number(c), 0)"""
    for selector in ("h1", ".md-typeset p", ".lab-title", ".lab-notice"):
        for element in page.locator(selector).all()[:1]:
            assert element.evaluate(luminance) < 400, f"{selector}: dark on white"
    assert page.pdf().startswith(b"%PDF")


def rgb(colour: str) -> str:
    """`#1c1b19` as a browser writes it."""
    return f"rgb({int(colour[1:3], 16)}, {int(colour[3:5], 16)}, {int(colour[5:7], 16)})"


@pytest.mark.parametrize("path", urls())
def test_budget_before_any_interaction(open_page: OpenPage, path: str) -> None:
    page = open_page(path)
    page.wait_for_load_state("networkidle")
    weights = measure(page)
    assert len(weights) <= MAX_REQUESTS, weights
    assert sum(weights.values()) <= MAX_BYTES, weights
    assert not any("vega" in url for url in weights), "Vega waits until a figure is touched"


def measure(page: Page) -> dict[str, int]:
    """Gzipped size of everything that the page has asked for, the page itself included."""
    addresses = page.evaluate(
        "[location.href, ...performance.getEntriesByType('resource').map(e => e.name)]"
    )
    found = {}
    for address in dict.fromkeys(addresses):
        if address.startswith("http"):
            found[address] = len(gzip.compress(page.request.get(address).body()))
    return found


def test_the_browser_itself_forbids_foreign_requests(browser: Browser, base_url: str) -> None:
    page = browser.new_page()
    page.goto(base_url + PAGE)
    blocked = page.evaluate("""async () => {
        const violated = new Promise((done) => document.addEventListener(
            "securitypolicyviolation", (e) => done(e.effectiveDirective)));
        const image = new Image();
        image.src = "http://192.0.2.1/pixel.png";
        return violated;
    }""")
    assert blocked == "img-src"
    page.close()


def test_figures_draw_where_eval_is_forbidden(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    violations = page.evaluate_handle("""() => {
        const seen = [];
        document.addEventListener(
            "securitypolicyviolation", (e) => seen.push(e.effectiveDirective));
        return seen;
    }""")
    for figure in figures(page):
        wake(figure)
    assert violations.json_value() == []


def test_every_control_has_a_name(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    for control in page.locator("lab-figure :is(button, input, select)").all():
        named = control.evaluate(
            "e => e.ariaLabel || e.getAttribute('aria-label') || e.labels?.[0]?.textContent"
        )
        assert named
