"""Making an n-gram table of what a model writes: counting, pruning, quantizing.

An entry stays for what it adds: its count times how much more probable it makes the token than the
next shorter context would. Knows arrays of tokens and the table's layout; no models.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from divine.drafting.drafters.ngram_table import (
    ORDERS,
    SHARES,
    TOKENS,
    VERSION,
    VERSION_KEY,
    Level,
    NgramTable,
    context_keys,
    tensor_names,
)
from divine.errors import UsageError
from divine.gguf import TensorData, typed
from divine.heads.packaging import Content

ENTRIES = 400_000  # by default: 2.8 MB
_DOUBT = 0.7  # occurrences that stand for "something else" in every context
_LEAST = 2 / SHARES  # of a probability that is kept
_SPAN = max(ORDERS)


@dataclass(frozen=True)
class _Counted:
    """Different (context, token) of one order, by key, then by token.

    keys uint32, following int32, counts int64, totals int64 (of the context): all [n]
    """

    keys: NDArray[np.uint32]
    following: NDArray[np.int32]
    counts: NDArray[np.int64]
    totals: NDArray[np.int64]
    contexts: NDArray[np.int32]  # [n, order]: an example of the context

    @property
    def probability(self) -> NDArray[np.float64]:
        probability: NDArray[np.float64] = self.counts / (self.totals + _DOUBT)
        return probability


def make_table(
    texts: Iterable[tuple[NDArray[np.int32], int]], *, entries: int = ENTRIES
) -> NgramTable:
    """The table of texts, given as (tokens, first): what is learned are tokens[first:].

    `entries`: the most, over all orders, of 7 bytes each. Raises UsageError if there is no text.
    """
    windows = _windows(texts)
    if not len(windows):
        raise UsageError("there is no text to make a table of")
    counted = {order: _count(windows[:, _SPAN - order :]) for order in ORDERS}
    scores = {}
    for order in ORDERS:
        shorter = counted.get(order - 1)
        expected = np.zeros(len(counted[order].keys))
        if shorter is not None:
            expected = _probability(shorter, counted[order])
        gained = counted[order].counts * (counted[order].probability - expected)
        gained[counted[order].probability < _LEAST] = 0.0
        gained[(counted[order].counts < 2) & (order > 1)] *= 0.25  # seen once: as likely chance
        scores[order] = gained
    threshold = _threshold(np.concatenate(list(scores.values())), entries)
    kept = {order: scores[order] > threshold for order in ORDERS}
    tokens = _proposed([counted[order].following[kept[order]] for order in ORDERS])
    levels = {order: _level(counted[order], kept[order], tokens) for order in ORDERS}
    return NgramTable(tokens, {order: level for order, level in levels.items() if len(level)})


def table_content(table: NgramTable) -> Content:
    """Keys and tensors of a table, for packaging."""
    tensors = {TOKENS: TensorData("I32", table.tokens.shape, _bytes(table.tokens, "<i4"))}
    for order, level in table.levels.items():
        keys, following, shares = tensor_names(order)
        count = (len(level),)
        tensors[keys] = TensorData("I32", count, _bytes(level.keys, "<u4"))
        tensors[following] = TensorData("I16", count, _bytes(level.next, "<u2"))
        tensors[shares] = TensorData("I8", count, _bytes(level.shares, "u1"))
    return Content({VERSION_KEY: typed("u32", VERSION)}, {**tensors})


def _windows(texts: Iterable[tuple[NDArray[np.int32], int]]) -> NDArray[np.int32]:
    """[n, span + 1]: each learned token after those before it; -1 where there are none."""
    parts = []
    for tokens, first in texts:
        padded = np.concatenate([np.full(_SPAN, -1, np.int32), tokens.astype(np.int32)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, _SPAN + 1)
        parts.append(windows[first:])
    return np.concatenate(parts) if parts else np.zeros((0, _SPAN + 1), np.int32)


def _count(windows: NDArray[np.int32]) -> _Counted:
    """`windows` [n, order + 1]."""
    windows = windows[(windows >= 0).all(axis=1)]
    contexts, following = windows[:, :-1], windows[:, -1]
    keys = context_keys(contexts)
    pairs = (keys.astype(np.uint64) << np.uint64(32)) | following.astype(np.uint64)
    different, examples, counts = np.unique(pairs, return_index=True, return_counts=True)
    of_keys = (different >> np.uint64(32)).astype(np.uint32)
    _, inverse = np.unique(of_keys, return_inverse=True)
    totals = np.bincount(inverse, weights=counts).astype(np.int64)[inverse]
    found = (different & np.uint64(0xFFFFFFFF)).astype(np.int32)
    return _Counted(of_keys, found, counts.astype(np.int64), totals, contexts[examples])


def _probability(shorter: _Counted, longer: _Counted) -> NDArray[np.float64]:
    """What `shorter` says of each entry of `longer`."""
    keys = context_keys(longer.contexts[:, 1:])
    wanted = (keys.astype(np.uint64) << np.uint64(32)) | longer.following.astype(np.uint64)
    known = (shorter.keys.astype(np.uint64) << np.uint64(32)) | shorter.following.astype(np.uint64)
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[place] == wanted, shorter.probability[place], 0.0)


def _threshold(scores: NDArray[np.float64], entries: int) -> float:
    """Scores above it are at most `entries`."""
    positive = scores[scores > 0]
    if len(positive) <= entries:
        return 0.0
    return float(np.partition(positive, len(positive) - entries - 1)[len(positive) - entries - 1])


def _proposed(following: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """The tokens that are proposed, ascending; the commonest if they are too many for 16 bits."""
    tokens, counts = np.unique(np.concatenate(following), return_counts=True)
    if len(tokens) > 1 << 16:
        tokens = np.sort(tokens[np.argsort(-counts, kind="stable")[: 1 << 16]])
    return tokens.astype(np.int32)


def _level(counted: _Counted, kept: NDArray[np.bool_], tokens: NDArray[np.int32]) -> Level:
    place = np.minimum(np.searchsorted(tokens, counted.following), max(len(tokens) - 1, 0))
    kept = kept & (tokens[place] == counted.following)
    shares = np.rint(counted.probability[kept] * SHARES).astype(np.uint8)
    keys, following = counted.keys[kept], place[kept].astype(np.uint16)
    order = np.lexsort((following, -shares.astype(np.int64), keys))
    return Level(keys[order], following[order], shares[order])


def _bytes(values: NDArray[np.generic], dtype: str) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values.astype(dtype)).view(np.uint8).reshape(-1)
