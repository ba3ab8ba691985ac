"""The two tables of the GGUF format: types of metadata values and types of tensor blocks.

Names, numbers and sizes are those of ggml (ggml.h, ggml-common.h and the GGUF specification). The
table holds every type that has ever had a number, so that a file can be sized and a type be refused
by its name; which of them Divine can compute with is told by divine.blocks, not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class ValueType(IntEnum):
    """Type of a metadata value, as numbered in the file."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12

    @property
    def label(self) -> str:
        """The name used in messages and in typed(): "u32", "string"."""
        return self.name.lower()


# Little-endian NumPy types of the values that have a fixed size.
NUMBER_DTYPES: dict[ValueType, np.dtype[np.generic]] = {
    ValueType.U8: np.dtype("u1"),
    ValueType.I8: np.dtype("i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("u1"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}
INTEGER_TYPES = frozenset(
    kind for kind, dtype in NUMBER_DTYPES.items() if dtype.kind in "iu" and kind != ValueType.BOOL
)
FLOAT_TYPES = frozenset({ValueType.F32, ValueType.F64})


@dataclass(frozen=True)
class BlockType:
    """A tensor type: `elements` consecutive values of a row share one block of `nbytes` bytes."""

    id: int
    name: str
    elements: int
    nbytes: int

    def tensor_nbytes(self, count: int) -> int:
        """Bytes of `count` values; count is a multiple of `elements`."""
        return count // self.elements * self.nbytes


BLOCK_TYPES: tuple[BlockType, ...] = (
    BlockType(0, "F32", 1, 4),
    BlockType(1, "F16", 1, 2),
    BlockType(2, "Q4_0", 32, 18),
    BlockType(3, "Q4_1", 32, 20),
    BlockType(6, "Q5_0", 32, 22),
    BlockType(7, "Q5_1", 32, 24),
    BlockType(8, "Q8_0", 32, 34),
    BlockType(9, "Q8_1", 32, 36),
    BlockType(10, "Q2_K", 256, 84),
    BlockType(11, "Q3_K", 256, 110),
    BlockType(12, "Q4_K", 256, 144),
    BlockType(13, "Q5_K", 256, 176),
    BlockType(14, "Q6_K", 256, 210),
    BlockType(15, "Q8_K", 256, 292),
    BlockType(16, "IQ2_XXS", 256, 66),
    BlockType(17, "IQ2_XS", 256, 74),
    BlockType(18, "IQ3_XXS", 256, 98),
    BlockType(19, "IQ1_S", 256, 50),
    BlockType(20, "IQ4_NL", 32, 18),
    BlockType(21, "IQ3_S", 256, 110),
    BlockType(22, "IQ2_S", 256, 82),
    BlockType(23, "IQ4_XS", 256, 136),
    BlockType(24, "I8", 1, 1),
    BlockType(25, "I16", 1, 2),
    BlockType(26, "I32", 1, 4),
    BlockType(27, "I64", 1, 8),
    BlockType(28, "F64", 1, 8),
    BlockType(29, "IQ1_M", 256, 56),
    BlockType(30, "BF16", 1, 2),
    BlockType(34, "TQ1_0", 256, 54),
    BlockType(35, "TQ2_0", 256, 66),
    BlockType(39, "MXFP4", 32, 17),
    BlockType(40, "NVFP4", 64, 36),
    BlockType(41, "Q1_0", 128, 18),
    BlockType(42, "Q2_0", 64, 18),
)
BLOCK_TYPE_BY_ID: dict[int, BlockType] = {kind.id: kind for kind in BLOCK_TYPES}
BLOCK_TYPE_BY_NAME: dict[str, BlockType] = {kind.name: kind for kind in BLOCK_TYPES}

# Numbers that ggml has withdrawn; files that hold them must be converted again.
REMOVED_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
