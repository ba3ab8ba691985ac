"""Writing Divine's additions: appended to a base, beside it, inline; and taking them out again.

The base is copied tensor by tensor and a file appears under its name only when it is whole. What
the additions mean is their makers' business: heads are encoded here, all else under `divine.` is
carried as it is. section.py reads all of this.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import numpy as np

from divine.blocks import quantize
from divine.errors import UsageError
from divine.gguf import (
    GGUFFile,
    MetaValue,
    TensorData,
    TensorLike,
    Typed,
    Writable,
    copy_metadata,
    copy_tensors,
    keys,
    stream_gguf,
    write_gguf,
)
from divine.heads.checks import DRAFT_VOCAB
from divine.heads.fingerprint import FINGERPRINT_KEY, base_fingerprint
from divine.heads.section import (
    ALIGNMENT,
    FOOTER,
    FOOTER_VERSION,
    MAGIC,
    OWN,
    PACKAGING_KEY,
    PROVENANCE_KEY,
    Additions,
    Packaging,
)
from divine.heads.weights import HeadWeights

HeadsType: TypeAlias = Literal["f16", "q8_0", "f32"]
HEADS_TYPES: tuple[HeadsType, ...] = ("f16", "q8_0", "f32")
_ARCHITECTURE = "divine-additions"  # general.architecture of a section


@dataclass
class Content:
    """Keys and tensors under `divine.`, to be written."""

    keys: dict[str, MetaValue] = field(default_factory=dict)
    tensors: dict[str, TensorLike] = field(default_factory=dict)

    def add(self, other: Content, where: str) -> None:
        """Join another's; raises UsageError for a tensor that is there already."""
        for name in other.tensors:
            if name in self.tensors:
                raise UsageError(f"{where}: the tensor {name!r} is given twice")
        self.keys.update(other.keys)
        self.tensors.update(other.tensors)


def heads_content(weights: HeadWeights, heads_type: HeadsType = "f16") -> Content:
    """Trained heads: matrices as `heads_type`, vectors as F32.

    Raises UsageError for a type that is not known or cannot hold them.
    """
    if heads_type not in HEADS_TYPES:
        raise UsageError(f"heads_type is {heads_type!r}; allowed are {', '.join(HEADS_TYPES)}")
    found: dict[str, MetaValue] = {**weights.definition.to_keys()}
    if weights.fingerprint is not None:
        found[FINGERPRINT_KEY] = weights.fingerprint
    if weights.provenance:
        found[PROVENANCE_KEY] = json.dumps(dict(weights.provenance), ensure_ascii=False)
    return Content(found, dict(heads_tensors(weights, heads_type)))


def heads_tensors(weights: HeadWeights, heads_type: HeadsType = "f16") -> dict[str, TensorData]:
    """The tensors of heads as a file holds them."""
    tensors: dict[str, TensorData] = {}
    for name, data in weights.tensors.items():
        if name == DRAFT_VOCAB:
            tensors[name] = TensorData("I32", data.shape, np.ascontiguousarray(data, np.int32))
            continue
        kind = heads_type.upper() if data.ndim == 2 else "F32"
        if kind == "Q8_0" and data.shape[-1] % 32:
            raise UsageError(
                f"heads_type is q8_0, which needs rows of a multiple of 32 values; the tensor "
                f"{name!r} has {data.shape[-1]}; f16 is possible"
            )
        if kind == "F16" and float(np.abs(data).max()) > float(np.finfo(np.float16).max):
            raise UsageError(f"heads_type is f16, which cannot hold the tensor {name!r}; try f32")
        tensors[name] = TensorData(kind, data.shape, quantize(data, kind))
    return tensors


def additions_content(additions: Additions) -> Content:
    """All of Divine's own that a file holds, exactly."""
    file = additions.file
    metadata = {key: value for key, value in copy_metadata(file).items() if key.startswith(OWN)}
    metadata.pop(PACKAGING_KEY, None)
    tensors = {name: data for name, data in copy_tensors(file).items() if name.startswith(OWN)}
    return Content({**metadata}, {**tensors})


