"""The acceptance walk: which nodes of a tree are what the model itself says.

From the root: the model chooses; if a child holds that token the walk goes there, else it ends. The
last choice is the bonus token. With the shared noise (sampling.Sampler) the choices are a function of
model, prompt, parameters and seed, so the text is too, whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from divine.drafting.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Walk:
    """The accepted nodes, and the tokens chosen: those of the nodes, then the bonus token."""

    nodes: list[int]
    tokens: list[int]


def walk(tree: DraftTree, choose: Callable[[int], int]) -> Walk:
    """Follow the choices; choose(node) is called once for each node of the walk, ROOT first."""
    nodes: list[int] = []
    tokens: list[int] = []
    node = ROOT
    while True:
        token = choose(node)
        tokens.append(token)
        child = tree.child(node, token)
        if child is None:
            return Walk(nodes, tokens)
        nodes.append(child)
        node = child
