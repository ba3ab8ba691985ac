"""A real server on a real socket, in a thread of this process or as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import divine
from divine.api import Model
from divine.server.context import Server
from divine.server.metrics import Metrics
from divine.server.run import Running as Uvicorn
from divine.server.run import address, bind, configure
from divine.server.settings import Settings
from divine.server.worker import Worker
from tiny_models import ENDOFTEXT, IM_END, tiny_llama

CONTEXT = 256
BANNED = {str(ENDOFTEXT): -100, str(IM_END): -100}  # an answer goes on to its limit
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello world"}]


class Running:
    """A server in a thread, with all that a test may want to look at."""

    def __init__(self, model: Model, path: Path, **settings: object) -> None:
        self.settings = Settings(port=0, **settings)  # type: ignore[arg-type]
        self.model = model
        self.metrics = Metrics()
        self.worker = Worker(model, self.settings, self.metrics)
        self.metrics.watch(lambda: (*model.load_now, self.worker.open))
        self.listener = bind(self.settings)
        server = Server(model, path, self.settings, self.metrics, self.worker)
        listening = threading.Event()
        self._uvicorn = Uvicorn(configure(server), self.worker, self.settings, listening.set)
        self._thread = threading.Thread(target=self._uvicorn.run, args=([self.listener],))
        self._thread.start()
        assert listening.wait(20)
        self.url = address(self.listener)
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.client.post(path, json=body)

    def chat(self, **body: object) -> httpx.Response:
        return self.post(CHAT, **{"messages": HELLO, "max_tokens": 8, **body})

    def metric(self, name: str, **labels: str) -> float:
        """The value of a sample, 0 if there is none."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def close(self) -> None:
        self.client.close()
        self._uvicorn.stop()
        self._uvicorn.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.worker.close()
        self.listener.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose text is nonsense, but always the same nonsense."""
    return tiny_llama(tmp_path_factory.mktemp("served") / "tiny.gguf", context=4096)


@pytest.fixture(scope="session")
def model(tiny: Path) -> Iterator[Model]:
    with divine.load(tiny, context=CONTEXT, max_sequences=4) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def server(model: Model, tiny: Path) -> Iterator[Running]:
    """One server for all tests that do not end it."""
    with running(model, tiny) as started:
        yield started


@contextlib.contextmanager
def running(model: Model, path: Path, **settings: object) -> Iterator[Running]:
    """A server with settings of the test's own, on a model that others may use too."""
    started = Running(model, path, **settings)
    try:
        yield started
    finally:
        started.close()


class Process:
    """`divine serve` as a process."""

    def __init__(self, path: Path, *options: str, **environment: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "divine", "serve", str(path), "--port", "0", *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.lines: list[str] = []
        self.url = ""
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.lines.append(line)
            if " at http://" in line:
                self.url = line.split(" at ")[1].split()[0]
                break

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.popen.send_signal(number)
        _, rest = self.popen.communicate(timeout=30)
        self.lines += rest.splitlines()
        return self.popen.returncode


@pytest.fixture
def serve(tiny: Path) -> Iterator[Callable[..., Process]]:
    """Start processes that are gone after the test."""
    started: list[Process] = []

    def start(*options: str, path: Path = tiny, **environment: str) -> Process:
        started.append(Process(path, *options, **environment))
        return started[-1]

    yield start
    for process in started:
        process.popen.kill()
        process.popen.communicate()
