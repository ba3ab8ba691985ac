"""The chat page: static files of the package, with headers that keep it to itself.

Read once at start; a request can only name one of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from divine.server.refusals import Refusal

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "json": "application/json",
    "webmanifest": "application/manifest+json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
    "md": "text/plain; charset=utf-8",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class _File(NamedTuple):
    content: bytes
    media_type: str
    etag: str


class Page:
    """The files below server/page/, by their path from there."""

    def __init__(self, not_files: Mapping[str, str]) -> None:
        """`not_files`: paths of endpoints that allow another method, with that method."""
        self._not_files = not_files
        self._files = dict(_walk(files("divine.server").joinpath("page"), ""))

    def lacks(self, name: str | None) -> bool:
        """Whether the last route met a path that nothing has, with whatever method."""
        return bool(name) and name not in self._files and f"/{name}" not in self._not_files

    async def file(self, request: Request) -> Response:
        """A file, "/" being the index; raises Refusal 404."""
        name = request.path_params.get("path", "") or INDEX
        file = self._files.get(name)
        allowed = self._not_files.get("/" + name)
        if allowed is not None:
            raise HTTPException(405, headers={"Allow": allowed})
        if file is None:
            if name == INDEX:
                raise Refusal(404, "there is no page in this build; the API is below /v1")
            raise Refusal(404, nothing_at(f"/{name}"))
        headers = {**_HEADERS, "ETag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)


def nothing_at(path: str) -> str:
    """The sentence for a path that leads nowhere."""
    return f"there is nothing at {path[:80]}; the API is below /v1"


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, _File]]:
    found: list[tuple[str, _File]] = []
    if not folder.is_dir():
        return found
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        elif (kind := _TYPES.get(entry.name.rpartition(".")[2])) is not None:
            content = entry.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found.append((prefix + entry.name, _File(content, kind, etag)))
    return found
