"""From settings to a server that listens, and its end: sockets, signals, uvicorn.

The socket is bound before the model is loaded, so that a taken port is told at once. SIGTERM and
SIGINT stop accepting, give running requests their time, then cut them; a second one cuts at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from divine.api import Model
from divine.errors import UsageError
from divine.server.app import build_app
from divine.server.context import Server
from divine.server.guard import guarded_protocol
from divine.server.metrics import Metrics
from divine.server.settings import Settings
from divine.server.worker import Worker

_MAX_HEADER_BYTES = 65536
_KEEP_ALIVE_SECONDS = 30
_LAST_SECONDS = 5  # for requests that were cut to end their responses
_BACKLOG = 512


def serve(
    load: Callable[[], Model],
    path: Path,
    settings: Settings,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the model that `load` loads until a signal ends it; `ready` gets the address.

    `path` is the model's file, for its name. Raises UsageError if the address cannot be used, and
    what loading raises.
    """
    listener = bind(settings)
    try:
        with load() as model:
            serve_on(listener, model, path, settings, ready)
    finally:
        listener.close()


def serve_on(
    listener: socket.socket,
    model: Model,
    path: Path,
    settings: Settings,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """The same with a bound socket and a loaded model, both of which stay the caller's."""
    metrics = Metrics()
    worker = Worker(model, settings, metrics)
    metrics.watch(lambda: (*model.load_now, worker.open))
    server = Server(model, path, settings, metrics, worker)
    try:
        running = Running(configure(server), worker, settings, lambda: ready(address(listener)))
        running.run([listener])
    finally:
        worker.close()


def configure(server: Server) -> uvicorn.Config:
    """uvicorn's configuration for a server."""
    # What it says is about clients, who are told themselves.
    logger = logging.getLogger("uvicorn")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return uvicorn.Config(
        build_app(server),
        http=guarded_protocol(server.settings),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(server.settings.grace) + _LAST_SECONDS,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
    )


def bind(settings: Settings) -> socket.socket:
    """A socket at the address, not listening yet. Raises UsageError."""
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--host is {settings.host!r}, which is no address: {_reason(error)}"
        ) from None
    family, kind, protocol, _, where = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen at {settings.host} port {settings.port}: {_reason(error)}; "
            "choose others with --host and --port"
        ) from None
    return listener


def address(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _reason(error: Exception) -> str:
    words = getattr(error, "strerror", None) or str(error)
    return words[:1].lower() + words[1:]


class Running(uvicorn.Server):
    """uvicorn with our signals: both end the server with exit code 0."""

    def __init__(
        self,
        config: uvicorn.Config,
        worker: Worker,
        settings: Settings,
        ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._worker = worker
        self._settings = settings
        self._ready = ready
        self._ending = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """While serving; does not raise them again afterwards."""
        loop = asyncio.get_running_loop()
        caught: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
        try:
            for number in caught:
                loop.add_signal_handler(number, self._end)
        except (ValueError, RuntimeError, NotImplementedError):  # not the main thread
            caught = ()
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """What a signal does, from another thread; the second call cuts what is running."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        """Stop accepting; cut what has not ended in time, at the second signal at once."""
        self._worker.refuse_more()
        if self._ending:
            self._worker.cut()
            return
        self._ending = self.should_exit = True
        asyncio.get_running_loop().call_later(self._settings.grace, self._worker.cut)
