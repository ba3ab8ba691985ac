"""States of finished sequences, kept for prompts that begin with the same tokens.

A row's numbers depend on its own history only, so a reused state gives the same bits as a new one.
Compares tokens, never text. What no kept state knows may be in a store on disk, where what comes to
be kept is copied to. Knows states and tokens, no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import State
from divine.backends.prefix_store import BLOCK, PrefixStore

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

    def __init__(
        self,
        kept_states: int = KEPT_STATES,
        kept_bytes: int = KEPT_BYTES,
        store: PrefixStore | None = None,
    ) -> None:
        self._store = store
        self._kept_states = kept_states
        self._kept_bytes = kept_bytes
        self._kept: list[_Kept] = []  # oldest use first

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, prompt: Sequence[int], new_state: Callable[[], State]) -> State:
        """A state whose committed tokens begin the prompt, all but its last token at most; an
        empty one if nothing that is useful for it is kept.
        """
        tokens = np.asarray(prompt[:-1], dtype=np.int32)
        best, common = None, 0
        for kept in self._kept:
            length = common_prefix(kept.tokens, tokens)
            if length > common:
                best, common = kept, length
        if best is not None and not self._usable(best, common):
            best, common = None, 0
        state = self._from_store(tokens, common, new_state)
        if state is not None and (state.length or best not in self._kept):
            return state
        if best is None:
            return state or self._recycle() or new_state()
        if state is not None:
            state.close()
        return self._known(best, common)

    def _from_store(
        self, tokens: NDArray[np.int32], common: int, new_state: Callable[[], State]
    ) -> State | None:
        """A state from disk if that has clearly more than `common` tokens of these.

        It is empty if what is there was found damaged only then; it may be one that was kept.
        """
        if self._store is None:
            return None
        keys = self._store.longest(tokens.tolist())
        if len(keys) * BLOCK < common + FORK_FROM:
            return None
        state = self._recycle() or new_state()
        self._store.load(keys, state)
        if state.length <= common:
            state.truncate(0)
        return state

    def _usable(self, kept: _Kept, common: int) -> bool:
        """Whether it is worth taking for what is common: all but a little, or enough to copy."""
        loss = len(kept.tokens) - common
        return loss <= SMALL_LOSS or self._kept_states == 1 or common >= FORK_FROM

    def _known(self, best: _Kept, common: int) -> State:
        """A kept state that is usable, or a copy of it, with only what is common."""
        if len(best.tokens) - common <= SMALL_LOSS or self._kept_states == 1:
            self._kept.remove(best)
            state = best.state
        else:
            self._touch(best)
            state = best.state.fork()
        state.truncate(common)
        return state

    def common(self, prompt: NDArray[np.int32]) -> int:
        """How many tokens of the prompt the best state kept in memory has."""
        return max((common_prefix(kept.tokens, prompt) for kept in self._kept), default=0)

    def fresh(self, new_state: Callable[[], State]) -> State:
        """An empty state."""
        return self._recycle() or new_state()

    def _recycle(self) -> State | None:
        """The oldest state, emptied, if one more would exceed the limits: saves an allocation."""
        if not self._kept or self._fits(self._kept[-1].state.nbytes):
            return None
        state = self._kept.pop(0).state
        state.truncate(0)
        return state

    def put(self, tokens: Sequence[int], state: State) -> None:
        """Keep the state, which has committed `tokens`; old ones give way."""
        if self._store is not None:
            self._store.save(tokens, state)
        if not tokens or self._kept_states == 0:
            state.close()
            return
        while self._kept and not self._fits(state.nbytes):
            self._kept.pop(0).state.close()
        self._kept.append(_Kept(np.array(tokens, dtype=np.int32), state))

    def close(self) -> None:
        """Free all of them; what is to be on disk is there afterwards."""
        self.clear()
        if self._store is not None:
            self._store.close()

    def clear(self) -> None:
        """Free all of them; what is on disk stays."""
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
