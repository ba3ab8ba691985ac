"""NgramTable: what a model tends to write after its last one, two or three tokens, as a table.

Contexts are kept by hash, longest first at a look-up, and of each only the few continuations that
pay. All arrays may lie in a mapped file: a look-up touches a few lines of them. Reads tables from a
GGUF file's `divine.table.*`; making them is for tune/. Knows no sequences and no trees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divine.errors import FormatError, UnsupportedError
from divine.gguf import GGUFFile

VERSION = 1
PREFIX = "divine.table."
VERSION_KEY = PREFIX + "version"
TOKENS = PREFIX + "tokens"  # I32 [u], ascending: the tokens that are ever proposed
ORDERS = (3, 2, 1)  # tokens of a context
SHARES = 255  # steps of a probability

_MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio
_MASK = (1 << 64) - 1


def tensor_names(order: int) -> tuple[str, str, str]:
    """Of an order's keys (I32 [n]), continuations (I16 [n]) and shares (I8 [n])."""
    return f"{PREFIX}{order}.keys", f"{PREFIX}{order}.next", f"{PREFIX}{order}.shares"


def entries_of(file: GGUFFile) -> int:
    """How many entries the table in a file has; 0 without one."""
    names = (tensor_names(order)[0] for order in ORDERS)
    return sum(math.prod(file.shape(name)) for name in names if name in file.tensors)


def context_key(tokens: Sequence[int]) -> int:
    """32 bits for the tokens of a context; hashes() is the same for arrays."""
    value = len(tokens)
    for token in tokens:
        value = (value ^ (token + 1)) * _MULTIPLIER & _MASK
        value ^= value >> 29
    return value >> 32


def context_keys(tokens: NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
    """context_key() of each row of tokens [n, order]."""
    value = np.full(len(tokens), tokens.shape[1], np.uint64)
    for column in tokens.T:
        value = (value ^ (column.astype(np.uint64) + np.uint64(1))) * np.uint64(_MULTIPLIER)
        value ^= value >> np.uint64(29)
    return (value >> np.uint64(32)).astype(np.uint32)


@dataclass(frozen=True)
class Level:
    """The contexts of one order: an entry for each continuation, by key, the likeliest first.

    keys    uint32 [n], ascending; equal for the continuations of one context
    next    uint16 [n]: index into the table's tokens
    shares  uint8 [n]: probability in steps of 1 / SHARES
    """

    keys: NDArray[np.uint32]
    next: NDArray[np.uint16]
    shares: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.keys)


class NgramTable:
    """Levels by order, and the tokens they propose."""

    def __init__(self, tokens: NDArray[np.int32], levels: dict[int, Level]) -> None:
        self.tokens = tokens
        self.levels = levels
        self._ordered = [(order, levels[order]) for order in ORDERS if order in levels]

    def __len__(self) -> int:
        return sum(map(len, self.levels.values()))

    def after(self, context: Sequence[int], most: int | None = None) -> list[tuple[int, float]]:
        """(token, probability) of continuations, the likeliest first; of the last 3 tokens.

        What a longer context leaves open is shared out as the next shorter one has it. `most`: so
        many at most; None: all.
        """
        found: dict[int, float] = {}
        open_ = 1.0
        for order, level in self._ordered:
            if order > len(context):
                continue
            key = np.uint32(context_key(context[-order:]))
            start = int(level.keys.searchsorted(key))
            end = int(level.keys.searchsorted(key, side="right"))
            if most is not None and level is self._ordered[-1][1]:
                # A common token has hundreds of continuations, the likeliest first; only of a
                # longer context it must be known what all of them leave open.
                end = min(end, start + most + len(found))
            taken = 0.0
            for entry, share in zip(
                level.next[start:end].tolist(), level.shares[start:end].tolist(), strict=True
            ):
                token = int(self.tokens[entry])
                if token in found:
                    continue
                found[token] = open_ * share / SHARES
                taken += found[token]
            open_ -= taken
            if open_ <= 0.02:
                break
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:most]

    @classmethod
    def from_gguf(cls, file: GGUFFile, vocabulary: int) -> NgramTable | None:
        """The table in a file, or None; its arrays are views of the file.

        Raises FormatError for one that is damaged or of another vocabulary, UnsupportedError for a
        later version.
        """
        if VERSION_KEY not in file.metadata:
            return None
        where = file.path
        version = file.metadata.int(VERSION_KEY)
        if version != VERSION:
            raise UnsupportedError(
                f"{where}: the n-gram table is of version {version}; this Divine knows {VERSION}"
            )
        tokens = _array(file, TOKENS, "I32", np.dtype("<i4"))
        ascending = len(tokens) > 0 and bool((np.diff(tokens.astype(np.int64)) > 0).all())
        if not ascending or len(tokens) > 1 << 16 or tokens[0] < 0 or tokens[-1] >= vocabulary:
            raise FormatError(
                f"{where}: {TOKENS} must ascend within the vocabulary of {vocabulary} tokens"
            )
        levels = {}
        for order in ORDERS:
            names = tensor_names(order)
            if names[0] not in file.tensors:
                continue
            keys = _array(file, names[0], "I32", np.dtype("<u4"))
            following = _array(file, names[1], "I16", np.dtype("<u2"))
            shares = _array(file, names[2], "I8", np.dtype("u1"))
            if not len(keys) == len(following) == len(shares):
                raise FormatError(f"{where}: the tensors of {PREFIX}{order} differ in length")
            if len(following) and int(following.max()) >= len(tokens):
                raise FormatError(f"{where}: {names[1]} has an index beyond {TOKENS}")
            if (keys[1:] < keys[:-1]).any():
                raise FormatError(f"{where}: {names[0]} must ascend")
            levels[order] = Level(keys, following, shares)
        return cls(tokens, levels)


def _array(file: GGUFFile, name: str, kind: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    if name not in file.tensors:
        raise FormatError(f"{file.path}: the tensor {name} of the n-gram table is missing")
    found = file.block_type(name)
    if found != kind:
        raise FormatError(f"{file.path}: {name} is of type {found}; {kind} is needed")
    return file.raw(name).view(dtype)
