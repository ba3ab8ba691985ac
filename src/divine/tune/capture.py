"""Capturing: the model answers prompts, many sequences a pass, into a folder of answers.

Answers are written in the order of the prompts, so what a folder holds is a function of prompts and
settings, however often the run was stopped and taken up again. Given answers (conversations that
have one already) are read instead of generated. Knows the engine and the store; not training.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from divine.backends.prefixes import Prefixes
from divine.checks import check_integer
from divine.drafting import Controller, CostTable, prior_of
from divine.engine import Engine, Request
from divine.engine import Sequence as EngineSequence
from divine.errors import CapacityError, DivineError, NumericError, TemplateError, UsageError
from divine.program.program import FINAL_TAP
from divine.sampling import SamplingParams
from divine.tune.answers import MAX_STATE, Answer, AnswerWriter, Finish
from divine.tune.base import Base
from divine.tune.conversations import Conversation, Skipped
from divine.tune.recorder import Recorder

Progress = Callable[["Captured"], None]

_LOOP = 64  # tokens at an answer's end that repeat with a period of at most _PERIOD: it loops
_PERIOD = 32
_LOOK_EVERY = 16  # tokens between two looks


@dataclass(frozen=True)
class CaptureSettings:
    """How to capture.

    tokens         stop when so many tokens of answers are there; None: all prompts
    answer_tokens  the most of one answer
    prompt_tokens  longer prompts are left out
    sequences      answered at a time; changes the speed and nothing else
    temperature    0 is greedy
    states         keep hidden states, 2 * dim bytes for each token
    given          conversations hold their answers: read those
    """

    tokens: int | None = None
    answer_tokens: int = 256
    prompt_tokens: int = 256
    sequences: int = 32
    temperature: float = 0.0
    seed: int = 0
    states: bool = True
    given: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError for values that are not allowed."""
        if self.tokens is not None:
            check_integer("tokens", self.tokens, 1, None)
        check_integer("answer_tokens", self.answer_tokens, 1, None)
        check_integer("prompt_tokens", self.prompt_tokens, 1, None)
        check_integer("sequences", self.sequences, 1, 1024)
        check_integer("seed", self.seed, 0, 2**31 - 1)
        SamplingParams(temperature=self.temperature)

    @property
    def kept(self) -> dict[str, Any]:
        """Those that a folder's content depends on."""
        free = ("tokens", "sequences")
        return {name: value for name, value in asdict(self).items() if name not in free}


@dataclass
class Captured:
    """How far a run has come."""

    tokens: int  # of answers, earlier runs included
    wanted: int | None
    answers: int
    prompts: int  # done or left out, of `of`
    of: int
    run_tokens: int = 0  # of answers, in this run


def capture(
    base: Base,
    prompts: Sequence[Conversation],
    folder: Path,
    settings: CaptureSettings,
    *,
    source: dict[str, Any],
    progress: Progress | None = None,
) -> tuple[Captured, Skipped]:
    """Answer the prompts into `folder`, going on where an earlier run has stopped.

    `source` identifies the prompts; it is kept in the folder, and a folder made from others is
    refused. Raises UsageError, CapacityError (what was written stays whole), FormatError.
    """
    program = base.program
    kept = {
        "base": base.path.name,
        "fingerprint": base.fingerprint,
        "dim": program.dim,
        "vocabulary": program.vocabulary,
        **settings.kept,
        "source": source,
    }
    skipped = Skipped()
    with AnswerWriter(folder, kept) as writer:
        start = max(writer.numbers, default=-1) + 1
        state = Captured(
            writer.answer_tokens, settings.tokens, len(writer.numbers), start, len(prompts)
        )
        if _enough(state) or start >= len(prompts):
            return state, skipped
        run = _Run(base, prompts, settings, skipped)
        with contextlib.closing(run):
            for answer, number in run.answers(start):
                state.prompts = number + 1
                if answer is not None:
                    writer.append(answer)
                    state.answers += 1
                    state.tokens = writer.answer_tokens
                    state.run_tokens += len(answer.answer)
                    if _enough(state):
                        break
                if progress is not None:
                    progress(state)
    return state, skipped


def _enough(state: Captured) -> bool:
    return state.wanted is not None and state.tokens >= state.wanted


