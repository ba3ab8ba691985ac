"""Divine's additions to a base model, wherever they lie: finding them and reading what they hold.

Additions are keys and tensors under `divine.`: drafting heads, and whatever else drafts. They are a
complete GGUF file followed by a footer, alone (a sidecar) or behind the last byte of the base
(appended), or they lie among the base's own keys and tensors (inline). Knows GGUF files; nothing is
written here and nothing computed.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from divine.blocks import dequantize
from divine.errors import FormatError, UnsupportedError, UsageError
from divine.gguf import GGUFFile, open_gguf
from divine.heads.architectures import Definition, definition_from_keys
from divine.heads.checks import DRAFT_VOCAB, PREFIX, TENSOR_PREFIX
from divine.heads.definition import tensor_name
from divine.heads.fingerprint import FINGERPRINT_KEY, base_fingerprint

Packaging: TypeAlias = Literal["appended", "sidecar", "inline"]

PACKAGING_KEY = "divine.packaging"
PROVENANCE_KEY = PREFIX + "provenance"  # JSON
OWN = "divine."  # keys and tensors that are not the base's
ALIGNMENT = 4096  # of an appended section

# Magic, version, flags (none yet), bytes of the section before it, their SHA-256, room.
FOOTER = struct.Struct("<8sIIQ32s8x")
MAGIC = b"DIVINE\r\n"
FOOTER_VERSION = 1


@dataclass(frozen=True)
class Additions:
    """What Divine has added to a base, open."""

    file: GGUFFile  # for "inline" the base itself
    packaging: Packaging
    nbytes: int  # of its tensors

    @property
    def where(self) -> str:
        """For messages."""
        return str(self.file.path)

    @property
    def fingerprint(self) -> str | None:
        """Of the base they were made for; None if they do not say."""
        return self.file.metadata.str(FINGERPRINT_KEY, None)

    @property
    def has_heads(self) -> bool:
        """There are drafting heads among them."""
        return PREFIX + "architecture" in self.file.metadata

    def identity(self) -> tuple[str, ...]:
        """What tells these additions from others, for what is learned about them."""
        metadata = self.file.metadata
        keys = sorted(key for key in metadata if key.startswith(OWN))
        return tuple(f"{key} {metadata[key]}" for key in keys if metadata.length(key) is None)

    def definition(self) -> Definition:
        """That of the heads, with their tensors' shapes checked; raises FormatError."""
        file = self.file
        shapes = {
            name: info.shape
            for name, info in file.tensors.items()
            if name.startswith(TENSOR_PREFIX)
        }
        first = shapes.get(tensor_name(0, "proj_up.weight")) or (1,)
        definition = definition_from_keys(file.metadata, first[0], self.where)
        definition.check_shapes(shapes, self.where)
        return definition

    def provenance(self) -> dict[str, Any]:
        """What made the heads; empty if they do not say, or not in JSON."""
        try:
            value = json.loads(self.file.metadata.str(PROVENANCE_KEY, "{}"))
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def draft_vocab(self) -> NDArray[np.int32] | None:
        """int32 [tokens], ascending; None: every token is drafted. Raises FormatError."""
        if DRAFT_VOCAB not in self.file.tensors:
            return None
        kind = self.file.block_type(DRAFT_VOCAB)
        if kind != "I32":
            raise FormatError(f"{self.where}: {DRAFT_VOCAB} is of type {kind}; I32 is needed")
        ids = self.file.raw(DRAFT_VOCAB).copy().view("<i4").astype(np.int32)
        if not len(ids) or ids[0] < 0 or (np.diff(ids.astype(np.int64)) <= 0).any():
            raise FormatError(f"{self.where}: the ids of {DRAFT_VOCAB} must ascend from 0 on")
        return ids

    def check_numbers(self) -> None:
        """Raises FormatError for a tensor of the heads with a number that is not finite."""
        for name in self.file.tensors:
            if name.startswith(TENSOR_PREFIX) and name != DRAFT_VOCAB:
                kind, shape = self.file.block_type(name), self.file.shape(name)
                if not np.isfinite(dequantize(self.file.raw(name), kind, shape)).all():
                    raise FormatError(
                        f'{self.where}: the tensor "{name}" has numbers that are not finite'
                    )

    def check_base(self, base: GGUFFile) -> None:
        """Raises UsageError if they were made for another base."""
        made_for = self.fingerprint
        if made_for is None:
            return
        found = base_fingerprint(base)
        if made_for != found:
            raise UsageError(
                f"{self.where}: the drafting heads were made for another model (fingerprint "
                f"{made_for}); that of {base.path} is {found}"
            )

    def close(self) -> None:
        """Close their file, unless it is the base."""
        if self.packaging != "inline":
            self.file.close()


