"""What the format classes share: their base, unpacking of small codes, and nothing else.

A block is described by a NumPy structured type with the field names of ggml (d and m or dmin:
float16 scale and offset; qs: low code bits; qh: high ones; scales: packed sub-block scales).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from divine.gguf.types import BLOCK_TYPE_BY_NAME, BlockType

Blocks = NDArray[Any]  # structured, [n]
Floats = NDArray[np.float32]  # [n, elements]
Codes = NDArray[np.uint8]


class Format:
    """A block format: decode() is its specification; those that can be encoded have encode()."""

    name: ClassVar[str]
    block: ClassVar[np.dtype[Any]]  # one block in the file

    @classmethod
    def kind(cls) -> BlockType:
        """The row of the table of types."""
        return BLOCK_TYPE_BY_NAME[cls.name]

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        """Values of the blocks: float32 [n, elements]."""
        raise NotImplementedError

    @staticmethod
    def encode(values: Floats) -> Blocks:
        """Blocks nearest to the values, as ggml's reference quantizer chooses them."""
        raise NotImplementedError


def as_float(halves: NDArray[Any]) -> NDArray[np.float32]:
    """float16 [n] to float32 [n, 1], so that it scales rows of values."""
    return halves.astype(np.float32)[:, None]


def unpack(packed: Codes, bits: int, group: int) -> Codes:
    """Split bytes [n, m] into codes of `bits` bits, low bits first: [n, m * 8 / bits].

    ggml packs `group` bytes at a time: the codes of the lowest bits of all of them come first, then
    those of the next bits.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    grouped = packed.reshape(len(packed), -1, 1, group)
    codes = (grouped >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(len(packed), -1)
