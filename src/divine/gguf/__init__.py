"""The GGUF file format: reading, writing, metadata, tensor tables. Nothing about models."""

from __future__ import annotations

from divine.gguf.metadata import Metadata
from divine.gguf.reader import GGUFFile, TensorInfo, open_gguf
from divine.gguf.types import BLOCK_TYPE_BY_NAME, BLOCK_TYPES, BlockType, ValueType
from divine.gguf.values import MetaValue, Typed, typed
from divine.gguf.writer import (
    TensorData,
    TensorLike,
    Writable,
    copy_metadata,
    copy_tensors,
    stream_gguf,
    write_gguf,
)

__all__ = [
    "BLOCK_TYPES",
    "BLOCK_TYPE_BY_NAME",
    "BlockType",
    "GGUFFile",
    "MetaValue",
    "Metadata",
    "TensorData",
    "TensorInfo",
    "TensorLike",
    "Typed",
    "ValueType",
    "Writable",
    "copy_metadata",
    "copy_tensors",
    "open_gguf",
    "stream_gguf",
    "typed",
    "write_gguf",
]
