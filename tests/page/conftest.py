"""Debian's Chromium, driven by Playwright, on the page of a stand-in server.

Without a Chromium the tests are skipped with a reason; where DIVINE_NEEDS_CHROMIUM is set, as in
.ci/run, they fail instead. A test fails too if the page raised an error or broke its content
security policy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)
from stand_in import StandIn

# As root there is no sandbox; containers have a small /dev/shm; pictures are not looked at.
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
# What a browser itself reports of an answer that is not 200, or of none: such answers are tested.
NETWORK = "Failed to load resource"
PATIENCE = 20_000  # milliseconds; only a failure or a very busy machine takes as long
expect.set_options(timeout=PATIENCE)


def chromium() -> str:
    """The path of a Chromium of this system."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    if os.environ.get("DIVINE_NEEDS_CHROMIUM"):
        pytest.fail("no Chromium found; the page's tests need one: apt install chromium")
    pytest.skip("no Chromium found; apt install chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def server() -> Iterator[StandIn]:
    stand_in = StandIn()
    yield stand_in
    stand_in.close()


class Tab:
    """One tab for all tests, since a new one takes a second; what it complains of is collected.

    The storage of a page belongs to its address, and each stand-in has an address of its own.
    """

    def __init__(self, browser: Browser) -> None:
        self.context = browser.new_context(
            viewport={"width": 1100, "height": 800}, locale="en-GB", color_scheme="light"
        )
        self.context.set_default_timeout(PATIENCE)
        self.troubles: list[str] = []
        self.context.on("page", self._listen)
        self.page = self.context.new_page()

    def _listen(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", lambda message: self.troubles.extend(_trouble(message)))


@pytest.fixture(scope="session")
def one_tab(browser: Browser) -> Tab:
    return Tab(browser)


@pytest.fixture
def context(one_tab: Tab) -> Iterator[BrowserContext]:
    """Where a test may open more tabs."""
    one_tab.troubles.clear()
    yield one_tab.context
    for page in one_tab.context.pages:
        if page is not one_tab.page:
            page.close()
    one_tab.page.mouse.move(0, 0)
    one_tab.page.goto("about:blank")
    assert one_tab.troubles == []


@pytest.fixture
def tab(context: BrowserContext, one_tab: Tab) -> Page:
    """A tab that shows nothing yet."""
    return one_tab.page


def _trouble(message: ConsoleMessage) -> list[str]:
    bad = message.type in ("error", "warning") and NETWORK not in message.text
    return [message.text] if bad else []


@pytest.fixture
def page(tab: Page, server: StandIn) -> Page:
    """The page, greeted by the stand-in."""
    tab.goto(server.url)
    return tab
