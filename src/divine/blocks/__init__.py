"""Quantized block formats: what is supported, decoding, encoding, random tensors; all in NumPy."""

from __future__ import annotations

from divine.blocks.formats import ENCODABLE, SUPPORTED, block_format, row_nbytes
from divine.blocks.random_weights import random_blocks
from divine.blocks.reference import dequantize, quantize

__all__ = [
    "ENCODABLE",
    "SUPPORTED",
    "block_format",
    "dequantize",
    "quantize",
    "random_blocks",
    "row_nbytes",
]
