"""The page on the real server: the contract between them, on a tiny model and on a real one."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_support import answers, ask, finished, say
from playwright.sync_api import Page, expect

from divine.errors import DownloadError
from divine.store import resolve
from tiny_models import tiny_llama

KEY = "sesame"
LONG = 4000  # tokens; more than can come before a test presses Stop


def serve(path: Path, *options: str) -> Iterator[str]:
    """The address of a `divine serve` that lives as long as this generator."""
    command = [sys.executable, "-m", "divine", "serve", str(path), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = next(
            line.split(" at ")[1].split()[0] for line in process.stderr if " at http" in line
        )
        yield f"{url}/"
        process.terminate()
        process.stderr.read()
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tiny_llama(tmp_path_factory.mktemp("page") / "tiny.gguf", context=8192)
    yield from serve(path, "--api-key", KEY, "-c", "8192")


def opened(page: Page, url: str, **settings: str) -> Page:
    """The page with these settings and the key, as on a second visit."""
    page.goto(url)
    page.evaluate(
        "([settings, key]) => { localStorage.clear(); sessionStorage.clear();"
        "localStorage.setItem('divine.settings', settings);"
        "sessionStorage.setItem('divine.key', key) }",
        [json.dumps({"draft": "auto", **settings}), KEY],
    )
    page.reload()
    return page


def kept(page: Page) -> dict[str, Any]:
    """The last message as the page keeps it."""
    name = "Object.keys(localStorage).find(key => key.startsWith('divine.chat.'))"
    chat: dict[str, Any] = json.loads(page.evaluate(f"localStorage[{name}]"))
    return dict(chat["messages"][-1])


def answer_of(url: str, **body: object) -> dict[str, Any]:
    """The same request without the page and without streaming."""
    request = urllib.request.Request(
        f"{url}v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return dict(json.load(response))


def check_same_as_without_page(page: Page, url: str, question: str, tokens: int) -> None:
    """Text, spans and figures of the page's last answer are those of the server."""
    message = kept(page)
    messages = [{"role": "user", "content": question}]
    answer = answer_of(url, messages=messages, max_tokens=tokens, temperature=0, draft="none")
    assert message["content"] == answer["choices"][0]["message"]["content"]
    length = len(message["content"].encode("utf-16-le")) // 2
    assert sum(piece[0] for piece in message["spans"]) == length
    usage = message["usage"]
    assert usage["tokens"] == answer["usage"]["completion_tokens"]
    accepted = sum(depth["accepted"] for depths in usage["drafts"].values() for depth in depths)
    drafted = sum(len(names.split("+")) for _, names in message["spans"] if names)
    assert drafted <= accepted + len(usage["drafts"])  # the last token may end the answer
    assert (drafted > 0) == (accepted > 0)


def test_an_answer_of_the_real_server(tab: Page, tiny_server: str) -> None:
    page = opened(tab, tiny_server, temperature="0", max_tokens="60")
    expect(page.locator("#model")).to_have_text("tiny")
    ask(page, "the the the the")
    check_same_as_without_page(page, tiny_server, "the the the the", 60)
    expect(page.locator(".figures .tokens")).to_have_text(f"{kept(page)['usage']['tokens']} tokens")


def test_every_setting_is_understood(tab: Page, tiny_server: str) -> None:
    sampling = {"temperature": "0.9", "top_p": "0.9", "top_k": "20", "min_p": "0.01"}
    seed = str(2**64 - 1)
    page = opened(tab, tiny_server, **sampling, max_tokens="8", seed=seed, system="Be brief.")
    ask(page)
    expect(page.locator(".message.assistant")).to_have_count(1)
    expect(page.locator("#notice")).to_be_hidden()
    assert kept(page)["usage"]["seed"] == seed


def test_stop_frees_the_server(tab: Page, tiny_server: str) -> None:
    page = opened(tab, tiny_server, temperature="1", seed="1", max_tokens=str(LONG))
    say(page, "hello")
    expect(page.locator(".figures .tokens")).to_be_visible()
    page.keyboard.press("Escape")
    finished(page)
    page.wait_for_function(
        "() => fetch('health').then(r => r.json()).then(health => health.running === 0)"
    )


def test_a_refusal_of_the_real_server(tab: Page, tiny_server: str) -> None:
    page = opened(tab, tiny_server)
    say(page, "hello " * 9000)
    expect(page.locator("#notice")).to_contain_text("context")
    expect(answers(page)).to_have_count(0)


@pytest.mark.model
def test_a_real_model(tab: Page) -> None:
    try:
        path = resolve("smollm2")
    except DownloadError as error:
        pytest.skip(str(error))
    for url in serve(path, "--api-key", KEY):
        page = opened(tab, url, temperature="0", max_tokens="40")
        ask(page, "Count from one to five, twice.")
        check_same_as_without_page(page, url, "Count from one to five, twice.", 40)
        ask(page, "Again.")
        expect(answers(page)).to_have_count(2)
