"""One request while it is being answered: its streams, and what comes of them, in order.

Made by the event loop, fed by the engine's thread, read by the event loop. A job ends once: with
all its answers, with an error, or because nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from divine.api import Chunk, Completion, Stream
from divine.server.refusals import Refusal


@dataclass(frozen=True, slots=True)
class Piece:
    """More of answer number `index`; tokens and passes are those of that answer so far."""

    index: int
    chunk: Chunk
    tokens: int
    passes: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Answer number `index` is complete."""

    index: int
    completion: Completion


Event = Piece | Ended | Exception


@dataclass(eq=False)
class Job:
    """The streams of one request and the events that wait to be read.

    `began` is when the request came (time.perf_counter), for the time to its first token.
    """

    streams: Sequence[Stream]
    began: float
    loop: asyncio.AbstractEventLoop
    released: Callable[[Job], None]  # called once, on the loop: its place is free again
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    last_news: float | None = None  # when the engine's thread last had something
    closed: bool = False  # no more events are wanted; set on the loop
    finished: set[int] = field(default_factory=set)  # answers that the engine's thread is through
    _timer: asyncio.TimerHandle | None = None

    @property
    def done(self) -> bool:
        """Every answer has ended, for the engine's thread."""
        return len(self.finished) == len(self.streams)

    def collect(self) -> list[Event]:
        """What has come since the last call; called by the engine's thread, between passes."""
        events: list[Event] = []
        for index, stream in enumerate(self.streams):
            if index in self.finished:
                continue
            chunk = stream.poll()
            if chunk is not None:
                events.append(Piece(index, chunk, *stream.progress))
            if stream.done:
                self.finished.add(index)
                try:
                    events.append(Ended(index, stream.completion))
                except Exception as error:  # noqa: BLE001 - whatever it was, its reader gets it
                    events.append(error)
        return events

    def put(self, events: Sequence[Event]) -> None:
        """On the loop: let the reader have them."""
        if not self.closed:
            for event in events:
                self.events.put_nowait(event)

    async def next(self) -> Event:
        """The next event; raises what the request failed with."""
        event = await self.events.get()
        if isinstance(event, Exception):
            raise event
        return event

    def expire(self, timeout: float) -> None:
        """On the loop: fail with 504 when so many seconds have passed since it began."""
        left = max(0.0, timeout - (time.perf_counter() - self.began))
        self._timer = self.loop.call_later(left, self.fail, too_late(timeout))

    def fail(self, error: Exception) -> None:
        """On the loop: the reader gets the error next, and the rows are free at the next pass."""
        if not self.closed:
            while not self.events.empty():  # what waits there comes too late
                self.events.get_nowait()
            self.events.put_nowait(error)
            self.close()

    def close(self) -> None:
        """On the loop: nobody reads on. Answers that have not ended are cut."""
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for stream in self.streams:
            stream.abandon()
        self.released(self)


def started(streams: Sequence[Stream], released: Callable[[Job], None]) -> Job:
    """A job that begins now; called on the loop."""
    return Job(streams, time.perf_counter(), asyncio.get_running_loop(), released)


def too_late(timeout: float) -> Refusal:
    """What a request gets that has taken the time that the server was set to give."""
    return Refusal(504, f"the answer was not ready within {timeout:g} s", code="timeout")
