"""A server for the page's tests: serves the page's files and answers requests as a test tells it.

It speaks the contract between page and server (SSE chunks with spans, a last chunk with
usage.divine) and nothing more; what it answers next is a queue of `Reply`, each of which can pause
until `go` is set, break off, or refuse. What was asked is kept in `asked`. It knows no model.
"""

from __future__ import annotations

import json
import mimetypes
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import divine

PAGE = Path(divine.__file__).parent / "server" / "page"
CSP = "default-src 'self'"

Piece = tuple[str, Sequence[str]]  # text, drafters that had guessed it


@dataclass
class Reply:
    """What to answer, piece by piece.

    After `pause_after` pieces it waits for StandIn.go, after `break_after` it hangs up.
    With a status other than 200 it is an error with `message`.
    """

    pieces: Sequence[Piece] = (("Hello", ()), (" there", ("ngram",)), (".", ()))
    pause_after: int | None = None
    break_after: int | None = None
    status: int = 200
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    finish: str = "stop"
    drafts: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    error_in_stream: str = ""


class StandIn:
    """The running server: `url`, `replies` to come, `asked` bodies, `keys` allowed (none: all)."""

    def __init__(self) -> None:
        self.replies: deque[Reply] = deque()
        self.asked: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.keys: set[str] = set()
        self.go = threading.Event()
        self.hung_up = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def close(self) -> None:
        """Stop listening; streams that wait are let go."""
        self.go.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


def chunks(reply: Reply, pieces: Sequence[Piece], before: int) -> Iterator[dict[str, Any]]:
    """The chunks of some pieces, `before` of which went ahead of them."""
    for number, (text, names) in enumerate(pieces, before + 1):
        spans = [{"text": text, "drafted_by": list(names)}]
        passes = sum(not drafted for _, drafted in reply.pieces[:number])
        yield {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": text},
                    "finish_reason": None,
                    "divine": {"spans": spans, "tokens": number, "passes": passes},
                }
            ]
        }


def last_chunk(reply: Reply) -> dict[str, Any]:
    """finish_reason and usage.divine, worked out from the pieces."""
    tokens = len(reply.pieces)
    passes = max(1, sum(not drafted for _, drafted in reply.pieces))
    figures = {
        "tokens": tokens,
        "passes": passes,
        "tokens_per_pass": tokens / passes,
        "tokens_per_second": 41.7,
        "speedup": 1.62,
        "prefill_seconds": 0.21,
        "reused_tokens": 0,
        "seed": 17446744073709551615,
        "drafts": reply.drafts,
    }
    return {
        "choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish}],
        "usage": {"completion_tokens": tokens, "divine": figures | reply.figures},
    }


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                if self._allowed():
                    self._json(200, {"object": "list", "data": [{"id": "stand-in"}]})
                return
            path = PAGE / (self.path.split("?", 1)[0].lstrip("/") or "index.html")
            if not path.resolve().is_relative_to(PAGE) or not path.is_file():
                self._json(404, {"error": {"message": f"no such file: {self.path}"}})
                return
            self.send_response(200)
            self.send_header("Content-Type", mimetypes.guess_type(path.name)[0] or "text/plain")
            self.send_header("Content-Security-Policy", CSP)
            self.end_headers()
            self.wfile.write(path.read_bytes())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self._allowed():
                return
            stand_in.asked.append(body)
            reply = stand_in.replies.popleft() if stand_in.replies else Reply()
            if reply.status != 200:
                self._json(reply.status, {"error": {"message": reply.message}}, reply.headers)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                self._stream(reply)
            except OSError:
                stand_in.hung_up.set()

        def _stream(self, reply: Reply) -> None:
            first = len(reply.pieces) if reply.pause_after is None else reply.pause_after
            for number, chunk in enumerate(chunks(reply, reply.pieces[:first], 0)):
                if number == reply.break_after:
                    return
                self._event(chunk)
            if reply.pause_after is not None:
                while not stand_in.go.wait(0.02):
                    self._write(": waiting\n\n")  # fails once the page has hung up
            for chunk in chunks(reply, reply.pieces[first:], first):
                self._event(chunk)
            if reply.error_in_stream:
                self._event({"error": {"message": reply.error_in_stream}})
                return
            self._event(last_chunk(reply))
            self._write("data: [DONE]\n\n")

        def _event(self, chunk: dict[str, Any]) -> None:
            self._write(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n")

        def _write(self, text: str) -> None:
            self.wfile.write(text.encode())
            self.wfile.flush()

        def _allowed(self) -> bool:
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            stand_in.authorizations.append(given)
            if not stand_in.keys or given in stand_in.keys:
                return True
            self._json(401, {"error": {"message": "The API key is missing or wrong."}})
            return False

        def _json(
            self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None
        ) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
