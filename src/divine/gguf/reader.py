"""Opening GGUF files: memory-mapped, complete with all their shards, checked before use.

open_gguf() is all that others need. A GGUFFile serves weights as the bytes that lie in the file and
structurally implements backends.base.WeightSource. It knows nothing of models, nor of what the
bytes of a tensor mean. Parsing is in header.py, metadata in metadata.py.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from divine.errors import FormatError, UsageError
from divine.gguf import keys
from divine.gguf.header import Header, RawTensor, parse_header, quote
from divine.gguf.metadata import Metadata

_GRANULARITY = mmap.ALLOCATIONGRANULARITY
_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the file. `offset` counts from the beginning of shard number `shard`."""

    name: str
    shape: tuple[int, ...]  # NumPy order: [out, in] for matrices
    block_type: str  # ggml name, such as "Q4_K"
    offset: int
    nbytes: int
    shard: int = 0


class GGUFFile:
    """An open GGUF file with all its shards; a context manager and a WeightSource.

    Arrays from raw() are views of the mapped file. They stay valid when the file is replaced or
    deleted (the mapping keeps the old file) and after close() (which then leaves unmapping to the
    last view). A file that is cut short in place while open is noticed by raw() and by metadata not
    yet decoded, as a FormatError; but reading a view taken BEFORE the cut ends the process with
    SIGBUS: no mapping can prevent that. Loading copies each tensor right after raw(), so the window
    is one tensor wide.
    """

    def __init__(self, shards: list[_Shard]) -> None:
        self._shards = shards
        self.path: Path = shards[0].path
        self.paths: tuple[Path, ...] = tuple(shard.path for shard in shards)
        self.version: int = shards[0].header.version
        self.alignment: int = shards[0].header.alignment
        self.metadata: Metadata = shards[0].metadata
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(_all_tensors(shards))
        self.data_nbytes: int = sum(info.nbytes for info in self.tensors.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape in NumPy order. Raises FormatError when there is no such tensor."""
        return self._info(name).shape

    def block_type(self, name: str) -> str:
        """ggml's name of the type. Raises FormatError when there is no such tensor."""
        return self._info(name).block_type

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, uint8 [nbytes], read-only, as they lie in the file.

        Aligned to the file's alignment (usually 32, but as low as 1). Raises FormatError when there
        is no such tensor or the file has shrunk since it was opened.
        """
        info = self._info(name)
        if not info.nbytes:
            return np.zeros(0, np.uint8)
        return np.frombuffer(
            self._shards[info.shard].readable(), np.uint8, info.nbytes, info.offset
        )

    def release(self, name: str) -> None:
        """Give the memory of the tensor's whole pages back; they can still be read again."""
        info = self._info(name)
        self._shards[info.shard].release(info.offset, info.nbytes)

    def close(self) -> None:
        """Close the file; views from raw() stay valid."""
        for shard in self._shards:
            shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise FormatError(f"{self.path}: the tensor {quote(name)} is missing")
        return info


def open_gguf(path: str | os.PathLike[str], section: tuple[int, int] | None = None) -> GGUFFile:
    """Open a GGUF file (version 2 or 3); of a split one, any shard opens all of them.

    `section`: (start, bytes) of a GGUF file that lies inside of another; offsets count from there.

    Takes time and memory for the header only. Raises UsageError when the path cannot be opened,
    FormatError when the file is damaged, incomplete or something else, UnsupportedError for
    versions and tensor types that Divine does not know.
    """
    shards: list[_Shard] = []
    try:
        shards.append(_Shard(Path(path), section))
        if shards[0].split_count > 1:
            given = shards.pop()
            try:
                shards = _open_siblings(given, shards)
            finally:
                given.close()
        return GGUFFile(shards)
    except BaseException:
        for shard in shards:
            shard.close()
        raise


class _Shard:
    """One mapped file with its parsed header."""

    header: Header

    def __init__(self, path: Path, section: tuple[int, int] | None = None) -> None:
        self.path = path
        self._mapping: mmap.mmap | None = _map(path, section)
        # A mapping begins at a page, a section anywhere.
        self._begin = section[0] // _GRANULARITY * _GRANULARITY if section else 0
        self._skip = section[0] - self._begin if section else 0
        try:
            size = len(self._mapping) - self._skip
            self.header = parse_header(self.readable(), size, str(path))
            self.metadata = Metadata(str(path), self.header.entries, self.readable)
            self.split_count = self.metadata.int(keys.SPLIT_COUNT, 1, minimum=0, maximum=99_999)
            self.split_number = self.metadata.int(keys.SPLIT_NUMBER, 0, minimum=0)
            self.split_tensors = self.metadata.int(keys.SPLIT_TENSORS, None, minimum=0)
        except BaseException:
            self.close()
            raise

    def readable(self) -> mmap.mmap | memoryview:
        """The file's bytes, after checking that all of them can still be read."""
        mapping = self._mapping
        if mapping is None:
            raise ValueError(f"{self.path} was closed")
        size, needed = mapping.size(), self._begin + len(mapping)
        if size < needed:
            raise FormatError(
                f"{self.path}: the file was cut from {needed} to {size} bytes while it was open"
            )
        return memoryview(mapping)[self._skip :] if self._skip else mapping

    def release(self, offset: int, nbytes: int) -> None:
        """Give the memory of the whole pages of these bytes back."""
        self.readable()
        start = -(-(offset + self._skip) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + self._skip + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start and self._mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED, start, end - start)

    def close(self) -> None:
        if self._mapping is not None:
            # Views of it are still alive: the last of them will unmap it.
            with contextlib.suppress(BufferError):
                self._mapping.close()
            self._mapping = None


def _map(path: Path, section: tuple[int, int] | None) -> mmap.mmap:
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for a writer.
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise FormatError(f"{path} is a folder, not a GGUF file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path} cannot be opened: {reason}") from None
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise FormatError(f"{path} is a folder, not a GGUF file")
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{path} is not a regular file; a GGUF file must be one")
        if not status.st_size:
            raise FormatError(f"{path} is empty, not a GGUF file")
        begin, end = 0, status.st_size
        if section is not None:
            begin, end = section[0] // _GRANULARITY * _GRANULARITY, section[0] + section[1]
            if not section[0] < end <= status.st_size:
                raise FormatError(
                    f"{path}: bytes {section[0]} to {end} were asked for; the file has "
                    f"{status.st_size}"
                )
        return mmap.mmap(handle, end - begin, access=mmap.ACCESS_READ, offset=begin)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(handle)


def _open_siblings(given: _Shard, shards: list[_Shard]) -> list[_Shard]:
    """Open all shards of the split that `given` is part of, in order, into `shards`."""
    for path in _sibling_paths(given):
        number = len(shards)
        shard = _Shard(path)
        shards.append(shard)
        if (shard.split_count, shard.split_number) != (given.split_count, number):
            raise FormatError(
                f"{path}: the shard says it is number {shard.split_number + 1} of "
                f"{shard.split_count}; expected was {number + 1} of {given.split_count}"
            )
        if shard.split_tensors != given.split_tensors:
            raise FormatError(
                f"{path}: the shard is of another model: its split has {shard.split_tensors} "
                f"tensors, that of {given.path.name} has {given.split_tensors}"
            )
    _check_same_model(shards)
    return shards


def _sibling_paths(given: _Shard) -> list[Path]:
    """Paths of all shards, beside the name that was given or beside the file it links to."""
    missing: Path | None = None
    for path in (given.path, given.path.resolve()):
        match = _SHARD_NAME.fullmatch(path.name)
        if match is None:
            continue
        if int(match["count"]) != given.split_count:
            raise FormatError(
                f"{given.path}: the name says {int(match['count'])} shards, the file's "
                f"{keys.SPLIT_COUNT} says {given.split_count}"
            )
        siblings = [
            path.with_name(f"{match['stem']}-{number + 1:05}-of-{given.split_count:05}.gguf")
            for number in range(given.split_count)
        ]
        missing = next((sibling for sibling in siblings if not sibling.exists()), None)
        if missing is None:
            return siblings
    if missing is not None:
        raise FormatError(
            f"{given.path}: the model is split into {given.split_count} files and "
            f"{missing.name} is missing beside it"
        )
    raise FormatError(
        f"{given.path}: the model is split into {given.split_count} files, which must be named "
        f"like NAME-00001-of-{given.split_count:05}.gguf"
    )


def _check_same_model(shards: list[_Shard]) -> None:
    first = shards[0]
    architecture = first.metadata.str(keys.ARCHITECTURE, None)
    for shard in shards[1:]:
        # Later shards usually repeat only the split keys.
        other = shard.metadata.str(keys.ARCHITECTURE, architecture)
        if other != architecture:
            raise FormatError(
                f"{shard.path}: the shard is of another model: its architecture is "
                f"{quote(str(other))}, that of {first.path.name} is {quote(str(architecture))}"
            )
    found = sum(len(shard.header.tensors) for shard in shards)
    if first.split_tensors is not None and found != first.split_tensors:
        raise FormatError(
            f"{first.path}: the shards hold {found} tensors; {keys.SPLIT_TENSORS} says "
            f"{first.split_tensors}"
        )


def _all_tensors(shards: list[_Shard]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for number, shard in enumerate(shards):
        for raw in shard.header.tensors:
            if raw.name in tensors:  # within one shard, the parser has seen to it
                raise FormatError(
                    f"{shard.path}: the tensor {quote(raw.name)} is also in "
                    f"{shards[tensors[raw.name].shard].path.name}"
                )
            tensors[raw.name] = _info_of(raw, number)
    return tensors


def _info_of(raw: RawTensor, shard: int) -> TensorInfo:
    return TensorInfo(raw.name, raw.shape, raw.type.name, raw.start, raw.nbytes, shard)
