"""Light and dark, phones, the keyboard alone, and contrast by the numbers of WCAG 2."""

from __future__ import annotations

from typing import Any

import pytest
from page_support import answers, ask, finished, messages, questions, say
from playwright.sync_api import Browser, BrowserContext, Page, expect
from stand_in import Reply, StandIn

AA_TEXT = 4.5
AA_PARTS = 3.0  # borders of fields, marks
WIDE = (
    "A very long word: " + "x" * 300 + "\n\n```\n" + "code " * 60 + "\n```\n\n"
    "|" + "column|" * 12 + "\n|" + "--|" * 12 + "\n|" + "a value|" * 12 + "\n\n"
    "https://example.org/" + "path/" * 60 + "\n\n" + "`" + "y" * 200 + "`"
)
DEPTH = {"drafted": 2, "accepted": 1, "rejected": 1, "unreached": 0}

# The contrast of two colours of the style sheet, as the browser mixes them.
CONTRAST = """([front, back]) => {
    const context = Object.assign(document.createElement('canvas'), {width: 1, height: 1})
        .getContext('2d', {willReadFrequently: true});
    const luminance = (name) => {
        const probe = document.createElement('i');
        probe.style.color = `var(${name})`;
        document.body.append(probe);
        context.fillStyle = getComputedStyle(probe).color;
        probe.remove();
        context.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map(
            (value) => value / 255).map(
            (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const [a, b] = [luminance(front), luminance(back)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_meets_aa(browser: Browser, server: StandIn, scheme: Any) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.goto(server.url)
    texts = ["--ink", "--quiet", "--accent", "--wrong", *(f"--by-{n}" for n in range(1, 7))]
    pairs = [(front, "--paper", AA_TEXT) for front in texts]
    pairs += [
        (front, back, AA_TEXT)
        for front in ("--ink", "--quiet", "--accent")
        for back in ("--raised", "--sunk")
    ]
    pairs += [("--on-accent", "--accent", AA_TEXT), ("--edge", "--raised", AA_PARTS)]
    low = [pair for pair in pairs if page.evaluate(CONTRAST, pair[:2]) < pair[2]]
    page.close()
    assert low == []


def ground(page: Page) -> int:
    """How light the page's ground is, 0 to 255."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return int(colour.removeprefix("rgb(").split(",")[0])


def test_dark_follows_the_system_and_can_be_turned(browser: Browser, server: StandIn) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(server.url)
    assert ground(page) < 64
    page.get_by_role("button", name="Turn to light").click()
    assert ground(page) > 192
    page.reload()
    assert ground(page) > 192
    page.get_by_role("button", name="Turn to dark").click()
    assert ground(page) < 64
    context.close()


def test_the_theme_turns_in_all_tabs(context: BrowserContext, page: Page, server: StandIn) -> None:
    other = context.new_page()
    other.goto(server.url)
    page.get_by_role("button", name="Turn to dark").click()
    other.wait_for_function("document.documentElement.dataset.theme === 'dark'")


@pytest.fixture
def phone(browser: Browser, server: StandIn) -> Any:
    context = browser.new_context(
        viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True
    )
    page = context.new_page()
    page.goto(server.url)
    yield page
    context.close()


def test_a_phone_needs_no_scrolling_sideways(phone: Page, server: StandIn) -> None:
    phone.get_by_role("button", name="Drafts").tap()
    drafts = {"ngram": [DEPTH] * 12, "a long drafter name": [DEPTH]}
    pieces = [(WIDE[at : at + 7], ("ngram",) if at % 3 else ()) for at in range(0, len(WIDE), 7)]
    server.replies.append(Reply(pieces=pieces, drafts=drafts))
    ask(phone, "Wide " + "z" * 200)
    width = "document.scrollingElement.scrollWidth"
    assert phone.evaluate(width) <= 360
    assert phone.evaluate("document.getElementById('scroll').scrollWidth") <= 360
    bounds = phone.evaluate(
        "[...document.querySelectorAll('button:not([hidden]), textarea, .chart, .legend')]"
        ".filter(e => e.checkVisibility()).map(e => e.getBoundingClientRect().right)"
    )
    assert max(bounds) <= 360
    for name in ("Settings", "Chats"):
        phone.get_by_role("button", name=name).tap()
        assert phone.evaluate(width) <= 360
        assert phone.locator("dialog[open]").evaluate("e => e.scrollWidth - e.clientWidth") == 0
        phone.get_by_role("button", name="Close").tap()


