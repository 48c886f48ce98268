"""Stepping: buttons, slider, keys, play, code pane, and the state in the address."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import (
    OpenPage,
    figures,
    last_step,
    picture,
    position,
    stepper,
    wake,
)

PAGES = ["en/techniques/prefill-decode/", "zh/techniques/kv-cache/"]
PAGE = PAGES[0]


def state(page: Page) -> dict[str, str]:
    """The figures' state in the address."""
    page.wait_for_timeout(200)  # it is written in batches
    query = page.evaluate("location.search.slice(1)")
    return {key: value[0] for key, value in parse_qs(query).items()}


@pytest.mark.parametrize("path", PAGES)
def test_by_click(open_page: OpenPage, path: str) -> None:
    figure = stepper(open_page(path))
    wake(figure)
    end = last_step(figure)
    expected = {"first": 1, "next": 2, "last": end, "previous": end - 1}
    for action, step in expected.items():
        figure.locator(f'[data-action="{action}"]').click()
        expect(figure.locator('input[type="range"]')).to_have_value(str(step))
        assert str(step) in figure.locator("output").inner_text()


@pytest.mark.parametrize("path", PAGES)
def test_by_key(open_page: OpenPage, path: str) -> None:
    page = open_page(path)
    figure = stepper(page)
    wake(figure)
    figure.locator(".lab-stage").focus()
    top = page.evaluate("scrollY")
    end = last_step(figure)
    for key, step in {"Home": 1, "ArrowRight": 2, "End": end, "ArrowLeft": end - 1}.items():
        page.keyboard.press(key)
        expect(figure.locator('input[type="range"]')).to_have_value(str(step))
    assert page.evaluate("scrollY") == top, "keys step, they do not scroll the page"


def test_the_slider_is_a_slider(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    figure = stepper(page)
    slider = figure.locator('input[type="range"]')
    slider.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(slider).to_have_value("2")
    figure.locator(".is-live").wait_for()


def test_the_picture_is_a_function_of_the_step(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    figure = stepper(page)
    wake(figure)
    pictures = []
    for _ in range(2):
        figure.locator('[data-action="first"]').click()
        page.wait_for_timeout(150)
        seen = [picture(figure)]
        for _ in range(3):
            figure.locator('[data-action="next"]').click()
            page.wait_for_timeout(150)
            seen.append(picture(figure))
        figure.locator('[data-action="last"]').click()
        pictures.append(seen)
    assert pictures[0] == pictures[1]
    assert len(set(pictures[0])) == len(pictures[0]), "every step looks different"


def test_narration_and_code_follow(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    figure = stepper(page)
    narration = figure.locator(".lab-narration")
    assert narration.get_attribute("aria-live") == "polite"
    top = page.evaluate("scrollY")
    said, lines = set(), set()
    figure.locator('[data-action="first"]').click()
    for step in range(2, 6):
        expect(figure.locator('input[type="range"]')).to_have_value(str(step - 1))
        said.add(narration.inner_text())
        line = figure.locator(".line.now")
        if line.count():
            lines.add(line.get_attribute("data-line"))
            page.wait_for_timeout(500)  # the pane scrolls softly
            assert line.evaluate("""e => {
                const pane = e.closest('.lab-code-pane').getBoundingClientRect();
                const line = e.getBoundingClientRect();
                return line.top >= pane.top - 1 && line.bottom <= pane.bottom + 1;
            }"""), "the line is in sight"
        figure.locator('[data-action="next"]').click()
    assert len(said) == 4
    assert len(lines) >= 2
    assert abs(page.evaluate("scrollY") - top) < 1000


def test_space_plays_and_pauses(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    figure = stepper(page)
    wake(figure)
    figure.locator(".lab-stage").focus()
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    expect(figure.locator('[data-action="play"]')).to_have_attribute("aria-label", "Pause")
    expect(figure.locator('input[type="range"]')).to_have_value("3", timeout=4000)
    page.keyboard.press(" ")
    expect(figure.locator('[data-action="play"]')).to_have_attribute("aria-label", "Play")
    stopped = position(figure)
    page.wait_for_timeout(1000)
    assert position(figure) == stopped


def test_play_ends_at_the_last_step_and_begins_anew(open_page: OpenPage) -> None:
    page = open_page(PAGE, reduced_motion="reduce")
    figure = stepper(page)
    wake(figure)
    figure.locator('[data-action="last"]').click()
    figure.locator('[data-action="previous"]').click()
    figure.locator('[data-action="play"]').click()
    expect(figure.locator('input[type="range"]')).to_have_value(str(last_step(figure)))
    expect(figure.locator('[data-action="play"]')).to_have_attribute("aria-label", "Play")
    figure.locator('[data-action="play"]').click()
    expect(figure.locator('input[type="range"]')).to_have_value("2", timeout=4000)


def test_nothing_plays_by_itself(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    figure = stepper(page)
    wake(figure)
    before = position(figure)
    page.wait_for_timeout(1500)
    assert position(figure) == before


@pytest.mark.parametrize("path", PAGES)
def test_a_link_shows_the_same_picture(open_page: OpenPage, path: str) -> None:
    page = open_page(path)
    figure = stepper(page)
    wake(figure)
    assert state(page) == {}, "nothing in the address until something is chosen"
    figure.locator('[data-action="last"]').click()
    figure.locator('[data-action="previous"]').click()
    page.wait_for_timeout(300)
    (key,) = state(page)
    assert re.fullmatch(r"\w+\.step", key)

    other = open_page(page.url.split("/", 3)[3])
    again = stepper(other)
    again.locator(".is-live").wait_for()  # without a touch
    assert position(again) == position(figure)
    assert (
        again.locator(".lab-narration").inner_text()
        == figure.locator(".lab-narration").inner_text()
    )
    other.wait_for_timeout(300)
    assert picture(again) == picture(figure)

    other.reload()
    again.locator(".is-live").wait_for()
    assert position(again) == position(figure)


def test_default_step_leaves_the_address_clean(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    figure = stepper(page)
    wake(figure)
    figure.locator('[data-action="next"]').click()
    assert len(state(page)) == 1
    figure.locator('[data-action="previous"]').click()
    page.wait_for_function("() => location.search === ''")


@pytest.mark.parametrize(
    "query", ["step=99999", "step=0", "step=x", "machine=none", "variant=%3Cb%3E"]
)
def test_nonsense_in_the_address_does_no_harm(open_page: OpenPage, query: str) -> None:
    page = open_page(f"{PAGE}?decode_stepper.{query}")
    figure = stepper(page)
    wake(figure)
    assert 1 <= position(figure) <= last_step(figure)


def test_variants(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    for figure in figures(page):
        choice = figure.locator('select[data-pick="variant"]')
        if not choice.count():
            continue
        wake(figure)
        name = (figure.get_attribute("data-figure") or "").split(".")[1]
        title = figure.locator(".lab-title").inner_text()
        options = choice.locator("option").evaluate_all("all => all.map(o => o.value)")
        choice.select_option(options[-1])
        expect(figure.locator(".lab-title")).not_to_have_text(title)
        assert state(page)[f"{name}.variant"] == options[-1]
        changed = figure.locator(".lab-title").inner_text()
        shown = open_page(page.url.split("/", 3)[3]).locator(
            f'lab-figure[data-figure$=".{name}"] .lab-title'
        )
        expect(shown).to_have_text(changed)
        choice.select_option(options[0])
        expect(figure.locator(".lab-title")).to_have_text(title)
        assert f"{name}.variant" not in state(page)
