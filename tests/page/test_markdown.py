"""Markdown of answers, and that nothing in an answer can become more than text and formatting."""

from __future__ import annotations

import re

from page_support import answers, ask, questions
from playwright.sync_api import Browser, BrowserContext, Page, expect
from stand_in import Reply, StandIn

HTML = [
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit=1'>",
    "<svg onload=window.hit=1></svg>",
    "text <b onmouseover=window.hit=1>bold</b>",
    "a <iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
    "<style>body{display:none}</style>",
    "[x](javascript:window.hit=1)",
    "[x](JaVaScRiPt&colon;window.hit=1)",
    "[x](<java\tscript:window.hit=1>)",
    "[x](data:text/html,<script>parent.hit=1</script>)",
    "[x](vbscript:hit)",
    "[x](javascript\\:window.hit=1)",
    "[x](\\javascript:window.hit=1)",
    "![x](javascript:window.hit=1)",
    '![x](http://127.0.0.1:1/a.png" onerror="window.hit=1)',
    "<javascript:window.hit=1>",
    "[x][y]\n\n[y]: javascript:window.hit=1",
    "```html\n<script>window.hit=1</script>\n```",
    "`<img src=x onerror=window.hit=1>`",
    "| <img src=x onerror=window.hit=1> | b |\n|--|--|\n| <script>window.hit=1</script> | 2 |",
    "&lt;img src=x onerror=window.hit=1&gt; &#60;script&#62;",
    "# <a href='javascript:window.hit=1'>x</a>",
    '```"><img src=x onerror=window.hit=1>\ncode\n```',
    "<!-- --><img src=x onerror=window.hit=1> <![CDATA[ <b> ]]> <?php ?>",
]
TAGS = (
    "p,h3,h4,h5,h6,em,strong,s,code,pre,ul,ol,li,blockquote,hr,br,a,span,"
    "figure,figcaption,button,div,table,thead,tbody,tr,th,td"
)


def shown(page: Page, server: StandIn, text: str, size: int = 3) -> None:
    """Have an answer with this text, in small pieces."""
    pieces = [(text[at : at + size], ()) for at in range(0, len(text), size)]
    server.replies.append(Reply(pieces=pieces))
    ask(page)


def assert_harmless(page: Page) -> None:
    """No script ran, no element is there but those of Markdown, no link leads elsewhere."""
    assert page.evaluate("window.hit") is None
    strange = f".body :not({TAGS})"
    assert page.locator(strange).count() == 0
    handlers = "[...document.querySelectorAll('.message *')].flatMap(e => e.getAttributeNames())"
    assert [name for name in page.evaluate(handlers) if name.startswith("on")] == []
    for link in page.locator(".body a").all():
        assert re.match(r"(https?://|mailto:)", link.get_attribute("href") or "")
        assert "noopener" in (link.get_attribute("rel") or "")
    expect(page.locator("#prompt")).to_be_visible()


def test_html_of_the_model_is_text(page: Page, server: StandIn) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    for attack in HTML:
        shown(page, server, attack)
    assert_harmless(page)
    expect(answers(page).first).to_have_text(HTML[0])
    expect(answers(page).nth(1)).to_have_text(HTML[1])
    page.reload()
    expect(answers(page)).to_have_count(len(HTML))
    assert_harmless(page)
    assert all(url.startswith(server.url) for url in requests)


def test_html_from_elsewhere_is_text(page: Page, server: StandIn) -> None:
    drafters = ["<img src=x onerror=window.hit=1>", '"><script>window.hit=1</script>']
    page.keyboard.press("Alt+d")
    depth = {"drafted": 2, "accepted": 1, "rejected": 1, "unreached": 0}
    server.replies.append(
        Reply(pieces=[("a", ()), ("b", drafters)], drafts={name: [depth] for name in drafters})
    )
    ask(page, HTML[1])
    expect(questions(page)).to_have_text(HTML[1])
    server.replies.append(Reply(status=400, message=HTML[1]))
    ask(page, HTML[0])
    expect(page.locator("#notice")).to_contain_text(HTML[1])
    assert_harmless(page)
    page.get_by_role("button", name="Chats").click()
    expect(page.locator(".entry span")).to_have_text(HTML[1])
    assert_harmless(page)