def find_additions(base: GGUFFile) -> Additions | None:
    """What a model's own file has: appended or inline; None if there is nothing.

    Raises FormatError for a section that is damaged, or missing although the header tells of one.
    """
    nbytes = _own_bytes(base)
    if nbytes:
        return Additions(base, "inline", nbytes)
    place = find_section(base.paths[-1]) if len(base.paths) == 1 else None
    if place is None:
        if PREFIX + "architecture" in base.metadata or PACKAGING_KEY in base.metadata:
            raise FormatError(
                f"{base.path}: the header tells of drafting heads, but behind the tensors there "
                "is no section with them; a tool that rewrote the file may have dropped it"
            )
        return None
    file = open_gguf(base.path, place)
    return Additions(file, "appended", _own_bytes(file))


def open_sidecar(path: str | os.PathLike[str]) -> Additions:
    """Additions in a file of their own, or those of another copy of the base.

    Raises UsageError if it cannot be opened or has none, FormatError if it is damaged.
    """
    file = open_gguf(path)
    try:
        # A sidecar, too, ends with a footer; without one it is the work of another tool.
        place = find_section(file.path)
        if place is not None and place[0] != 0:
            section = open_gguf(path, place)
            file.close()
            file = section
        nbytes = _own_bytes(file)
        if not nbytes:
            raise UsageError(f"{path} has no drafting heads: no tensor begins with {OWN!r}")
    except BaseException:
        file.close()
        raise
    return Additions(file, "sidecar", nbytes)


def find_section(path: Path) -> tuple[int, int] | None:
    """(start, bytes) of the section before a file's footer; None if there is no footer.

    Raises FormatError if the section is damaged, UnsupportedError for a later version.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < FOOTER.size:
                return None
            file.seek(size - FOOTER.size)
            magic, version, flags, length, digest = FOOTER.unpack(file.read(FOOTER.size))
            if magic != MAGIC:
                return None
            if version > FOOTER_VERSION or flags:
                raise UnsupportedError(
                    f"{path}: the section of drafting heads is of version {version} (flags "
                    f"{flags}); this Divine knows version {FOOTER_VERSION}"
                )
            start = size - FOOTER.size - length
            if length < 1 or start < 0:
                raise FormatError(
                    f"{path}: the section of drafting heads should have {length} bytes; the file "
                    f"has {size}"
                )
            if _digest(file.fileno(), start, length) != digest:
                raise FormatError(
                    f"{path}: the section of drafting heads is damaged: its checksum differs"
                )
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    return start, length


def _digest(handle: int, start: int, length: int) -> bytes:
    begin = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    size = start + length - begin
    with (
        mmap.mmap(handle, size, access=mmap.ACCESS_READ, offset=begin) as mapping,
        memoryview(mapping) as view,
        view[start - begin :] as section,
    ):
        return hashlib.sha256(section).digest()


def _own_bytes(file: GGUFFile) -> int:
    return sum(info.nbytes for name, info in file.tensors.items() if name.startswith(OWN))
