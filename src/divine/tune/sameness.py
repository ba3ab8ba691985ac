"""Whether a folder's earlier run had the settings of this one; the first that differs is named.

Knows dictionaries of settings, nested ones too, which tell first what people have said and then
what follows from it; not what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from divine.errors import UsageError


def check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise UsageError naming a setting of `path` that is not what this run has."""
    before, now = dict(_flat(found)), dict(_flat(wanted))
    for name in (*now, *(name for name in before if name not in now)):
        if before.get(name) != now.get(name):
            raise UsageError(
                f"{path} was made with {name} {before.get(name)!r}, this run has "
                f"{now.get(name)!r}; give another folder, or what was given then"
            )


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values; those of a nested dictionary without its own name."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value
