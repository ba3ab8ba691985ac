"""Writing files whole or not at all: beside their place first, then renamed into it.

Links are followed, devices and pipes get what is written straight, and nothing is touched that was
not made here. Knows no formats.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from divine.errors import CapacityError, DivineError, UsageError

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextmanager
def replacing(path: Path, kept: str = "") -> Iterator[Path]:
    """A path to write to, which becomes `path` when the block ends without an error.

    `kept`: what the error says is not lost. Raises CapacityError if the disk is full, UsageError
    for whatever else keeps a file from being written, both naming `path`.
    """
    try:
        target, place = _places(path)
        try:
            yield place
            if place != target:
                place.replace(target)
        except BaseException:
            if place != target:
                with suppress(OSError):
                    place.unlink()
            raise
    except OSError as error:
        raise write_error(path, error, kept) from error


def check_replaceable(path: Path) -> None:
    """Raise as replacing() would if nothing could be written: to be asked before long work."""
    try:
        target, place = _places(path)
        if place != target:
            place.touch()
            place.unlink()
    except OSError as error:
        raise write_error(path, error) from error


def _places(path: Path) -> tuple[Path, Path]:
    """Where `path` leads, and where to write first: beside it, or there if it is no plain file."""
    target = path.resolve()
    if target.is_dir():
        raise UsageError(f"{path} is a folder; the output must be a file")
    if target.exists() and not target.is_file():
        return target, target
    return target, target.with_name(f".{secrets.token_hex(6)}.part")  # as short as any name


def write_error(path: Path, error: OSError, kept: str = "") -> DivineError:
    """The error for a file that the system does not let be written."""
    message = f"{path} cannot be written: {error.strerror or error}"
    if kept:
        message += f"; {kept}"
    return CapacityError(message) if error.errno in _FULL else UsageError(message)
