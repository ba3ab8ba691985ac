"""Checks that every backend applies to the rows and wants of a pass before it computes anything.

A backend may index with what passed these checks without checking again: that is what keeps the
native code simple. Everything here raises ValueError, because the engine, not a user, makes rows.
Only the numbers that a model produced are a user's business: those raise NumericError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import COMMITTED, Executable, Rows, State, Want
from divine.errors import NumericError


def check_pass(
    executable: Executable, states: Sequence[State], rows: Rows, want: Want
) -> NDArray[np.int32]:
    """Check one pass; returns the position of each row, int32 [n].

    Raises ValueError naming the first offending row or field. States are told apart by identity.
    """
    count = _check_arrays(rows, executable)
    if len({id(state) for state in states}) != len(states):
        raise ValueError("one state was given twice to a pass")
    _check_range("sequence", rows.sequences, 0, len(states))
    vectors = _check_vectors(rows, count, executable.dim)
    _check_range("token", rows.tokens, 0, executable.vocabulary, skip=vectors)
    lengths = np.array([state.length for state in states], dtype=np.int32)
    positions = row_positions(rows, lengths)
    _check_want(want, count, executable)
    return positions


def row_positions(rows: Rows, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """Positions of rows, int32 [n], from the committed length of each sequence, int32 [sequences].

    Raises ValueError for a parent that is not an earlier row of the same sequence or COMMITTED.
    """
    parents = rows.parents
    index = np.arange(len(parents))
    wrong = (parents < COMMITTED) | (parents >= index)
    inside = np.where(wrong | (parents == COMMITTED), index, parents)
    foreign = rows.sequences[inside] != rows.sequences
    if wrong.any() or foreign.any():
        row = int(np.flatnonzero(wrong | foreign)[0])
        raise ValueError(
            f"row {row} has parent {parents[row]}; a parent is an earlier row of the same sequence "
            f"or {COMMITTED}"
        )
    positions = lengths[rows.sequences].astype(np.int32)
    # A row comes after its parent, so one walk in order finds every depth.
    for row in np.flatnonzero(parents != COMMITTED).tolist():
        positions[row] = positions[parents[row]] + 1
    return positions


def check_shortlist(ids: NDArray[np.int32], vocabulary: int) -> None:
    """Raise ValueError unless ids int32 [n] ascend within 0 to vocabulary - 1, at least one."""
    if not _array("a shortlist", ids, np.int32, (None,))[0]:
        raise ValueError("a shortlist is empty; it needs a token")
    wrong = np.diff(ids, prepend=np.int32(-1)) <= 0
    wrong |= (ids < 0) | (ids >= vocabulary)
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        previous = ids[index - 1] if index else -1
        raise ValueError(
            f"a shortlist has token {ids[index]} after {previous}; tokens ascend within 0 to "
            f"{vocabulary - 1}"
        )


def require_finite(
    values: NDArray[np.float32], chosen: Sequence[int], positions: NDArray[np.int32]
) -> None:
    """Raise NumericError for the first chosen row whose values are not all finite.

    values     float32 [chosen, any], one line for each row of `chosen`
    positions  int32 [n], of all rows of the pass
    """
    finite = np.isfinite(values).all(axis=1)
    if finite.all():
        return
    first = int(np.flatnonzero(~finite)[0])
    kind = "NaN" if np.isnan(values[first]).any() else "infinity"
    raise NumericError(f"the model produced {kind} at position {positions[chosen[first]]}")


def _check_arrays(rows: Rows, executable: Executable) -> int:
    count = _array("tokens", rows.tokens, np.int32, (None,))[0]
    _array("parents", rows.parents, np.int32, (count,))
    _array("sequences", rows.sequences, np.int32, (count,))
    if not 1 <= count <= executable.max_rows:
        raise ValueError(f"a pass has {count} rows; 1 to {executable.max_rows} are allowed")
    return count


def _check_vectors(rows: Rows, count: int, dim: int) -> NDArray[np.bool_] | None:
    """The mask of rows that take a vector, or None."""
    if rows.vectors is not None:
        _array("vectors", rows.vectors, np.float32, (count, dim))
    if rows.takes_vector is None:
        return None
    _array("takes_vector", rows.takes_vector, np.bool_, (count,))
    if rows.vectors is None and rows.takes_vector.any():
        raise ValueError("takes_vector is set for a row, but rows have no vectors")
    return rows.takes_vector


def _array(name: str, array: Any, dtype: Any, shape: tuple[int | None, ...]) -> tuple[int, ...]:
    """The array's shape; raises ValueError when it is no array of that dtype and shape."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name} must be an array of {np.dtype(dtype)}, not {found}")
    wrong = any(e is not None and f != e for f, e in zip(array.shape, shape, strict=False))
    if array.ndim != len(shape) or wrong:
        raise ValueError(f"{name} has shape {array.shape}; expected {shape}")
    return tuple(array.shape)


def _check_range(
    what: str,
    values: NDArray[np.int32],
    low: int,
    high: int,
    skip: NDArray[np.bool_] | None = None,
) -> None:
    outside = (values < low) | (values >= high)
    if skip is not None:
        outside &= ~skip
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise ValueError(f"row {row} has {what} {values[row]}; {low} to {high - 1} are allowed")


def _check_want(want: Want, count: int, executable: Executable) -> None:
    _check_chosen("best", want.best, count)
    _check_chosen("logits", want.logits, count)
    chosen, k = want.top
    _check_chosen("top", chosen, count)
    choices = executable.vocabulary if want.shortlist is None else len(want.shortlist.ids)
    if len(chosen) and not 1 <= k <= choices:
        raise ValueError(f"top asks for {k} tokens; 1 to {choices} are allowed")
    for name, chosen in want.taps.items():
        if name not in executable.tap_names:
            known = ", ".join(executable.tap_names)
            raise ValueError(f'tap "{name}" is unknown; the taps are {known}')
        _check_chosen(f'tap "{name}"', chosen, count)


def _check_chosen(what: str, chosen: Sequence[int], count: int) -> None:
    previous = -1
    for row in chosen:
        if not previous < row < count:
            raise ValueError(
                f"{what} wants row {row} after {previous}; rows ascend from 0 to {count - 1}"
            )
        previous = row
