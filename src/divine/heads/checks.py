"""What the definitions of drafting heads check alike: their fields, and the shapes of tensors.

Knows names, numbers and messages; no architecture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

from divine.errors import FormatError, UnsupportedError

Architecture: TypeAlias = Literal["mtp", "layer"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
VERSION = 1  # of the keys and of the JSON form
PREFIX = "divine.speculative."
TENSOR_PREFIX = "divine.mtp."
DRAFT_VOCAB = "divine.mtp.draft_vocab"  # I32 [tokens], ascending


def plain(value: float) -> float:
    """A number that was stored as f32, as it was written: 0.9, not 0.8999999761581421."""
    return float(f"{value:.7g}")


def trained_numbers(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """How many; the draft vocabulary is none."""
    return sum(math.prod(shape) for name, shape in shapes.items() if name != DRAFT_VOCAB)


def check_shapes(
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    where: str,
    what: str,
    owned: str,
) -> None:
    """Raises FormatError naming the first tensor that is missing, unknown or ill-shaped.

    `where`: a file's name. `what` describes the heads; `owned` says which tensors they have.
    """
    for name, shape in expected.items():
        if name not in found:
            raise FormatError(
                f'{where}: the tensor "{name}" of the drafting heads is missing; its shape '
                f"would be {list(shape)}"
            )
        if tuple(found[name]) != shape:
            raise FormatError(
                f'{where}: the tensor "{name}" has shape {list(found[name])}; the heads '
                f"({what}) need {list(shape)}"
            )
    for name in found:
        if name.startswith(TENSOR_PREFIX) and name not in expected:
            raise FormatError(f'{where}: the tensor "{name}" belongs to no head; {owned}')


def fields_of(
    values: Mapping[str, Any], known: set[str], needed: set[str], where: str
) -> dict[str, Any]:
    """The fields of a definition in its JSON form, without their version.

    Raises FormatError for unknown or missing fields, UnsupportedError for another version.
    """
    if not isinstance(values, Mapping):
        raise FormatError(f"{where}: the heads' definition is not a JSON object")
    fields = dict(values)
    version = fields.pop("version", VERSION)
    if version != VERSION:
        raise UnsupportedError(
            f"{where}: the heads' definition is of version {version!r}; this Divine knows {VERSION}"
        )
    _refuse(where, "unknown fields", fields.keys() - known)
    _refuse(where, "missing fields", needed - fields.keys())
    return fields


def _refuse(where: str, what: str, names: Iterable[str]) -> None:
    if found := sorted(names):
        raise FormatError(f"{where}: the heads' definition has {what}: {', '.join(found)}")
