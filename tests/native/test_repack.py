"""Repacking loses nothing: blocks laid out for the kernels decode as the NumPy reference does.

Whole rows of junk bytes are decoded too (scales that are NaN, infinite or subnormal), since a file
may hold anything; NaNs compare as equal whatever their payload.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from divine.backends.cpu import _native
from divine.blocks import SUPPORTED, block_format, dequantize, random_blocks, row_nbytes

ROWS = (1, 15, 16, 17, 33)  # a group of lanes has 16


def assert_same_values(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    nan = np.isnan(wanted)
    assert (np.isnan(found) == nan).all()
    assert (found.view(np.uint32)[~nan] == wanted.view(np.uint32)[~nan]).all()


def columns_of(block_type: str, blocks: int) -> int:
    return max(block_format(block_type).elements, 32) * blocks


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("block_type", SUPPORTED)
def test_random_blocks(block_type: str, rows: int) -> None:
    columns = columns_of(block_type, 3)
    raw = random_blocks(block_type, rows, columns, np.random.default_rng(rows))
    found = _native.dequantize_repacked(block_type, rows, columns, raw)
    assert_same_values(np.asarray(found), dequantize(raw, block_type, (rows, columns)))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("block_type", SUPPORTED)
def test_junk_bytes(block_type: str, rows: int) -> None:
    columns = columns_of(block_type, 2)
    nbytes = rows * row_nbytes(block_type, columns)
    raw = np.frombuffer(np.random.default_rng(rows).bytes(nbytes), np.uint8)
    found = _native.dequantize_repacked(block_type, rows, columns, raw)
    assert_same_values(np.asarray(found), dequantize(raw, block_type, (rows, columns)))


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("block_type", SUPPORTED)
def test_all_bytes_alike(block_type: str, byte: int) -> None:
    columns = columns_of(block_type, 1)
    raw = np.full(2 * row_nbytes(block_type, columns), byte, np.uint8)
    found = _native.dequantize_repacked(block_type, 2, columns, raw)
    assert_same_values(np.asarray(found), dequantize(raw, block_type, (2, columns)))


@pytest.mark.parametrize("block_type", ["F32", "F16", "BF16"])
def test_float_rows_need_no_full_vectors(block_type: str) -> None:
    raw = random_blocks(block_type, 17, 37, np.random.default_rng(1))
    found = _native.dequantize_repacked(block_type, 17, 37, raw)
    assert_same_values(np.asarray(found), dequantize(raw, block_type, (17, 37)))


@pytest.mark.parametrize("block_type", SUPPORTED)
def test_native_random_weights_are_valid_blocks(block_type: str) -> None:
    columns = columns_of(block_type, 2)
    raw = np.asarray(_native.random_weights(block_type, 5, columns, 1))
    values = dequantize(raw, block_type, (5, columns))
    assert np.isfinite(values).all()
    assert values.std() > 0
    assert (raw == np.asarray(_native.random_weights(block_type, 5, columns, 1))).all()
    assert (raw != np.asarray(_native.random_weights(block_type, 5, columns, 2))).any()
