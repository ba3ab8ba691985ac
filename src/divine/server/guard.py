"""The HTTP protocol with limits on time: slow headers, and clients that do not read.

uvicorn bounds the size of headers and the time between requests, but neither how long headers may
trickle in nor how long a full socket may stay full. Bodies are bounded in bodies.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from divine.server.settings import Settings


class GuardedProtocol(H11Protocol):
    """One connection; see guarded_protocol()."""

    settings: Settings
    _slow_reader: asyncio.TimerHandle | None = None
    _slow_headers: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Headers are awaited from now on."""
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Part of a request: its headers once they are complete, then its body."""
        if self._idle and self._slow_headers is None:
            self._expect_headers()
        super().data_received(data)
        if not self._idle:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read as fast as we write."""
        super().pause_writing()
        if self._slow_reader is None:
            self._slow_reader = self.loop.call_later(
                self.settings.write_seconds, self.transport.abort
            )

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        if self._slow_reader is not None:
            self._slow_reader.cancel()
            self._slow_reader = None

    @property
    def _idle(self) -> bool:
        """No request is being answered."""
        cycle: Any = self.cycle  # None before the first request, whatever its annotation says
        return cycle is None or bool(cycle.response_complete)

    def _expect_headers(self) -> None:
        self._slow_headers = self.loop.call_later(
            self.settings.header_seconds, self.transport.close
        )

    def _stop_waiting(self) -> None:
        if self._slow_headers is not None:
            self._slow_headers.cancel()
            self._slow_headers = None


def guarded_protocol(limits: Settings) -> type[asyncio.Protocol]:
    """The protocol class with these limits; uvicorn makes one for each connection."""
    return type("GuardedProtocol", (GuardedProtocol,), {"settings": limits})
