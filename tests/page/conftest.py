"""Debian's Chromium, driven by Playwright, on the page of a stand-in server.

Without a Chromium the tests are skipped with a reason; where DIVINE_NEEDS_CHROMIUM is set, as in
.ci/run, they fail instead. Each test gets a browser context of its own, and fails if the page
raised an error or broke its content security policy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright
from stand_in import StandIn

# What a browser itself reports of an answer that is not 200, or of none: such answers are tested.
# As root there is no sandbox; containers have a small /dev/shm; pictures are not looked at.
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
NETWORK = "Failed to load resource"


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


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1100, "height": 800}, locale="en-GB")
    context.set_default_timeout(15_000)
    troubles: list[str] = []

    def listen(page: Page) -> None:
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda message: troubles.extend(_trouble(message)))

    context.on("page", listen)
    yield context
    context.close()
    assert troubles == []


def _trouble(message: ConsoleMessage) -> list[str]:
    bad = message.type in ("error", "warning") and NETWORK not in message.text
    return [message.text] if bad else []


@pytest.fixture
def page(context: BrowserContext, server: StandIn) -> Page:
    """The page, greeted by the stand-in."""
    page = context.new_page()
    page.goto(server.url)
    return page
