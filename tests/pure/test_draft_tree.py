"""Draft trees: building, merging, pruning, refusing what is ill-formed; and the walk over them."""

from __future__ import annotations

import numpy as np
import pytest

from divine.drafting import ROOT, DraftTree, merge, walk


def test_chain_and_depths() -> None:
    tree = DraftTree.chain([5, 6, 7], [0.9, 0.8, 0.7])
    assert tree.parents == [ROOT, 0, 1]
    assert tree.depths() == [1, 2, 3]
    assert tree.child(0, 6) == 1
    assert tree.child(0, 7) is None
    tree.check(8)


def test_merge_shares_equal_prefixes() -> None:
    first = DraftTree.chain([5, 6], [0.5, 0.4])
    second = DraftTree.chain([5, 7], [0.8, 0.3])
    second.sources = [2, 2]
    merged = merge([first, second])
    assert merged.tokens == [5, 6, 7]
    assert merged.parents == [ROOT, 0, 0]
    assert merged.claims == [0.8, 0.4, 0.3]
    assert merged.sources == [3, 1, 2]
    merged.check(8)


def test_keep_renumbers_parents() -> None:
    tree = DraftTree.chain([1, 2, 3], [1.0, 1.0, 1.0])
    tree.add(9, 0, 0.5)
    kept = tree.keep([0, 3])
    assert (kept.tokens, kept.parents) == ([1, 9], [ROOT, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.tokens.__setitem__(1, 8), "outside 0 to 7"),
        (lambda t: t.tokens.__setitem__(1, -1), "outside 0 to 7"),
        (lambda t: t.parents.__setitem__(0, 0), "parents come before"),
        (lambda t: t.parents.__setitem__(1, -2), "parents come before"),
        (lambda t: t.claims.__setitem__(0, float("nan")), "claims nan"),
        (lambda t: t.claims.pop(), "differ in length"),
        (lambda t: t.add(5, ROOT, 0.1), "repeats token 5"),
        (lambda t: t.tokens.__setitem__(1, 6.0), "node 1 is 6.0 below 0"),
        (lambda t: t.tokens.__setitem__(1, True), "node 1 is True below 0"),
        (lambda t: t.parents.__setitem__(1, 0.0), "node 1 is 6 below 0.0"),
        (lambda t: t.sources.__setitem__(0, None), "from None; all must be int"),
        (lambda t: setattr(t, "draws", [None]), "differ in length"),
        (lambda t: setattr(t, "draws", [None, 0.5]), r"from float; \[8\] is needed"),
        (lambda t: setattr(t, "draws", [np.ones(7) / 7, None]), r"from \(7,\); \[8\] is needed"),
        (lambda t: setattr(t, "draws", [np.ones(8), None]), "no distribution"),
        (lambda t: setattr(t, "draws", [np.full(8, np.nan), None]), "no distribution"),
        (lambda t: setattr(t, "draws", [np.eye(8)[1], None]), "token 5, which"),
    ],
)
def test_ill_formed_trees_are_refused(change: object, message: str) -> None:
    tree = DraftTree.chain([5, 6], [0.5, 0.5])
    assert callable(change)
    change(tree)
    with pytest.raises(ValueError, match=message):
        tree.check(8)


def test_walk_follows_choices_to_the_bonus_token() -> None:
    tree = DraftTree.chain([5, 6, 7], [1.0, 1.0, 1.0])
    branch = tree.add(4, 0, 1.0)
    model = {ROOT: 5, 0: 4, branch: 2}
    result = walk(tree, model.__getitem__)
    assert result.nodes == [0, branch]
    assert result.tokens == [5, 4, 2]


def test_walk_of_an_empty_tree_is_plain_decoding() -> None:
    result = walk(DraftTree(), {ROOT: 3}.__getitem__)
    assert (result.nodes, result.tokens) == ([], [3])
