"""What the page's tests do again and again: say something, and look at what is shown."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect


def say(page: Page, text: str = "Hi") -> None:
    """Type a message and send it by the keyboard."""
    page.get_by_role("textbox", name="Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> Locator:
    """The texts of the answers."""
    return page.locator(".assistant .body")


def questions(page: Page) -> Locator:
    """The texts of what was asked."""
    return page.locator(".user .body")


def notice(page: Page) -> Locator:
    """The line above the composer that tells of trouble."""
    return page.locator("#notice")


def finished(page: Page) -> None:
    """Wait until no answer is coming."""
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def ask(page: Page, text: str = "Hi") -> None:
    """Say something and wait for the whole answer."""
    say(page, text)
    finished(page)


def act(page: Page, item: Locator, name: str) -> None:
    """Press one of the buttons of a message, which show on approach."""
    item.hover()
    item.get_by_role("button", name=name, exact=True).click()


def messages(page: Page) -> Locator:
    """The items of the conversation."""
    return page.locator(".message")
