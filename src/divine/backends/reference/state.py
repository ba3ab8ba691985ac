"""What one sequence has committed to the reference backend: keys and values, layer by layer.

Numbers are kept in float32 but already rounded to the cache's type, so that reading needs no
decoding; `nbytes` therefore tells more than another backend would need. It knows no operations.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import COMMITTED, SAVED_BLOCK, KvType
from divine.errors import CapacityError

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Pending:
    """The rows that the last pass left for this state."""

    parents: NDArray[np.int32]  # [n], of all rows of the pass
    mine: NDArray[np.bool_]  # [n], rows of this sequence
    keys: list[Floats]  # per layer [n, width]
    values: list[Floats]


class ReferenceState:
    """State of one sequence: arrays [capacity, width] for the keys and values of each layer."""

    def __init__(
        self, owner: object, widths: Sequence[int], capacity: int, kv_type: KvType
    ) -> None:
        self.owner = owner  # the executable whose rows it can hold
        self.widths = tuple(widths)
        self.kv_type = kv_type
        self._capacity = capacity
        self._length = 0
        self._closed = False
        self._pending: Pending | None = None
        try:
            self.keys = [np.empty((capacity, width), np.float32) for width in widths]
            self.values = [np.empty((capacity, width), np.float32) for width in widths]
        except (MemoryError, ValueError):
            needed = 8 * capacity * sum(widths) / 2**30
            raise CapacityError(
                f"a state of {capacity} positions needs {needed:.1f} GiB, which is not available"
            ) from None

    @property
    def length(self) -> int:
        self._require_open()
        return self._length

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.keys, *self.values))

    def hold(self, pending: Pending) -> None:
        """Called by a pass that has succeeded: its rows replace what was pending."""
        self._pending = pending

    def commit(self, path: Sequence[int]) -> None:
        self._require_open()
        pending, self._pending = self._pending, None
        rows = [operator.index(row) for row in path]
        if not rows:
            return
        if pending is None:
            raise ValueError("commit of rows, but no pass has left any pending")
        previous = COMMITTED
        for row in rows:
            if not 0 <= row < len(pending.parents) or not pending.mine[row]:
                raise ValueError(f"commit of row {row}, which the last pass did not have here")
            if pending.parents[row] != previous:
                raise ValueError(
                    f"commit of row {row}, whose parent is {pending.parents[row]}, not {previous}"
                )
            previous = row
        end = self._length + len(rows)
        if end > self._capacity:
            raise CapacityError(
                f"{len(rows)} more positions after {self._length} exceed the {self._capacity} "
                "that the sequence can hold"
            )
        for layer in range(len(self.widths)):
            self.keys[layer][self._length : end] = pending.keys[layer][rows]
            self.values[layer][self._length : end] = pending.values[layer][rows]
        self._length = end

    def truncate(self, length: int) -> None:
        self._require_open()
        if not 0 <= length <= self._length:
            raise ValueError(f"truncate to {length}; 0 to {self._length} are allowed")
        self._pending = None
        self._length = length

    def fork(self) -> ReferenceState:
        self._require_open()
        self._pending = None
        copy = ReferenceState(self.owner, self.widths, self._capacity, self.kv_type)
        for layer in range(len(self.widths)):
            copy.keys[layer][: self._length] = self.keys[layer][: self._length]
            copy.values[layer][: self._length] = self.values[layer][: self._length]
        copy._length = self._length
        return copy

    def save(self, start: int, stop: int) -> NDArray[np.uint8]:
        self._require_open()
        if not 0 <= start <= stop <= self._length or start % SAVED_BLOCK or stop % SAVED_BLOCK:
            raise ValueError(f"save of positions {start} to {stop}; {self._length} are committed")
        parts = [
            array[start:stop].ravel().view(np.uint8)
            for layer in zip(self.keys, self.values, strict=True)
            for array in layer
        ]
        return np.concatenate(parts)

    def load(self, data: NDArray[np.uint8]) -> None:
        self._require_open()
        size = 8 * sum(self.widths)  # bytes of a position
        count = len(data) // size
        if self._length % SAVED_BLOCK or not count or len(data) % (size * SAVED_BLOCK):
            raise ValueError(
                f"load of {len(data)} bytes after {self._length} positions; expected whole blocks "
                f"of {SAVED_BLOCK} positions with {size} bytes each"
            )
        end = self._length + count
        if end > self._capacity:
            raise CapacityError(
                f"{count} more positions after {self._length} exceed the {self._capacity} "
                "that the sequence can hold"
            )
        self._pending = None
        values = np.frombuffer(data.tobytes(), np.float32)
        at = 0
        for layer, width in enumerate(self.widths):
            for array in (self.keys[layer], self.values[layer]):
                array[self._length : end] = values[at : at + count * width].reshape(count, width)
                at += count * width
        self._length = end

    def close(self) -> None:
        self._closed = True
        self._pending = None
        self.keys, self.values = [], []

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("the state is closed")
