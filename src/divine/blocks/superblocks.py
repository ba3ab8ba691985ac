"""The K formats: superblocks of 256 values, cut into sub-blocks whose scales are quantized too.

A float16 d scales the small integer scale of each sub-block (16 values in Q2_K, Q3_K and Q6_K, 32
in Q4_K and Q5_K); Q2_K, Q4_K and Q5_K also subtract a minimum, scaled by dmin. Layouts are those of
ggml-common.h, the order of the float32 operations that of ggml's reference code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from divine.blocks.layout import Blocks, Codes, Floats, Format, as_float, unpack


def _scaled(scales: NDArray[np.float32], codes: NDArray[np.generic]) -> Floats:
    """Multiply codes [n, 256] by the scales of their sub-blocks [n, sub-blocks]."""
    grouped = codes.astype(np.float32).reshape(*scales.shape, -1)
    return np.asarray((scales[:, :, None] * grouped).reshape(len(codes), -1))


def _less(values: Floats, minima: NDArray[np.float32]) -> Floats:
    """Subtract the minima of the sub-blocks [n, sub-blocks] from values [n, 256]."""
    grouped = values.reshape(*minima.shape, -1)
    return np.asarray((grouped - minima[:, :, None]).reshape(len(values), -1))


def _six_bit_pairs(packed: Codes) -> tuple[Codes, Codes]:
    """Eight scales and eight minima of 6 bits each from 12 bytes: (uint8 [n, 8], uint8 [n, 8]).

    Bytes 0-3 and 4-7 hold scales and minima 0-3 in their low 6 bits; their top 2 bits are those of
    scales and minima 4-7, whose low 4 bits are the halves of bytes 8-11.
    """
    scales, minima, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    top = np.uint8(0x30)
    late_scales = (rest & np.uint8(15)) | (scales >> np.uint8(2) & top)
    late_minima = (rest >> np.uint8(4)) | (minima >> np.uint8(2) & top)
    low = np.uint8(63)
    return (
        np.concatenate([scales & low, late_scales], axis=1),
        np.concatenate([minima & low, late_minima], axis=1),
    )


class Q2_K(Format):  # noqa: N801 - ggml's name
    """2 bits, 4-bit scales (low half) and minima (high half): 2.625 bits per value."""

    name = "Q2_K"
    block = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        packed = blocks["scales"]
        scales = as_float(blocks["d"]) * (packed & np.uint8(15)).astype(np.float32)
        minima = as_float(blocks["dmin"]) * (packed >> np.uint8(4)).astype(np.float32)
        return _less(_scaled(scales, unpack(blocks["qs"], 2, 32)), minima)


class Q3_K(Format):  # noqa: N801
    """3 bits (the high one in hmask, inverted), signed 6-bit scales: 3.4375 bits per value."""

    name = "Q3_K"
    block = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        packed = blocks["scales"]
        low = unpack(packed[:, :8], 4, 8)  # 16 scales' low 4 bits
        high = unpack(packed[:, 8:], 2, 4)  # and their high 2 bits
        signed = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
        scales = as_float(blocks["d"]) * signed.astype(np.float32)
        # A clear bit in hmask means: minus 4.
        codes = unpack(blocks["qs"], 2, 32) | unpack(blocks["hmask"], 1, 32) << np.uint8(2)
        return _scaled(scales, codes.astype(np.int8) - np.int8(4))


class Q4_K(Format):  # noqa: N801
    """4 bits, 6-bit scales and minima: 4.5 bits per value."""

    name = "Q4_K"
    block = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        scales, minima = _scales_and_minima(blocks)
        return _less(_scaled(scales, unpack(blocks["qs"], 4, 32)), minima)


class Q5_K(Format):  # noqa: N801
    """5 bits (bit s of qh byte i is that of value i of sub-block s): 5.5 bits per value."""

    name = "Q5_K"
    block = np.dtype(
        [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
    )

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        scales, minima = _scales_and_minima(blocks)
        codes = unpack(blocks["qs"], 4, 32) | unpack(blocks["qh"], 1, 32) << np.uint8(4)
        return _less(_scaled(scales, codes), minima)


class Q6_K(Format):  # noqa: N801
    """6 bits, symmetric around code 32, signed 8-bit scales: 6.5625 bits per value."""

    name = "Q6_K"
    block = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        codes = unpack(blocks["ql"], 4, 64) | unpack(blocks["qh"], 2, 32) << np.uint8(4)
        scales = as_float(blocks["d"]) * blocks["scales"].astype(np.float32)
        return _scaled(scales, codes.astype(np.int8) - np.int8(32))


def _scales_and_minima(blocks: Blocks) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Of Q4_K and Q5_K: float32 [n, 8] each."""
    scales, minima = _six_bit_pairs(blocks["scales"])
    return (
        as_float(blocks["d"]) * scales.astype(np.float32),
        as_float(blocks["dmin"]) * minima.astype(np.float32),
    )
