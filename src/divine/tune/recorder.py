"""Recorder: a drafter that drafts nothing and keeps the hidden states of committed rows.

The seam of drafters shows every committed row with its taps, so recording needs nothing of the
engine. Sequences are known by their list of tokens, which is the engine's own. Knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from divine.drafting import Budget, DraftTask, DraftTree
from divine.drafting.base import FreeDrafter
from divine.program.program import FINAL_TAP
from divine.sampling import Histories


class Recorder(FreeDrafter):
    """Records sequences until take() fetches their states."""

    name = "recorder"
    taps: tuple[str, ...] = (FINAL_TAP,)

    def __init__(self, *, prompts: bool) -> None:
        """`prompts`: keep the states of whole prompts, not only of their last row."""
        self._prompts = prompts
        self._sessions: dict[int, _Session] = {}

    def begin(self, task: DraftTask) -> _Session:
        """A session for one sequence."""
        session = self._sessions[id(task.tokens)] = _Session(task, self._prompts)
        return session

    def take(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        """float32 [rows, dim]: states of the last `rows` committed rows; they are forgotten here.

        `tokens`: the sequence's own list.
        """
        return self._sessions.pop(id(tokens)).last(rows)

    def drop(self, tokens: Sequence[int]) -> None:
        """Forget a sequence, recorded or not."""
        self._sessions.pop(id(tokens), None)


class _Session:
    def __init__(self, task: DraftTask, prompts: bool) -> None:
        self._prompts = prompts
        self.tokens = task.tokens  # kept, so that the id stays its own
        self._prompt_length = task.prompt_length
        self._states: list[NDArray[np.float32]] = []

    def cost_ms(self, depth: int) -> float:
        return 0.0

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        return DraftTree()

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        states = taps[FINAL_TAP]
        if not self._prompts and len(self.tokens) == self._prompt_length:
            states = states[-1:]  # of a prompt only the last row chooses a token
            self._states.clear()
        self._states.append(states)

    def close(self) -> None:
        """What was recorded stays until it is taken."""

    def last(self, rows: int) -> NDArray[np.float32]:
        states = np.concatenate(self._states)
        assert len(states) >= rows
        return states[len(states) - rows :]
