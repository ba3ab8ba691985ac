"""The formats whose 4-bit codes look up a table: IQ4_NL, IQ4_XS and MXFP4.

IQ4's table is not uniform (finer near zero, from ggml-common.h); MXFP4's holds the numbers of the
OCP Microscaling format E2M1, doubled so that they are integers, with a power-of-two scale halved.
"""

from __future__ import annotations

import numpy as np

from divine.blocks.layout import Blocks, Codes, Floats, Format, as_float, unpack

IQ4_TABLE = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
MXFP4_TABLE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


class IQ4_NL(Format):  # noqa: N801 - ggml's name
    """32 values and one float16 scale: 4.5 bits per value."""

    name = "IQ4_NL"
    block = np.dtype([("d", "<f2"), ("qs", "u1", 16)])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        return as_float(blocks["d"]) * IQ4_TABLE[unpack(blocks["qs"], 4, 16)]


class IQ4_XS(Format):  # noqa: N801
    """256 values; eight sub-blocks of 32 with signed 6-bit scales: 4.25 bits per value."""

    name = "IQ4_XS"
    block = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        low = unpack(blocks["scales_l"], 4, 1)
        shifts = np.arange(0, 16, 2, dtype=np.uint16)
        high = (blocks["scales_h"][:, None] >> shifts & np.uint16(3)).astype(np.uint8)
        signed = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
        scales = as_float(blocks["d"]) * signed.astype(np.float32)  # [n, 8]
        values = IQ4_TABLE[unpack(blocks["qs"], 4, 16)].reshape(len(blocks), 8, 32)
        return np.asarray((scales[:, :, None] * values).reshape(len(blocks), 256))


class MXFP4(Format):
    """32 values and one power of two (E8M0): 4.25 bits per value."""

    name = "MXFP4"
    block = np.dtype([("e", "u1"), ("qs", "u1", 16)])

    @staticmethod
    def decode(blocks: Blocks) -> Floats:
        return _halved_power(blocks["e"])[:, None] * MXFP4_TABLE[unpack(blocks["qs"], 4, 16)]


def _halved_power(exponents: Codes) -> Floats:
    """2^(e - 128) as float32; for e of 0 and 1 that is subnormal. e = 255 is no NaN in ggml."""
    wide = exponents.astype(np.uint32)
    subnormal = np.uint32(0x00200000) << np.minimum(wide, np.uint32(1))
    normal = (np.maximum(wide, np.uint32(1)) - np.uint32(1)) << np.uint32(23)
    return np.where(wide < 2, subnormal, normal).view(np.float32)
