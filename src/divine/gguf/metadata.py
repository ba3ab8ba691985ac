"""Metadata of a GGUF file: a mapping from key to Python value, and getters that check.

Values are decoded on first use and kept, so opening a file with 300,000 strings costs only their
skipping, and reading one number costs nothing more. The getters turn a missing key, a wrong type or
a value out of range into one FormatError that names file, key, finding and what is allowed. What a
key means is known to its users only.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar, overload

import numpy as np

from divine.errors import FormatError
from divine.gguf.header import Entry, quote
from divine.gguf.types import FLOAT_TYPES, INTEGER_TYPES, ValueType
from divine.gguf.values import ARRAY_HEAD, Typed, decode, read_strings

D = TypeVar("D")
MAX_LAYERS = 1 << 16  # no per-layer array is longer; bounds what a scalar is repeated to

_BOOL = frozenset({ValueType.BOOL})
_STRING = frozenset({ValueType.STRING})


class _Required:
    """Marks a getter without a default."""


REQUIRED: Final = _Required()


class Metadata(Mapping[str, Any]):
    """Keys in file order. metadata[key] is an int, float, bool, str or a list of these.

    Text that is not UTF-8 is shown with U+FFFD; strings_bytes() and typed() give the exact bytes.
    Lists are kept and returned as they are: do not change them. Values not yet decoded can no
    longer be read once the file is closed.
    """

    def __init__(
        self, file: str, entries: Mapping[str, Entry], readable: Callable[[], Any]
    ) -> None:
        """`readable` returns the file's bytes, or raises FormatError when they are gone."""
        self._file = file
        self._entries = entries
        self._readable = readable
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._decoded:
            entry = self._entries[key]
            self._decoded[key] = decode(entry.type, self._readable(), entry.start)[0]
        return self._decoded[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> builtins.int:
        return len(self._entries)

    def __contains__(self, key: object) -> builtins.bool:
        return key in self._entries

    def typed(self, key: str) -> Typed:
        """The value with its type and exact bytes, for writing it again. Raises KeyError."""
        entry = self._entries[key]
        return Typed(entry.type, bytes(self._readable()[entry.start : entry.end]))

    def type_name(self, key: str) -> str:
        """Such as "u32", "string" or "[string]". Raises KeyError."""
        entry = self._entries[key]
        return f"[{entry.element.label}]" if entry.element is not None else entry.type.label

    def length(self, key: str) -> builtins.int | None:
        """Number of elements of an array, None for other values. Raises KeyError."""
        entry = self._entries[key]
        return entry.count if entry.type is ValueType.ARRAY else None

    def first(self, key: str, count: builtins.int) -> Any:
        """Like metadata[key], but of an array only the first `count` elements; decodes no more."""
        entry = self._entries[key]
        return decode(entry.type, self._readable(), entry.start, count)[0]

    @overload
    def int(
        self, key: str, *, minimum: builtins.int = ..., maximum: builtins.int = ...
    ) -> builtins.int: ...
    @overload
    def int(
        self, key: str, default: D, *, minimum: builtins.int = ..., maximum: builtins.int = ...
    ) -> builtins.int | D: ...
    def int(
        self,
        key: str,
        default: Any = REQUIRED,
        *,
        minimum: builtins.int = -(2**63),
        maximum: builtins.int = 2**64 - 1,
    ) -> Any:
        """An integer of any width, within [minimum, maximum]."""
        if not self._scalar(key, default, INTEGER_TYPES, "an integer"):
            return default
        value = self[key]
        if not minimum <= value <= maximum:
            self._bad(key, str(value), _range("an integer", minimum, maximum))
        return value

    @overload
    def float(
        self, key: str, *, minimum: builtins.float = ..., maximum: builtins.float = ...
    ) -> builtins.float: ...
    @overload
    def float(
        self, key: str, default: D, *, minimum: builtins.float = ..., maximum: builtins.float = ...
    ) -> builtins.float | D: ...
    def float(
        self,
        key: str,
        default: Any = REQUIRED,
        *,
        minimum: builtins.float = -math.inf,
        maximum: builtins.float = math.inf,
    ) -> Any:
        """A finite number (f32, f64 or an integer), within [minimum, maximum]."""
        if not self._scalar(key, default, FLOAT_TYPES | INTEGER_TYPES, "a number"):
            return default
        return self._finite(key, self[key], minimum, maximum)

    @overload
    def str(self, key: builtins.str) -> builtins.str: ...
    @overload
    def str(self, key: builtins.str, default: D) -> builtins.str | D: ...
    def str(self, key: builtins.str, default: Any = REQUIRED) -> Any:
        """A string; bytes that are no UTF-8 are shown as U+FFFD."""
        return self[key] if self._scalar(key, default, _STRING, "a string") else default

    @overload
    def bool(self, key: builtins.str) -> builtins.bool: ...
    @overload
    def bool(self, key: builtins.str, default: D) -> builtins.bool | D: ...
    def bool(self, key: builtins.str, default: Any = REQUIRED) -> Any:
        """A bool."""
        return self[key] if self._scalar(key, default, _BOOL, "a bool") else default

    @overload
    def ints(
        self,
        key: builtins.str,
        length: builtins.int | None = None,
        *,
        minimum: builtins.int = ...,
        maximum: builtins.int = ...,
    ) -> list[builtins.int]: ...
    @overload
    def ints(
        self,
        key: builtins.str,
        length: builtins.int | None = None,
        *,
        default: D,
        minimum: builtins.int = ...,
        maximum: builtins.int = ...,
    ) -> list[builtins.int] | D: ...
    def ints(
        self,
        key: builtins.str,
        length: builtins.int | None = None,
        *,
        default: Any = REQUIRED,
        minimum: builtins.int = -(2**63),
        maximum: builtins.int = 2**64 - 1,
    ) -> Any:
        """Integers; with `length`, a single one is repeated and an array must have that length."""
        values = self._array(key, length, default, INTEGER_TYPES, "integers")
        if values is None:
            return default
        for value in () if not values else (min(values), max(values)):
            if not minimum <= value <= maximum:
                self._bad(key, builtins.str(value), _range("integers", minimum, maximum))
        return values

    @overload
    def floats(
        self, key: builtins.str, length: builtins.int | None = None
    ) -> list[builtins.float]: ...
    @overload
    def floats(
        self, key: builtins.str, length: builtins.int | None = None, *, default: D
    ) -> list[builtins.float] | D: ...
    def floats(
        self, key: builtins.str, length: builtins.int | None = None, *, default: Any = REQUIRED
    ) -> Any:
        """Finite numbers; `length` as in ints()."""
        values = self._array(key, length, default, FLOAT_TYPES | INTEGER_TYPES, "numbers")
        if values is None:
            return default
        numbers = np.asarray(values, np.float64)
        if not np.isfinite(numbers).all():
            self._bad(key, "not finite everywhere", "finite numbers")
        return numbers.tolist()

    @overload
    def bools(
        self, key: builtins.str, length: builtins.int | None = None
    ) -> list[builtins.bool]: ...
    @overload
    def bools(
        self, key: builtins.str, length: builtins.int | None = None, *, default: D
    ) -> list[builtins.bool] | D: ...
    def bools(
        self, key: builtins.str, length: builtins.int | None = None, *, default: Any = REQUIRED
    ) -> Any:
        """Bools; `length` as in ints()."""
        values = self._array(key, length, default, _BOOL, "bools")
        return default if values is None else values

    @overload
    def strings(self, key: builtins.str) -> list[builtins.str]: ...
    @overload
    def strings(self, key: builtins.str, *, default: D) -> list[builtins.str] | D: ...
    def strings(self, key: builtins.str, *, default: Any = REQUIRED) -> Any:
        """An array of strings; bytes that are no UTF-8 are shown as U+FFFD."""
        return self[key] if self._string_array(key, default) else default

    @overload
    def strings_bytes(self, key: builtins.str) -> list[builtins.bytes]: ...
    @overload
    def strings_bytes(self, key: builtins.str, *, default: D) -> list[builtins.bytes] | D: ...
    def strings_bytes(self, key: builtins.str, *, default: Any = REQUIRED) -> Any:
        """An array of strings as the bytes in the file; not kept."""
        if not self._string_array(key, default):
            return default
        entry = self._entries[key]
        return read_strings(self._readable(), entry.start + ARRAY_HEAD.size, entry.count)[0]

    @overload
    def strings_packed(self, key: builtins.str) -> builtins.bytes: ...
    @overload
    def strings_packed(self, key: builtins.str, *, default: D) -> builtins.bytes | D: ...
    def strings_packed(self, key: builtins.str, *, default: Any = REQUIRED) -> Any:
        """An array of strings as it lies in the file: each after its length, a u64; not kept."""
        if not self._string_array(key, default):
            return default
        entry = self._entries[key]
        return bytes(self._readable()[entry.start + ARRAY_HEAD.size : entry.end])

    def _scalar(
        self, key: builtins.str, default: Any, types: frozenset[ValueType], allowed: builtins.str
    ) -> builtins.bool:
        """Whether the key is there; raises when it must be, or is of another type."""
        entry = self._find(key, default, allowed)
        if entry is not None and entry.type not in types:
            self._bad(key, self._describe(key), allowed)
        return entry is not None

    def _string_array(self, key: builtins.str, default: Any) -> builtins.bool:
        entry = self._find(key, default, "an array of strings")
        # An empty array may have any element type: writers cannot always tell it.
        if entry is not None and entry.element is not ValueType.STRING:
            if entry.type is not ValueType.ARRAY or entry.count:
                self._bad(key, self._describe(key), "an array of strings")
            self._decoded[key] = []
        return entry is not None

    def _array(
        self,
        key: builtins.str,
        length: builtins.int | None,
        default: Any,
        types: frozenset[ValueType],
        allowed: builtins.str,
    ) -> list[Any] | None:
        if length is not None:
            allowed = f"{length} {allowed}, or one for all"
        entry = self._find(key, default, allowed)
        if entry is None:
            return None
        if entry.type is ValueType.ARRAY:
            wrong_type = entry.count and entry.element not in types
            if wrong_type or (length is not None and entry.count != length):
                self._bad(key, self._describe(key), allowed)
            return list(self[key])
        if entry.type not in types or length is None:
            self._bad(key, self._describe(key), allowed)
        if length > MAX_LAYERS:
            raise FormatError(
                f"{self._file}: {length} layers are more than the {MAX_LAYERS} allowed"
            )
        return [self[key]] * length

    def _find(self, key: builtins.str, default: Any, allowed: builtins.str) -> Entry | None:
        entry = self._entries.get(key)
        if entry is None and default is REQUIRED:
            raise FormatError(f"{self._file}: the metadata key {key!r} ({allowed}) is missing")
        return entry

    def _finite(
        self,
        key: builtins.str,
        value: Any,
        minimum: builtins.float,
        maximum: builtins.float,
    ) -> builtins.float:
        if not math.isfinite(value) or not minimum <= value <= maximum:
            self._bad(key, builtins.str(value), _range("a finite number", minimum, maximum))
        return builtins.float(value)

    def _describe(self, key: builtins.str) -> builtins.str:
        """A short account of the value found, for a message."""
        entry = self._entries[key]
        if entry.type is ValueType.ARRAY:
            assert entry.element is not None
            return f"an array of {entry.count} {entry.element.label}"
        value = self[key]
        shown = quote(value) if entry.type is ValueType.STRING else value
        return f"{entry.type.label} {shown}"

    def _bad(self, key: builtins.str, found: builtins.str, allowed: builtins.str) -> NoReturn:
        raise FormatError(
            f"{self._file}: the metadata key {key!r} is {found}; it must be {allowed}"
        )


def _range(kind: str, minimum: Any, maximum: Any) -> str:
    bounds: Sequence[str] = [
        f"{word} {bound}"
        for word, bound, open_ended in (
            ("at least", minimum, (-(2**63), -math.inf)),
            ("at most", maximum, (2**64 - 1, math.inf)),
        )
        if bound not in open_ended
    ]
    return " ".join([kind, " and ".join(bounds)]).strip()
