"""Keys, hosts, origins and the page's headers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.conftest import CHAT, HELLO, Running, running

from divine.api import Model
from divine.errors import UsageError
from divine.server.settings import Settings

KEYS = ("first-key", "second-key")
ORIGIN = "http://localhost:3000"


@pytest.fixture(scope="module")
def locked(model: Model, tiny: Path) -> Iterator[Running]:
    with running(model, tiny, api_keys=KEYS, cors=(ORIGIN,)) as started:
        yield started


def test_keys_are_asked_for(locked: Running) -> None:
    body = {"messages": HELLO, "max_tokens": 1}
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic first-key"},
        {"authorization": "Bearer first-ke"},
        {"x-api-key": "wrong"},
        {"authorization": "Bearer"},
    ):
        response = locked.client.post(CHAT, json=body, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    for key in KEYS:
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
            assert locked.client.post(CHAT, json=body, headers=headers).status_code == 200
    response = locked.client.post("/v1/messages", json=body)
    assert response.json()["error"]["type"] == "authentication_error"


def test_what_needs_no_key(locked: Running) -> None:
    assert locked.client.get("/health").status_code == 200
    assert locked.client.get("/openapi.json").status_code == 200
    for path in ("/v1/models", "/metrics", "/v1/nothing"):
        assert locked.client.get(path).status_code == 401


def test_preflight_needs_no_key(locked: Running) -> None:
    asked = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    response = locked.client.options(CHAT, headers=asked)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == ORIGIN
    other = locked.client.options(CHAT, headers={**asked, "origin": "http://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_no_cors_unless_asked_for(server: Running) -> None:
    response = server.client.options(
        CHAT, headers={"origin": ORIGIN, "access-control-request-method": "POST"}
    )
    assert response.status_code == 405
    response = server.client.get("/health", headers={"origin": ORIGIN})
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_names_of_other_computers_are_refused(server: Running) -> None:
    """A page could point its own name at this computer and then read what we answer."""
    for host, status in (
        ("evil.example", 403),
        ("evil.example:80", 403),
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
    ):
        response = server.client.get("/v1/models", headers={"host": host})
        assert response.status_code == status


def test_settings_are_checked() -> None:
    for wrong, words in (
        ({"port": 70000}, "--port"),
        ({"parallel": 0}, "--parallel"),
        ({"queue": -1}, "--queue"),
        ({"timeout": 0}, "--timeout"),
        ({"api_keys": ("",)}, "API key"),
        ({"api_keys": ("a\nb",)}, "API key"),
        ({"cors": ("localhost",)}, "--cors"),
        ({"host": ""}, "--host"),
    ):
        with pytest.raises(UsageError, match=words):
            Settings(**wrong)  # type: ignore[arg-type]


def test_loopback_is_known() -> None:
    for host, loopback in (
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("192.168.1.5", False),
        ("example.com", False),
    ):
        assert Settings(host=host).loopback is loopback


def test_http_1_0_and_pipelining(server: Running) -> None:
    with socket.create_connection(server.listener.getsockname()) as raw:
        raw.settimeout(10)
        raw.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        answer = b""
        while part := raw.recv(4096):
            answer += part
        assert b"200 OK" in answer
    with socket.create_connection(server.listener.getsockname()) as raw:
        raw.settimeout(10)
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
        answer = b""
        while answer.count(b"200 OK") < 3:
            answer += raw.recv(4096)
