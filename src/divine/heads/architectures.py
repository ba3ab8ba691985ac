"""Which architectures of drafting heads there are, and how a JSON form is told from another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from divine.errors import FormatError
from divine.heads.definition import HeadsDefinition
from divine.heads.layer import LayerDefinition

Definition: TypeAlias = HeadsDefinition | LayerDefinition
ARCHITECTURES = ("mtp", "layer")


def definition_from_dict(values: Mapping[str, Any], where: str) -> Definition:
    """From to_dict() of any architecture; raises FormatError, UnsupportedError."""
    architecture = values.get("architecture", "mtp")
    if architecture not in ARCHITECTURES:
        raise FormatError(
            f"{where}: the drafting heads are of architecture {architecture!r}; known are "
            f"{', '.join(ARCHITECTURES)}"
        )
    if architecture == "layer":
        return LayerDefinition.from_dict(values, where)
    return HeadsDefinition.from_dict(values, where)
