"""Many requests at once: the same texts, free places after cancellation, and a bounded queue."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import divine
from divine.api import Model
from divine.gguf import TensorData
from tiny_models import tiny_llama

from .conftest import BANNED, CHAT, HELLO, Running, running


def until(true: Callable[[], bool]) -> None:
    """Wait for something that another thread does at once; fails if it does not happen."""
    for _ in range(1000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def requests(count: int) -> list[dict[str, Any]]:
    rng = random.Random(1)
    words = ["hello", " world", " the", " model", " is", " and", "x", "yz "]
    return [
        {
            "messages": [
                {"role": "user", "content": "".join(rng.choices(words, k=rng.randint(1, 60)))}
            ],
            "max_tokens": rng.randint(1, 24),
            "temperature": rng.choice([0, 1]),
            "seed": index,
            "frequency_penalty": rng.choice([0, 1]),
            "draft": rng.choice(["auto", "none"]),
        }
        for index in range(count)
    ]


def text(answer: Any) -> str:
    found: str = answer["choices"][0]["message"]["content"]
    return found


@pytest.fixture(scope="module")
def endless(tiny: Path) -> Iterator[Model]:
    """With a context in which an answer does not end before a test does."""
    with divine.load(tiny, context=4096, max_sequences=4) as loaded:
        yield loaded


def test_the_same_text_alone_and_under_load(server: Running, model: Model) -> None:
    bodies = requests(48)
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda body: text(server.post(CHAT, **body).json()), bodies))
    model.forget()
    alone = [text(server.post(CHAT, **body).json()) for body in bodies]
    assert together == alone


def test_clients_that_leave_free_their_rows(server: Running) -> None:
    bodies = requests(24)
    expected = [text(server.post(CHAT, **body).json()) for body in bodies]
    rng = random.Random(2)

    def leave(body: dict[str, Any]) -> None:
        body = {**body, "max_tokens": 200, "logit_bias": BANNED, "stream": True}
        with server.client.stream("POST", CHAT, json=body) as response:
            for number, _ in enumerate(response.iter_lines()):
                if number >= rng.randint(0, 12):
                    return

    with ThreadPoolExecutor(12) as pool:
        leaving = [pool.submit(leave, body) for body in requests(24)]
        finished = list(pool.map(lambda body: text(server.post(CHAT, **body).json()), bodies))
        for one in leaving:
            one.result()
    assert finished == expected
    until(lambda: server.model.load_now == (0, 0))
    until(lambda: server.worker.open == 0)


def test_a_client_that_waits_for_everything_may_leave_too(server: Running) -> None:
    before = server.metric("divine_requests_cancelled_total")
    raw = raw_connection(server)
    send_chat(raw, messages=HELLO, logit_bias=BANNED, temperature=1)
    until(lambda: server.model.load_now[0] == 1)
    raw.close()
    until(lambda: server.model.load_now == (0, 0))
    until(lambda: server.metric("divine_requests_cancelled_total") == before + 1)


def test_too_many_requests_are_sent_away(endless: Model, tiny: Path) -> None:
    with running(endless, tiny, parallel=1, queue=1) as server:
        first, second = (raw_connection(server) for _ in range(2))
        for number, connection in enumerate((first, second)):
            send_chat(connection, messages=HELLO, logit_bias=BANNED)
            until(lambda number=number: server.worker.open == number + 1)
        third = server.chat()
        assert third.status_code == 429
        assert int(third.headers["retry-after"]) >= 1
        assert third.json()["error"]["type"] == "rate_limit_error"
        assert server.client.get("/health").status_code == 200
        assert server.metric("divine_requests_refused_total") == 1
        first.close()
        second.close()
        until(lambda: server.worker.open == 0)
        assert server.chat().status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_requests_end_at_their_timeout(endless: Model, tiny: Path, stream: bool) -> None:
    with running(endless, tiny, timeout=0.5) as server:
        response = server.chat(max_tokens=None, logit_bias=BANNED, stream=stream)
        if stream:
            assert response.status_code == 200
            assert "[DONE]" not in response.text
            last = json.loads(response.text.strip().rpartition("data: ")[2])
            assert last["error"]["code"] == "timeout"
            assert "within 0.5 s" in last["error"]["message"]
        else:
            assert response.status_code == 504
            assert response.json()["error"]["code"] == "timeout"
            assert "within 0.5 s" in response.json()["error"]["message"]
        until(lambda: server.model.load_now == (0, 0))


def test_a_model_that_breaks_breaks_nothing_else(tmp_path: Path) -> None:
    """One token's embedding is NaN: who uses it gets a 500, who runs beside it an answer."""
    table = np.random.default_rng(0).standard_normal((320, 64)).astype(np.float32) * 0.3
    head = table.copy()
    table[50] = np.nan
    path = tiny_llama(
        tmp_path / "nan.gguf",
        tied=False,
        tensor_overrides={
            "token_embd.weight": TensorData("F32", table.shape, table),
            "output.weight": TensorData("F32", head.shape, head),
        },
    )
    with divine.load(path, max_sequences=4) as model, running(model, path) as server:
        good = {"prompt": [40, 41, 42], "max_tokens": 40, "temperature": 0}
        good |= {"logit_bias": {**BANNED, "50": -100}}
        alone = server.post("/v1/completions", **good).json()["choices"]
        with ThreadPoolExecutor(6) as pool:
            bad = [
                pool.submit(server.post, "/v1/completions", prompt=[40, 50, 42], stream=stream)
                for stream in (False, True, False)
            ]
            beside = [pool.submit(server.post, "/v1/completions", **good) for _ in range(3)]
            for one in bad:
                assert one.result().status_code == 500
                assert "NaN" in one.result().json()["error"]["message"]
            for one in beside:
                assert one.result().json()["choices"] == alone


