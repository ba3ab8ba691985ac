"""Fetching from Hugging Face, against a small server that speaks what is used of its protocol."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from .conftest import assert_one_sentence, process

CONTENT = {
    "toy-Q4_K_M.gguf": b"GGUF four",
    "toy-Q8_0.gguf": b"GGUF eight",
    "big-F16-00001-of-00002.gguf": b"GGUF first",
    "big-F16-00002-of-00002.gguf": b"GGUF second",
    "README.md": b"toy",
}


class Hub(BaseHTTPRequestHandler):
    """Repository owner/toy; owner/gated needs terms; owner/liar declares other hashes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/owner/"):
            self._info(self.path.split("/")[4].split("?")[0].split("%")[0])
        else:
            self._file()

    do_HEAD = do_GET

    def _info(self, repo: str) -> None:
        if repo == "gated":
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif repo not in ("toy", "liar"):
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        else:
            siblings = [
                {"rfilename": name, "size": len(data), "lfs": self._lfs(data, repo)}
                for name, data in CONTENT.items()
            ]
            siblings.append({"rfilename": "../evil.gguf", "size": 1})
            body = {"id": f"owner/{repo}", "sha": "0" * 40, "siblings": siblings}
            self._answer(200, json.dumps(body).encode())

    @staticmethod
    def _lfs(data: bytes, repo: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest() if repo == "toy" else "f" * 64
        return {"sha256": digest, "size": len(data), "pointerSize": 1}

    def _file(self) -> None:
        data = CONTENT.get(self.path.rsplit("/", 1)[-1].split("?")[0])
        if data is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        digest = hashlib.sha256(data).hexdigest()
        self._answer(200, data, {"ETag": f'"{digest}"', "X-Repo-Commit": "0" * 40})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def pull(hub: str, name: str):
    return process("pull", name, HF_ENDPOINT=hub, NO_PROXY="127.0.0.1", HF_HUB_DISABLE_XET="1")


def test_the_preferred_file_and_a_named_one(hub, models):
    first = pull(hub, "hf:owner/toy")
    assert first.code == 0, first.err
    assert (models / "owner/toy/toy-Q4_K_M.gguf").read_bytes() == CONTENT["toy-Q4_K_M.gguf"]
    assert not (models / "owner/toy/toy-Q8_0.gguf").exists()
    second = pull(hub, "hf.co/owner/toy:toy-Q8_0.gguf")
    assert second.code == 0, second.err
    assert (models / "owner/toy/toy-Q8_0.gguf").read_bytes() == CONTENT["toy-Q8_0.gguf"]


def test_shards_come_together(hub, models):
    result = pull(hub, "hf:owner/toy:F16")
    assert result.code == 0, result.err
    assert len(list((models / "owner/toy").glob("big-*.gguf"))) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf:owner/none", ["owner/none", "no repository"]),
        ("hf:owner/gated", ["owner/gated", "HF_TOKEN"]),
        ("hf:owner/toy:Q2_K", ["nothing for 'Q2_K'", "Q4_K_M", "Q8_0"]),
        ("hf:owner/liar:Q8_0", ["SHA-256"]),
    ],
)
def test_refusals(hub, models, name, words):
    result = pull(hub, name)
    assert result.code == 1
    assert_one_sentence(result, *words)
    assert not list(models.rglob("*.gguf"))
