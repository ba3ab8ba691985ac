"""Where tokens came from, the figures of an answer and the chart of acceptance by depth."""

from __future__ import annotations

from page_support import answers, ask, finished, say
from playwright.sync_api import Page, expect
from stand_in import Reply, StandIn

PIECES = [
    ("The **fast", ()),
    (" hare**", ("ngram",)),
    (" ran", ("model", "ngram")),
    (" `far", ("model",)),
    ("`", ()),
    ("\n\n", ("text",)),
    ("Äh 😀", ("surprise",)),
    ("!", ()),
]
DRAFTS = {
    "ngram": [
        {"drafted": 12, "accepted": 8, "rejected": 2, "unreached": 2},
        {"drafted": 10, "accepted": 3, "rejected": 3, "unreached": 4},
        {"drafted": 4, "accepted": 0, "rejected": 0, "unreached": 4},
    ],
    "model": [{"drafted": 5, "accepted": 5, "rejected": 0, "unreached": 0}],
    "idle": [{"drafted": 3, "accepted": 0, "rejected": 0, "unreached": 3}],
}


def tokens(page: Page) -> list[tuple[str, str]]:
    """The drafted tokens as shown: text and whose."""
    found = page.locator(".assistant .by").all()
    return [(one.text_content() or "", one.get_attribute("title") or "") for one in found]


def test_each_token_is_tinted_by_its_drafter(page: Page, server: StandIn) -> None:
    server.replies.append(Reply(pieces=PIECES))
    ask(page)
    expect(answers(page)).to_have_text("The fast hare ran farÄh 😀!")
    assert tokens(page) == [
        (" hare", "drafted by ngram"),
        (" ran", "drafted by model, ngram"),
        (" ", "drafted by model"),
        ("far", "drafted by model"),
        ("Äh 😀", "drafted by surprise"),
    ]
    expect(page.locator("strong .by-1")).to_have_text(" hare")
    token = page.locator(".by-1").first
    assert token.evaluate("e => getComputedStyle(e).backgroundImage") == "none"
    page.get_by_role("button", name="Drafts").click()
    assert "gradient" in token.evaluate("e => getComputedStyle(e).backgroundImage")
    expect(page.locator(".legend li")).to_have_text(
        [
            "own choice 3 tokens",
            "ngram 1 token",
            "model 2 tokens",
            "text 1 token",
            "surprise 1 token",
        ]
    )
    page.reload()  # remembered, text and all
    expect(page.get_by_role("button", name="Drafts")).to_have_attribute("aria-pressed", "true")
    assert len(tokens(page)) == 5


def test_tokens_are_tinted_while_they_come(page: Page, server: StandIn) -> None:
    server.replies.append(Reply(pieces=PIECES, pause_after=2))
    say(page)
    expect(page.locator(".by")).to_have_text(" hare")
    expect(page.locator(".figures")).to_contain_text("2 tokens")
    expect(page.locator(".figures")).to_contain_text("2.00 tokens per pass")
    server.go.set()
    finished(page)


def test_the_figures_are_those_of_the_server(page: Page, server: StandIn) -> None:
    server.replies.append(Reply(pieces=PIECES))
    ask(page)
    expect(page.locator(".figures span")).to_have_text(
        ["8 tokens", "41.7 tokens/s", "2.67 tokens per pass", "1.62\u00d7 plain"]
    )
    page.keyboard.press("Alt+d")
    expect(page.locator(".details")).to_have_text(
        "prompt read in 0.21 s · seed 17446744073709551615"
    )


def test_an_unknown_speed_up_is_left_out(page: Page, server: StandIn) -> None:
    unknown = {"speedup": None, "tokens_per_second": None}
    server.replies.append(Reply(pieces=[("a", ())], figures=unknown))
    ask(page)
    expect(page.locator(".figures span")).to_have_text(["1 token", "1.00 tokens per pass"])


def test_the_chart_shows_acceptance_of_what_was_judged(page: Page, server: StandIn) -> None:
    server.replies.append(Reply(pieces=PIECES, drafts=DRAFTS))
    ask(page)
    expect(page.locator(".chart")).to_be_hidden()
    page.get_by_role("button", name="Drafts").click()
    chart = page.get_by_role("img", name="Acceptance by depth")
    expect(chart).to_have_accessible_name(
        "Acceptance by depth. ngram: 80 % at depth 1, 50 % at depth 2. model: 100 % at depth 1."
    )
    assert page.locator(".chart title").all_text_contents() == [
        "ngram, depth 1: 8 of 10 accepted",
        "ngram, depth 2: 3 of 6 accepted",
        "model, depth 1: 5 of 5 accepted",
    ]
    heights = [float(one.get_attribute("cy") or 0) for one in page.locator(".chart circle").all()]
    rules = [float(one.get_attribute("y1") or 0) for one in page.locator(".chart .rule").all()]
    zero, half, full = rules
    assert heights[1] == half
    assert heights[2] == full
    assert abs(heights[0] - (zero + 0.8 * (full - zero))) < 0.01
    expect(page.locator(".chart .label")).to_have_text(["model", "ngram"])


def test_text_that_comes_later_than_its_spans_stays_aligned(page: Page, server: StandIn) -> None:
    # Spans without an end chunk's text and neighbours merged: ask twice, the second from storage.
    server.replies.append(Reply(pieces=[("", ()), ("a", ()), ("b", ()), ("c", ("ngram",))]))
    ask(page)
    assert tokens(page) == [("c", "drafted by ngram")]
    page.reload()
    expect(answers(page)).to_have_text("abc")
    assert tokens(page) == [("c", "drafted by ngram")]
