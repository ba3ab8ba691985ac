"""The description of a model as a short list of coarse operations over named values."""

from divine.program.ops import (
    Activation,
    Attention,
    Embed,
    GatedMlp,
    Head,
    Linear,
    Norm,
    Op,
    Part,
    Rope,
    Tap,
)
from divine.program.program import Program

__all__ = [
    "Activation",
    "Attention",
    "Embed",
    "GatedMlp",
    "Head",
    "Linear",
    "Norm",
    "Op",
    "Part",
    "Program",
    "Rope",
    "Tap",
]
