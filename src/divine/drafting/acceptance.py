"""The acceptance walk: which nodes of a tree are what the model itself says.

From the root: the model chooses; if a child holds that token the walk goes there, else it ends.
The last choice is the bonus token. With the shared noise (sampling.Sampler) the choices are a
function of model, prompt, parameters and seed, so the text is too, whatever was drafted.

Rejection sampling instead keeps the distribution of the text only: what is said depends on what was
drafted. It is here for comparison with the literature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from divine.drafting.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Walk:
    """The accepted nodes, and the tokens chosen: those of the nodes, then the bonus token."""

    nodes: list[int]
    tokens: list[int]


class Distributions(Protocol):
    """What rejection sampling asks of the model, along one path downwards."""

    position: int  # of the token that is asked about

    def probabilities(self, node: int) -> NDArray[np.float64]:
        """The processed distribution float64 [vocabulary] of what follows `node`, or ROOT."""

    def take(self, token: int) -> None:
        """That token was decided on: what is asked next lies below it."""


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


def walk_by_rejection(
    tree: DraftTree, model: Distributions, random: Callable[[int], np.random.Generator]
) -> Walk:
    """Leviathan et al. 2023 (arXiv 2211.17192), and for siblings SpecInfer's multi-step form.

    A child x drawn from q is accepted with probability min(1, p(x) / q(x)); if it is not, the next
    sibling is judged against p = normalize(max(p - q, 0)), and the bonus token is drawn from what
    remains of p. `random(position)` gives uniform numbers that are independent of the draws of the
    drafter; sharing a stream with those would bias the result.
    """
    nodes: list[int] = []
    tokens: list[int] = []
    node = ROOT
    while True:
        remaining = model.probabilities(node)
        uniform = random(model.position)
        accepted = None
        for child in tree.children(node):
            token = tree.tokens[child]
            drawn_from = None if tree.draws is None else tree.draws[child]
            share = 1.0 if drawn_from is None else float(drawn_from[token])
            if uniform.random() * share < remaining[token]:
                accepted = child
                break
            remaining = _residual(remaining, token, drawn_from)
        if accepted is None:
            token = draw(remaining, uniform)
        model.take(token)
        tokens.append(token)
        if accepted is None:
            return Walk(nodes, tokens)
        nodes.append(accepted)
        node = accepted


def draw(probabilities: NDArray[np.float64], uniform: np.random.Generator) -> int:
    """A token of the distribution [vocabulary], whose sum need not be exactly 1."""
    sums = np.cumsum(probabilities)
    token = int(np.searchsorted(sums, uniform.random() * sums[-1], side="right"))
    if token < len(sums) and probabilities[token] > 0:
        return token
    return int(np.flatnonzero(probabilities)[-1])  # the product was rounded up to the sum


def _residual(
    remaining: NDArray[np.float64], token: int, drawn_from: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """normalize(max(p - q, 0)); a node that was certain has q = 1 at its token."""
    if drawn_from is None:
        rest = remaining.copy()
        rest[token] = 0
    else:
        rest = np.maximum(remaining - drawn_from, 0)
    total = float(rest.sum())
    # Nothing remains only where q covers p within rounding: then a rejection has probability 0.
    return rest / total if total > 0 else remaining
