"""Where the arithmetic happens: the seam (base, rows) and its implementations, imported on demand.

The registry is text, so that naming a backend costs nothing and a broken one breaks only itself.
This module knows no backend beyond its name.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from divine.backends.base import Backend
from divine.errors import UsageError

_REGISTRY = {
    "cpu": "divine.backends.cpu.backend:CpuBackend",
    "reference": "divine.backends.reference.backend:ReferenceBackend",
}

BACKENDS = tuple(_REGISTRY)


def create_backend(name: str) -> Backend:
    """The backend of that name; raises UsageError with the known names for any other."""
    if name not in BACKENDS:
        known = ", ".join(f'"{known}"' for known in BACKENDS)
        raise UsageError(f'backend "{name}" is unknown; the backends are {known}')
    module, _, attribute = _REGISTRY[name].partition(":")
    return cast("Backend", getattr(import_module(module), attribute)())
