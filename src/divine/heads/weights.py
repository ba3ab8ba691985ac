"""HeadWeights: trained heads as arrays, and their safetensors file.

A file holds the tensors under their GGUF names and, in its metadata as JSON, the definition, where
the weights came from, and the fingerprint of the base. Files of the package divine-mtp 0.1.0, which
has no definition, are read too. Knows no GGUF files and no backend.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divine.errors import DivineError, FormatError, UsageError
from divine.files import replacing
from divine.heads.architectures import Definition, definition_from_dict
from divine.heads.checks import DRAFT_VOCAB, TENSOR_PREFIX
from divine.heads.definition import HeadsDefinition, tensor_name

_DEFINITION, _PROVENANCE = "divine.definition", "divine.provenance"
_FINGERPRINT = "divine.base_fingerprint"
_PUBLISHED = "divine-mtp-safetensors"  # "format" in the metadata of divine-mtp 0.1.0


@dataclass(frozen=True)
class HeadWeights:
    """Heads with their numbers.

    tensors      the definition's, float32; DRAFT_VOCAB int32, ascending
    fingerprint  of the base's GGUF file (base_fingerprint); None if it was none
    provenance   what made them: command, versions, data, measured acceptance ...; anything JSON
    """

    definition: Definition
    tensors: Mapping[str, NDArray[Any]]
    fingerprint: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises FormatError for tensors that do not fit the definition or are not finite."""
        check_tensors(self.definition, self.tensors, "the heads' weights")

    @property
    def draft_vocab(self) -> NDArray[np.int32] | None:
        """int32 [tokens], ascending; None: every token may be drafted."""
        return self.tensors.get(DRAFT_VOCAB)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, all or nothing; raises as files.replacing() does."""
        library = _safetensors()
        path = Path(path)
        tensors = {name: np.ascontiguousarray(data) for name, data in self.tensors.items()}
        metadata = {
            _DEFINITION: json.dumps(self.definition.to_dict()),
            _PROVENANCE: json.dumps(dict(self.provenance), ensure_ascii=False),
        }
        if self.fingerprint is not None:
            metadata[_FINGERPRINT] = self.fingerprint
        with replacing(path) as place:
            # Not the library's own file, which nobody else may read.
            place.write_bytes(library.numpy.save(tensors, metadata=metadata))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HeadWeights:
        """Read a safetensors file; raises UsageError when there is none, FormatError for others."""
        library = _safetensors()
        path = Path(path)
        if not path.is_file():
            raise UsageError(f"{path}: there is no such file")
        try:
            with library.safe_open(path, framework="np") as file:
                metadata = file.metadata() or {}
            # By hand from the bytes: NumPy has no bfloat16, which training often uses.
            tensors = {
                name: _plain(name, raw) for name, raw in library.deserialize(path.read_bytes())
            }
        except DivineError as error:
            raise FormatError(f"{path}: {error}") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
        except Exception as error:  # noqa: BLE001 - the library has no base class for its errors
            raise FormatError(f"{path} is no safetensors file of heads: {error}") from None
        definition = _definition(metadata, tensors, str(path))
        check_tensors(definition, tensors, str(path))
        return cls(
            definition,
            tensors,
            metadata.get(_FINGERPRINT),
            _json(metadata.get(_PROVENANCE, "{}"), f"{path}: {_PROVENANCE}"),
        )


def check_tensors(definition: Definition, tensors: Mapping[str, NDArray[Any]], where: str) -> None:
    """Raises FormatError for a tensor of another shape, one not finite, or a bad vocabulary."""
    definition.check_shapes({name: data.shape for name, data in tensors.items()}, where)
    for name, data in tensors.items():
        if name != DRAFT_VOCAB and not np.isfinite(data).all():
            raise FormatError(f'{where}: the tensor "{name}" has numbers that are not finite')
    ids = tensors.get(DRAFT_VOCAB)
    if ids is not None and (ids[0] < 0 or (np.diff(ids.astype(np.int64)) <= 0).any()):
        raise FormatError(f"{where}: the ids of {DRAFT_VOCAB} must ascend from 0 on")


_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_INTEGERS = {"I32": "<i4", "I64": "<i8", "U32": "<u4"}


def _plain(name: str, raw: Mapping[str, Any]) -> NDArray[Any]:
    """float32, or int32 for the draft vocabulary, of a tensor as safetensors gives it."""
    kind, shape, data = str(raw["dtype"]), raw["shape"], bytes(raw["data"])
    if not name.startswith(TENSOR_PREFIX):
        raise FormatError(f'the tensor "{name}" is not one of drafting heads')
    if name == DRAFT_VOCAB:
        if kind not in _INTEGERS:
            raise FormatError(f"{DRAFT_VOCAB} is of type {kind}; integers are needed")
        return np.frombuffer(data, _INTEGERS[kind]).reshape(shape).astype(np.int32)
    if kind == "BF16":  # the upper half of a float32
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    if kind not in _FLOATS:
        allowed = ", ".join([*_FLOATS, "BF16"])
        raise FormatError(f'the tensor "{name}" is of type {kind}; allowed are {allowed}')
    with np.errstate(over="ignore"):  # infinity is found later
        return np.frombuffer(data, _FLOATS[kind]).reshape(shape).astype(np.float32)


def _definition(
    metadata: Mapping[str, str], tensors: Mapping[str, NDArray[Any]], where: str
) -> Definition:
    if _DEFINITION in metadata:
        return definition_from_dict(_json(metadata[_DEFINITION], where), where)
    if metadata.get("format") != _PUBLISHED:
        raise FormatError(f"{where}: the metadata have no {_DEFINITION}, so these are no heads")
    return published_definition({name: data.shape for name, data in tensors.items()}, where)


def published_definition(shapes: Mapping[str, tuple[int, ...]], where: str) -> HeadsDefinition:
    """That of a file of divine-mtp 0.1.0, which says nothing but its shapes."""
    first = shapes.get(tensor_name(0, "proj_down.weight"), ())
    if len(first) != 2 or min(first) < 2:
        raise FormatError(f"{where}: there is no tensor {tensor_name(0, 'proj_down.weight')}")
    count = sum(name.endswith(".proj_down.weight") for name in shapes)
    return HeadsDefinition.published(count, first[0], first[1] // 2)


def _json(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where} is no JSON object")
    return value


def _safetensors() -> Any:
    """The library, which only those need who make heads."""
    try:
        import safetensors.numpy
    except ImportError:
        raise UsageError(
            "files of trained heads need the package safetensors: pip install 'divine-llm[heads]'"
        ) from None
    return safetensors
