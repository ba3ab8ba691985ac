"""The engine: many sequences, one executable, a loop of passes.

step() is the whole story. Any thread may add, cancel and step; a lock makes steps follow each
other. Sequences end on their own account: an error of one (a NaN, no memory) is its reader's to
raise.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import Cancelled, Executable, KvType, PassResult
from divine.backends.prefixes import Prefixes
from divine.checks import check_integer
from divine.drafting import Controller, DraftTree, Walk
from divine.engine.admission import Admission
from divine.engine.embedding import embed_in_chunks
from divine.engine.passes import LONG_ROWS, Choices, PassRunner
from divine.engine.scheduler import Scheduler, Slice
from divine.engine.sequence import OWN, Decoder, Request, Sequence
from divine.engine.speculation import Speculation, accept
from divine.errors import CapacityError, DivineError, NumericError, UsageError
from divine.sampling import Sampler

MAX_LOGPROBS = 20
_NOTHING = Walk([], [])
POLL_SECONDS = 0.005  # how often a thread looks whether another one's step served it


class Engine:
    """Generates for many sequences in shared passes."""

    def __init__(
        self,
        executable: Executable,
        *,
        context: int,
        new_decoder: Callable[[], Decoder],
        end_ids: frozenset[int] = frozenset(),
        kv_type: KvType = "f16",
        max_sequences: int = 16,
        prefixes: Prefixes | None = None,
        controller: Controller | None = None,
        read_seconds: float | None = None,
    ) -> None:
        """`context`: the most tokens of a sequence, prompt and answer together.

        `read_seconds`: of a pass that reads a prompt while no other sequence runs; None is no
        bound, since such a pass can be cancelled. Without a controller nothing is drafted.
        """
        self.context = context
        self._executable = executable
        self._new_decoder = new_decoder
        self._end_ids = end_ids
        self._kv_type: KvType = kv_type
        self._max_sequences = max_sequences
        self._prefixes = Prefixes() if prefixes is None else prefixes
        self._admission = Admission(executable, self._prefixes, context, kv_type)
        self._scheduler = Scheduler(executable.max_rows, read_seconds)
        self._passes = PassRunner(executable)
        self._speculation = None if controller is None else Speculation(controller, context)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._in_pass: SequenceOf[Slice] = ()
        self._lock = threading.RLock()
        self._arriving = threading.Lock()
        self._closed = False
        _open_engines.add(self)

    def add(self, request: Request) -> Sequence:
        """Queue a request.

        Raises UsageError for values that are not allowed, CapacityError for a prompt that leaves no
        room in the context.
        """
        prompt, vocabulary = request.prompt, self._executable.vocabulary
        self._check_tokens(prompt)
        if request.max_tokens is not None:
            check_integer("max_tokens", request.max_tokens, 0, None)
        if request.logprobs is not None:
            check_integer("logprobs", request.logprobs, 0, MAX_LOGPROBS)
        room = self.context - len(prompt)
        if room < 1:
            raise CapacityError(
                f"the prompt of {len(prompt)} tokens exceeds the context of {self.context} tokens, "
                "of which at least one is for the answer"
            )
        limit = room if request.max_tokens is None else min(room, request.max_tokens)
        sampler = Sampler(request.params, vocabulary, request.choice, request.constraint)
        decoder = (request.new_decoder or self._new_decoder)()
        sequence = Sequence(request, sampler, decoder, self._end_ids, limit)
        if not sequence.done:
            with self._arriving:  # not the lock: it would wait for a pass
                if self._closed:
                    raise UsageError("the model is closed")
                self._waiting.append(sequence)
        return sequence

    def step(self) -> bool:
        """One pass: schedule, draft, run, accept, collect. False if no sequence is left to run."""
        with self._lock:
            began = time.perf_counter()
            self._admit()
            slices = self._scheduler.plan(self._running)
            if not slices:
                return False
            try:
                if self._speculation is not None:
                    self._speculation.draft(slices)
                drafted = time.perf_counter()
                for parts, result in self._run(slices):
                    self._count(parts, result, self._accept(parts, result), began, drafted)
            except BaseException:
                for sequence in self._running:
                    sequence.rewind()
                raise
            self._collect()
            return True

    def advance(self, sequence: Sequence) -> None:
        """Step until the sequence has news; steps of other threads count."""
        while not sequence.has_news():
            # With a timeout: a thread that steps in a loop may keep the lock from all others.
            if self._lock.acquire(timeout=POLL_SECONDS):
                try:
                    if not sequence.has_news() and not self.step():
                        break
                finally:
                    self._lock.release()
        assert sequence.has_news()

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence now, from any thread: what it has said so far stays."""
        self.abandon(sequence)
        while not sequence.done:
            if self._lock.acquire(timeout=POLL_SECONDS):
                try:
                    self._collect()
                    if not sequence.done:  # it was neither waiting nor running
                        sequence.finish("cancelled")
                finally:
                    self._lock.release()

    def abandon(self, sequence: Sequence) -> None:
        """Mark a sequence for its end, from any thread; the next step ends it.

        A pass that may take seconds, or a drafter busy with it, is cut short.
        """
        sequence.cancelled = True
        if self._speculation is not None:
            self._speculation.cancel(sequence)
        for part in self._in_pass:
            if part.sequence is sequence and part.count > LONG_ROWS:
                self._executable.cancel()

    @property
    def load(self) -> tuple[int, int]:
        """How many sequences run, and how many wait for room among them."""
        return len(self._running), len(self._waiting)

    def embedding(self, tokens: SequenceOf[int]) -> Iterator[NDArray[np.float32] | None]:
        """Mean of the tap "final" over the tokens, chunk by chunk; see embed_in_chunks()."""
        self._check_tokens(tokens)
        if len(tokens) > self.context:
            raise CapacityError(
                f"the input of {len(tokens)} tokens exceeds the context of {self.context} tokens"
            )
        return embed_in_chunks(self._executable, tokens, self._kv_type, self._lock)

    def close(self) -> None:
        """Cancel everything and free the states; nothing can be added any more."""
        with self._arriving:
            self._closed = True
        self._executable.cancel()
        if self._speculation is not None:
            self._speculation.controller.cancel()
        with self._lock:
            for sequence in (*self._running, *self._waiting):
                sequence.cancelled = True
            self._collect()
            self._prefixes.close()

    def forget(self) -> None:
        """Free what is kept for prompts that begin the same, by drafters too."""
        with self._lock:
            self._prefixes.clear()
            if self._speculation is not None:
                self._speculation.controller.forget()

    def _check_tokens(self, tokens: SequenceOf[int]) -> None:
        if not tokens:
            raise UsageError("the prompt is empty; at least one token is needed")
        vocabulary = self._executable.vocabulary
        for index, token in enumerate(tokens):
            if not 0 <= token < vocabulary:
                raise UsageError(
                    f"prompt token {index} is {token}; the vocabulary has tokens 0 to "
                    f"{vocabulary - 1}"
                )

    def _admit(self) -> None:
        """Give states to waiting sequences, in order, while there is room."""
        self._collect()
        if not self._waiting or len(self._running) >= self._max_sequences:
            return
        with self._arriving:
            waiting = list(islice(self._waiting, 4 * self._max_sequences))
        for sequence in waiting:
            if len(self._running) >= self._max_sequences:
                return
            if sequence in self._running:  # an interruption came between the last two lines
                self._leave_queue(sequence)
                continue
            try:
                state = self._admission.state_for(sequence, self._running)
            except DivineError as error:
                sequence.fail(error)
                self._leave_queue(sequence)
                continue
            if state is None:
                continue
            sequence.committed = sequence.meter.reused_tokens = state.length
            sequence.state = state
            if self._speculation is not None:
                self._speculation.begin(sequence)
            self._running.append(sequence)
            self._leave_queue(sequence)

    def _leave_queue(self, sequence: Sequence) -> None:
        with self._arriving:
            self._waiting.remove(sequence)

    def _run(self, slices: SequenceOf[Slice]) -> Iterator[tuple[SequenceOf[Slice], PassResult]]:
        """Run the slices: in one pass, or one by one, undrafted, if numbers are not finite."""
        self._in_pass = slices
        try:
            result = self._passes.run(slices)
        except Cancelled:
            return  # states are as before; whoever cancelled is collected, the others go on
        except NumericError as error:
            if any(part.tree for part in slices):
                # It may come from a guess, which plain decoding would never have run.
                for part in slices:
                    part.tree = DraftTree()
                yield from self._run(slices)
                return
            if len(slices) == 1:
                slices[0].sequence.fail(error)
                return
        else:
            yield slices, result
            return
        finally:
            self._in_pass = ()
        for part in slices:
            yield from self._run([part])

    def _accept(self, slices: SequenceOf[Slice], result: PassResult) -> list[int]:
        """Walk each slice, commit its path, append its tokens; how many choices each has used."""
        counts = []
        for part in slices:
            sequence = part.sequence
            choices = Choices(part, result)
            part.decoded = sequence.decoding
            walked = _NOTHING
            try:
                if part.chooses:
                    walked = accept(part, choices)
                counts.append(_commit(part, walked, choices))
            except Exception as error:  # noqa: BLE001 - its reader gets it, the others go on
                sequence.fail(error)
                counts.append(0)
                continue
            if self._speculation is not None:
                self._speculation.settle(part, walked, choices, result)
        return counts

    def _count(
        self,
        slices: SequenceOf[Slice],
        result: PassResult,
        counts: list[int],
        began: float,
        drafted: float,
    ) -> None:
        ended = time.perf_counter()
        seconds = ended - began
        rows = 0
        for part, chosen in zip(slices, counts, strict=True):
            rows += part.rows
            meter = part.sequence.meter
            if part.decoded:
                plain = 0.0
                if self._speculation is not None:
                    plain = self._speculation.plain_seconds(part.sequence.committed)
                meter.decode(seconds, result.native_seconds, chosen, plain * chosen)
            else:
                meter.prefill(seconds, result.native_seconds)
        self._scheduler.observe(rows, seconds)
        if self._speculation is not None:
            self._speculation.observe(slices, ended - drafted)

    def _collect(self) -> None:
        """Take out what has ended; keep its state for prompts that begin the same."""
        ended = [s for s in self._running if s.done or s.cancelled]
        for sequence in ended:
            self._running.remove(sequence)
            if self._speculation is not None:
                self._speculation.end(sequence)
            state, sequence.state = sequence.state, None
            assert state is not None
            if sequence.error is not None:
                state.close()
            else:
                self._prefixes.put(sequence.tokens[: sequence.committed], state)
        with self._arriving:
            for sequence in [s for s in self._waiting if s.cancelled]:
                self._waiting.remove(sequence)
                ended.append(sequence)
        for sequence in ended:
            if not sequence.done:
                sequence.finish("cancelled")


def _commit(part: Slice, walked: Walk, choices: Choices) -> int:
    """Commit the path and append the tokens; how many of them came before the sequence's end."""
    sequence, state = part.sequence, part.sequence.state
    assert state is not None
    nodes = [part.root + 1 + node for node in walked.nodes]
    state.commit([*range(part.first, part.root + 1), *nodes])
    sequence.committed += part.count + len(nodes)
    used = 0
    for token in walked.tokens:
        drafted = used < len(nodes)
        source = part.tree.sources[walked.nodes[used]] if drafted else OWN
        sequence.append(token, choices.logprobs[used] if choices.logprobs else None, source)
        used += 1
        if sequence.done:
            sequence.meter.cut = len(walked.tokens) - used
            break
    if sequence.committed > len(sequence.tokens):
        sequence.committed = len(sequence.tokens)
        state.truncate(sequence.committed)
    return used


_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
os.register_at_fork(after_in_child=_open_engines.clear)  # their locks may be held by no one there


@atexit.register
def _close_all() -> None:
    """A daemon thread that came back from a pass into an ending interpreter would abort it."""
    for engine in list(_open_engines):
        engine.close()