def test_the_policy_stops_what_the_page_does_not_do(browser: Browser, server: StandIn) -> None:
    page = (
        browser.new_page()
    )  # not `page`, whose console is watched: the browser reports what it stops
    page.goto(server.url)
    blocked = page.evaluate(
        """() => {
            try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; }
            return 'set';
        }"""
    )
    page.close()
    assert blocked == "TypeError"  # Trusted Types: no markup from strings, whoever tries


MARKDOWN = """\
# Title
Some *soft*, **strong**, ~~gone~~ and `code`.
A second line

> quoted
> more

3. three
4. four
   - nested

- [x] done
- [ ] open

| a | b |
|:--|--:|
| 1 | 2 |
| | 4 |

```py
def f(x):
    return x[0] < 1 & 2
```

A [link](https://example.org/a?b=1&amp;c=2\\_d), <https://example.com> and row[0] or [this];
\\*plain\\*, 3 &lt; 4.
"""


def test_markdown_is_formatted(page: Page, server: StandIn) -> None:
    shown(page, server, MARKDOWN, size=2)
    body = answers(page)
    expect(body.locator("h3")).to_have_text("Title")
    for tag, text in [("em", "soft"), ("strong", "strong"), ("s", "gone"), ("p > code", "code")]:
        expect(body.locator(tag)).to_have_text(text)
    expect(body.locator("blockquote br")).to_have_count(1)
    expect(body.locator("ol")).to_have_attribute("start", "3")
    expect(body.locator("ol ul li")).to_have_text("nested")
    expect(body.locator(".box")).to_have_text(["☑", "☐"])
    assert body.locator("td").all_text_contents() == ["1", "2", "", "4"]
    expect(body.locator("td.end")).to_have_text(["2", "4"])
    assert body.locator("pre").text_content() == "def f(x):\n    return x[0] < 1 & 2"
    expect(body.locator("figcaption span")).to_have_text("py")
    links = [link.get_attribute("href") for link in body.locator("a").all()]
    assert links == ["https://example.org/a?b=1&c=2_d", "https://example.com"]
    last = "A link, https://example.com and row[0] or [this];*plain*, 3 < 4."
    expect(body.locator(":scope > p").last).to_have_text(last)


def test_a_question_stays_as_written_but_for_its_code(page: Page, server: StandIn) -> None:
    ask(page, "Is *this* <b>fine</b>?\n\n```py\nx = 1\n```\n\n- and\n  this")
    body = questions(page)
    assert body.locator("p").all_text_contents() == ["Is *this* <b>fine</b>?", "- and\n  this"]
    assert body.locator("pre").text_content() == "x = 1"
    expect(body.locator(":is(em, b, li)")).to_have_count(0)


def test_streamed_in_pieces_is_the_same_as_at_once(page: Page, server: StandIn) -> None:
    shown(page, server, MARKDOWN, size=1)
    streamed = answers(page).inner_html()
    page.reload()
    expect(answers(page)).to_contain_text("Title")
    assert answers(page).inner_html() == streamed


def test_code_and_messages_can_be_copied(
    context: BrowserContext, page: Page, server: StandIn
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
    text = "Look:\n\n```py\nx = 1\n\ny = 2\n```\n"
    shown(page, server, text)
    button = page.get_by_role("button", name="Copy this code")
    button.click()
    expect(button).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1\n\ny = 2"
    page.get_by_role("button", name="Copy this message").last.click()
    page.wait_for_function(
        "text => navigator.clipboard.readText().then(read => read === text)", arg=text
    )
