"""What backends have in common when a program extends another: whose weights are whose.

Drafting heads read the base's embeddings and output matrix where they lie. Knows names and shapes;
no arithmetic and no layout.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import Shortlist, WeightSource
from divine.program import Program


class OwnWeights:
    """The weights of an extension: those of the base by their shapes, the others by a source."""

    def __init__(self, weights: WeightSource, shared: Mapping[str, tuple[int, ...]]) -> None:
        self._weights = weights
        self._shared = shared

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape in NumPy order; raises KeyError or FormatError for a weight that nobody has."""
        shape = self._shared.get(name)
        return self._weights.shape(name) if shape is None else shape

    def names(self, program: Program) -> list[str]:
        """The weights that the source must give."""
        return [name for name in program.weights() if name not in self._shared]


def check_packed(ids: NDArray[np.int32], packed: Shortlist) -> None:
    """Raises ValueError unless all tokens of the packed shortlist are among the ids."""
    if not np.isin(packed.ids, ids, assume_unique=True).all():
        raise ValueError("a packed shortlist has a token that is not among the ids")
