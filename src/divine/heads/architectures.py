"""Which architectures of drafting heads there are, and how keys and JSON of each are told apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from divine.errors import FormatError, UnsupportedError
from divine.gguf import Metadata
from divine.heads.checks import ARCHITECTURES, PREFIX, VERSION
from divine.heads.definition import HeadsDefinition
from divine.heads.layer import LayerDefinition

Definition: TypeAlias = HeadsDefinition | LayerDefinition


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


def definition_from_keys(metadata: Metadata, dim: int, where: str) -> Definition:
    """From a GGUF's metadata; `dim` as for HeadsDefinition.from_keys().

    Raises FormatError, or UnsupportedError for another architecture or a newer version.
    """
    if metadata.str(PREFIX + "architecture") != "layer":
        return HeadsDefinition.from_keys(metadata, dim, where)
    version = metadata.int(PREFIX + "version", 0, minimum=0)
    if version != VERSION:
        raise UnsupportedError(
            f"{where}: the drafting heads are of version {version}; this Divine knows {VERSION}"
        )
    return LayerDefinition.from_keys(metadata, where)
