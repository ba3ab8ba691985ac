"""A program: operations in order, with the sizes that every backend needs, checked once.

check() verifies that values are written before they are read and that every weight has the shape its
use demands; str(program) prints one line per operation. It knows no backend and no file format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from divine.program.ops import Op


@dataclass(frozen=True)
class Program:
    """A model as data."""

    architecture: str
    dim: int  # width of the residual stream
    vocabulary: int
    layers: int  # attention layers, numbered from 0
    context: int  # positions the model was trained for
    ops: tuple[Op, ...]

    def check(self, shape: Callable[[str], tuple[int, ...]]) -> None:
        """Check values and weights; shape(name) gives a tensor's shape. Raises FormatError."""
        raise NotImplementedError
