"""Divine's native core: CPU levels, executor, sampling, merging, drafting."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray


def formats() -> list[str]:
    """Block formats the kernels know, by GGML name."""

def levels() -> list[str]:
    """CPU levels this machine has, plainest first."""

def best_level() -> tuple[str, str]:
    """The level that would be used, and a warning or ''."""

def check_level(name: str) -> str:
    """Compares a level with scalar on small data: '' or what differs."""

def processors() -> int:
    """Logical processors this process may use."""

def read_bandwidth(bytes: int, threads: int, repeats: int = 3) -> float:
    """Memory read bandwidth, GB/s (10^9)."""

def in_cache_rate(format: str, threads: int, rows: int = 4, seconds: float = 0.2, level: str = '') -> float:
    """Multiply-adds per second of one matrix kernel on cached data, 10^9."""

def dequantize_repacked(format: str, rows: int, columns: int, raw: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object:
    """Repacks blocks and decodes them again (a test of the layout)."""

def random_weights(format: str, rows: int, columns: int, seed: int) -> object:
    """Valid random blocks of a matrix, as bytes of a file."""

class State:
    """Keys and values of one sequence."""

    @property
    def length(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def commit(self, path: Sequence[int]) -> None: ...

    def truncate(self, length: int) -> None: ...

    def fork(self) -> State: ...

    def save(self, start: int, stop: int) -> NDArray[numpy.uint8]:
        """The committed positions start to stop, multiples of 16, as uint8 [n]."""

    def load(self, data: object) -> None:
        """Append positions that save() gave."""

    def poison(self) -> None:
        """Fill every slot that is not committed with NaN (tests)."""

    def fill(self, length: int) -> None:
        """Commit arbitrary values (benchmarks)."""

    @property
    def bytes_per_position(self) -> int: ...

    def bytes_at(self, position: int) -> bytes:
        """The keys and values of one committed position (tests)."""

class PackedRows:
    """Copies of rows of an output matrix, side by side."""

    def __len__(self) -> int: ...

class Shortlist:
    """Tokens to which the head of a pass is restricted."""

    def __init__(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], vocabulary: int, packed: PackedRows | None = None) -> None: ...

    def __len__(self) -> int: ...

    @property
    def groups(self) -> int:
        """Groups of 16 outputs that a pass computes for it."""

class Executor:
    """A program with its weights; see backends/cpu/backend.py."""

    def __init__(self, level: str, threads: int, max_rows: int, weight_bytes: int) -> None: ...

    def add_matrix(self, format: str, out: int, columns: int, raw: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> int:
        """Gives a matrix its place; the weights may come later, by fill_matrix."""

    def share_matrix(self, other: Executor, matrix: int) -> int:
        """A matrix of another executor, used where it lies."""

    def pack_rows(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> PackedRows:
        """Copies of the output matrix's rows of these tokens."""

    def fill_matrix(self, matrix: int, raw: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def add_vector(self, data: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int: ...

    def add_value(self, dim: int) -> int: ...

    def add_rope(self, half: bool, dims: int, magnitude: float, frequencies: Sequence[float]) -> int: ...

    def embed(self, out: int, table: int, scale: float) -> None: ...

    def given(self, out: int) -> None: ...

    def normalize(self, out: int, x: int, norm: tuple[int, float] | None) -> None: ...

    def concat(self, out: int, xs: Sequence[int]) -> None: ...

    def add(self, out: int, x: int, y: int, weight: int, scale: float) -> None: ...

    def linear(self, x: int, parts: Sequence[Sequence[int]], norm: tuple[int, float] | None, residual: int, activation: str = '') -> None: ...

    def attention(self, out: int, q: int, k: int, v: int, layer: int, heads: int, kv_heads: int, head_dim: int, scale: float, rope: int, q_norm: tuple[int, float] | None, k_norm: tuple[int, float] | None, window: int, softcap: float) -> None: ...

    def gated_mlp(self, out: int, x: int, gate: int, up: int, gelu: bool, norm: tuple[int, float] | None) -> None: ...

    def tap(self, x: int) -> None: ...

    def head(self, x: int, matrix: int, bias: int, norm: tuple[int, float] | None) -> None: ...

    def finish(self, vocabulary: int, dim: int) -> None: ...

    def new_state(self, capacity: int, kv_type: str) -> State: ...

    def run(self, states: list[State], tokens: object, parents: object, sequences: object, vectors: object | None, takes_vector: object | None, best: Sequence[int], top: Sequence[int], k: int, logits: Sequence[int], taps: list[tuple[int, Sequence[int]]], shortlist: Shortlist | None = None, empty: tuple[object, ...] | None = None) -> tuple[Any, ...] | None: ...

    def cancel(self) -> None: ...

    @property
    def level(self) -> str: ...

    @property
    def threads(self) -> int: ...

    @property
    def max_rows(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def dim(self) -> int: ...

    @property
    def weight_bytes(self) -> int: ...

def sample(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], temperature: float, top_k: int, top_p: float, min_p: float, seed: int, choice: int, position: int) -> int:
    """
    Choose a token from float32 logits [vocabulary]: top-k, top-p, min-p, then the argmax of
    logit / temperature plus the noise of (seed, choice, position). -1 if a logit is NaN or
    +infinity, or none is finite.
    """

def rank(logits: object, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, choice: int, position: int, k: int) -> list[tuple[int, float]]:
    """
    [(token, score)] of the k best tokens in the order in which sample() would choose them;
    empty where it returns -1.
    """

def distribution(logits: object, temperature: float, top_k: int, top_p: float, min_p: float) -> NDArray[numpy.float64] | None:
    """
    The probabilities with which sample() chooses, float64 [vocabulary]; None where it
    returns -1.
    """

def gumbel(seed: int, choice: int, position: int, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object:
    """The noise of each token id, float64 [n]."""

def log_probabilities(logits: object, chosen: int, top: int) -> list[tuple[int, float]]:
    """
    [(token, log-softmax)] of the chosen token, then of the `top` most probable; empty where
    sample() returns -1.
    """

class Merger:
    """Byte-pair merging of words; see cpp/merge.h for the arguments."""

    def __init__(self, texts: list[str], *, merges: bytes, ranks: Sequence[int], barred: list[str], letters: list[str], bytes: Sequence[int], unknown: int, wholes: Sequence[int]) -> None: ...

    def encode(self, words: list[str]) -> tuple[list[int], bytes]:
        """
        Tokens of consecutive words, and the UTF-8 of the first piece that has none, else b''.
        """

class SuffixReader:
    """
    Guesses how a sequence goes on where its end has stood before; see cpp/drafting/reading.h.
    """

    def __init__(self, text: Sequence[int] | None, start: int = 0, trust: int = 0) -> None:
        """
        Reads in `text`, from its beginning at the sequence's token `start`; or, if it is None, in
        the sequence itself.
        """

    def propose(self, sequence: Sequence[int], nodes: int, depth: int, row_price: float) -> tuple[list[int], list[int], list[float]]:
        """
        Tokens, parents and claims of a tree below the last token of the sequence, which must be
        that of the last call, grown or not.
        """
