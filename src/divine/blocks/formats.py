"""Which tensor types Divine computes with; the other ones are refused here, by name.

Sizes come from divine.gguf.types. How the bytes of a block make values is in reference.py and the
families beside it.
"""

from __future__ import annotations

from divine.errors import UnsupportedError
from divine.gguf.types import BLOCK_TYPE_BY_NAME, BlockType

SUPPORTED: tuple[str, ...] = (
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
)
ENCODABLE: tuple[str, ...] = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def block_format(name: str) -> BlockType:
    """Id, elements and bytes per block of a type that Divine computes with.

    Raises UnsupportedError, which lists them, for every other type.
    """
    if name not in SUPPORTED:
        raise UnsupportedError(
            f"tensors of type {name} are not supported; supported are {', '.join(SUPPORTED)}"
        )
    return BLOCK_TYPE_BY_NAME[name]


def row_nbytes(name: str, columns: int) -> int:
    """Bytes of a row of `columns` values. Raises UnsupportedError as block_format() does."""
    kind = block_format(name)
    if columns % kind.elements:
        raise UnsupportedError(
            f"rows of {columns} values are not supported for type {name}; it needs a multiple of "
            f"{kind.elements}"
        )
    return kind.tensor_nbytes(columns)
