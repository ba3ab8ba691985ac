"""Divine: exact language models on ordinary computers.

The public names are loaded when they are first used, so that importing divine costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from divine.api import Chunk, Completion, Model, Statistics, Stream, TokenLogprob, load
    from divine.errors import DivineError

__version__ = "0.1.0"

__all__ = [
    "Chunk",
    "Completion",
    "DivineError",
    "Model",
    "Statistics",
    "Stream",
    "TokenLogprob",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = "divine.errors" if name == "DivineError" else "divine.api"
        return getattr(import_module(module), name)
    raise AttributeError(f"module 'divine' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
