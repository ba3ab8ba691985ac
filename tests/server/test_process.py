"""`divine serve` as a process: what it says, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from divine.cli.main import execute

from .conftest import BANNED, CHAT, HELLO, Process

Serve = Callable[..., Process]


def test_it_says_where_it_is_idles_and_ends_cleanly(serve: Serve) -> None:
    process = serve("--alias", "mine,other", "--log-requests")
    assert process.lines[-1].startswith("serving tiny.gguf at http://127.0.0.1:")
    ids = [one["id"] for one in httpx.get(process.url + "/v1/models").json()["data"]]
    assert ids == ["mine"]
    for name, status in (("other", 200), ("tiny", 200), ("else", 404)):
        assert httpx.get(f"{process.url}/v1/models/{name}").status_code == status
    httpx.post(process.url + CHAT, json={"messages": HELLO, "max_tokens": 2}, timeout=60)

    def used() -> int:
        fields = Path(f"/proc/{process.popen.pid}/stat").read_text().rsplit(")")[1].split()
        return int(fields[11]) + int(fields[12])  # clock ticks

    # Not a measurement: whatever polls would use far more than this in a second.
    threading.Event().wait(0.3)
    before = used()
    threading.Event().wait(1.5)
    assert used() - before <= 0.05 * os.sysconf("SC_CLK_TCK")
    assert process.end(signal.SIGINT) == 0
    log = "\n".join(process.lines)
    assert "Traceback" not in log
    assert "POST /v1/chat/completions 200" in log


def test_sigterm_lets_requests_finish(serve: Serve) -> None:
    process = serve("--host", "0.0.0.0", DIVINE_API_KEY="secret")
    assert len(process.lines) == 1  # with a key there is nothing to warn of
    url = process.url.replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(url + "/v1/models").status_code == 401
    headers = {"authorization": "Bearer secret"}
    body = {"messages": HELLO, "logit_bias": BANNED, "max_tokens": 150, "stream": True}
    with httpx.stream("POST", url + CHAT, json=body, headers=headers, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        process.popen.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert "data: [DONE]" in rest
    assert process.popen.wait(20) == 0


def test_sigterm_cuts_at_the_deadline(serve: Serve) -> None:
    process = serve("--grace", "0.3", "--parallel", "2")
    body: dict[str, Any] = {"messages": HELLO, "logit_bias": BANNED, "max_tokens": 4000}
    statuses: list[int] = []

    def wait() -> None:
        statuses.append(httpx.post(process.url + CHAT, json=body, timeout=60).status_code)

    waiting = threading.Thread(target=wait)
    with httpx.stream(
        "POST", process.url + CHAT, json={**body, "stream": True}, timeout=60
    ) as response:
        lines = response.iter_lines()
        next(lines)
        waiting.start()
        while httpx.get(process.url + "/health").json()["running"] < 2:
            pass
        process.popen.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    waiting.join()
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert statuses == [503]
    assert process.popen.wait(20) == 0


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The one sentence with which a command line is refused."""
    assert execute(["serve", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("divine: ")
    return line


def test_a_taken_port_is_told_in_one_sentence(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused(capsys, str(tiny), "--port", port)
    assert port in line
    assert "in use" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--port", "99999"), "--port"),
        (("--host", "no such host"), "--host"),
        (("--parallel", "0"), "--parallel"),
        (("--api-key", ""), "API key"),
        (("--draft-max", "3"), "-md"),
        (("--port", "0", "--ctx", "9999999"), "--ctx is"),
        (("-ngl", "3"), "-ngl"),
    ],
)
def test_wrong_options_are_told_in_one_sentence(
    tiny: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert words in refused(capsys, str(tiny), *options)


def test_a_missing_extra_is_told(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "uvicorn" else object()
    )
    assert "divine-llm[server]" in refused(capsys, str(tiny))


def test_outside_without_a_key_is_warned_of(serve: Serve) -> None:
    process = serve("--host", "0.0.0.0")
    assert "warning" in process.lines[0]
    assert "--api-key" in process.lines[0]
    assert process.end() == 0
