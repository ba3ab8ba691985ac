"""States of prompts on disk, for prompts that begin the same after a restart.

A text is cut into blocks of 64 tokens. A block's file is named by a hash of all tokens up to its
end and of who computed it (model, backend, KV type), so equal beginnings are kept once, whoever's
they are, and a file can mean one thing only. Files are read when a prompt arrives, written by a
thread of their own, and leave when the folder grows beyond its size, the longest unused first. A
file that is damaged counts as missing. Several processes may share a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import re
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import State
from divine.errors import UsageError

BLOCK = 64  # tokens of a file: what is lost of a prefix that ends within one is quick to compute
DEFAULT_SIZE = 2 * 10**9
LEAST_SIZE = 10**6
MOST_WAITING = 256 * 2**20  # bytes that wait to be written; more are not kept
STALE_SECONDS = 3600  # after which a temporary file is one that a crash has left
_FORMAT = b"DIVINEKV1\n"
_DIGEST = 16  # bytes, of keys and of contents
_NAME = re.compile(r"[0-9a-f]{32}\.kv")
_TEMPORARY = ".divine-kv-"
_Item = tuple[bytes, NDArray[np.uint8], int]  # key, contents, when used


class PrefixStore:
    """One folder of blocks for one model."""

    def __init__(self, folder: str | os.PathLike[str], identity: bytes, size: int) -> None:
        """`identity`: of everything that the numbers of a state depend on, beside the tokens.

        Makes the folder, for its owner's eyes only: states tell what was said. Raises UsageError
        for a folder that cannot be used.
        """
        self._folder = Path(folder)
        self._root = hashlib.blake2b(identity, digest_size=_DIGEST).digest()
        self._size = size
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._waiting: dict[bytes, NDArray[np.uint8]] = {}  # to be written, in order
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._warned = False
        self._writer: threading.Thread | None = None
        self._closed = False
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(prefix=_TEMPORARY, dir=self._folder):
                pass
            self._clean()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise UsageError(
                f"prefix_cache is {str(folder)!r}, which cannot be used as a folder: "
                f"{(reason or str(error)).lower()}"
            ) from None

    def longest(self, tokens: Sequence[int]) -> list[bytes]:
        """Keys of the blocks that are there for the beginning of these tokens, in order."""
        found = []
        for key in self._keys(tokens):
            if key not in self._waiting and not self._path(key).exists():
                break
            found.append(key)
        return found

    def load(self, keys: Sequence[bytes], state: State) -> None:
        """Append blocks to a state until one is missing or damaged; `state.length` tells."""
        stamps = _stamps(len(keys))
        for stamp, key in zip(stamps, keys, strict=True):
            with self._lock:
                data = self._waiting.get(key)
            if data is None:
                data = self._read(key)
            if data is None:
                return
            try:
                state.load(data)
            except ValueError:
                self._damaged(key)
                return
            with contextlib.suppress(OSError):
                os.utime(self._path(key), ns=(stamp, stamp))

    def save(self, tokens: Sequence[int], state: State) -> None:
        """Keep the blocks of a state that has committed `tokens`, later: only copies them now."""
        keys = self._keys(tokens)
        for number, (key, stamp) in enumerate(zip(keys, _stamps(len(keys)), strict=True)):
            if key in self._waiting or self._path(key).exists():
                continue
            if self._closed or self._waiting_bytes > MOST_WAITING:
                return
            data = state.save(number * BLOCK, (number + 1) * BLOCK)
            with self._lock:
                self._waiting[key] = data
                self._waiting_bytes += data.nbytes
            self._queue.put((key, data, stamp))
        if self._writer is None and self._waiting:
            self._writer = threading.Thread(target=self._write_all, name="prefixes", daemon=True)
            self._writer.start()

    def close(self) -> None:
        """Finish writing."""
        self._closed = True
        if self._writer is not None:
            self._queue.put(None)
            self._writer.join()
            self._writer = None

    def _keys(self, tokens: Sequence[int]) -> list[bytes]:
        """The key of each whole block."""
        ids = np.asarray(tokens, dtype="<i4")
        keys, key = [], self._root
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            block = ids[start : start + BLOCK].tobytes()
            key = hashlib.blake2b(key + block, digest_size=_DIGEST).digest()
            keys.append(key)
        return keys

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}.kv"

    def _read(self, key: bytes) -> NDArray[np.uint8] | None:
        """The bytes of a block; None if there is none that is whole."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        head = len(_FORMAT) + _DIGEST
        data = memoryview(content)[head:]
        if content[:head] != _FORMAT + _seal(key, data):
            self._damaged(key)
            return None
        return np.frombuffer(data, np.uint8)

    def _damaged(self, key: bytes) -> None:
        """It will be computed, and written, anew."""
        self._warn(f"{self._path(key)} is damaged and is not used")
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            key, data, stamp = item
            try:
                self._write(key, data, stamp)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                self._warn(f"{self._folder}: a prompt's state was not kept: {reason}")
            with self._lock:
                self._waiting.pop(key, None)
                self._waiting_bytes -= data.nbytes

    def _write(self, key: bytes, data: NDArray[np.uint8], stamp: int) -> None:
        """The file is whole or not there."""
        handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_FORMAT + _seal(key, data.data))
                file.write(data.data)
            os.utime(temporary, ns=(stamp, stamp))
            Path(temporary).replace(self._path(key))
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        self._shrink()

    def _shrink(self) -> None:
        """Remove the longest unused blocks beyond the size."""
        files = []
        for entry in os.scandir(self._folder):
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # another process was first
                    status = entry.stat()
                    files.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._size:
                return
            with contextlib.suppress(OSError):
                Path(path).unlink()
            total -= size

    def _clean(self) -> None:
        """Remove what crashes have left; then what a smaller size than before does not allow."""
        old = time.time() - STALE_SECONDS
        for entry in os.scandir(self._folder):
            if entry.name.startswith(_TEMPORARY) and entry.stat().st_mtime < old:
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink()
        self._shrink()

    def _warn(self, sentence: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)


def _stamps(count: int) -> list[int]:
    """When blocks of one text were last used, in nanoseconds: just now, its end a little earlier.

    What is longest unused goes first, and an end is worth nothing without its beginning.
    """
    now = time.time_ns()
    return [now - 1000 * number for number in range(count)]


def _seal(key: bytes, data: memoryview) -> bytes:
    """A digest of the contents, under the name that they belong to."""
    return hashlib.blake2b(data, digest_size=_DIGEST, key=key).digest()
