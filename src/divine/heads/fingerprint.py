"""The fingerprint of a base model: which weights a file of heads was made for.

It is a hash of the base's tensor table and of samples of its bytes, so it takes milliseconds,
survives every edit of the metadata, copying, splitting and appending, and differs for another
model, another fine-tuning or another quantization. Knows GGUF files; no heads.
"""

from __future__ import annotations

import hashlib

from divine.gguf import GGUFFile

FINGERPRINT_KEY = "divine.speculative.base_fingerprint"
OWN_PREFIX = "divine."  # tensors that are not the base's
_SAMPLED = 24  # tensors
_SAMPLE = 2048  # bytes, at the beginning, in the middle and at the end of each


def base_fingerprint(file: GGUFFile) -> str:
    """32 hexadecimal digits; tensors of Divine's own in the file do not count."""
    names = sorted(name for name in file.tensors if not name.startswith(OWN_PREFIX))
    digest = hashlib.sha256()
    for name in names:
        info = file.tensors[name]
        digest.update(f"{name}\0{info.block_type}\0{list(info.shape)}\n".encode())
    # The largest tensors differ between fine-tunings for certain; norms may be the same.
    order = sorted(names, key=lambda name: (-file.tensors[name].nbytes, name))
    step = max(1, len(order) // _SAMPLED)
    for name in order[::step]:
        raw = file.raw(name)
        last = max(0, len(raw) - _SAMPLE)
        for start in (0, last // 2, last):
            digest.update(raw[start : start + _SAMPLE].data)
    return digest.hexdigest()[:32]
