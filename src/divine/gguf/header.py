"""Parsing a GGUF header: counts, metadata entries and tensor infos, all bounds-checked.

Works on any buffer; nothing here allocates or loops in proportion to a number that the file merely
claims: every count is first held against the bytes that are left, and against fixed limits far
above what real files need. Values are only skipped here (divine.gguf.metadata decodes them later),
but skipping proves that they are there. Source: the GGUF specification in ggml's documentation.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from divine.errors import FormatError, UnsupportedError
from divine.gguf import keys
from divine.gguf.types import (
    BLOCK_TYPE_BY_ID,
    NUMBER_DTYPES,
    REMOVED_TYPES,
    BlockType,
    ValueType,
)
from divine.gguf.values import ARRAY_HEAD, U32, U64

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
# Strings and inner arrays are the only values whose skipping takes a step per element: 4 million
# strings (real vocabularies have up to 0.5 million), and far fewer of the arrays, whose step is
# slower, keep a hostile file from taking minutes.
MAX_STEPS = 1 << 22
MAX_ARRAYS = 1 << 16
MAX_DEPTH = 4  # arrays within arrays
MAX_NAME = 1 << 16
MAX_ALIGNMENT = 1 << 16
DEFAULT_ALIGNMENT = 32

_MIN_ENTRY = 8 + 4 + 1  # empty key, type, one byte
_MIN_TENSOR = 8 + 4 + 4 + 8  # empty name, no dimensions, type, offset


@dataclass(frozen=True)
class Entry:
    """Where the value of a metadata key lies: [start, end) of the buffer."""

    type: ValueType
    start: int
    end: int
    element: ValueType | None = None  # of an array
    count: int = 0  # elements of an array


@dataclass(frozen=True)
class RawTensor:
    """A tensor info; `start` counts from the beginning of the file."""

    name: str
    shape: tuple[int, ...]  # NumPy order: [out, in]
    type: BlockType
    start: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """What stands before the tensor data."""

    version: int
    entries: dict[str, Entry]  # in file order
    tensors: list[RawTensor]  # in file order
    alignment: int
    data_start: int


def quote(text: str | bytes) -> str:
    """Text from a file, escaped and shortened for a message."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return repr(text if len(text) <= 80 else text[:77] + "...")


def parse_header(buffer: Any, size: int, file: str) -> Header:
    """Parse and check the header of a GGUF file of `size` bytes; `file` names it in messages.

    Raises FormatError for a damaged file, UnsupportedError for a version, byte order or tensor type
    that is not supported.
    """
    return _Parser(buffer, size, file).parse()


