"""The engine's thread: the only one that runs passes, while the event loop talks with clients.

It sleeps until there is work, steps the model, and hands what has come to the loop after each pass.
Requests beyond running and waiting places are refused at once. Knows streams and jobs; nothing of
HTTP but the refusals.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divine.api import Model, Options, Prompt, Stream
from divine.server.jobs import Event, Job, started, too_late
from divine.server.metrics import Metrics
from divine.server.refusals import Refusal
from divine.server.settings import Settings

_PREPARERS = 2  # threads that render templates and tokenize
_TYPICAL_SECONDS = 5.0  # of a request, before any was seen
_SMOOTHING = 0.2
_FAILURES = 3  # passes in a row that broke: their sequences are given up

Answer = tuple[Prompt, Options]
Vector = NDArray[np.float32]


class Worker:
    """Runs one model for many requests. Everything but the thread's own loop is for the loop."""

    def __init__(self, model: Model, settings: Settings, metrics: Metrics) -> None:
        self.model = model
        self._settings = settings
        self._metrics = metrics
        self._jobs: set[Job] = set()  # open ones, as the event loop sees them
        self._pending = 0  # being prepared
        self._stopping: Refusal | None = None
        self._seconds = _TYPICAL_SECONDS
        self._preparers = ThreadPoolExecutor(_PREPARERS, "divine-prepare")
        self._condition = threading.Condition()
        self._arrived: deque[Job] = deque()  # under the condition
        self._embeddings: deque[tuple[Iterator[Vector | None], Future[Vector]]] = deque()
        self._woken = False  # under the condition: something was cancelled that is in no job
        self._ended = False  # under the condition
        self._thread = threading.Thread(target=self._run, name="divine-engine", daemon=True)
        self._thread.start()

    @property
    def open(self) -> int:
        """Requests that are running or waiting."""
        return len(self._jobs) + self._pending

    async def submit(self, answers: Callable[[], Sequence[Answer]]) -> Job:
        """Begin a request of one or more answers.

        `answers` is called in another thread, since templates and tokenizers may take a while.
        Raises Refusal 429 or 503, and what the model raises for wrong prompts and options.
        """
        self._check_room()
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        self._pending += 1
        try:
            preparing = loop.run_in_executor(self._preparers, self._open, answers)
            try:
                streams = await asyncio.shield(preparing)
            except asyncio.CancelledError:
                preparing.add_done_callback(self._drop)
                raise
        finally:
            self._pending -= 1
        job = started(streams, self._release)
        job.began = began
        self._jobs.add(job)
        self._metrics.queue_depth(self.open)
        job.expire(self._settings.timeout)
        if self._stopping is not None:
            job.fail(self._stopping)
        with self._condition:
            self._arrived.append(job)
            self._condition.notify()
        return job

    async def embed(self, tokens: Sequence[int]) -> Vector:
        """The mean of the final hidden states, float32 [dim], chunk by chunk beside the others."""
        self._check_room()
        result: Future[Vector] = Future()
        self._pending += 1
        try:
            steps = self.model.embedding(tokens)
            with self._condition:
                self._embeddings.append((steps, result))
                self._condition.notify()
            async with asyncio.timeout(self._settings.timeout):
                return await asyncio.wrap_future(result)
        except TimeoutError:
            raise too_late(self._settings.timeout) from None
        finally:
            self._pending -= 1

    async def prepare(self, work: Callable[[], Any]) -> Any:
        """The result of something that takes a while, from another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._preparers, work)

    def refuse_more(self) -> None:
        """From now on every new request is refused with 503."""
        self._stopping = Refusal(
            503,
            "the server is shutting down",
            code="shutting_down",
            headers={"Connection": "close"},
        )

    def cut(self) -> None:
        """End all requests now, with 503."""
        self.refuse_more()
        assert self._stopping is not None
        for job in list(self._jobs):
            job.fail(self._stopping)

    def close(self) -> None:
        """End the thread; the model stays open."""
        self.cut()
        with self._condition:
            self._ended = True
            self._condition.notify()
        self._thread.join()
        self._preparers.shutdown(cancel_futures=True)

    def _check_room(self) -> None:
        if self._stopping is not None:
            raise self._stopping
        if self.open >= self._settings.capacity:
            self._metrics.refused.inc()
            waves = 1 + self.open / self._settings.parallel
            seconds = round(min(60.0, max(1.0, self._seconds * waves / 2)))
            raise Refusal(
                429,
                f"{self.open} requests are running or waiting, which is the most this server "
                f"takes; try again in {seconds} s",
                code="too_many_requests",
                headers={"Retry-After": str(seconds)},
            )

    def _open(self, answers: Callable[[], Sequence[Answer]]) -> list[Stream]:
        """Open the streams of a request; all of them or none."""
        streams: list[Stream] = []
        try:
            for prompt, options in answers():
                streams.append(self.model.stream(prompt, **options))
        except BaseException:
            self._abandon(streams)
            raise
        return streams

    def _drop(self, preparing: asyncio.Future[list[Stream]]) -> None:
        """The client has gone while its request was prepared."""
        if not preparing.cancelled() and preparing.exception() is None:
            self._abandon(preparing.result())

    def _abandon(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.abandon()
        with self._condition:
            self._woken = True
            self._condition.notify()

    def _release(self, job: Job) -> None:
        self._jobs.discard(job)
        took = time.perf_counter() - job.began
        self._seconds += _SMOOTHING * (took - self._seconds)

    def _run(self) -> None:
        jobs: list[Job] = []
        failures = 0  # in a row
        while True:
            with self._condition:
                while not (self._arrived or jobs or self._embeddings or self._woken or self._ended):
                    self._condition.wait()
                if self._ended:
                    break
                self._woken = False
                jobs += self._arrived
                self._arrived.clear()
            try:
                if self._embeddings:
                    self._embed_one_chunk()
                busy = self.model.step()
                if busy:
                    self._metrics.passes.inc()
                failures = 0
            except Exception as error:  # noqa: BLE001 - the server lives on
                traceback.print_exc(file=sys.stderr)
                self._fail(jobs, error)
                busy, failures = True, failures + 1
            self._deliver(jobs)
            jobs = [job for job in jobs if not job.done]
            if jobs and (not busy or failures > _FAILURES):
                self._fail(jobs, RuntimeError("the engine left an answer behind"))
                jobs = []
        for _, result in self._embeddings:
            result.cancel()

    def _deliver(self, jobs: Sequence[Job]) -> None:
        """Give the loop what has come of all jobs, in one call."""
        now = time.perf_counter()
        news: list[tuple[Job, list[Event]]] = []
        for job in jobs:
            events = job.collect()
            if events:
                self._metrics.observe(job, events, now)
                news.append((job, events))
        if news:
            _call(news[0][0].loop, _hand_over, news)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        """Whatever broke the pass, nobody in it can go on."""
        for job in jobs:
            for stream in job.streams:
                stream.abandon()
            _call(job.loop, job.fail, error)

    def _embed_one_chunk(self) -> None:
        steps, result = self._embeddings[0]
        vector = None
        try:
            if not result.cancelled():
                vector = next(steps)
                if vector is None:
                    self._embeddings.rotate(-1)
                    return
                with contextlib.suppress(InvalidStateError):  # its reader has just left
                    result.set_result(vector)
        except Exception as error:  # noqa: BLE001 - its reader gets it
            with contextlib.suppress(InvalidStateError):
                result.set_exception(error)
        self._embeddings.popleft()


def _hand_over(news: Sequence[tuple[Job, list[Event]]]) -> None:
    for job, events in news:
        job.put(events)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:  # the loop has ended: nobody waits for it
        return