def until_end(connection: socket.socket, end: bytes) -> bytes:
    """What comes, up to `end`."""
    received = b""
    while not received.endswith(end):
        received += connection.recv(4096)
    return received


def send_chat(connection: socket.socket, **fields: Any) -> None:
    """A request whose answer somebody else may wait for."""
    body = json.dumps(fields).encode()
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )


def raw_connection(server: Running) -> socket.socket:
    host, port = server.listener.getsockname()
    connection = socket.create_connection((host, port))
    connection.settimeout(20)
    return connection


def test_slow_clients_are_sent_away(model: Model, tiny: Path) -> None:
    with running(model, tiny, header_seconds=0.3, body_seconds=0.3) as server:
        silent, trickling, half, again = (raw_connection(server) for _ in range(4))
        trickling.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")
        half.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b'Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"a'
        )
        again.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in until_end(again, b"}")
        again.sendall(b"GET /heal")
        assert server.chat().status_code == 200
        assert silent.recv(100) == b""
        assert trickling.recv(100) == b""
        assert again.recv(100) == b""
        answer = b""
        while part := half.recv(4096):
            answer += part
        assert b" 408 " in answer
        for connection in (silent, trickling, half, again):
            connection.close()


def test_connections_that_break_off(server: Running) -> None:
    for sent in (
        b"",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    ):
        for how in (socket.SHUT_WR, socket.SHUT_RDWR):
            connection = raw_connection(server)
            try:
                connection.sendall(sent)
                connection.shutdown(how)
                connection.recv(4096)
            except OSError:
                pass
            connection.close()
    assert server.chat().status_code == 200
    until(lambda: server.model.load_now == (0, 0))


def test_a_client_that_does_not_read_stalls_nobody(endless: Model, tiny: Path) -> None:
    with running(endless, tiny, write_seconds=0.5) as server:
        server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(server.listener.getsockname())
        send_chat(
            stuck,
            messages=HELLO,
            logit_bias=BANNED,
            stream=True,
            logprobs=True,
            top_logprobs=20,
            max_tokens=1000,
        )
        until(lambda: server.model.load_now[0] == 1)
        assert server.chat().status_code == 200
        until(lambda: server.metric("divine_requests_cancelled_total") == 1)
        until(lambda: server.worker.open == 0)
        stuck.close()
