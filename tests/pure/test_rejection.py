"""Rejection sampling keeps the model's distribution: chi-square against exact probabilities.

Two tokens are drawn many times; the model's distribution of the second depends on the first. Seeds
are fixed, so a test that passes always passes; the bound is the 1 - 1e-4 quantile.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from divine.drafting import ROOT, DraftTree, draw, walk_by_rejection
from divine.sampling import Purpose, stream

VOCABULARY = 8
DRAWS = 20_000
FEWER = 6_000  # where an error would be large
FIRST = 100  # position of the first drafted token
QUANTILE = 3.72  # of the normal distribution, 1 - 1e-4

Distribution = NDArray[np.float64]


class Model:
    """Distributions by history, along one path."""

    def __init__(self, first: Distribution, second: Distribution) -> None:
        self.first, self.second = first, second  # [v], [v, v]
        self.position = FIRST
        self.taken: list[int] = []

    def probabilities(self, node: int) -> Distribution:
        if not self.taken:
            return self.first
        if len(self.taken) == 1:
            return self.second[self.taken[0]]
        return np.full(VOCABULARY, 1 / VOCABULARY)

    def take(self, token: int) -> None:
        self.taken.append(token)
        self.position += 1


def random_distribution(rng: np.random.Generator, *shape: int, sharp: float = 2.0) -> Distribution:
    weights = np.exp(rng.standard_normal((*shape, VOCABULARY)) * sharp)
    return weights / weights.sum(axis=-1, keepdims=True)


def drawn_tree(seed: int, widths: tuple[int, int], q1: Distribution, q2: Distribution) -> DraftTree:
    """Siblings drawn without replacement, `widths` of them at each depth."""
    tree = DraftTree(draws=[])
    assert tree.draws is not None
    parents = [ROOT]
    for depth, width in enumerate(widths):
        random = stream(seed, 0, FIRST + depth, Purpose.DRAFT)
        children = []
        for parent in parents:
            q = (q1 if parent == ROOT else q2[tree.tokens[parent]]).copy()
            for _ in range(width):
                token = draw(q, random)
                children.append(tree.add(token, parent, 0.5))
                tree.draws.append(q)
                q = q.copy()
                q[token] = 0
                if q.sum() == 0:
                    break
                q = q / q.sum()
        parents = children
    return tree


def chi_square(counts: NDArray[np.int64], expected: Distribution) -> None:
    """Raise unless counts [cells] fit the probabilities [cells]."""
    assert counts[expected == 0].sum() == 0, "a token of probability 0 was said"
    draws = counts.sum()
    kept = expected > 0
    rare = kept & (expected * draws < 10)  # cells too small for the test are judged together
    cells = [*np.flatnonzero(kept & ~rare)]
    observed = [*counts[cells], counts[rare].sum()]
    wanted = [*(expected[cells] * draws), expected[rare].sum() * draws]
    terms = [(o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True) if w > 0]
    freedom = len(terms) - 1
    bound = freedom * (1 - 2 / (9 * freedom) + QUANTILE * np.sqrt(2 / (9 * freedom))) ** 3
    assert sum(terms) < bound


def run(
    trees: object, first: Distribution, second: Distribution, draws: int = FEWER
) -> NDArray[np.int64]:
    """Counts [v, v] of the first two tokens; the second is drawn plainly where the walk ended."""
    assert callable(trees)
    counts = np.zeros((VOCABULARY, VOCABULARY), dtype=np.int64)
    for seed in range(draws):
        tokens: list[int] = []
        while len(tokens) < 2:
            model = Model(first, second)
            model.taken, model.position = list(tokens), FIRST + len(tokens)
            tree = trees(seed) if not tokens else DraftTree()
            result = walk_by_rejection(
                tree, model, lambda at, seed=seed: stream(seed, 0, at, Purpose.ACCEPT)
            )
            tokens += result.tokens
        counts[tokens[0], tokens[1]] += 1
    return counts


@pytest.mark.parametrize("widths", [(1, 1), (3, 2)])
def test_drawn_trees_keep_the_distribution(widths: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(widths))
    first, second = random_distribution(rng), random_distribution(rng, VOCABULARY)
    first[3] = 0  # as a filter leaves it
    first /= first.sum()
    q1, q2 = random_distribution(rng), random_distribution(rng, VOCABULARY)
    counts = run(lambda seed: drawn_tree(seed, widths, q1, q2), first, second, DRAWS)
    chi_square(counts.ravel(), (first[:, None] * second).ravel())


def test_certain_nodes_keep_the_distribution() -> None:
    """Deterministic drafters: the probability of a node is 1, whatever it claims."""
    rng = np.random.default_rng(5)
    first, second = random_distribution(rng), random_distribution(rng, VOCABULARY)
    tree = DraftTree.chain([2, 4], [0.9, 0.9])
    tree.add(1, ROOT, 0.3)
    tree.add(6, 2, 0.3)
    counts = run(lambda seed: tree, first, second)
    chi_square(counts.ravel(), (first[:, None] * second).ravel())


def test_a_draft_sure_of_one_token_or_of_an_impossible_one() -> None:
    rng = np.random.default_rng(6)
    first, second = random_distribution(rng), random_distribution(rng, VOCABULARY)
    first[4] = 0
    first /= first.sum()
    sure = np.zeros(VOCABULARY)
    sure[4] = 1
    counts = run(lambda seed: drawn_tree(seed, (1, 1), sure, np.tile(sure, (8, 1))), first, second)
    chi_square(counts.ravel(), (first[:, None] * second).ravel())


def test_the_accepted_share_is_one_minus_the_total_variation() -> None:
    rng = np.random.default_rng(7)
    first, second = random_distribution(rng), random_distribution(rng, VOCABULARY)
    q1, q2 = random_distribution(rng), random_distribution(rng, VOCABULARY)
    accepted = 0
    for seed in range(FEWER):
        tree = drawn_tree(seed, (1, 1), q1, q2)
        accepted += bool(
            walk_by_rejection(
                tree,
                Model(first, second),
                lambda at, seed=seed: stream(seed, 0, at, Purpose.ACCEPT),
            ).nodes
        )
    expected = float(np.minimum(first, q1).sum())
    spread = np.sqrt(expected * (1 - expected) / FEWER)
    assert abs(accepted / FEWER - expected) < 4 * spread


def test_streams_are_independent_and_repeat() -> None:
    def numbers(*place: int) -> list[float]:
        return stream(*place[:3], Purpose(place[3])).random(4).tolist()

    places = [(1, 0, 5, 1), (1, 0, 5, 2), (1, 0, 6, 1), (1, 1, 5, 1), (2, 0, 5, 1)]
    seen = [tuple(numbers(*place)) for place in places]
    assert len(set(seen)) == len(places)
    assert tuple(numbers(*places[0])) == seen[0]
