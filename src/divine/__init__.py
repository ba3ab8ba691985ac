"""Divine: exact language models on ordinary computers.

The public names are loaded when they are first used, so that importing divine costs nothing, and
not even the standard library is imported before the command line can tell Ctrl-C from an error.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, which would take most of the time
if TYPE_CHECKING:
    from typing import Any

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
        from importlib import import_module

        module = "divine.errors" if name == "DivineError" else "divine.api"
        return getattr(import_module(module), name)
    raise AttributeError(f"module 'divine' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