def test_a_phone_does_not_zoom_and_shows_what_a_pointer_would(phone: Page, server: StandIn) -> None:
    sizes = (
        "[...document.querySelectorAll('input, textarea')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(phone.evaluate(sizes)) >= 16  # below, iOS zooms in on focus
    tools = phone.locator(".bar .tool")
    assert all((tool.bounding_box() or {"width": 0})["width"] >= 40 for tool in tools.all())
    phone.locator("#prompt").fill("Hi")
    phone.get_by_role("button", name="Send").tap()
    expect(answers(phone)).to_have_text("Hello there.")
    action = phone.get_by_role("button", name="Edit this message").first
    assert action.evaluate("e => getComputedStyle(e.parentElement).opacity") == "1"


def test_reading_along_and_scrolling_back(page: Page, server: StandIn) -> None:
    lines = [(f"Line {number}\n\n", ()) for number in range(120)]
    server.replies.append(Reply(pieces=lines, pause_after=60))
    say(page)
    expect(answers(page)).to_contain_text("Line 59")
    end = "(e => e.scrollHeight - e.scrollTop - e.clientHeight)(document.getElementById('scroll'))"
    assert page.evaluate(end) < 5
    page.locator("#scroll").hover()
    page.mouse.wheel(0, -600)
    back = page.get_by_role("button", name="Latest")
    expect(back).to_be_visible()
    server.go.set()
    finished(page)
    assert page.evaluate(end) > 600  # not pulled away from what is being read
    back.click()
    expect(back).to_be_hidden()
    assert page.evaluate(end) < 5


def test_the_keyboard_is_enough(page: Page, server: StandIn) -> None:
    keys = page.keyboard
    expect(page.locator("#prompt")).to_be_focused()
    keys.type("First line")
    keys.press("Shift+Enter")
    keys.type("second")
    keys.press("Enter")
    finished(page)
    expect(questions(page)).to_have_text("First line\nsecond", use_inner_text=True)
    keys.press("ArrowUp")
    expect(page.get_by_label("Edit the message")).to_be_focused()
    keys.press("Control+a")
    keys.type("Edited")
    keys.press("Enter")
    expect(questions(page)).to_have_text(["Edited"])
    finished(page)
    page.locator("#prompt").focus()
    server.replies.append(Reply(pause_after=1))
    keys.type("Stop me")
    keys.press("Enter")
    expect(answers(page).last).to_have_text("Hello")
    keys.press("Escape")
    expect(page.locator(".note")).to_have_text("Stopped.")
    keys.press("Alt+n")
    expect(messages(page)).to_have_count(0)
    expect(page.locator("#prompt")).to_be_focused()


def test_every_control_is_reached_by_tab_named_and_marked(page: Page, server: StandIn) -> None:
    server.replies.append(Reply(pieces=[("```py\nx\n```\n", ())]))
    ask(page)
    page.locator(".skip").focus()
    names: list[str] = []
    for _ in range(25):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            """() => {
                const e = document.activeElement;
                const style = getComputedStyle(e.id === 'prompt' ? e.closest('form') : e);
                const name = e.getAttribute('aria-label') || e.innerText || e.id;
                return [e === document.body ? '' : name,
                    style.outlineStyle !== 'none' || style.boxShadow !== 'none'];
            }"""
        )
        name, marked = focused
        if name == "":
            break
        assert marked, f"no visible focus on {name}"
        names.append(name.strip())
    reached = [
        "Drafts",
        "Chats",
        "New",
        "Turn to dark",
        "Settings",
        "Edit this message",
        "Copy this code",
        "Answer again",
        "Delete this message",
        "prompt",
        "Send",
    ]
    assert [name for name in reached if name not in names] == []


def test_sheets_keep_and_give_back_the_focus(page: Page) -> None:
    page.get_by_role("button", name="Settings").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Settings")).to_be_hidden()
    expect(page.locator("#prompt")).to_be_focused()