class _Run:
    """One engine at work on a list of prompts."""

    def __init__(
        self,
        base: Base,
        prompts: Sequence[Conversation],
        settings: CaptureSettings,
        skipped: Skipped,
    ) -> None:
        self._base = base
        self._prompts = prompts
        self._settings = settings
        self._skipped = skipped
        self._recorder = Recorder(prompts=settings.given)
        executable = base.executable
        if settings.states and FINAL_TAP not in executable.tap_names:
            raise UsageError(f"{base.path} has no tap {FINAL_TAP!r}; capture without states")
        longest = settings.prompt_tokens + settings.answer_tokens + 1
        costs = CostTable(prior_of(base.program, base.file, executable.threads))
        self._engine = Engine(
            executable,
            context=min(longest, base.program.context),
            new_decoder=_NoText,
            end_ids=base.tokenizer.end_ids,
            max_sequences=settings.sequences,
            # One state is kept: the next sequence takes it over with what prompts have in common.
            prefixes=Prefixes(kept_states=0 if settings.given else 1),
            controller=Controller(
                costs,
                {Recorder.name: self._recorder},
                executable.vocabulary,
                executable.max_rows,
            ),
        )

    def answers(self, start: int) -> Iterator[tuple[Answer | None, int]]:
        """Answers in the order of the prompts, from number `start`; None for one left out."""
        next_in, next_out = start, start
        running: deque[tuple[int, EngineSequence, int]] = deque()
        done: dict[int, Answer | None] = {}
        while next_out < len(self._prompts):
            # A few more than run, so that a place is taken in the step in which it becomes free.
            while next_in < len(self._prompts) and len(running) < self._settings.sequences + 4:
                added = self._add(next_in)
                if added is None:
                    done[next_in] = None
                else:
                    running.append((next_in, *added))
                next_in += 1
            self._engine.step()
            for _ in range(len(running)):
                number, sequence, prompt = running.popleft()
                if self._ended(sequence):
                    done[number] = self._take(number, sequence, prompt)
                else:
                    running.append((number, sequence, prompt))
            while next_out in done:
                yield done.pop(next_out), next_out
                next_out += 1

    def close(self) -> None:
        """Cancel what is running and free the states."""
        self._engine.close()

    def _add(self, number: int) -> tuple[EngineSequence, int] | None:
        """A sequence for a prompt, and the tokens that are not its answer; None if left out."""
        settings, conversation = self._settings, self._prompts[number]
        try:
            tokens, prompt = self._encode(conversation)
        except (TemplateError, UsageError):
            self._skipped.add("refused by the chat template")
            return None
        if prompt > settings.prompt_tokens or prompt >= self._engine.context:
            self._skipped.add(f"longer than {settings.prompt_tokens} tokens")
            return None
        params = SamplingParams(
            temperature=settings.temperature, seed=(settings.seed << 32) + number
        )
        request = Request(
            prompt=tokens,
            params=params,
            max_tokens=1 if settings.given else settings.answer_tokens,
            drafters=(Recorder.name,) if settings.states else (),
            draft_nodes=0,
        )
        return self._engine.add(request), prompt

    def _encode(self, conversation: Conversation) -> tuple[list[int], int]:
        messages = conversation.messages
        if not self._settings.given:
            tokens = self._base.encode(messages, answered=False)
            return tokens, len(tokens)
        prompt = self._base.encode(messages[:-1], answered=False)
        tokens = self._base.encode(messages, answered=True)
        if tokens[: len(prompt)] != prompt:
            raise TemplateError("the template writes an answer otherwise than it asks for one")
        most = min(len(prompt) + self._settings.answer_tokens, self._engine.context - 1)
        return tokens[:most], len(prompt)

    def _ended(self, sequence: EngineSequence) -> bool:
        if not sequence.done and not self._settings.given:
            count = len(sequence.tokens) - sequence.prompt_length
            if count >= _LOOP and count % _LOOK_EVERY == 0 and loops(sequence.tokens):
                self._engine.cancel(sequence)
        return sequence.done

    def _take(self, number: int, sequence: EngineSequence, prompt: int) -> Answer | None:
        error = sequence.error
        if error is not None:
            self._recorder.drop(sequence.tokens)
            if isinstance(error, NumericError):
                self._skipped.add("without finite numbers")
                return None
            raise error if isinstance(error, DivineError) else CapacityError(str(error))
        tokens = sequence.tokens
        if self._settings.given:
            tokens = tokens[: sequence.prompt_length]
        elif sequence.end_token is not None:
            tokens = [*tokens, sequence.end_token]
        count = len(tokens) - prompt
        finish = _FINISH[sequence.finish_reason or "length"]
        states = np.zeros((0, self._base.program.dim), np.float32)
        if self._settings.states:
            # Of a given answer the row of its last token was run too, and chose one that is unused.
            extra = 1 if self._settings.given else 0
            states = self._recorder.take(sequence.tokens, count + extra)[:count]
        if count == 0:
            self._skipped.add("without an answer")
            return None
        return Answer(
            number,
            np.array(tokens, np.int32),
            prompt,
            np.clip(states, -MAX_STATE, MAX_STATE).astype(np.float16),
            finish,
        )


_FINISH = {"stop": Finish.STOP, "length": Finish.LENGTH, "cancelled": Finish.LOOP}


def loops(tokens: Sequence[int]) -> bool:
    """The last tokens repeat: what comes is a loop, which lookups draft better than anything."""
    end = tokens[-_LOOP:]
    return any(
        end[period:] == end[:-period]
        for period in range(1, _PERIOD + 1)
        if end[-1] == end[-1 - period]
    )


class _NoText:
    """A decoder for sequences whose text nobody reads."""

    def push(self, id_: int) -> str:
        return ""

    def finish(self) -> str:
        return ""
