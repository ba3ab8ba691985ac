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
from tests.server.conftest import BANNED, CHAT, HELLO, Process

from tiny_models import tiny_llama

Serve = Callable[..., Process]


def test_it_says_where_it_is_and_ends_cleanly(serve: Serve) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        process = serve()
        assert process.lines[-1].startswith("serving tiny.gguf at http://127.0.0.1:")
        assert httpx.get(process.url + "/health").json()["status"] == "ok"
        assert process.end(number) == 0
        assert "Traceback" not in "".join(process.lines)


def test_sigterm_lets_requests_finish(serve: Serve) -> None:
    process = serve()
    body = {"messages": HELLO, "logit_bias": BANNED, "max_tokens": 150, "stream": True}
    with httpx.stream("POST", process.url + CHAT, json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        process.popen.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert rest[-1] == "" or rest[-1] == "data: [DONE]"
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


def test_a_taken_port_is_told_in_one_sentence(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = serve("--port", port)
        assert process.popen.wait(30) == 2
    assert len(process.lines) == 1
    assert port in process.lines[0]
    assert "in use" in process.lines[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--port", "99999"), "--port"),
        (("--host", "no such host"), "--host"),
        (("--parallel", "0"), "--parallel"),
        (("--draft-max", "3"), "-md"),
        (("--ctx", "9999999"), "context"),
        (("-ngl", "3"), "-ngl"),
    ],
)
def test_wrong_options_are_told_in_one_sentence(
    serve: Serve, options: tuple[str, ...], words: str
) -> None:
    process = serve(*options)
    assert process.popen.wait(30) == 2
    assert len(process.lines) == 1
    assert words in process.lines[0]


def test_keys_and_the_warning(serve: Serve) -> None:
    process = serve("--host", "0.0.0.0")
    assert "warning" in process.lines[0]
    assert "--api-key" in process.lines[0]
    process.end()
    process = serve("--host", "0.0.0.0", "--log-requests", DIVINE_API_KEY="secret")
    assert len(process.lines) == 1
    local = process.url.replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(local + "/v1/models").status_code == 401
    headers = {"authorization": "Bearer secret"}
    assert httpx.get(local + "/v1/models", headers=headers).status_code == 200
    process.end()
    log = "\n".join(process.lines)
    assert "GET /v1/models 401" in log
    assert "secret" not in log


def test_an_idle_server_uses_no_time(serve: Serve) -> None:
    """Not a measurement: whatever polls would use far more than this in a second."""
    process = serve()
    httpx.post(process.url + CHAT, json={"messages": HELLO, "max_tokens": 2}, timeout=60)

    def used() -> int:
        fields = Path(f"/proc/{process.popen.pid}/stat").read_text().rsplit(")")[1].split()
        return int(fields[11]) + int(fields[12])  # clock ticks

    threading.Event().wait(0.3)
    before = used()
    threading.Event().wait(1.5)
    assert used() - before <= 0.05 * os.sysconf("SC_CLK_TCK")


def test_aliases_name_the_model(serve: Serve, tmp_path: Path) -> None:
    process = serve("--alias", "mine,other", path=tiny_llama(tmp_path / "a.gguf"))
    ids = [one["id"] for one in httpx.get(process.url + "/v1/models").json()["data"]]
    assert ids == ["mine"]
    for name, status in (("other", 200), ("a", 200), ("tiny", 404)):
        assert httpx.get(f"{process.url}/v1/models/{name}").status_code == status
