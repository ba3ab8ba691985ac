"""Decoding and encoding of all supported formats in NumPy: the specification of the kernels.

dequantize() gives what every backend must start from, bit for bit as the `gguf` package decodes.
Slow and plain on purpose. The formats themselves are in plain, simple, superblocks and codebooks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from divine.blocks.codebooks import IQ4_NL, IQ4_XS, MXFP4
from divine.blocks.formats import ENCODABLE, block_format, row_nbytes
from divine.blocks.layout import Format
from divine.blocks.plain import BF16, F16, F32
from divine.blocks.simple import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from divine.blocks.superblocks import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
from divine.errors import FormatError, UnsupportedError, UsageError

FORMATS: dict[str, type[Format]] = {
    kind.name: kind
    for kind in (
        *(F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0),
        *(Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4),
    )
}
_CHUNK_VALUES = 1 << 20  # values decoded at a time: bounds the memory of the temporaries


def dequantize(
    raw: NDArray[np.uint8], block_type: str, shape: Sequence[int]
) -> NDArray[np.float32]:
    """Decode a tensor's bytes, uint8 [nbytes], to float32 of `shape` (NumPy order).

    Raises UnsupportedError for a type that is not supported, FormatError when bytes and shape
    disagree.
    """
    kind = block_format(block_type)
    count = int(np.prod(np.asarray(shape, np.int64)))
    columns = int(shape[-1]) if len(shape) else 1
    if columns % kind.elements or raw.size != kind.tensor_nbytes(count):
        raise FormatError(
            f"a tensor of type {block_type} and shape {list(shape)} cannot have {raw.size} bytes"
        )
    form = FORMATS[block_type]
    blocks = np.ascontiguousarray(raw).view(np.uint8).view(form.block)
    values = np.empty((len(blocks), kind.elements), np.float32)
    step = _CHUNK_VALUES // kind.elements
    # Infinite or NaN scales decode to NaN; that is for the caller to find, not NumPy's to warn of.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            values[start : start + step] = form.decode(blocks[start : start + step])
    return values.reshape(tuple(shape))


def quantize(values: NDArray[np.floating], block_type: str) -> NDArray[np.uint8]:
    """Encode values [..., columns] to the bytes of a tensor, uint8 [nbytes].

    Bit for bit as ggml's reference quantizer without an importance matrix. Raises UnsupportedError
    for formats that cannot be encoded or rows that do not fit, UsageError for values that are not
    finite (F32, F16 and BF16 take them).
    """
    if block_type not in ENCODABLE:
        block_format(block_type)
        raise UnsupportedError(
            f"tensors cannot be encoded as {block_type}; possible are {', '.join(ENCODABLE)}"
        )
    array = np.ascontiguousarray(values, np.float32)
    row_nbytes(block_type, array.shape[-1] if array.ndim else 1)
    form = FORMATS[block_type]
    elements = form.kind().elements
    if elements > 1 and not np.isfinite(array).all():
        raise UsageError(f"values that are not finite cannot be encoded as {block_type}")
    rows = array.reshape(-1, elements)
    blocks = np.empty(len(rows), form.block)
    step = _CHUNK_VALUES // elements
    with np.errstate(all="ignore"):
        for start in range(0, len(rows), step):
            blocks[start : start + step] = form.encode(rows[start : start + step])
    return blocks.view(np.uint8)
