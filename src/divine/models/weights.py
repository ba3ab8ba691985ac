"""Declaring weights: model files name a tensor and the shape the metadata demand, and get its name.

Asking is checking: the first tensor that is missing or has another shape ends the building of the
program with its name and the expected shape, and so does at the end the first one that nobody asked
for: a program that passes it over would be another model. Only rotary factors are ever read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from divine.blocks import dequantize
from divine.errors import FormatError, UnsupportedError
from divine.gguf import GGUFFile, keys
from divine.models.config import ModelConfig
from divine.program.program import check_weight

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"

# Of no influence on the model: our own draft heads, and tables of inverse frequencies that old
# converters wrote although the metadata say the same.
_SPARED = re.compile(r"divine\..*|blk\.\d+\.attn_rot_embd(\.weight)?", re.DOTALL)
_BLOCK = re.compile(r"blk\.(\d{1,9})\.")


class Weights:
    """The tensors of one file, as model files see them."""

    def __init__(self, gguf: GGUFFile) -> None:
        self._gguf = gguf
        self._used: set[str] = set()

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
        self._used.add(name)
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

    def check_all_used(self, config: ModelConfig) -> None:
        """Raise FormatError naming the first tensor that was never asked for.

        Blocks that the metadata count but that do not run (next-token prediction) may hold any.
        """
        for name in self._gguf.tensors:
            if name in self._used or _SPARED.fullmatch(name):
                continue
            match = _BLOCK.match(name)
            block = int(match[1]) if match else 0
            if block >= config.blocks:
                key = keys.architecture_key(config.architecture, keys.BLOCK_COUNT)
                raise FormatError(
                    f"the tensor {name[:80]!r} belongs to block {block}, but {key!r} is "
                    f"{config.blocks}; the last block is {config.blocks - 1}"
                )
            if block < config.layers:
                raise FormatError(
                    f"the tensor {name[:80]!r} has no use in architecture {config.architecture!r}"
                )

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


def bytes_per_token(nbytes: Mapping[str, int], vocabulary: int) -> int:
    """Bytes that decoding one token reads of tensors of these sizes: all of them once.

    Of an embedding table that is not the output matrix too, only one of its `vocabulary` rows.
    """
    total = sum(nbytes.values())
    if OUTPUT in nbytes and EMBEDDING in nbytes:
        total += nbytes[EMBEDDING] // max(1, vocabulary) - nbytes[EMBEDDING]
    return total
