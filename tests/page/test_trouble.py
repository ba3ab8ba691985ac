"""What goes wrong is said in a sentence, and nothing that was said before is lost."""

from __future__ import annotations

import pytest
from page_support import answers, ask, finished, notice, questions, say
from playwright.sync_api import BrowserContext, Page, expect
from stand_in import Reply, StandIn

PIECES = [("One", ()), (" two", ()), (" three", ())]


def test_a_refusal_is_shown_in_the_servers_words(page: Page, server: StandIn) -> None:
    server.replies.append(Reply(status=400, message="max_tokens is 0; allowed is 1 or more."))
    say(page, "Hi")
    expect(notice(page)).to_contain_text("max_tokens is 0; allowed is 1 or more.")
    expect(questions(page)).to_have_text("Hi")
    expect(answers(page)).to_have_count(0)
    notice(page).get_by_role("button", name="Try again").click()
    expect(answers(page)).to_have_text("Hello there.")
    expect(notice(page)).to_be_hidden()


def test_an_error_without_a_word_is_shown_by_its_number(page: Page, server: StandIn) -> None:
    server.replies.append(Reply(status=502))
    say(page)
    expect(notice(page)).to_contain_text("502")


def test_a_busy_server_is_asked_again_when_it_said(page: Page, server: StandIn) -> None:
    busy = Reply(status=429, message="The queue is full.", headers={"Retry-After": "1"})
    server.replies.extend([busy, busy])
    say(page)
    expect(notice(page)).to_contain_text("The queue is full. Trying again in 1 s.")
    expect(answers(page)).to_have_text("Hello there.")
    expect(notice(page)).to_be_hidden()
    assert len(server.asked) == 3


def test_waiting_for_a_busy_server_can_be_stopped(page: Page, server: StandIn) -> None:
    server.replies.append(Reply(status=429, headers={"Retry-After": "600"}))
    say(page, "Hi")
    expect(notice(page)).to_contain_text("Trying again in 600 s.")
    page.keyboard.press("Escape")
    finished(page)
    expect(notice(page)).to_be_hidden()
    expect(questions(page)).to_have_text("Hi")
    assert len(server.asked) == 1


def test_a_server_that_is_gone_is_said_and_found_again(
    context: BrowserContext, page: Page, server: StandIn
) -> None:
    ask(page, "First")
    context.set_offline(True)
    say(page, "Second")
    expect(notice(page)).to_contain_text("cannot be reached")
    context.set_offline(False)
    notice(page).get_by_role("button", name="Try again").click()
    expect(answers(page)).to_have_text(["Hello there.", "Hello there."])


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(pieces=PIECES, break_after=2), "The connection broke"),
        (Reply(pieces=PIECES[:2], error_in_stream="Out of memory."), "Out of memory."),
    ],
    ids=["broken", "error"],
)
def test_trouble_in_the_middle_keeps_the_text(
    page: Page, server: StandIn, reply: Reply, said: str
) -> None:
    server.replies.append(reply)
    say(page)
    expect(notice(page)).to_contain_text(said)
    expect(answers(page)).to_have_text("One two")
    expect(page.locator(".note")).to_contain_text(said)
    page.reload()
    expect(answers(page)).to_have_text("One two")
    expect(page.locator(".note")).to_contain_text(said)


def test_a_cut_answer_says_so(page: Page, server: StandIn) -> None:
    server.replies.append(Reply(finish="length"))
    ask(page)
    expect(page.locator(".note")).to_contain_text("most tokens")


def test_an_answer_without_a_word_says_so(page: Page, server: StandIn) -> None:
    server.replies.append(Reply(pieces=[]))
    ask(page)
    expect(page.locator(".note")).to_contain_text("without a word")


def test_the_key_is_asked_for_and_kept_for_the_tab(tab: Page, server: StandIn) -> None:
    server.keys = {"sesame"}
    page = tab
    page.goto(server.url)
    field = page.get_by_label("API key", exact=True).and_(page.locator("#key-now"))
    field.fill("wrong")
    page.keyboard.press("Enter")
    expect(field).to_have_value("")  # asked for again
    expect(notice(page)).to_contain_text("The API key is missing or wrong.")
    field.fill("sesame")
    page.keyboard.press("Enter")
    expect(page.locator("#model")).to_have_text("stand-in")
    ask(page)
    expect(answers(page)).to_have_text("Hello there.")
    page.reload()
    ask(page, "Again")
    assert server.authorizations[-1] == "sesame"
    assert "sesame" not in page.evaluate("JSON.stringify(localStorage)")


def test_a_key_that_is_asked_for_late_sends_the_question_on(page: Page, server: StandIn) -> None:
    expect(page.locator("#model")).to_have_text("stand-in")
    server.keys = {"sesame"}
    say(page, "Hi")
    page.locator("#key-now").fill("sesame")
    page.keyboard.press("Enter")
    expect(answers(page)).to_have_text("Hello there.")


def test_a_wrong_setting_is_named_and_nothing_is_sent(page: Page, server: StandIn) -> None:
    for field, value, said in [
        ("Temperature", "hot", "Temperature is “hot”; allowed is a number from 0 to 100."),
        ("Top-p", "1.5", "Top-p is “1.5”; allowed is a number from 0 to 1."),
        ("Top-k", "2.5", "Top-k is “2.5”; allowed is a whole number"),
        ("Most tokens", "0", "Most tokens is “0”; allowed is a whole number from 1"),
        ("Seed", "-1", "Seed is “-1”; allowed is a whole number from 0 to 2⁶⁴"),
        ("Seed", "18446744073709551616", "allowed is a whole number from 0 to 2⁶⁴"),
    ]:
        page.locator("#open-settings").click()
        page.get_by_role("button", name="Back to the defaults").click()
        page.get_by_label(field, exact=True).fill(value)
        expect(page.locator("#settings-error")).to_contain_text(said)
        expect(page.get_by_label(field, exact=True)).to_have_attribute("aria-invalid", "true")
        page.keyboard.press("Escape")
        say(page)
        expect(notice(page)).to_contain_text(said)
    assert server.asked == []


def test_nonsense_in_the_storage_is_passed_over(page: Page, server: StandIn) -> None:
    for nonsense in ["{", "null", '{"messages": 3}', '{"messages": [{"role": 1}]}']:
        page.evaluate(
            "text => { localStorage.setItem('divine.chat.x', text);"
            "localStorage.setItem('divine.settings', text);"
            "sessionStorage.setItem('divine.current', 'x') }",
            nonsense,
        )
        page.reload()
        expect(page.locator("#empty")).to_be_visible()
    ask(page)
    expect(answers(page)).to_have_text("Hello there.")
    page.get_by_role("button", name="Chats").click()
    expect(page.locator(".entry")).to_have_count(1)


def test_a_full_storage_is_said(page: Page, server: StandIn) -> None:
    page.evaluate(
        """() => {
            let text = 'x'.repeat(1 << 20);
            for (let n = 0; text; n += 1) {
                try { localStorage.setItem('fill' + n, text); }
                catch { text = text.slice(1 + text.length / 2); }
            }
        }"""
    )
    ask(page, "Hi")
    expect(answers(page)).to_have_text("Hello there.")
    expect(notice(page)).to_contain_text("no room for more")
