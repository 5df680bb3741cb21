"""A headless browser for tests of pages: the Chromium of this machine, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# What is not on this machine has no address: no test reaches further, whatever a page asks for.
LOOPBACK_ONLY = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
WAIT_MS = 10_000
DESKTOP = (1280, 800)
PHONE = (390, 844)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, loopback only; skips where there is none.

    One a module, not one a session: asyncio.run works on no thread where Playwright is open.
    """
    api = pytest.importorskip("playwright.sync_api", reason="no Playwright here: pip install it")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser on PATH: looked for {', '.join(BROWSERS)}")
    with api.sync_playwright() as playwright:
        # Chromium's own sandbox needs rights that containers and root accounts lack.
        chromium = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", LOOPBACK_ONLY]
        )
        yield chromium
        chromium.close()


class Visit:
    """A page that was opened, and what it did.

    Attributes:
        page: Playwright's.
        complaints: console errors and warnings, exceptions nobody caught, requests that failed.
        requests: every URL that it asked for over the network or from the disk, in order.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", self._note_request)
        page.on("requestfailed", self._note_failure)

    def foreign_requests(self) -> list[str]:
        """Those that went elsewhere than to where the page itself came from."""
        home = _origin(self.page.url)
        return [url for url in self.requests if _origin(url) != home]

    def assert_fits_width(self) -> None:
        """Nobody must scroll sideways to read it."""
        root = "document.documentElement"
        widths = self.page.evaluate(f"[{root}.scrollWidth, {root}.clientWidth]")
        assert widths[0] <= widths[1], f"the page is {widths[0]} px wide on {widths[1]} px"

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _note_request(self, request: Request) -> None:
        if urlsplit(request.url).scheme not in ("data", "blob", "about"):
            self.requests.append(request.url)

    def _note_failure(self, request: Request) -> None:
        # A page that aborts a request of its own, or is left, has done nothing wrong.
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"failed: {request.url}: {request.failure}")


Visitor = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visitor]:
    """Opens a URL in a profile of its own: `visit(url, size=PHONE)`; other named arguments are
    those of Playwright's `new_context`, such as `color_scheme` or `locale`."""
    contexts = []

    def open_page(url: str, size: tuple[int, int] = DESKTOP, **options: Any) -> Visit:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        visit = Visit(context.new_page())
        visit.page.goto(url)
        return visit

    yield open_page
    for context in contexts:
        context.close()


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
