"""A client that times what it gets: one streamed chat request, by http.client alone.

For measuring a server from outside, ours or another with the same API. Knows no model.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from divine.errors import DivineError, UsageError

CHAT = "/v1/chat/completions"


@dataclass
class Timed:
    """One answer: its text, its usage, and when its pieces came (seconds from the request)."""

    text: str = ""
    tokens: int = 0  # as the server counts them
    at: list[float] = field(default_factory=list)  # of each piece of text
    seconds: float = 0.0
    finish_reason: str | None = None  # None: it was cancelled
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> float | None:
        """Seconds to the first piece."""
        return self.at[0] if self.at else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [b - a for a, b in zip(self.at, self.at[1:], strict=False)]


class ChatClient:
    """Requests to one server; one connection for each."""

    def __init__(self, url: str, key: str | None = None, timeout: float = 600.0) -> None:
        """Raises UsageError for something that is no http address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is no address of a server; allowed is http://HOST:PORT")
        secure = parts.scheme == "https"
        self._connection = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._where = parts.hostname, parts.port
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def chat(self, body: Mapping[str, Any], *, leave_after: int | None = None) -> Timed:
        """Stream an answer; go away after so many pieces. Raises DivineError if it fails."""
        timed = Timed()
        connection = self._connection(*self._where, timeout=self._timeout)
        began = time.perf_counter()
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            connection.request("POST", CHAT, json.dumps(asked).encode(), self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise DivineError(_told(response.status, response.read(4096)))
            for event in _events(response):
                self._take(timed, event, time.perf_counter() - began)
                if leave_after is not None and len(timed.at) >= leave_after:
                    return timed
        except (OSError, http.client.HTTPException) as error:
            raise DivineError(
                f"the server broke off: {str(error) or type(error).__name__}"
            ) from error
        finally:
            connection.close()
        timed.seconds = time.perf_counter() - began
        if timed.finish_reason is None:
            raise DivineError("the server's stream ended without an end")
        return timed

    def get(self, path: str) -> Any:
        """JSON from the server. Raises DivineError."""
        connection = self._connection(*self._where, timeout=self._timeout)
        try:
            connection.request("GET", path, headers=self._headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise DivineError(f"the server does not answer: {error}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise DivineError(_told(response.status, content))
        return json.loads(content)

    def _take(self, timed: Timed, event: Mapping[str, Any], now: float) -> None:
        if "error" in event:
            raise DivineError(f"the server broke off: {event['error'].get('message')}")
        if event.get("usage"):
            timed.usage = event["usage"]
            timed.tokens = event["usage"]["completion_tokens"]
        for choice in event.get("choices", ()):
            piece = choice.get("delta", {}).get("content")
            if piece:
                timed.text += piece
                timed.at.append(now)
            timed.finish_reason = choice.get("finish_reason") or timed.finish_reason


def _events(response: http.client.HTTPResponse) -> Iterator[Mapping[str, Any]]:
    for line in response:
        data = line.strip().removeprefix(b"data: ")
        if not line.startswith(b"data: ") or data == b"[DONE]":
            continue
        yield json.loads(data)


def _told(status: int, content: bytes) -> str:
    try:
        words = json.loads(content)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        words = content[:200].decode("utf-8", "replace")
    return f"the server answers {status}: {words}"
