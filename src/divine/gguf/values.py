"""Metadata values with their GGUF types, encoded and decoded.

`Typed` keeps a value as the bytes of the file, so that copying a key from one file to another
changes nothing: not the type, not a NaN's payload, not a string that is no UTF-8. Values are
little-endian; versions 2 and 3 of the format encode them alike. Where values lie in a file, and
whether they fit into it, is divine.gguf.header's business.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from divine.errors import UsageError
from divine.gguf.types import FLOAT_TYPES, NUMBER_DTYPES, ValueType

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
ARRAY_HEAD = struct.Struct("<IQ")  # element type, count

_BY_LABEL = {kind.label: kind for kind in ValueType if kind is not ValueType.ARRAY}


@dataclass(frozen=True)
class Typed:
    """A value as it lies in a GGUF file: its type and its bytes (an array's head included)."""

    type: ValueType
    payload: bytes

    @property
    def value(self) -> Any:
        """The value in Python: int, float, bool, str, or a list of these."""
        return decode(self.type, self.payload, 0)[0]


MetaValue: TypeAlias = (
    "Typed | bool | int | float | str | bytes | Sequence[Any] | np.generic | NDArray[Any]"
)


def typed(kind: str, value: Any) -> Typed:
    """Give `value` the type named by `kind`: "u32", "f64", "bool", "string", or "[...]" of one.

    typed("[string]", ["a", b"\\xff"]), typed("[[u8]]", [[1], []]). Raises UsageError when the value
    does not fit the type.
    """
    if kind.startswith("[") and kind.endswith("]"):
        inner = kind[1:-1]
        code = ValueType.ARRAY if inner.startswith("[") else _scalar_type(inner)
        head = ARRAY_HEAD.pack(code, len(value))
        if code is ValueType.ARRAY:
            return Typed(ValueType.ARRAY, head + b"".join(typed(inner, v).payload for v in value))
        return Typed(ValueType.ARRAY, head + _encode_many(code, value))
    code = _scalar_type(kind)
    return Typed(code, _encode_many(code, [value]))


def infer(value: MetaValue) -> Typed:
    """Choose the type that GGUF files use for a plain Python or NumPy value.

    bool, string (str or bytes); int: u32 where it fits, else i32, else i64 or u64; float: f32;
    NumPy values keep their own type; a list takes the type that fits all its elements. Raises
    UsageError for an empty list (its type cannot be told; use typed()) and for anything else.
    """
    if isinstance(value, Typed):
        return value
    if isinstance(value, np.ndarray | np.generic):
        kind = _numpy_label(value.dtype)
        if isinstance(value, np.generic):
            return typed(kind, value.item())
        if value.ndim == 1:
            return typed(f"[{kind}]", value)
        raise UsageError(f"a metadata array must have 1 dimension, this one has {value.ndim}")
    if isinstance(value, list | tuple):
        return _infer_array(value)
    if isinstance(value, bool):
        return typed("bool", value)
    if isinstance(value, int):
        return typed(_integer_label(value, value), value)
    if isinstance(value, float):
        return typed("f32", value)
    if isinstance(value, str | bytes):
        return typed("string", value)
    raise UsageError(f"a metadata value cannot be of type {type(value).__name__}")


def decode(kind: ValueType, buffer: Any, start: int, limit: int | None = None) -> tuple[Any, int]:
    """Decode the value at `start` of a buffer; return it and the position after it.

    The buffer must already be known to hold the value (see header.skip_value). Strings become str
    with U+FFFD for bytes that are no UTF-8. At most `limit` elements of an array are decoded; the
    position is then that of the last element taken.
    """
    if kind is ValueType.STRING:
        raw, end = _read_string(buffer, start)
        return raw.decode("utf-8", "replace"), end
    if kind is not ValueType.ARRAY:
        dtype = NUMBER_DTYPES[kind]
        number = np.frombuffer(buffer, dtype, 1, start)[0].item()
        return (bool(number) if kind is ValueType.BOOL else number), start + dtype.itemsize
    code, count = ARRAY_HEAD.unpack_from(buffer, start)
    element = ValueType(code)
    start += ARRAY_HEAD.size
    count = count if limit is None else min(count, limit)
    if element is ValueType.STRING:
        return read_texts(buffer, start, count)
    if element is ValueType.ARRAY:
        values = []
        for _ in range(count):
            value, start = decode(element, buffer, start)
            values.append(value)
        return values, start
    dtype = NUMBER_DTYPES[element]
    numbers = np.frombuffer(buffer, dtype, count, start)
    if element is ValueType.BOOL:
        numbers = numbers != 0
    return numbers.tolist(), start + count * dtype.itemsize


def read_strings(buffer: Any, start: int, count: int) -> tuple[list[bytes], int]:
    """The bytes of `count` consecutive strings, and the position after them."""
    joined, end = _join(buffer, start, count)
    if joined is not None:
        return joined.split(_SEPARATOR)[1:], end
    raws: list[bytes] = []
    for _ in range(count):
        begin = start + 8
        start = begin + U64.unpack_from(buffer, start)[0]
        raws.append(bytes(buffer[begin:start]))
    return raws, start


def read_texts(buffer: Any, start: int, count: int) -> tuple[list[str], int]:
    """Like read_strings(), decoded with U+FFFD for bytes that are no UTF-8."""
    joined, end = _join(buffer, start, count)
    if joined is not None:
        return joined.decode("utf-8", "replace").split(_SEPARATOR.decode())[1:], end
    raws, end = read_strings(buffer, start, count)
    return [raw.decode("utf-8", "replace") for raw in raws], end


# The last code point, a noncharacter that text does not hold. As UTF-8 it cannot overlap itself.
_SEPARATOR = "\U0010ffff".encode()
_MAX_JOINED = 1 << 26  # bytes: bounds the copies made by _join()


def _join(buffer: Any, start: int, count: int) -> tuple[bytes | None, int]:
    """The strings in one piece, each led by the separator, and the position after them.

    Splitting that is four times as fast as slicing out 300,000 strings one by one, which would take
    a noticeable part of a program's start. None when it is not worth it or not possible.
    """
    unpack, end = U64.unpack_from, start
    heads = []
    for _ in range(count):
        heads.append(end)
        end += 8 + unpack(buffer, end)[0]
    if count < 16 or end - start > _MAX_JOINED:
        return None, end
    data = np.frombuffer(buffer, np.uint8, end - start, start).copy()
    positions = np.array(heads)[:, None] - start
    # Of the 8 bytes of each length, 4 go and 4 become the separator.
    data[positions + np.arange(4, 8)] = np.frombuffer(_SEPARATOR, np.uint8)
    keep = np.ones(len(data), np.bool_)
    keep[positions + np.arange(4)] = False
    joined = data[keep].tobytes()
    return (joined if joined.count(_SEPARATOR) == count else None), end


def _read_string(buffer: Any, start: int) -> tuple[bytes, int]:
    raws, end = read_strings(buffer, start, 1)
    return raws[0], end


def _scalar_type(label: str) -> ValueType:
    if label not in _BY_LABEL:
        raise UsageError(f"{label!r} is no GGUF value type; allowed: {', '.join(_BY_LABEL)}")
    return _BY_LABEL[label]


def _encode_many(kind: ValueType, values: Iterable[Any]) -> bytes:
    if kind is ValueType.STRING:
        return b"".join(_encode_string(value) for value in values)
    dtype = NUMBER_DTYPES[kind]
    if not isinstance(values, np.ndarray):
        values = list(values)
        for value in values:
            _check_number(kind, value)
    elif values.dtype != (np.bool_ if kind is ValueType.BOOL else dtype):
        raise UsageError(f"an array of {values.dtype} was given as {kind.label}")
    try:
        return np.asarray(values, dtype).tobytes()
    except OverflowError:
        raise UsageError(f"a value does not fit into {kind.label}: {values!r:.100}") from None


def _check_number(kind: ValueType, value: Any) -> None:
    """Refuse what NumPy would convert silently, such as 1.5 to u32 or 2 to bool."""
    if kind is ValueType.BOOL:
        allowed = isinstance(value, bool | np.bool_)
    elif kind in FLOAT_TYPES:
        allowed = isinstance(value, int | float | np.integer | np.floating)
    else:
        allowed = isinstance(value, int | np.integer)
    if not allowed or (kind is not ValueType.BOOL and isinstance(value, bool | np.bool_)):
        raise UsageError(f"{value!r:.100} was given as {kind.label}")


def _encode_string(value: Any) -> bytes:
    if isinstance(value, str):
        value = value.encode("utf-8")
    if not isinstance(value, bytes):
        raise UsageError(f"{value!r:.100} was given as string")
    return U64.pack(len(value)) + value


def _numpy_label(dtype: np.dtype[Any]) -> str:
    if dtype == np.bool_:
        return "bool"
    for kind, candidate in NUMBER_DTYPES.items():
        if kind is not ValueType.BOOL and dtype == candidate:
            return kind.label
    raise UsageError(f"a metadata value cannot be of NumPy type {dtype}")


def _integer_label(low: int, high: int) -> str:
    for label, least, most in (
        ("u32", 0, 2**32 - 1),
        ("i32", -(2**31), 2**31 - 1),
        ("i64", -(2**63), 2**63 - 1),
    ):
        if least <= low and high <= most:
            return label
    return "u64"  # typed() refuses what is larger still


def _infer_array(values: Sequence[Any]) -> Typed:
    if not values:
        raise UsageError("the element type of an empty metadata array cannot be told: use typed()")
    if all(isinstance(value, bool) for value in values):
        return typed("[bool]", values)
    if all(isinstance(value, str | bytes) for value in values):
        return typed("[string]", values)
    if any(isinstance(value, bool) for value in values):
        raise UsageError("a metadata array mixes bool with other types")
    if all(isinstance(value, int) for value in values):
        # Arrays of small integers are i32 in real files (token types, per-layer counts).
        low, high = min(values), max(values)
        label = "i32" if low >= -(2**31) and high < 2**31 else _integer_label(low, high)
        return typed(f"[{label}]", values)
    if all(isinstance(value, int | float) for value in values):
        return typed("[f32]", values)
    raise UsageError("the elements of a metadata array must be of one type")
