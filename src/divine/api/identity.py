"""What a state's numbers depend on beside its tokens: the key under which states are kept.

The weights are sampled rather than read: another model, or another training of the same one,
differs almost everywhere. The native code is read whole: another build may round otherwise.
"""

from __future__ import annotations

import hashlib

import numpy as np

from divine.backends.cpu import _native
from divine.gguf import GGUFFile
from divine.program import Program

SAMPLES, SAMPLE_BYTES = 16, 64  # of each tensor


def state_identity(file: GGUFFile, program: Program, backend: str, kv_type: str) -> bytes:
    """A digest of model, program, KV type and whoever computes."""
    digest = hashlib.blake2b(digest_size=32)
    digest.update(f"{backend} {kv_type} {program.ops!r}".encode())
    digest.update(_arithmetic(backend))
    for name in sorted(file.tensors):
        digest.update(f"{name} {file.block_type(name)} {file.shape(name)}".encode())
        raw = file.raw(name)
        for start in np.linspace(0, max(len(raw) - SAMPLE_BYTES, 0), SAMPLES, dtype=np.int64):
            digest.update(raw[start : start + SAMPLE_BYTES].tobytes())
    return digest.digest()


def _arithmetic(backend: str) -> bytes:
    if backend != "cpu":
        return np.__version__.encode()
    assert _native.__file__ is not None
    with open(_native.__file__, "rb") as module:  # noqa: PTH123 - digests take an open file
        return hashlib.file_digest(module, "sha256").digest()
