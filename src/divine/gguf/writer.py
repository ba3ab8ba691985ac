"""Writing GGUF files: streamed, one tensor in memory at a time, all or nothing.

A file appears under its name only when it is whole: it is written beside it and renamed. Metadata
values given as Typed keep type and bytes, so copying a file's keys changes nothing. Which keys and
tensors a model needs is the caller's business.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from divine.errors import UsageError
from divine.files import replacing
from divine.gguf import keys
from divine.gguf.header import DEFAULT_ALIGNMENT, MAX_ALIGNMENT
from divine.gguf.reader import GGUFFile
from divine.gguf.types import BLOCK_TYPE_BY_NAME, BlockType, ValueType
from divine.gguf.values import U32, U64, MetaValue, Typed, infer, typed


@dataclass(frozen=True)
class TensorData:
    """A tensor to write: `data` is its bytes (any contiguous array), or gives them when called."""

    block_type: str  # ggml name
    shape: tuple[int, ...]  # NumPy order: [out, in] for matrices
    data: NDArray[Any] | Callable[[], NDArray[Any]]


class Writable(Protocol):
    """What bytes can be written to."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take all of these bytes."""


TensorLike: TypeAlias = TensorData | NDArray[Any]

_NUMPY_BLOCK_TYPES = {
    np.dtype("<f4"): "F32",
    np.dtype("<f2"): "F16",
    np.dtype("<f8"): "F64",
    np.dtype("i1"): "I8",
    np.dtype("<i2"): "I16",
    np.dtype("<i4"): "I32",
    np.dtype("<i8"): "I64",
}


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, MetaValue],
    tensors: Mapping[str, TensorLike],
    *,
    alignment: int | None = None,
    version: int = 3,
    tail: Callable[[BinaryIO], None] = lambda file: None,
) -> None:
    """Write a GGUF file; keys and tensors keep their order.

    Plain metadata values get the usual type (values.infer); a NumPy array as tensor is written by
    value in its own type. `alignment` is that of the tensors (None: as the metadata say, else 32)
    and is recorded in the metadata when it is not 32. `tail` writes what comes after the tensors.
    An existing file is replaced at the end.
    Raises UsageError for what cannot be written, CapacityError when the disk is full.
    """
    write = _writer(metadata, tensors, alignment, version)
    with replacing(Path(path)) as place, place.open("wb") as file:
        write(file)
        tail(file)
        file.flush()
        if place.is_file():
            os.fsync(file.fileno())


def copy_metadata(file: GGUFFile) -> dict[str, Typed]:
    """All keys of an open file, exactly, in order."""
    return {key: file.metadata.typed(key) for key in file.metadata}


def copy_tensors(file: GGUFFile) -> dict[str, TensorData]:
    """All tensors of an open file, exactly, in order; read only while being written."""

    def reader(name: str) -> Callable[[], NDArray[np.uint8]]:
        return lambda: file.raw(name)

    return {
        info.name: TensorData(info.block_type, info.shape, reader(info.name))
        for info in file.tensors.values()
    }


def stream_gguf(
    file: Writable, metadata: Mapping[str, MetaValue], tensors: Mapping[str, TensorLike]
) -> None:
    """Write a GGUF file (version 3) into an open one, wherever that stands; as write_gguf()."""
    _writer(metadata, tensors, None, 3)(file)


def _writer(
    metadata: Mapping[str, MetaValue],
    tensors: Mapping[str, TensorLike],
    alignment: int | None,
    version: int,
) -> Callable[[Writable], None]:
    """What writes the file, after everything but the tensors' data has been checked."""
    if version not in (2, 3):
        raise UsageError(f"GGUF version {version} cannot be written; allowed are 2 and 3")
    entries = {key: infer(value) for key, value in metadata.items()}
    settled = _settle_alignment(entries, alignment)
    items = {name: _as_tensor(name, tensor) for name, tensor in tensors.items()}
    header = _header(version, entries, items, settled)
    return lambda file: _write_all(file, header, items, settled)


