"""The files of one shard of a store: names, records, and cutting back what was not finished.

Knows bytes and their layout; nothing of answers as a whole.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divine.errors import FormatError

INDEX = np.dtype([
    ("number", "<i8"),  # of the prompt
    ("token_at", "<i8"),  # in tokens, within the shard
    ("row_at", "<i8"),  # in states, within the shard
    ("prompt", "<i4"),  # tokens of the prompt
    ("answer", "<i4"),  # tokens of the answer, the one that ended it included
    ("finish", "<i4"),
    ("check", "<u4"),  # CRC-32 of the tokens' bytes, then the states'
])  # fmt: skip


def shard_path(folder: Path, shard: int, kind: str) -> Path:
    """Of a shard's file; kind is tokens, states or index."""
    return folder / f"{shard:05}.{kind}"


def shards(folder: Path) -> list[int]:
    """Numbers of the shards of a folder, ascending."""
    return sorted(int(path.stem) for path in folder.glob("*.index"))


def records_of(folder: Path, shard: int) -> NDArray[Any]:
    """The whole records of a shard's index; INDEX [n]."""
    data = shard_path(folder, shard, "index").read_bytes()
    return np.frombuffer(data[: len(data) // INDEX.itemsize * INDEX.itemsize], INDEX)


def mapped(path: Path, kind: np.dtype[Any]) -> NDArray[Any]:
    """A file as an array, mapped. Raises FormatError."""
    try:
        count = path.stat().st_size // kind.itemsize
        if not count:
            return np.zeros(0, kind)
        # A plain view: slices of a memmap are slow to make.
        return np.memmap(path, kind, "r", shape=(count,)).view(np.ndarray)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FormatError(f"{path} cannot be read: {reason}") from error


def too_short(path: Path) -> FormatError:
    """The error for a file that lacks what its index tells of."""
    return FormatError(f"{path} is shorter than its index says; capture into a new folder")


def recover(folder: Path, shard: int, dim: int) -> NDArray[Any]:
    """Cut the last shard back to its last whole record; the records. `dim`: 0 without states."""
    path = shard_path(folder, shard, "index")
    if not path.exists():
        _cut(shard_path(folder, shard, "tokens"), 0)
        _cut(shard_path(folder, shard, "states"), 0)
        return np.zeros(0, INDEX)
    records = records_of(folder, shard)
    while len(records) and not _whole(folder, shard, records[-1], dim):
        records = records[:-1]
    tokens = rows = 0
    if len(records):
        last = records[-1]
        tokens = int(last["token_at"] + last["prompt"] + last["answer"])
        rows = int(last["row_at"] + last["answer"])
    _cut(shard_path(folder, shard, "tokens"), 4 * tokens)
    _cut(shard_path(folder, shard, "states"), 2 * dim * rows)
    _cut(path, INDEX.itemsize * len(records))
    return records


def _whole(folder: Path, shard: int, record: Any, dim: int) -> bool:
    """The record's bytes are there and are those that were written."""
    count = int(record["prompt"] + record["answer"])
    check = 0
    parts = [("tokens", 4 * int(record["token_at"]), 4 * count)]
    if dim:
        parts.append(("states", 2 * dim * int(record["row_at"]), 2 * dim * int(record["answer"])))
    for kind, at, nbytes in parts:
        try:
            with shard_path(folder, shard, kind).open("rb") as file:
                file.seek(at)
                data = file.read(nbytes)
        except FileNotFoundError:
            return False
        if len(data) != nbytes:
            return False
        check = zlib.crc32(data, check)
    return check == int(record["check"])


def _cut(path: Path, nbytes: int) -> None:
    if path.exists() and path.stat().st_size > nbytes:
        os.truncate(path, nbytes)
