"""The embedding of a text: the mean of its rows' final hidden states.

Runs in chunks under the engine's lock, so that passes of sequences go on between them. Uses no
sampling and leaves no state behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import Cancelled, Executable, KvType, Rows, Want
from divine.errors import NumericError
from divine.program.program import FINAL_TAP

CHUNK_ROWS = 32  # of one pass: enough to share the weights, few enough to keep nobody waiting


def embed_in_chunks(
    executable: Executable,
    tokens: Sequence[int],
    kv_type: KvType,
    lock: AbstractContextManager[Any],
) -> Iterator[NDArray[np.float32] | None]:
    """None after each chunk but the last, which gives the mean over all tokens, float32 [dim].

    Rows are added in order in float64, so chunks do not change the result. Raises CapacityError
    if the memory does not suffice, NumericError for a result that is not finite.
    """
    total = np.zeros(executable.dim, np.float64)
    state = None
    try:
        for start in range(0, len(tokens), CHUNK_ROWS):
            chunk = list(tokens[start : start + CHUNK_ROWS])
            with lock:
                if state is None:
                    state = executable.new_state(len(tokens), kv_type)
                rows = range(len(chunk))
                want = Want(taps={FINAL_TAP: rows})
                while True:
                    try:
                        result = executable.run([state], Rows.chain(chunk), want)
                        break
                    except Cancelled:  # meant for a sequence whose pass had ended
                        continue
                state.commit(rows)
            for row in result.taps[FINAL_TAP]:
                total += row
            if start + CHUNK_ROWS < len(tokens):
                yield None
    finally:
        if state is not None:
            with lock:
                state.close()
    if not np.isfinite(total).all():
        raise NumericError("the model produced NaN or infinity for this input")
    yield (total / len(tokens)).astype(np.float32)
