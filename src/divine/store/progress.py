"""How a transfer tells what it is doing; the command line draws it, a server may log it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""progress(what, bytes done, bytes in all); in all is 0 while unknown. Called often: be quick."""


def silent(what: str, done: int, total: int) -> None:
    """A progress that shows nothing."""
