"""From a GGUF file to a program: the registry of architectures, as text, and build_program().

One module per architecture name, imported on demand; each has build(config, weights) -> Program and
does not compute. This package knows no backend. To add a model, write its module and add its line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TypeAlias, cast

from divine.errors import FormatError, UnsupportedError
from divine.gguf import GGUFFile, keys
from divine.models.config import ModelConfig
from divine.models.weights import Weights, bytes_per_token
from divine.program import Program

__all__ = ["ARCHITECTURES", "ModelConfig", "build_program", "bytes_per_token"]

_REGISTRY = {  # general.architecture -> module
    "llama": "divine.models.llama",  # Llama 1-3, Mistral, SmolLM, TinyLlama
    "qwen2": "divine.models.qwen2",
    "qwen3": "divine.models.qwen3",
}

ARCHITECTURES = tuple(_REGISTRY)

Build: TypeAlias = Callable[[ModelConfig, Weights], Program]


def build_program(gguf: GGUFFile) -> Program:
    """The program of a model file, its weights checked.

    Raises UnsupportedError for an unknown architecture or a feature that the operations cannot
    express, FormatError for contradictory metadata and for the first tensor that is missing, has
    another shape than the metadata demand, or has no use in the program.
    """
    with _named(gguf):
        architecture = gguf.metadata.str(keys.ARCHITECTURE)
        if architecture not in _REGISTRY:
            raise UnsupportedError(
                f"architecture {architecture[:80]!r} is not supported; supported are "
                + ", ".join(ARCHITECTURES)
            )
        weights = Weights(gguf)
        config = ModelConfig.from_metadata(gguf.metadata, weights.vocabulary())
        module = import_module(_REGISTRY[architecture])
        program = cast("Build", module.build)(config, weights)
        program.check(gguf.shape)
        weights.check_all_used(config)
        return program


@contextmanager
def _named(gguf: GGUFFile) -> Iterator[None]:
    """Begins every message with the file's path, as those from divine.gguf already do."""
    try:
        yield
    except (FormatError, UnsupportedError) as error:
        if str(error).startswith(str(gguf.path)):
            raise
        raise type(error)(f"{gguf.path}: {error}") from None
