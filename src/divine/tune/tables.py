"""Tables: what training needs of a base, as arrays: embeddings, output rows, the final norm.

Only the rows of tokens that occur are decoded: of a large vocabulary most do not. Knows GGUF files
through Base; a checkpoint of another kind fills the same arrays (huggingface.py). No training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from divine.blocks import dequantize
from divine.gguf import GGUFFile
from divine.tune.answers import AnswerStore
from divine.tune.base import Base

_EPS = 1e-5  # where a base has no final norm


@dataclass(frozen=True)
class Tables:
    """Rows of a base's matrices.

    tokens       int32 [u], ascending: those with a row in `embedding`
    embedding    float32 [u, dim]: their embeddings, as they lie in the base
    draft_vocab  int32 [s], ascending: the tokens that may be drafted
    output       float32 [s, dim]: their rows of the output matrix
    bias         float32 [s], or None
    final_gain   float32 [dim]: weight of the final norm
    eps          of the final norm
    vocabulary   tokens of the base
    """

    tokens: NDArray[np.int32]
    embedding: NDArray[np.float32]
    draft_vocab: NDArray[np.int32]
    output: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    final_gain: NDArray[np.float32]
    eps: float
    vocabulary: int

    @property
    def dim(self) -> int:
        """Width of the base."""
        return int(self.embedding.shape[1])

    def places(self, tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        """Rows of `embedding` for tokens; 0 for those without one (negative: none is there)."""
        found = np.searchsorted(self.tokens, tokens)
        found[found == len(self.tokens)] = 0
        found[self.tokens[found] != tokens] = 0
        return found

    def labels(self, tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        """Rows of `output` for tokens; -1 for those that are never drafted."""
        found = np.searchsorted(self.draft_vocab, tokens)
        found[found == len(self.draft_vocab)] = 0
        found[self.draft_vocab[found] != tokens] = -1
        return found


def draft_vocabulary(
    counts: NDArray[np.int64], size: int, always: Sequence[int]
) -> NDArray[np.int32]:
    """The tokens that the model writes most, ascending; int32 [at most size].

    counts [vocabulary]: how often each occurs in answers. `size` 0: all tokens. `always`: tokens
    that are in the list whatever their count, such as those that end an answer.
    """
    vocabulary = len(counts)
    if size == 0 or size >= vocabulary:
        return np.arange(vocabulary, dtype=np.int32)
    ranked = counts.astype(np.float64)
    ranked[[token for token in always if token < vocabulary]] = np.inf
    order = np.argsort(-ranked, kind="stable")[:size]  # stable: of equals the lowest ids
    return np.sort(order[ranked[order] > 0]).astype(np.int32)


def count_tokens(store: AnswerStore, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each token occurs in the chosen answers (indices into the store)."""
    counts = np.zeros(int(store.settings["vocabulary"]), np.int64)
    for index in chosen:
        counts += np.bincount(store[int(index)].answer, minlength=len(counts))
    return counts


def tables_of(base: Base, tokens: NDArray[np.int32], draft_vocab: NDArray[np.int32]) -> Tables:
    """The rows of a GGUF base for `tokens` and `draft_vocab`, both ascending."""
    program, file, head = base.program, base.file, base.program.head
    table = program.embed.table
    gain, eps = np.ones(program.dim, np.float32), _EPS
    if head.norm is not None:
        eps = head.norm.eps
        if head.norm.weight is not None:
            gain = matrix_rows(file, head.norm.weight)
    bias = None if head.bias is None else matrix_rows(file, head.bias)[draft_vocab]
    return Tables(
        tokens,
        matrix_rows(file, table, tokens),
        draft_vocab,
        matrix_rows(file, head.weight, draft_vocab),
        bias,
        gain,
        eps,
        program.vocabulary,
    )


def matrix_rows(
    file: GGUFFile, name: str, rows: NDArray[np.int32] | None = None
) -> NDArray[np.float32]:
    """float32 rows of a tensor, decoded; all of them without `rows`."""
    shape, kind, raw = file.shape(name), file.block_type(name), file.raw(name)
    if rows is not None:
        raw = np.ascontiguousarray(raw.reshape(shape[0], -1)[rows]).reshape(-1)
        shape = (len(rows), *shape[1:])
    return np.asarray(dequantize(raw, kind, shape), np.float32)
