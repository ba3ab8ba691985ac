"""A conversation: sending, streaming, stopping, asking again, editing, deleting, and what stays."""

from __future__ import annotations

from page_support import act, answers, ask, finished, messages, questions, say
from playwright.sync_api import BrowserContext, Page, expect
from stand_in import Reply, StandIn

SLOW = Reply(pieces=[("One", ()), (" two", ("ngram",)), (" three", ())], pause_after=2)


def roles(server: StandIn) -> list[tuple[str, str]]:
    """Who said what in the last request."""
    return [(message["role"], message["content"]) for message in server.asked[-1]["messages"]]


def test_an_answer_is_streamed_and_shown(page: Page, server: StandIn) -> None:
    expect(page.locator("#model")).to_have_text("stand-in")
    server.replies.append(SLOW)
    say(page, "Count")
    expect(answers(page)).to_have_text("One two")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    server.go.set()
    expect(answers(page)).to_have_text("One two three")
    finished(page)
    expect(page.locator("#status")).to_have_text("One two three")  # told to who cannot see it
    asked = server.asked[-1]
    assert asked["model"] == "stand-in"
    assert asked["stream"] is True
    assert asked["stream_options"] == {"include_usage": True}
    assert asked["draft"] == "auto"
    assert asked["divine"] == {"spans": True}
    assert set(asked) == {"model", "messages", "stream", "stream_options", "draft", "divine"}


def test_the_whole_conversation_is_sent(page: Page, server: StandIn) -> None:
    ask(page, "First")
    ask(page, "Second")
    assert roles(server) == [("user", "First"), ("assistant", "Hello there."), ("user", "Second")]


def test_nothing_is_sent_for_an_empty_message(page: Page, server: StandIn) -> None:
    say(page, "  \n ")
    ask(page, "Hi")
    assert len(server.asked) == 1


def test_stop_hangs_up_and_keeps_the_text(page: Page, server: StandIn) -> None:
    server.replies.append(SLOW)
    say(page)
    expect(answers(page)).to_have_text("One two")
    page.get_by_role("button", name="Stop").click()
    finished(page)
    assert server.hung_up.wait(10)
    expect(answers(page)).to_have_text("One two")
    expect(page.locator(".note")).to_have_text("Stopped.")
    ask(page, "Go on")
    assert roles(server)[1] == ("assistant", "One two")


def test_stopping_before_the_first_word_leaves_the_question(page: Page, server: StandIn) -> None:
    server.replies.append(Reply(pause_after=0))
    say(page, "Well?")
    expect(page.locator(".waiting")).to_be_visible()
    page.keyboard.press("Escape")
    finished(page)
    expect(questions(page)).to_have_text("Well?")
    expect(answers(page)).to_have_count(0)


def test_retry_asks_the_same_again(page: Page, server: StandIn) -> None:
    ask(page, "First")
    ask(page, "Second")
    server.replies.append(Reply(pieces=[("Other", ())]))
    act(page, messages(page).nth(1), "Answer again")
    expect(answers(page)).to_have_text(["Other"])
    assert roles(server) == [("user", "First")]
    expect(questions(page)).to_have_text(["First"])


def test_editing_a_question_asks_from_there(page: Page, server: StandIn) -> None:
    ask(page, "First")
    ask(page, "Second")
    act(page, messages(page).first, "Edit this message")
    editor = page.get_by_label("Edit the message")
    expect(editor).to_be_focused()
    editor.fill("Changed")
    page.locator(".editing").get_by_role("button", name="Send").click()
    finished(page)
    expect(questions(page)).to_have_text(["Changed"])
    assert roles(server) == [("user", "Changed")]


def test_editing_an_answer_changes_it_and_asks_nothing(page: Page, server: StandIn) -> None:
    ask(page)
    act(page, messages(page).nth(1), "Edit this message")
    page.get_by_label("Edit the message").fill("My words")
    page.get_by_role("button", name="Save").click()
    expect(answers(page)).to_have_text("My words")
    assert len(server.asked) == 1
    ask(page, "Next")
    assert roles(server)[1] == ("assistant", "My words")


def test_an_edit_can_be_given_up(page: Page, server: StandIn) -> None:
    ask(page, "First")
    act(page, messages(page).first, "Edit this message")
    page.get_by_label("Edit the message").fill("Changed")
    page.keyboard.press("Escape")
    expect(questions(page)).to_have_text(["First"])
    assert len(server.asked) == 1


