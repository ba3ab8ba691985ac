"""Every block format against the `gguf` package, bit for bit, and the errors of blocks/."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from divine.blocks import (
    ENCODABLE,
    SUPPORTED,
    block_format,
    dequantize,
    quantize,
    random_blocks,
    row_nbytes,
)
from divine.errors import FormatError, UnsupportedError, UsageError
from divine.gguf.types import BLOCK_TYPES

ROWS, COLS = 24, 512


def oracle(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name]


def decoded_by_oracle(raw: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    rows = raw.reshape(-1, row_nbytes(name, COLS)).copy()
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(rows, oracle(name)).astype(np.float32)


def assert_same_bits(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    both_nan = np.isnan(ours) & np.isnan(theirs)
    np.testing.assert_array_equal(
        np.where(both_nan, 0, ours.view(np.uint32)), np.where(both_nan, 0, theirs.view(np.uint32))
    )


def test_ids_and_sizes_are_those_of_the_gguf_package():
    ours = {kind.name: (kind.id, kind.elements, kind.nbytes) for kind in BLOCK_TYPES}
    assert len(ours) == len(BLOCK_TYPES)
    for kind in gguf.GGMLQuantizationType:
        if kind.name != "Q8_1":  # never in files; the package counts its scales as float32
            assert ours[kind.name] == (kind.value, *gguf.GGML_QUANT_SIZES[kind])


@pytest.mark.parametrize("name", SUPPORTED)
def test_decodes_random_weights_as_the_gguf_package(name):
    raw = random_blocks(name, ROWS, COLS, np.random.default_rng(1))
    assert_same_bits(dequantize(raw, name, (ROWS, COLS)), decoded_by_oracle(raw, name))


@pytest.mark.parametrize("name", SUPPORTED)
def test_decodes_arbitrary_bytes_as_the_gguf_package(name):
    raw = np.frombuffer(np.random.default_rng(2).bytes(ROWS * row_nbytes(name, COLS)), np.uint8)
    assert_same_bits(dequantize(raw, name, (ROWS, COLS)), decoded_by_oracle(raw, name))


@pytest.mark.parametrize("name", SUPPORTED)
def test_random_weights_are_finite_varied_and_of_the_size_asked_for(name):
    raw = random_blocks(name, 64, 1024, np.random.default_rng(3), rms=0.1)
    values = dequantize(raw, name, (64, 1024))
    assert np.isfinite(values).all()
    assert 0.07 < np.sqrt(np.mean(values**2)) < 0.14
    assert abs(values.mean()) < 0.02
    assert len(np.unique(values)) > 20  # MXFP4 has 15 numbers and few scales


def test_random_weights_hold_every_byte_of_codes():
    raw = random_blocks("Q8_0", 64, 1024, np.random.default_rng(4)).reshape(-1, 34)
    assert len(np.unique(raw[:, 2:])) == 256


def awkward_values() -> NDArray[np.float32]:
    rng = np.random.default_rng(5)
    size = rng.choice([1e-9, 1e-3, 1.0, 200.0], (ROWS, COLS))
    values = (rng.standard_normal((ROWS, COLS)) * size).astype(np.float32)
    values[0] = 0
    values[1] = -0.0
    values[2] = 3.25  # all equal
    values[3] = np.linspace(-127, 127, COLS) + 0.5  # halves, for rounding
    values[4, :32] = np.r_[np.arange(-16, 16)]
    return values


@pytest.mark.parametrize("name", ENCODABLE)
def test_encodes_as_the_gguf_package(name):
    values = awkward_values()
    theirs = gguf.quants.quantize(values, oracle(name)).reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(quantize(values, name), theirs)


@pytest.mark.parametrize("name", ENCODABLE)
def test_encoding_is_near_the_values(name):
    values = np.random.default_rng(6).standard_normal((8, 64)).astype(np.float32)
    again = dequantize(quantize(values, name), name, values.shape)
    error = np.sqrt(np.mean((again - values) ** 2))
    limit = {"F32": 0, "F16": 1e-3, "BF16": 5e-3, "Q8_0": 0.02, "Q5_0": 0.08, "Q5_1": 0.08}
    assert error <= limit.get(name, 0.15)  # a step of 4 bits over about +-2.5


def test_bf16_rounds_to_even_and_keeps_nan():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0x7F7FFFFF], np.uint32)
    encoded = quantize(bits.view(np.float32), "BF16").view(np.uint16)
    assert [hex(code) for code in encoded] == ["0x3f80", "0x3f82", "0x3f81", "0x7fc0", "0x7f80"]


def test_shapes_of_any_rank():
    raw = quantize(np.arange(2 * 3 * 32, dtype=np.float32), "Q8_0")
    assert dequantize(raw, "Q8_0", (2, 3, 32)).shape == (2, 3, 32)
    assert dequantize(quantize(np.float32(7)[()], "F32"), "F32", ()).item() == 7
    assert dequantize(np.zeros(0, np.uint8), "Q4_K", (0, 256)).shape == (0, 256)


def test_large_tensors_are_decoded_in_pieces_without_seams():
    rng = np.random.default_rng(7)
    raw = random_blocks("Q4_0", 70, 32768, rng)  # more than two chunks of a million values
    whole = dequantize(raw, "Q4_0", (70, 32768))
    last = dequantize(raw[-row_nbytes("Q4_0", 32768) :], "Q4_0", (32768,))
    np.testing.assert_array_equal(whole[-1], last)


@pytest.mark.parametrize("name", ["IQ2_XXS", "TQ1_0", "NVFP4", "Q8_K", "I32", "F64"])
def test_other_types_are_refused_by_name(name):
    with pytest.raises(UnsupportedError, match=f"{name} are not supported.*Q4_K"):
        block_format(name)
    with pytest.raises(UnsupportedError, match=name):
        dequantize(np.zeros(0, np.uint8), name, (0,))
    with pytest.raises(UnsupportedError, match=name):
        quantize(np.zeros(256, np.float32), name)


def test_formats_without_encoder_are_refused_by_name():
    with pytest.raises(UnsupportedError, match="cannot be encoded as Q4_K"):
        quantize(np.zeros(256, np.float32), "Q4_K")


def test_wrong_sizes_are_refused():
    with pytest.raises(FormatError, match=r"Q4_0 and shape \[1, 32\] cannot have 17 bytes"):
        dequantize(np.zeros(17, np.uint8), "Q4_0", (1, 32))
    with pytest.raises(FormatError):
        dequantize(np.zeros(18, np.uint8), "Q4_0", (32, 1))
    with pytest.raises(UnsupportedError, match="rows of 33 values"):
        quantize(np.zeros((2, 33), np.float32), "Q8_0")


def test_values_that_are_not_finite_are_refused_by_block_formats():
    with pytest.raises(UsageError, match="not finite"):
        quantize(np.full(32, np.inf, np.float32), "Q4_1")
