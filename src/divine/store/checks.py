"""Hashing a file that may be large, with progress."""

from __future__ import annotations

import hashlib
from pathlib import Path

from divine.store.progress import Progress

_CHUNK = 4 << 20


def sha256(path: Path, progress: Progress) -> str:
    """The file's SHA-256 in hexadecimal."""
    total = path.stat().st_size
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress("checking", done, total)
    return digest.hexdigest()
