# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin: Chromium, driven by Playwright, for tests of web pages that this machine serves."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
#: The browser resolves no name but these: a page can reach no other machine.
HOSTS = ("127.0.0.1", "localhost")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, " + ", ".join(f"EXCLUDE {host}" for host in HOSTS),
)
_TIMEOUT = 20_000  # milliseconds; what takes longer hangs
_INLINE = ("about", "blob", "data")


@dataclass
class Tab:
    """Page of the browser, with what went wrong in it.

    Playwright's `wait_for_function` evaluates text, which a page with a strict policy forbids: wait for elements.

    Args:
        page: Page of Playwright.
        errors: Errors of the console, and uncaught exceptions.
        foreign: URLs of requests to other hosts.
    """

    page: "Page"
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Collect errors and requests from now on."""
        self.page.on("console", lambda output: self._noted(output.type, output.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.context.on("request", lambda request: self._requested(request.url))

    def _noted(self, kind: str, text: str) -> None:
        if kind == "error":
            self.errors.append(text)

    def _requested(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _INLINE and parts.hostname not in HOSTS:
            self.foreign.append(url)

    def flaws(self) -> list[str]:
        """Return the serious and critical findings of axe-core, each with its first element."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {one['help']}: {one['nodes'][0]['html']}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        measured = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.page.evaluate(measured))


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Give a browser. Of one module: while it runs, this thread can run no other event loop."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"there is no Chromium here (tried {', '.join(PROGRAMS)})")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*_FLAGS])
        yield browser
        browser.close()


@contextmanager
def opened_tab(browser: "Browser", **options: Any) -> "Iterator[Tab]":
    """Open an empty tab with its own storage; after the block, it must have no errors and no foreign requests.

    Args:
        browser: The browser.
        **options: Options of Playwright's `new_context`: `viewport`, `color_scheme`, `java_script_enabled`, ….
    """
    context = browser.new_context(**options)
    context.set_default_timeout(_TIMEOUT)
    try:
        tab = Tab(context.new_page())
        tab.watch()
        yield tab
        assert tab.errors == []
        assert tab.foreign == []
    finally:
        context.close()


@pytest.fixture
def tab(browser: "Browser") -> "Iterator[Tab]":
    """Give an empty tab, see `opened_tab`."""
    with opened_tab(browser) as opened:
        yield opened
