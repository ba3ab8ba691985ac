"""A tiny deterministic stand-in for a backend, and a tokenizer of bytes.

Its logits depend on every token of a row's history and nothing else, so that any slip in commits,
truncation or prefix reuse changes the text. It keeps to the contract of backends.base and checks
that its caller does.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from divine.backends.base import COMMITTED, Cancelled, PassResult, Rows, Want
from divine.errors import CapacityError, NumericError

VOCABULARY = 257
END = 256  # the others are bytes
MAX_ROWS = 64


class FakeState:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.nbytes = capacity
        self.tokens: list[int] = []
        self.pending: dict[int, tuple[int, int]] = {}  # row -> parent, token
        self.closed = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    def commit(self, path: Sequence[int]) -> None:
        assert not self.closed
        expected = COMMITTED
        for row in path:
            parent, token = self.pending[row]
            if parent != expected:
                raise ValueError("not a chain")
            if len(self.tokens) >= self.capacity:
                raise CapacityError("full")
            self.tokens.append(token)
            expected = row
        self.pending = {}

    def truncate(self, length: int) -> None:
        assert 0 <= length <= len(self.tokens)
        del self.tokens[length:]
        self.pending = {}

    def fork(self) -> FakeState:
        copy = FakeState(self.capacity)
        copy.tokens = list(self.tokens)
        return copy

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class FakeExecutable:
    """`script`: text that a greedy answer follows, whatever the prompt; then END."""

    def __init__(self, script: str | bytes | None = None, max_rows: int = MAX_ROWS) -> None:
        self.vocabulary, self.dim, self.max_rows, self.tap_names = VOCABULARY, 1, max_rows, ()
        self.script = script.encode() if isinstance(script, str) else script
        self.prompt_length = 0  # where the script begins
        self.states: list[FakeState] = []
        self.passes: list[list[int]] = []  # rows by sequence, of each pass
        self.poison: int | None = None  # a token whose successors are NaN
        self.on_run = lambda: None
        self._cancel = threading.Event()

    def new_state(self, capacity: int, kv_type: str = "f16") -> FakeState:
        self.states.append(FakeState(capacity))
        return self.states[-1]

    def run(self, states: Sequence[FakeState], rows: Rows, want: Want) -> PassResult:
        assert len({id(state) for state in states}) == len(states)
        assert 0 < len(rows) <= self.max_rows
        self._cancel.clear()
        self.passes.append(np.bincount(rows.sequences, minlength=len(states)).tolist())
        self.on_run()
        if self._cancel.is_set():
            raise Cancelled
        histories: list[list[int]] = []
        pending: list[dict[int, tuple[int, int]]] = [{} for _ in states]
        for row in range(len(rows)):
            parent, token = int(rows.parents[row]), int(rows.tokens[row])
            owner = int(rows.sequences[row])
            above = states[owner].tokens if parent == COMMITTED else histories[parent]
            histories.append([*above, token])
            pending[owner][row] = (parent, token)
        chosen = sorted({*want.best, *want.logits})
        for row in chosen:
            if self.poison in histories[row]:
                raise NumericError(f"the model produced NaN at position {len(histories[row]) - 1}")
        for state, mine in zip(states, pending, strict=True):
            state.pending = mine
        logits = {row: self.logits(histories[row]) for row in chosen}
        best = np.array([logits[row] for row in want.best]).reshape(-1, VOCABULARY)
        empty = np.zeros((0, 0))
        return PassResult(
            best_ids=best.argmax(axis=1).astype(np.int32),
            best_logits=best.max(axis=1),
            log_sum_exp=np.log(np.exp(best).sum(axis=1)),
            top_ids=empty.astype(np.int32),
            top_logits=empty.astype(np.float32),
            top_log_sum_exp=empty[:, 0].astype(np.float32) if empty.size else np.zeros(0, "f4"),
            logits=np.array([logits[r] for r in want.logits], "f4").reshape(-1, VOCABULARY),
            taps={},
            native_seconds=1e-6,
        )

    def logits(self, history: Sequence[int]) -> np.ndarray:
        if self.script is not None:
            index = len(history) - self.prompt_length
            row = np.zeros(VOCABULARY, dtype=np.float32)
            row[self.script[index] if 0 <= index < len(self.script) else END] = 10
            return row
        rng = np.random.default_rng(list(history))
        row = rng.standard_normal(VOCABULARY).astype(np.float32) * 2
        row[END] = -20
        return row

    def cancel(self) -> None:
        self._cancel.set()

    def close(self) -> None:
        pass


class ByteDecoder:
    """Every token is a byte of UTF-8."""

    def __init__(self) -> None:
        import codecs

        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id_: int) -> str:
        return self._utf8.decode(bytes([id_]))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


def greedy_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """What a FakeExecutable without script says, one row at a time."""
    model = FakeExecutable()
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(model.logits(tokens))))
    return tokens[len(prompt) :]
