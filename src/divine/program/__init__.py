"""The description of a model as a short list of coarse operations over named values."""

from divine.program.ops import (
    Activation,
    Add,
    Attention,
    Concat,
    Embed,
    GatedMlp,
    Given,
    Head,
    Linear,
    Norm,
    Normalize,
    Op,
    Part,
    Rope,
    Tap,
)
from divine.program.program import Program

__all__ = [
    "Activation",
    "Add",
    "Attention",
    "Concat",
    "Embed",
    "GatedMlp",
    "Given",
    "Head",
    "Linear",
    "Norm",
    "Normalize",
    "Op",
    "Part",
    "Program",
    "Rope",
    "Tap",
]
