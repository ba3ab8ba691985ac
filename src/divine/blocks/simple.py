"""The formats with blocks of 32 values and one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

value = d * (code - zero) for the _0 formats, d * code + m for the _1 formats; d and m are float16.
All arithmetic is float32, in the order of ggml's reference code (ggml-quants.c), so encoding and
decoding agree with it to the bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from divine.blocks.layout import Blocks, Codes, Floats, Format, as_float, unpack


class Q4(Format):
    """What Q4_0 and Q4_1 share: qs byte i holds code i (low bits) and code i + 16 (high bits)."""

    @staticmethod
    def codes(blocks: Blocks) -> Floats:
        return unpack(blocks["qs"], 4, 16).astype(np.float32)


class Q5(Format):
    """What Q5_0 and Q5_1 share: as Q4, with bit i of qh the fifth bit of code i."""

    @staticmethod
    def codes(blocks: Blocks) -> Floats:
        high = np.unpackbits(blocks["qh"], axis=1, bitorder="little")
        return (unpack(blocks["qs"], 4, 16) | (high << np.uint8(4))).astype(np.float32)


class Q4_0(Q4):  # noqa: N801 - ggml's name
    """4 bits, symmetric around code 8: 4.5 bits per value."""

    name = "Q4_0"
    block = np.dtype([("d", "<f2"), ("qs", "u1", 16)])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        return as_float(blocks["d"]) * (Q4.codes(blocks) - np.float32(8))

    @staticmethod
    def encode(values: Floats) -> Blocks:
        blocks = np.zeros(len(values), Q4_0.block)
        blocks["d"], codes = _encode_symmetric(values, 8)
        blocks["qs"] = _pack_nibbles(codes)
        return blocks


class Q4_1(Q4):  # noqa: N801
    """4 bits from the smallest value of the block up: 5 bits per value."""

    name = "Q4_1"
    block = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        return as_float(blocks["d"]) * Q4.codes(blocks) + as_float(blocks["m"])

    @staticmethod
    def encode(values: Floats) -> Blocks:
        blocks = np.zeros(len(values), Q4_1.block)
        blocks["d"], blocks["m"], codes = _encode_from_minimum(values, 15)
        blocks["qs"] = _pack_nibbles(codes)
        return blocks


class Q5_0(Q5):  # noqa: N801
    """5 bits, symmetric around code 16: 5.5 bits per value."""

    name = "Q5_0"
    block = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        return as_float(blocks["d"]) * (Q5.codes(blocks) - np.float32(16))

    @staticmethod
    def encode(values: Floats) -> Blocks:
        blocks = np.zeros(len(values), Q5_0.block)
        blocks["d"], codes = _encode_symmetric(values, 16)
        blocks["qs"], blocks["qh"] = _pack_nibbles(codes), _pack_fifth_bits(codes)
        return blocks


class Q5_1(Q5):  # noqa: N801
    """5 bits from the smallest value of the block up: 6 bits per value."""

    name = "Q5_1"
    block = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        return as_float(blocks["d"]) * Q5.codes(blocks) + as_float(blocks["m"])

    @staticmethod
    def encode(values: Floats) -> Blocks:
        blocks = np.zeros(len(values), Q5_1.block)
        blocks["d"], blocks["m"], codes = _encode_from_minimum(values, 31)
        blocks["qs"], blocks["qh"] = _pack_nibbles(codes), _pack_fifth_bits(codes)
        return blocks


class Q8_0(Format):  # noqa: N801
    """Signed bytes from -127 to 127: 8.5 bits per value."""

    name = "Q8_0"
    block = np.dtype([("d", "<f2"), ("qs", "i1", 32)])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        return blocks["qs"].astype(np.float32) * as_float(blocks["d"])

    @staticmethod
    def encode(values: Floats) -> Blocks:
        blocks = np.zeros(len(values), Q8_0.block)
        scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
        scaled = values * _inverse(scale)
        # Round half away from zero, as C's roundf does; NumPy rounds half to even. Up to 127 the
        # fraction is exact in float32, so doubling it decides without error.
        size = np.abs(scaled)
        whole = np.floor(size)
        whole += np.floor(np.float32(2) * (size - whole))
        blocks["d"] = scale[:, 0]
        blocks["qs"] = np.copysign(whole, scaled)
        return blocks


def _inverse(scale: Floats) -> Floats:
    """1 / scale, and 0 where the scale is 0."""
    one = np.ones_like(scale)
    return np.divide(one, scale, out=np.zeros_like(scale), where=scale != 0)


def _encode_symmetric(values: Floats, zero: int) -> tuple[NDArray[np.float32], Codes]:
    """Scale and codes of blocks whose value of largest size gets code 0, the end of the range."""
    largest = np.abs(values).argmax(axis=1, keepdims=True)
    scale = np.take_along_axis(values, largest, axis=1) / np.float32(-zero)
    codes = values * _inverse(scale) + np.float32(zero + 0.5)
    return scale[:, 0], _truncate(codes, 2 * zero - 1)


def _encode_from_minimum(
    values: Floats, top: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], Codes]:
    """Scale, offset and codes of blocks whose smallest value gets code 0, the largest `top`."""
    low = values.min(axis=1, keepdims=True)
    scale = (values.max(axis=1, keepdims=True) - low) / np.float32(top)
    codes = (values - low) * _inverse(scale) + np.float32(0.5)
    return scale[:, 0], low[:, 0], _truncate(codes, top)


def _truncate(codes: Floats, top: int) -> Codes:
    return np.minimum(codes, np.float32(top)).astype(np.uint8)


def _pack_nibbles(codes: Codes) -> Codes:
    low = codes & np.uint8(15)
    return np.asarray(low[:, :16] | (low[:, 16:] << np.uint8(4)))


def _pack_fifth_bits(codes: Codes) -> Codes:
    return np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