def test_delete_takes_question_and_answer_and_can_be_undone(page: Page, server: StandIn) -> None:
    ask(page, "First")
    ask(page, "Second")
    act(page, messages(page).first, "Delete this message")
    expect(questions(page)).to_have_text(["Second"])
    expect(answers(page)).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(questions(page)).to_have_text(["First", "Second"])
    act(page, messages(page).last, "Delete this message")  # the last answer goes alone
    expect(questions(page)).to_have_text(["First", "Second"])
    expect(answers(page)).to_have_count(1)
    page.reload()
    expect(messages(page)).to_have_count(3)


def test_a_reload_keeps_the_conversation(page: Page, server: StandIn) -> None:
    ask(page, "Remember")
    page.reload()
    expect(questions(page)).to_have_text("Remember")
    expect(answers(page)).to_have_text("Hello there.")
    expect(page.locator(".body .by-1")).to_have_text(" there")  # and where it came from
    ask(page, "Next")
    assert roles(server)[:2] == [("user", "Remember"), ("assistant", "Hello there.")]


def test_a_reload_in_the_middle_keeps_what_was_said(page: Page, server: StandIn) -> None:
    server.replies.append(SLOW)
    say(page, "Count")
    expect(answers(page)).to_have_text("One two")
    page.reload()
    expect(answers(page)).to_have_text("One two")
    expect(page.locator(".note")).to_contain_text("before the answer was finished")
    server.go.set()
    act(page, messages(page).last, "Answer again")
    expect(answers(page)).to_have_text("Hello there.")


def test_a_new_chat_is_empty_and_the_old_one_is_kept(page: Page, server: StandIn) -> None:
    ask(page, "Old")
    page.get_by_role("button", name="New").click()
    expect(messages(page)).to_have_count(0)
    ask(page, "Fresh")
    assert roles(server) == [("user", "Fresh")]
    page.get_by_role("button", name="Chats").click()
    entries = page.locator(".entry span")
    expect(entries).to_have_text(["Fresh", "Old"])
    entries.last.click()
    expect(questions(page)).to_have_text("Old")
    page.get_by_role("button", name="Chats").click()
    page.get_by_role("button", name="Delete the chat “Old”").click()
    expect(entries).to_have_text(["Fresh"])
    page.keyboard.press("Escape")
    expect(messages(page)).to_have_count(0)


def test_two_tabs_do_not_lose_each_others_words(
    context: BrowserContext, page: Page, server: StandIn
) -> None:
    ask(page, "First")
    other = context.new_page()
    other.goto(server.url)
    expect(questions(other)).to_have_text("First")  # a new tab shows the latest chat
    ask(other, "Second")
    expect(questions(page)).to_have_text(["First", "Second"])
    # Both at once: the tab in which an answer is coming goes on as a chat of its own.
    server.replies.append(SLOW)
    say(page, "Third here")
    expect(answers(page).last).to_have_text("One two")
    ask(other, "Third there")
    server.go.set()
    finished(page)
    page.get_by_role("button", name="Chats").click()
    expect(page.locator(".entry")).to_have_count(2)
    page.reload()
    expect(questions(page).last).to_have_text("Third here")
    other.reload()
    expect(questions(other).last).to_have_text("Third there")


def test_system_prompt_and_sampling_are_sent_and_kept(page: Page, server: StandIn) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    values = {"Temperature": "0,7", "Top-p": "0.9", "Top-k": "40", "Min-p": "0.05"}
    values |= {"Most tokens": "300", "Seed": "18446744073709551615"}
    for name, value in values.items():
        page.get_by_label(name, exact=True).fill(value)
    page.get_by_text("None", exact=True).click()
    page.get_by_role("button", name="Done").click()
    page.reload()
    ask(page)
    asked = server.asked[-1]
    assert roles(server)[0] == ("system", "Be brief.")
    fields = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "draft")
    expected = (0.7, 0.9, 40, 0.05, 300, 2**64 - 1, "none")
    assert tuple(asked[name] for name in fields) == expected
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Back to the defaults").click()
    page.keyboard.press("Escape")
    ask(page, "Again")
    assert "temperature" not in server.asked[-1]
    assert server.asked[-1]["draft"] == "auto"
