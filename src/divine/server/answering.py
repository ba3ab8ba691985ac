"""From a job to an HTTP response: all at once, or as an event stream while it comes.

A client that goes away ends its job. Errors before the first piece have their own status; later
ones are an event, after which the stream ends without its usual end. Knows no API's shapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from divine.api import Completion
from divine.server.formats import Format, Frame, encode_frame, encode_json
from divine.server.jobs import Ended, Event, Job, Piece
from divine.server.metrics import Metrics
from divine.server.refusals import refusal_of

_Result = TypeVar("_Result")
WAIT_SECONDS = 10.0  # without a piece, after which a stream is opened, or says that it is alive
_ALIVE = b": waiting\n\n"


class ClientGone(Exception):  # noqa: N818 - nothing to answer any more
    """The client closed its connection."""


class JsonResponse(Response):
    """A JSON object; any text in it is fine."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes."""
        return encode_json(content)


async def answer(
    receive: Receive, job: Job, format: Format, stream: bool, metrics: Metrics
) -> Response:
    """The response to a request whose job has begun. Raises what the job failed with."""
    try:
        if stream:
            first = await while_connected(receive, _first(job))
            return EventStream(job, format, first, metrics)
        completions = await while_connected(receive, _all(job))
        job.close()
        return JsonResponse(format.whole(completions))
    except ClientGone:
        metrics.cancelled.inc()
        job.close()
        return Response(status_code=499)  # to nobody
    except BaseException:
        job.close()
        raise


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of `work`; raises ClientGone, and cancels it, when the client goes first."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, gone):
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class EventStream(Response):
    """Server-sent events of one job."""

    media_type = "text/event-stream"

    def __init__(self, job: Job, format: Format, first: Event | None, metrics: Metrics) -> None:
        super().__init__(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._job = job
        self._format = format
        self._first = first
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it, or until the client has gone."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await while_connected(receive, self._send_all(send))
        except ClientGone:
            self._metrics.cancelled.inc()
        finally:
            self._job.close()

    async def _send_all(self, send: Send) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        try:
            await self._send_events(write)
        except Exception as error:  # noqa: BLE001 - the status has been sent
            await write(encode_frame(self._format.failed(refusal_of(error))), more=False)
        else:
            await write(self._format.end, more=False)

    async def _send_events(self, write: Any) -> None:
        await write(_joined(self._format.opening()))
        ends: dict[int, Completion] = {}
        event = self._first
        while len(ends) < len(self._job.streams):
            if event is None:
                event = await _first(self._job)
                if event is None:
                    await write(_ALIVE)
                    continue
            data = b""
            while event is not None:  # several pieces that came at once go out at once
                data += _joined(self._frames(event, ends))
                event = _ready(self._job)
            if data:
                await write(data)
        completions = [ends[index] for index in range(len(ends))]
        await write(_joined(self._format.closing(completions)))

    def _frames(self, event: Event, ends: dict[int, Completion]) -> list[Frame]:
        if isinstance(event, Piece):
            return self._format.piece(event)
        if isinstance(event, Ended):
            ends[event.index] = event.completion
            return self._format.ended(event)
        raise event


def _joined(frames: list[Frame]) -> bytes:
    return b"".join(map(encode_frame, frames))


async def _first(job: Job) -> Event | None:
    """The next event, or None if it takes long; raises what the request failed with."""
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await job.next()
    except TimeoutError:
        return None


def _ready(job: Job) -> Event | None:
    return None if job.events.empty() else job.events.get_nowait()


async def _all(job: Job) -> list[Completion]:
    ends: dict[int, Completion] = {}
    while len(ends) < len(job.streams):
        event = await job.next()
        if isinstance(event, Ended):
            ends[event.index] = event.completion
    return [ends[index] for index in range(len(ends))]


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
