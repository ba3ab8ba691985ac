"""What every request passes before it reaches an endpoint: host, key, counting, logging.

Plain ASGI, so that streams pass through untouched. Keys are compared in constant time; on loopback
without a key only names of this computer are served, so that no web page can reach the server by a
name that it controls.
"""

from __future__ import annotations

import hmac
import ipaddress
import sys
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from divine.server.answering import JsonResponse
from divine.server.metrics import Metrics
from divine.server.refusals import Refusal
from divine.server.settings import Settings

_OPEN_PATHS = frozenset({"/health", "/openapi.json"})
_CLOSED = ("/v1/", "/metrics", "/api/")
_KNOWN_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/models",
    "/health",
    "/metrics",
)


class Gate:
    """ASGI middleware; outermost but for CORS."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._keys = [key.encode() for key in settings.api_keys]
        self._guards_host = settings.loopback and not settings.api_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0

        async def watching(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        path: str = scope["path"]
        try:
            refusal = self._check(path, Headers(scope=scope))
            if refusal is not None:
                await refused(refusal, path)(scope, receive, watching)
            else:
                await self._app(scope, receive, watching)
        finally:
            known = path if path in _KNOWN_PATHS else "other"
            self._metrics.requests.labels(known, str(status)).inc()
            if self._settings.log_requests:
                seconds = time.perf_counter() - began
                line = f"{scope['method']} {path} {status} {seconds:.3f} s"
                print(ascii(line)[1:-1], file=sys.stderr, flush=True)  # noqa: T201

    def _check(self, path: str, headers: Headers) -> Refusal | None:
        if self._guards_host and not _is_local(headers.get("host", ""), self._settings.host):
            return Refusal(403, "Host names another computer; use 127.0.0.1 or localhost")
        if not self._keys or path in _OPEN_PATHS or not path.startswith(_CLOSED):
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if self._knows(given.encode()):
            return None
        found = "is wrong" if given else "is missing"
        return Refusal(
            401,
            f"the API key {found}; send Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _knows(self, given: bytes) -> bool:
        """Whether it is one of the keys; takes as long for every wrong one."""
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        return any(matches)


def refused(refusal: Refusal, path: str) -> JsonResponse:
    """The response to a refused request, in the shape of the API that was asked."""
    anthropic = path.startswith("/v1/messages")
    body = refusal.anthropic() if anthropic else refusal.openai()
    return JsonResponse(body, status_code=refusal.status, headers=refusal.headers)


def _is_local(host: str, own: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").lower()
    if name in ("", "localhost", own.lower()) or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
