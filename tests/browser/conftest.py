"""A server for the built site, a Chromium, and pages that fail their test when they complain."""

from __future__ import annotations

import functools
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Playwright, sync_playwright

from tests.site.building import built_site

OpenPage = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker drives the browser, so that two do not slow each other down."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("site"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the built site."""
    base = tmp_path_factory.getbasetemp()
    return built_site(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: Any) -> None:
        """Keep test output clean."""

    def do_GET(self) -> None:
        """A file; the sitemap as if the site had been built for this address (SITE_URL)."""
        if not self.path.endswith("/sitemap.xml"):
            return super().do_GET()
        text = Path(self.translate_path(self.path)).read_text()
        body = re.sub(r"http://[^/]+", f"http://{self.headers['Host']}", text).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/xml")
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="session")
def base_url(site: Path) -> Iterator[str]:
    """Address of the served site, with a slash at its end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def chromium_path() -> str | None:
    """The system's Chromium; None means Playwright's own."""
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    launched = playwright.chromium.launch(
        executable_path=chromium_path(), args=["--no-sandbox", "--disable-dev-shm-usage"]
    )
    yield launched
    launched.close()


@pytest.fixture
def open_page(browser: Browser, base_url: str) -> Iterator[OpenPage]:
    """`open_page("en/", color_scheme="dark")`: a page in a context of its own.

    At the end of the test, any console error, exception, failed or foreign request fails it.
    """
    contexts, complaints = [], []

    def open_one(path: str, **options: Any) -> Page:
        options = {"viewport": {"width": 1280, "height": 800}, **options}
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(f"{path}: {error}"))
        page.on(
            "console",
            lambda m: complaints.append(f"{path}: {m.text}") if m.type == "error" else None,
        )
        page.on(
            "request",
            lambda r: (
                None
                if r.url.startswith((base_url, "data:", "blob:"))
                else complaints.append(f"{path}: foreign request {r.url}")
            ),
        )
        page.on(
            "response",
            lambda r: complaints.append(f"{path}: {r.status} {r.url}") if r.status >= 400 else None,
        )
        page.goto(base_url + path)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not complaints, complaints


def wake(figure: Locator) -> Locator:
    """Touch a figure as a reader would, wait until its chart is drawn, return the chart."""
    figure.scroll_into_view_if_needed()
    figure.locator(".lab-stage").hover()
    chart = figure.locator(".lab-stage.is-live .lab-live svg.marks")
    chart.wait_for()
    figure.page.mouse.move(0, 0)  # or another figure may come to lie below it, and wake
    return chart


def figures(page: Page) -> list[Locator]:
    """All figures of a page."""
    return page.locator("lab-figure").all()


def stepper(page: Page) -> Locator:
    """The first stepper of a page."""
    return page.locator("lab-figure.lab-stepper").first


def position(figure: Locator) -> int:
    """The step a stepper shows, counted from 1, by its slider."""
    return int(figure.locator('input[type="range"]').input_value())


def last_step(figure: Locator) -> int:
    """Number of steps of a stepper."""
    return int(figure.locator('input[type="range"]').get_attribute("max") or 0)


def picture(figure: Locator) -> str:
    """The chart as text, to compare pictures."""
    return figure.locator(".lab-live svg.marks").inner_html()
