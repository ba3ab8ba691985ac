"""States of finished sequences, kept for prompts that begin with the same tokens.

A row's numbers depend on its own history only, so a reused state gives the same bits as a new one.
Compares tokens, never text. Knows states and tokens, no requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import State

KEPT_STATES = 4
KEPT_BYTES = 2**30
FORK_FROM = 64  # a shorter common prefix is cheaper to compute than to copy
SMALL_LOSS = 16  # tokens of a state that may be lost without keeping a copy


@dataclass(eq=False)
class _Kept:
    tokens: NDArray[np.int32]
    state: State


class Prefixes:
    """Keeps the states used last, within a number and a size; the newest is always kept."""

    def __init__(self, kept_states: int = KEPT_STATES, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_states = kept_states
        self._kept_bytes = kept_bytes
        self._kept: list[_Kept] = []  # oldest use first

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, prompt: Sequence[int]) -> State | None:
        """A state whose committed tokens begin the prompt, all but its last token at most.

        None if no kept state has a useful common prefix with it.
        """
        tokens = np.asarray(prompt[:-1], dtype=np.int32)
        best, common = None, 0
        for kept in self._kept:
            length = common_prefix(kept.tokens, tokens)
            if length > common:
                best, common = kept, length
        if best is None:
            return None
        if len(best.tokens) - common <= SMALL_LOSS or self._kept_states == 1:
            self._kept.remove(best)
            state = best.state
        elif common >= FORK_FROM:
            self._touch(best)
            state = best.state.fork()
        else:
            return None
        state.truncate(common)
        return state

    def common(self, prompt: NDArray[np.int32]) -> int:
        """How many tokens of the prompt the best kept state has."""
        return max((common_prefix(kept.tokens, prompt) for kept in self._kept), default=0)

    def recycle(self) -> State | None:
        """The oldest state, emptied, if one more would exceed the limits: saves an allocation."""
        if not self._kept or self._fits(self._kept[-1].state.nbytes):
            return None
        state = self._kept.pop(0).state
        state.truncate(0)
        return state

    def put(self, tokens: Sequence[int], state: State) -> None:
        """Keep the state, which has committed `tokens`; old ones give way."""
        if not tokens or self._kept_states == 0:
            state.close()
            return
        while self._kept and not self._fits(state.nbytes):
            self._kept.pop(0).state.close()
        self._kept.append(_Kept(np.array(tokens, dtype=np.int32), state))

    def clear(self) -> None:
        """Free all of them."""
        for kept in self._kept:
            kept.state.close()
        self._kept.clear()

    def _fits(self, nbytes: int) -> bool:
        total = nbytes + sum(kept.state.nbytes for kept in self._kept)
        return len(self._kept) < self._kept_states and total <= self._kept_bytes

    def _touch(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        self._kept.append(kept)


def common_prefix(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """How many tokens both begin with."""
    shorter = min(len(a), len(b))
    different = a[:shorter] != b[:shorter]
    return int(np.argmax(different)) if different.any() else shorter
