"""The seam between the engine and the arithmetic: Backend, Executable, State, and a pass's data.

A pass is a batch of rows. A row is a token (or an input vector), a sequence and a parent: an
earlier row of the same pass, or the end of what its sequence has committed. Its position follows
from that. A row attends to its sequence's committed positions, then to its ancestors in the pass,
then to itself, and its numbers depend on nothing else: not on other rows, sequences, threads or
chunking.

This module knows no model, no sampling and no requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from divine.program import Program

KvType = Literal["f16", "q8_0"]
COMMITTED = -1  # a row's parent: the end of what its sequence has committed

# Made once: a pass of one row may take no longer than a few of NumPy's calls.
_PARENTS = np.arange(-1, 511, dtype=np.int32)
_ZEROS = np.zeros(512, np.int32)
_PARENTS.flags.writeable = _ZEROS.flags.writeable = False


@dataclass(frozen=True)
class Rows:
    """The rows of one pass; a parent comes before its children.

    tokens     int32 [n]        token ids; ignored for rows that take a vector
    parents    int32 [n]        index of an earlier row of the same sequence, or COMMITTED
    sequences  int32 [n]        index into the states given to run()
    vectors    float32 [n, dim] input vectors, used where takes_vector is set and by programs whose
               rows have a token and a vector (Given); or None
    takes_vector  bool [n]      or None for none
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    sequences: NDArray[np.int32]
    vectors: NDArray[np.float32] | None = None
    takes_vector: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def chain(tokens: Sequence[int] | NDArray[np.int32], sequence: int = 0) -> Rows:
        """Rows of one sequence, each the child of the one before; prefill and plain decoding.

        Parents, and the numbers of sequence 0, are read-only views of arrays that passes share.
        """
        ids = np.asarray(tokens, dtype=np.int32)
        n = len(ids)
        if n > len(_PARENTS):
            return Rows(ids, np.arange(-1, n - 1, dtype=np.int32), np.full(n, sequence, np.int32))
        return Rows(ids, _PARENTS[:n], np.full(n, sequence, np.int32) if sequence else _ZEROS[:n])


class Shortlist(Protocol):
    """The tokens to which a pass's head is restricted; made by Executable.new_shortlist().

    Never changes, and may be used for any number of passes of that executable.
    """

    @property
    def ids(self) -> NDArray[np.int32]:
        """The token ids, ascending."""


@dataclass(frozen=True)
class Want:
    """What a pass returns; each field lists rows in ascending order.

    best    argmax (lowest id on ties), its logit and the log-sum-exp; no vocabulary is written
    top     (rows, k): the k largest logits with their ids, descending, lowest id first on ties
    logits  the whole row of logits
    taps    name -> rows: hidden states of a named Tap of the program

    With a shortlist, best, top and log-sum-exp are those among its tokens only, and the logits of
    all others are -infinity; a listed token's logit has the same bits as without. The backend reads
    no more of the output matrix than it needs.
    """

    best: Sequence[int] = ()
    top: tuple[Sequence[int], int] = ((), 0)
    logits: Sequence[int] = ()
    taps: Mapping[str, Sequence[int]] = field(default_factory=dict)
    shortlist: Shortlist | None = None


class PassResult(NamedTuple):  # made in every pass: a dataclass would cost more
    """What was wanted, in the order of the lists in Want."""

    best_ids: NDArray[np.int32]  # [len(best)]
    best_logits: NDArray[np.float32]  # [len(best)]
    log_sum_exp: NDArray[np.float32]  # [len(best)]
    top_ids: NDArray[np.int32]  # [len(top rows), k]
    top_logits: NDArray[np.float32]  # [len(top rows), k]
    top_log_sum_exp: NDArray[np.float32]  # [len(top rows)]
    logits: NDArray[np.float32]  # [len(logits), vocabulary]
    taps: Mapping[str, NDArray[np.float32]]  # name -> [rows, dim]
    native_seconds: float = 0.0  # time inside the backend's own code


class Cancelled(Exception):  # noqa: N818 - a signal, not an error
    """A pass was cancelled between two operations; its states are as they were before it."""


class State(Protocol):
    """What one sequence has committed (keys and values, later recurrent state).

    A pass leaves its rows pending; commit(path) appends the rows of that path, in order, and drops
    the rest. Every method but `length` and `nbytes` drops what is pending and not in the path.
    """

    @property
    def length(self) -> int:
        """Committed positions."""

    @property
    def capacity(self) -> int:
        """The most positions it can hold; a row at or beyond it is refused."""

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""

    def commit(self, path: Sequence[int]) -> None:
        """Append rows of the last pass (their indices in it): a chain from COMMITTED downwards.

        Raises ValueError when the path is not such a chain, CapacityError when it does not fit.
        """

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""

    def fork(self) -> State:
        """An independent copy."""

    def close(self) -> None:
        """Free the memory now; the state is unusable afterwards."""


class Executable(Protocol):
    """A compiled program with its weights."""

    vocabulary: int
    dim: int
    max_rows: int  # the most rows one pass may have
    tap_names: tuple[str, ...]
    threads: int
    level: str  # the instruction set, or another word for what computes

    def new_state(self, capacity: int, kv_type: KvType = "f16") -> State:
        """An empty state for one sequence."""

    def extend(self, program: Program, weights: WeightSource, *, max_rows: int) -> Executable:
        """A further program on this one's weights; must be closed before it.

        Matrices that this executable has are shared, the others come from `weights`.
        """

    def new_shortlist(self, ids: NDArray[np.int32], packed: Shortlist | None = None) -> Shortlist:
        """A draft vocabulary for Want: ids int32 [n] ascend within the vocabulary.

        `packed`: a shortlist from pack_shortlist() whose tokens are all among the ids; its copy is
        read for them. Raises ValueError for ids that do not ascend, and for none.
        """

    def pack_shortlist(self, ids: NDArray[np.int32]) -> Shortlist:
        """A draft vocabulary with a copy of its rows of the output matrix, close together.

        For those that many passes use: rows that lie scattered cost their neighbours too. It may be
        used with this executable and those that extend it.
        """

    def run(self, states: Sequence[State], rows: Rows, want: Want) -> PassResult:
        """One pass. Raises ValueError for ill-formed rows, Cancelled after cancel().

        In the main thread a KeyboardInterrupt cuts it, at its next operation at the latest, and
        leaves the states as they were.
        """

    def cancel(self) -> None:
        """Stop the pass in progress at its next operation; callable from any thread or signal.

        If there is none, the next one is stopped: whoever cancels cannot know that it has begun.
        """

    def close(self) -> None:
        """Free the weights now."""


class WeightSource(Protocol):
    """Where a backend takes weights from; gguf files are one."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape in NumPy order, [out, in] for matrices."""

    def block_type(self, name: str) -> str:
        """GGML type name, such as "Q4_K"."""

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file, one-dimensional, read-only."""

    def release(self, name: str) -> None:
        """The bytes will not be read again: their pages may be dropped."""


class Backend(Protocol):
    """Compiles programs."""

    name: str

    def compile(
        self, program: Program, weights: WeightSource, *, threads: int | None = None
    ) -> Executable:
        """Load the weights and prepare to run; raises UnsupportedError for what it cannot do."""