def package(
    base: GGUFFile, content: Content, path: str | os.PathLike[str], packaging: Packaging
) -> None:
    """Write `content` with its base, or alone as a sidecar; the base's fingerprint is recorded.

    Raises UsageError for what cannot be written or fits another base, CapacityError when the disk
    is full; nothing is left half-written.
    """
    path = Path(path)
    _check_base(base)
    _check_target(base, path)
    for name in (*content.keys, *content.tensors):
        if not name.startswith(OWN):
            raise UsageError(f"{name!r} cannot be added to a model; its name must begin with {OWN}")
    if not content.tensors:
        raise UsageError("there is nothing to export: no heads and no table were given")
    fingerprint = base_fingerprint(base)
    key = content.keys.get(FINGERPRINT_KEY, fingerprint)
    made_for = str(key.value if isinstance(key, Typed) else key)
    if made_for != fingerprint:
        raise UsageError(
            f"the drafting heads were made for another model (fingerprint {made_for}); that of "
            f"{base.path} is {fingerprint}"
        )
    own = {**content.keys, FINGERPRINT_KEY: fingerprint, PACKAGING_KEY: packaging}
    if packaging == "sidecar":
        write_gguf(path, _section_keys(own), content.tensors, tail=_footer_of_file)
        return
    if len(base.paths) > 1:
        raise UsageError(
            f"{base.path} is split into {len(base.paths)} files, to which nothing can be "
            "appended; a sidecar is possible"
        )
    metadata, tensors = _plain(base)
    if packaging == "inline":
        _write(base, path, {**metadata, **own}, {**tensors, **content.tensors})
        return

    def tail(file: BinaryIO) -> None:
        file.write(bytes(-file.tell() % ALIGNMENT))
        section = _Hashing(file)
        stream_gguf(section, _section_keys(own), content.tensors)
        file.write(section.footer())

    _write(base, path, {**metadata, **own}, tensors, tail)


def strip(base: GGUFFile, path: str | os.PathLike[str]) -> None:
    """Write the plain base: metadata and tensors as they were before additions came."""
    path = Path(path)
    _check_base(base)
    _check_target(base, path)
    if len(base.paths) > 1:
        raise UsageError(f"{base.path} is split into files; merge them before stripping")
    metadata, tensors = _plain(base)
    _write(base, path, metadata, tensors)


def _plain(base: GGUFFile) -> tuple[dict[str, MetaValue], dict[str, TensorLike]]:
    metadata = {k: value for k, value in copy_metadata(base).items() if not k.startswith(OWN)}
    tensors = {name: data for name, data in copy_tensors(base).items() if not name.startswith(OWN)}
    return {**metadata}, {**tensors}


def _write(
    base: GGUFFile,
    path: Path,
    metadata: Mapping[str, MetaValue],
    tensors: Mapping[str, TensorLike],
    tail: Callable[[BinaryIO], None] = lambda file: None,
) -> None:
    write_gguf(path, metadata, tensors, alignment=base.alignment, version=base.version, tail=tail)


def _section_keys(own: Mapping[str, MetaValue]) -> dict[str, MetaValue]:
    return {keys.ARCHITECTURE: _ARCHITECTURE, **own}


def _check_base(base: GGUFFile) -> None:
    if all(name.startswith(OWN) for name in base.tensors):
        raise UsageError(f"{base.path} holds additions alone; the base must be a model")


def _check_target(base: GGUFFile, path: Path) -> None:
    for source in base.paths:
        if path.exists() and path.samefile(source):
            raise UsageError(f"{path} is the base itself; choose another output file")


class _Hashing:
    """A section being written, and what its footer must say."""

    def __init__(self, file: Writable) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._length = 0

    def write(self, data: bytes | memoryview, /) -> None:
        self._digest.update(data)
        self._length += len(data)
        self._file.write(data)

    def footer(self) -> bytes:
        return FOOTER.pack(MAGIC, FOOTER_VERSION, 0, self._length, self._digest.digest())


def _footer_of_file(file: BinaryIO) -> None:
    """The footer of a sidecar: all that has been written is its section."""
    file.flush()
    length = file.tell()
    digest = hashlib.sha256()
    with Path(file.name).open("rb") as written:
        while chunk := written.read(1 << 20):
            digest.update(chunk)
    file.write(FOOTER.pack(MAGIC, FOOTER_VERSION, 0, length, digest.digest()))
