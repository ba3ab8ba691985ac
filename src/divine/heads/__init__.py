"""Drafting heads: their definition, weights, container, and the program that computes them."""

from __future__ import annotations

from divine.heads.architectures import Definition
from divine.heads.checks import DRAFT_VOCAB
from divine.heads.definition import HeadsDefinition, tensor_name
from divine.heads.fingerprint import base_fingerprint
from divine.heads.layer import LayerDefinition
from divine.heads.weights import HeadWeights

__all__ = [
    "DRAFT_VOCAB",
    "Definition",
    "HeadWeights",
    "HeadsDefinition",
    "LayerDefinition",
    "base_fingerprint",
    "tensor_name",
]