def _settle_alignment(entries: dict[str, Typed], alignment: int | None) -> int:
    """The alignment to use; entries are changed to say the same."""
    if alignment is None:
        stated = entries.get(keys.ALIGNMENT)
        if stated is None:
            return DEFAULT_ALIGNMENT
        if stated.type is not ValueType.U32:
            raise UsageError(f"{keys.ALIGNMENT} must be u32, not {stated.type.label}")
        alignment = int(stated.value)
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise UsageError(
            f"the alignment {alignment} is not allowed; it must be a power of two from 1 to "
            f"{MAX_ALIGNMENT}"
        )
    if alignment != DEFAULT_ALIGNMENT or keys.ALIGNMENT in entries:
        entries[keys.ALIGNMENT] = typed("u32", alignment)
    return alignment


def _as_tensor(name: str, tensor: TensorLike) -> TensorData:
    if isinstance(tensor, np.ndarray):
        block_type = _NUMPY_BLOCK_TYPES.get(tensor.dtype)
        if block_type is None:
            allowed = ", ".join(str(dtype) for dtype in _NUMPY_BLOCK_TYPES)
            raise UsageError(
                f"tensor {name!r} has the NumPy type {tensor.dtype}; allowed are {allowed}"
            )
        tensor = TensorData(block_type, tensor.shape, tensor)
    kind = BLOCK_TYPE_BY_NAME.get(tensor.block_type)
    if kind is None:
        raise UsageError(f"tensor {name!r} has the unknown type {tensor.block_type!r}")
    if len(tensor.shape) > 4:
        raise UsageError(
            f"tensor {name!r} has {len(tensor.shape)} dimensions; at most 4 are allowed"
        )
    if (tensor.shape or (1,))[-1] % kind.elements:
        raise UsageError(
            f"tensor {name!r} has rows of {(tensor.shape or (1,))[-1]} values; type {kind.name} "
            f"needs a multiple of {kind.elements}"
        )
    return tensor


def _block_type(tensor: TensorData) -> BlockType:
    return BLOCK_TYPE_BY_NAME[tensor.block_type]


def _nbytes(tensor: TensorData) -> int:
    count = 1
    for length in tensor.shape:
        count *= int(length)
    return _block_type(tensor).tensor_nbytes(count)


def _header(
    version: int, entries: Mapping[str, Typed], items: Mapping[str, TensorData], alignment: int
) -> bytes:
    parts = [b"GGUF", U32.pack(version), U64.pack(len(items)), U64.pack(len(entries))]
    for key, value in entries.items():
        parts += [_name(key, "a metadata key"), U32.pack(value.type), value.payload]
    offset = 0
    for name, tensor in items.items():
        dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape[::-1])
        parts += [_name(name, "a tensor"), dims]
        parts.append(struct.pack("<IQ", _block_type(tensor).id, offset))
        offset += _padded(_nbytes(tensor), alignment)
    header = b"".join(parts)
    return header + bytes(_padded(len(header), alignment) - len(header))


def _name(name: str, what: str) -> bytes:
    if not name:
        raise UsageError(f"the name of {what} must not be empty")
    raw = name.encode("utf-8")
    return U64.pack(len(raw)) + raw


def _padded(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def _write_all(
    file: Writable, header: bytes, items: Mapping[str, TensorData], alignment: int
) -> None:
    file.write(header)
    for name, tensor in items.items():
        data = tensor.data() if callable(tensor.data) else tensor.data
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        expected = _nbytes(tensor)
        if raw.nbytes != expected:
            raise UsageError(
                f"tensor {name!r} has {raw.nbytes} bytes of data; its shape {list(tensor.shape)} "
                f"and type {tensor.block_type} need {expected}"
            )
        file.write(raw.data)
        file.write(bytes(_padded(expected, alignment) - expected))
