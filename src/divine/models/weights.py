"""Declaring weights: model files name a tensor and the shape the metadata demand, and get its name.

Asking is checking: the first tensor that is missing or has another shape ends the building of the
program with its name and the expected shape. Only tiny tensors (rotary factors) are ever read here.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from divine.blocks import dequantize
from divine.errors import FormatError, UnsupportedError
from divine.gguf import GGUFFile
from divine.program.program import check_weight

EMBEDDING = "token_embd.weight"


class Weights:
    """The tensors of one file, as model files see them."""

    def __init__(self, gguf: GGUFFile) -> None:
        self._gguf = gguf

    def __contains__(self, name: str) -> bool:
        return name in self._gguf.tensors

    def need(self, name: str, *shape: int) -> str:
        """`name`, which must have this shape (NumPy order). Raises FormatError, UnsupportedError.

        A companion that rescales the product (as in NVFP4 files) would change the result if it
        were passed over, so it is refused.
        """
        check_weight(self._gguf.shape, name, shape)
        for companion in (f"{name}.scale", f"{name.removesuffix('.weight')}.scale"):
            if companion in self:
                self.refuse(companion, "scales beside a matrix")
        return name

    def may(self, name: str, *shape: int) -> str | None:
        """`name` if the file has it, which must then have this shape; else None."""
        return self.need(name, *shape) if name in self else None

    def refuse(self, name: str, what: str) -> NoReturn:
        """Raise UnsupportedError because the operations cannot express this tensor."""
        raise UnsupportedError(f'tensor "{name}" is present, but {what} are not supported')

    def absent(self, name: str, what: str) -> None:
        """Refuse the file if it has a tensor that would change the result."""
        if name in self:
            self.refuse(name, what)

    def vocabulary(self) -> int:
        """Rows of the embedding table."""
        return check_weight(self._gguf.shape, EMBEDDING, (None, None))[0]

    def factors(self, name: str, count: int) -> list[float] | None:
        """Rotary factors [count], positive; None if the file has none."""
        if self.may(name, count) is None:
            return None
        block_type = self._gguf.block_type(name)
        values = dequantize(self._gguf.raw(name), block_type, (count,)).astype(np.float64)
        if not (np.isfinite(values) & (values > 0)).all():
            worst = values[~(np.isfinite(values) & (values > 0))][0]
            raise FormatError(f'tensor "{name}" holds {worst}; positive numbers are needed')
        return [float(value) for value in values]