class _Parser:
    def __init__(self, buffer: Any, size: int, file: str) -> None:
        self.buffer = buffer
        self.size = size
        self.file = file
        self.position = 0
        self.steps = {ValueType.STRING: MAX_STEPS, ValueType.ARRAY: MAX_ARRAYS}  # left

    def parse(self) -> Header:
        version = self._magic_and_version()
        tensor_count, key_count = self._unpack(_COUNTS, "the counts of tensors and keys")
        self._check_counts(tensor_count, key_count)
        entries: dict[str, Entry] = {}
        for index in range(key_count):
            key = self._name("key", index)
            if key in entries:
                self._fail(f"has the key {quote(key)} twice")
            entries[key] = self._entry(key)
        alignment = self._alignment(entries)
        infos = [self._tensor_info(index) for index in range(tensor_count)]
        data_start = -(-self.position // alignment) * alignment
        tensors = self._place_tensors(infos, data_start, alignment)
        return Header(version, entries, tensors, alignment, data_start)

    def _fail(self, what: str) -> NoReturn:
        raise FormatError(f"{self.file}: the GGUF file {what}")

    def _unpack(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        if layout.size > self.size - self.position:
            self._fail(
                f"ends within {what}: {layout.size} bytes are needed at offset {self.position}, "
                f"{max(self.size - self.position, 0)} are left"
            )
        values = layout.unpack_from(self.buffer, self.position)
        self.position += layout.size
        return values

    def _magic_and_version(self) -> int:
        magic = bytes(self.buffer[: min(self.size, 64)])
        if magic[:4] != b"GGUF":
            raise _not_gguf(self.file, magic)
        self.position = 4
        (version,) = self._unpack(U32, "the version")
        if version in (2, 3):
            return int(version)
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if 1 <= swapped <= 0xFFFF:
            raise UnsupportedError(
                f"{self.file}: big-endian GGUF (version {swapped}) is not supported; convert it to "
                "little-endian"
            )
        raise UnsupportedError(
            f"{self.file}: GGUF version {version} is not supported; supported are 2 and 3"
        )

    def _check_counts(self, tensor_count: int, key_count: int) -> None:
        left = self.size - self.position
        for count, what, least, most in (
            (key_count, "keys", _MIN_ENTRY, MAX_KEYS),
            (tensor_count, "tensors", _MIN_TENSOR, MAX_TENSORS),
        ):
            room = min(left // least, most)
            if count > room:
                self._fail(f"declares {count} {what}; at most {room} are possible in its size")
            left -= count * least

    def _name(self, what: str, index: int) -> str:
        """The key of a metadata entry or the name of a tensor."""
        (length,) = self._unpack(U64, f"the length of {what} {index}")
        left = self.size - self.position
        if length > min(left, MAX_NAME):
            self._fail(
                f"declares {length} bytes for {what} {index} at offset {self.position}; at most "
                f"{min(left, MAX_NAME)} are possible"
            )
        raw = bytes(self.buffer[self.position : self.position + length])
        self.position += length
        if not raw:
            self._fail(f"has an empty name for {what} {index}")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self._fail(f"has a {what} that is not UTF-8: {quote(raw)}")

    def _entry(self, key: str) -> Entry:
        kind = self._value_type(key, "type")
        start = self.position
        if kind is not ValueType.ARRAY:
            self._skip(kind, 1, key, 0)
            return Entry(kind, start, self.position)
        code, count = ARRAY_HEAD.unpack_from(self.buffer, start) if self._has(12) else (0, 0)
        self._skip(kind, 1, key, 0)  # checks what was just read
        return Entry(kind, start, self.position, ValueType(code), count)

    def _has(self, nbytes: int) -> bool:
        return nbytes <= self.size - self.position

    def _value_type(self, key: str, what: str) -> ValueType:
        (code,) = self._unpack(U32, f"the value of key {quote(key)}")
        if code not in _VALUE_CODES:
            self._fail(f"has {what} {code} for key {quote(key)}; allowed are 0 to 12")
        return ValueType(code)

    def _skip(self, kind: ValueType, count: int, key: str, depth: int) -> None:
        """Move past `count` values of one type, proving that they lie within the file."""
        if kind is ValueType.STRING:
            self._skip_strings(count, key)
        elif kind is ValueType.ARRAY:
            self._skip_arrays(count, key, depth)
        else:
            nbytes = NUMBER_DTYPES[kind].itemsize * count
            if not self._has(nbytes):
                self._too_long(count, kind, key, (self.size - self.position) // (nbytes // count))
            if kind is ValueType.BOOL:
                flags = np.frombuffer(self.buffer, np.uint8, count, self.position)
                if count and int(flags.max()) > 1:
                    self._fail(f"has a bool that is neither 0 nor 1 in key {quote(key)}")
            self.position += nbytes

    def _too_long(self, count: int, kind: ValueType, key: str, room: int) -> NoReturn:
        self._fail(
            f"declares {count} values of type {kind.label} for key {quote(key)}; at most {room} "
            "are possible in its size"
        )

    def _take_steps(self, count: int, kind: ValueType, key: str, least: int) -> None:
        room = min((self.size - self.position) // least, self.steps[kind])
        if count > room:
            self._too_long(count, kind, key, room)
        self.steps[kind] -= count

    def _skip_strings(self, count: int, key: str) -> None:
        self._take_steps(count, ValueType.STRING, key, 8)
        unpack, buffer, position = U64.unpack_from, self.buffer, self.position
        try:
            # Positions are Python integers, so absurd lengths cannot wrap: they end the loop at the
            # next unpack, or are caught by the comparison after it.
            for _ in range(count):
                position += 8 + unpack(buffer, position)[0]
        except (struct.error, OverflowError):
            position = self.size + 1
        if position > self.size:
            self._fail(f"has a string in key {quote(key)} that reaches beyond the end of the file")
        self.position = position

    def _skip_arrays(self, count: int, key: str, depth: int) -> None:
        if depth == MAX_DEPTH:
            self._fail(f"nests arrays deeper than {MAX_DEPTH} levels in key {quote(key)}")
        self._take_steps(count, ValueType.ARRAY, key, ARRAY_HEAD.size)
        for _ in range(count):
            element = self._value_type(key, "element type")
            (length,) = self._unpack(U64, f"the array of key {quote(key)}")
            self._skip(element, length, key, depth + 1)

    def _alignment(self, entries: dict[str, Entry]) -> int:
        entry = entries.get(keys.ALIGNMENT)
        if entry is None:
            return DEFAULT_ALIGNMENT
        if entry.type is not ValueType.U32:
            self._fail(f"has {keys.ALIGNMENT} as {entry.type.label}; it must be u32")
        alignment = int(U32.unpack_from(self.buffer, entry.start)[0])
        if alignment & (alignment - 1) or not 0 < alignment <= MAX_ALIGNMENT:
            self._fail(
                f"has {keys.ALIGNMENT} = {alignment}; it must be a power of two from 1 to "
                f"{MAX_ALIGNMENT}"
            )
        return alignment

    def _tensor_info(self, index: int) -> tuple[str, tuple[int, ...], BlockType, int]:
        name = self._name("tensor", index)
        what = f"the info of tensor {quote(name)}"
        (dimensions,) = self._unpack(U32, what)
        if dimensions > 4:
            self._fail(
                f"has {dimensions} dimensions for tensor {quote(name)}; at most 4 are allowed"
            )
        shape = self._unpack(_DIMENSIONS[dimensions], what)[::-1]
        type_id, offset = self._unpack(_TYPE_OFFSET, what)
        return name, shape, self._block_type(name, type_id), offset

    def _block_type(self, name: str, type_id: int) -> BlockType:
        if type_id in BLOCK_TYPE_BY_ID:
            return BLOCK_TYPE_BY_ID[type_id]
        known = REMOVED_TYPES.get(type_id)
        reason = (
            f"type {known}, which was withdrawn from the format: convert the model again"
            if known
            else f"unknown type number {type_id}"
        )
        raise UnsupportedError(f"{self.file}: tensor {quote(name)} has {reason}")

    def _place_tensors(
        self,
        infos: list[tuple[str, tuple[int, ...], BlockType, int]],
        data_start: int,
        alignment: int,
    ) -> list[RawTensor]:
        tensors = []
        seen: set[str] = set()
        for name, shape, kind, offset in infos:
            if name in seen:
                self._fail(f"has the tensor {quote(name)} twice")
            seen.add(name)
            tensors.append(self._place(name, shape, kind, offset, data_start, alignment))
        in_order = sorted((t for t in tensors if t.nbytes), key=lambda t: t.start)
        for before, after in pairwise(in_order):
            if before.start + before.nbytes > after.start:
                self._fail(
                    f"has tensors that overlap: {quote(before.name)} and {quote(after.name)}"
                )
        return tensors

    def _place(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: BlockType,
        offset: int,
        data_start: int,
        alignment: int,
    ) -> RawTensor:
        count = 1
        for length in shape:
            count *= length
        # A shape with a zero may still have absurd other lengths; NumPy takes none beyond 2^63.
        if any(length >= 1 << 63 for length in shape):
            self._fail(f"has the shape {list(shape)} for tensor {quote(name)}, which is absurd")
        if shape and shape[-1] % kind.elements:
            self._fail(
                f"has rows of {shape[-1]} values in tensor {quote(name)}; type {kind.name} needs a "
                f"multiple of {kind.elements}"
            )
        if not shape and kind.elements > 1:
            self._fail(f"has a scalar of type {kind.name} in tensor {quote(name)}")
        if offset % alignment:
            self._fail(
                f"has tensor {quote(name)} at offset {offset}, which is no multiple of the "
                f"alignment {alignment}"
            )
        start, nbytes = data_start + offset, kind.tensor_nbytes(count)
        if start + nbytes > self.size and nbytes:
            self._fail(
                f"is truncated or damaged: tensor {quote(name)} ends at byte {start + nbytes}, the "
                f"file has {self.size} bytes"
            )
        return RawTensor(name, shape, kind, start, nbytes)


_COUNTS = struct.Struct("<QQ")
_TYPE_OFFSET = struct.Struct("<IQ")
_DIMENSIONS = [struct.Struct(f"<{n}Q") for n in range(5)]
_VALUE_CODES = frozenset(ValueType)

_OTHER_KINDS = (
    (b"FUGG", "its bytes are swapped: a big-endian GGUF is not supported"),
    (b"GGML", "it is an old GGML file from before GGUF"),
    (b"lmgg", "it is an old GGML file from before GGUF"),
    (b"fmgg", "it is an old GGML file from before GGUF"),
    (b"tjgg", "it is an old GGJT file from before GGUF"),
    (b"version https://git-lfs", "it is a Git LFS pointer, not the file itself"),
    (b"PK\x03\x04", "it is a zip archive, such as a PyTorch checkpoint"),
    (b"<", "it is an HTML or XML page, as a failed download leaves"),
)


def _not_gguf(file: str, start: bytes) -> FormatError:
    for magic, reason in _OTHER_KINDS:
        if start.lstrip().startswith(magic):
            return FormatError(f"{file} is not a GGUF file: {reason}")
    if start[8:10] == b'{"':  # behind the length of its header
        return FormatError(
            f"{file} is not a GGUF file: it looks like safetensors; if these are trained heads, "
            "divine export packs them"
        )
    found = ascii(start[:4]).removeprefix("b")
    return FormatError(f"{file} is not a GGUF file: it begins with {found}, not 'GGUF'")
