"""Random weights in the shapes of well-known models: their cost on a machine without their files.

Speed does not depend on values, so a matrix is one random stretch of blocks repeated. The block
type of each tensor follows the recipe of the name (Q4_K_M: the value and down projections of half
the layers in Q6_K), with the usual replacement where rows do not divide into blocks of 256.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import cast

import numpy as np
from numpy.typing import NDArray

from divine.backends.cpu import _native
from divine.blocks import row_nbytes
from divine.errors import UsageError
from divine.gguf import GGUFFile
from divine.models.config import ModelConfig, RopeConfig
from divine.models.weights import Weights
from divine.program import Program

_PATTERN_ROWS = 256  # rows of one random stretch


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; tied: the head is the embedding table."""

    architecture: str
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    tied: bool


SHAPES = {
    "llama-3.1-8b": Shape("llama", 4096, 32, 32, 8, 128, 14336, 128256, False),
    "llama-3.2-1b": Shape("llama", 2048, 16, 32, 8, 64, 8192, 128256, True),
    "llama-3.2-3b": Shape("llama", 3072, 28, 24, 8, 128, 8192, 128256, True),
    "mistral-7b": Shape("llama", 4096, 32, 32, 8, 128, 14336, 32768, False),
    "qwen2.5-1.5b": Shape("qwen2", 1536, 28, 12, 2, 128, 8960, 151936, True),
    "qwen2.5-7b": Shape("qwen2", 3584, 28, 28, 4, 128, 18944, 152064, False),
    "qwen3-4b": Shape("qwen3", 2560, 36, 32, 8, 128, 9728, 151936, True),
    "qwen3-8b": Shape("qwen3", 4096, 36, 32, 8, 128, 12288, 151936, False),
    "smollm2-135m": Shape("llama", 576, 30, 9, 3, 64, 1536, 49152, True),
}
RECIPES = ("Q4_K_M", "Q5_K_M", "Q4_0", "Q4_1", "Q8_0", "Q6_K", "F16")
_SMALL = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}  # where 256 does not divide a row


class RandomWeights:
    """Tensors of a shape and recipe; a WeightSource."""

    def __init__(self, shape: Shape, recipe: str) -> None:
        self.tensors: Mapping[str, tuple[int, ...]] = _tensors(shape)
        self._layers = shape.layers
        self._recipe = recipe

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape in NumPy order."""
        return self.tensors[name]

    def block_type(self, name: str) -> str:
        """The recipe's block type for this tensor."""
        shape = self.tensors[name]
        if len(shape) == 1:
            return "F32"
        chosen = self._recipe.removesuffix("_M")
        if self._recipe.endswith("_M") and self._important(name):
            chosen = "Q6_K"
        if chosen in _SMALL and shape[1] % 256:
            chosen = _SMALL[chosen]
        return chosen

    def _important(self, name: str) -> bool:
        if name == "output.weight" or (
            name == "token_embd.weight" and "output.weight" not in self.tensors
        ):
            return True
        if not name.endswith(("attn_v.weight", "ffn_down.weight")):
            return False
        layer, eighth = int(name.split(".")[1]), self._layers // 8
        return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Random blocks, the same for every call."""
        shape = self.tensors[name]
        if len(shape) == 1:
            return np.ones(shape, np.float32).view(np.uint8)
        rows, columns = shape
        block_type = self.block_type(name)
        stretch = cast(
            "NDArray[np.uint8]",
            _native.random_weights(block_type, min(rows, _PATTERN_ROWS), columns, 1),
        )
        return np.resize(stretch, (rows * row_nbytes(block_type, columns),))

    def release(self, name: str) -> None:
        """Nothing to let go of: raw() makes its arrays anew."""


def load_shape(target: str) -> tuple[Program, RandomWeights]:
    """The program and weights of "name:RECIPE". Raises UsageError for a name that is not known."""
    name, _, recipe = target.partition(":")
    recipe = recipe or "Q4_K_M"
    if name not in SHAPES:
        raise UsageError(f"--shape {name!r} is not known; known are {', '.join(SHAPES)}")
    if recipe not in RECIPES:
        raise UsageError(f"--shape type {recipe!r} is not known; known are {', '.join(RECIPES)}")
    shape = SHAPES[name]
    weights = RandomWeights(shape, recipe)
    config = ModelConfig(
        architecture=shape.architecture, vocabulary=shape.vocabulary, dim=shape.dim,
        blocks=shape.layers, layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads,
        head_dim=shape.head_dim, value_dim=shape.head_dim, ffn=shape.ffn, context=32768, eps=1e-5,
        experts=0, causal=True,
        rope=RopeConfig(shape.head_dim, 500000.0, "none", 1.0, 32768, 1.0, None),
    )  # fmt: skip
    module = import_module(f"divine.models.{shape.architecture}")
    return cast("Program", module.build(config, Weights(cast("GGUFFile", weights)))), weights


def _tensors(s: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes, as the architecture's files have them."""
    width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (s.vocabulary, s.dim)}
    if not s.tied:
        tensors["output.weight"] = (s.vocabulary, s.dim)
    tensors["output_norm.weight"] = (s.dim,)
    for i in range(s.layers):
        block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (s.dim,),
            "attn_q.weight": (width, s.dim),
            "attn_k.weight": (kv_width, s.dim),
            "attn_v.weight": (kv_width, s.dim),
            "attn_output.weight": (s.dim, width),
            "ffn_norm.weight": (s.dim,),
            "ffn_gate.weight": (s.ffn, s.dim),
            "ffn_up.weight": (s.ffn, s.dim),
            "ffn_down.weight": (s.dim, s.ffn),
        }
        if s.architecture == "qwen2":
            block |= {
                "attn_q.bias": (width,), "attn_k.bias": (kv_width,), "attn_v.bias": (kv_width,)
            }  # fmt: skip
        if s.architecture == "qwen3":
            block |= {"attn_q_norm.weight": (s.head_dim,), "attn_k_norm.weight": (s.head_dim,)}
        tensors |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    return tensors
