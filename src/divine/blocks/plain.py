"""The formats without blocks: float32, float16 and bfloat16."""

from __future__ import annotations

import numpy as np

from divine.blocks.layout import Blocks, Floats, Format


class F32(Format):
    """IEEE 754 single precision."""

    name = "F32"
    block = np.dtype([("x", "<f4", (1,))])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        return np.asarray(blocks["x"], np.float32)

    @staticmethod
    def encode(values: Floats) -> Blocks:
        return values.astype("<f4").view(F32.block)[:, 0]


class F16(Format):
    """IEEE 754 half precision, rounded to nearest, ties to even; too large becomes infinite."""

    name = "F16"
    block = np.dtype([("x", "<f2", (1,))])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        return np.asarray(blocks["x"].astype(np.float32))

    @staticmethod
    def encode(values: Floats) -> Blocks:
        return values.astype("<f2").view(F16.block)[:, 0]


class BF16(Format):
    """The upper 16 bits of a float32, rounded to nearest, ties to even; NaNs become quiet."""

    name = "BF16"
    block = np.dtype([("x", "<u2", (1,))])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        return (blocks["x"].astype(np.uint32) << np.uint32(16)).view(np.float32)

    @staticmethod
    def encode(values: Floats) -> Blocks:
        bits = values.astype("<f4").view(np.uint32)
        upper = bits >> np.uint32(16)
        # 0x7fff plus the lowest kept bit carries exactly when the cut part rounds up.
        carry = (bits & np.uint32(0xFFFF)) + np.uint32(0x7FFF) + (upper & np.uint32(1))
        rounded = upper + (carry >> np.uint32(16))
        is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        quiet = upper | np.uint32(0x40)  # rounding could turn a NaN into infinity
        return np.where(is_nan, quiet, rounded).astype("<u2").view(BF16.block)[:, 0]
