"""Tables say what texts say, survive their file, stay within their size, and change no answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import divine.api
from divine.drafting import Budget, DraftTask, NgramTable, TableDrafter
from divine.drafting.drafters.ngram_table import VERSION_KEY, context_key, context_keys
from divine.errors import FormatError, UnsupportedError, UsageError
from divine.gguf import TensorData, open_gguf, typed, write_gguf
from divine.heads.packaging import package
from divine.sampling import Sampler, SamplingParams
from divine.tune.table import make_table, table_content
from tiny_models import tiny_llama

TEXT = np.array([5, 6, 7, 8] * 20 + [5, 6, 9, 1, 2] * 5, np.int32)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_a_context_has_one_key(context: list[int]) -> None:
    assert context_keys(np.array([context], np.int32))[0] == context_key(context)


def test_what_follows_most_comes_first() -> None:
    table = make_table([(TEXT, 0)])
    after = table.after([5, 6])
    assert [token for token, _ in after[:2]] == [7, 9]
    assert after[0][1] == pytest.approx(20 / 25.7, abs=0.02)
    assert sum(share for _, share in after) <= 1.0
    # The longer context decides where it is known, the last token alone where it is not.
    assert table.after([7, 8, 5])[0][0] == 6
    assert table.after([300, 301, 7])[0][0] == 8
    assert table.after([300]) == []


@given(
    st.lists(st.integers(0, 30), min_size=20, max_size=300),
    st.lists(st.integers(0, 30), max_size=4),
    st.integers(1, 6),
)
@settings(max_examples=100, deadline=None)
def test_the_first_few_are_the_first_of_all(text: list[int], context: list[int], most: int) -> None:
    table = make_table([(np.array(text, np.int32), 0)])
    assert table.after(context, most) == table.after(context)[:most]


def test_only_tokens_from_first_on_are_learned() -> None:
    table = make_table([(np.array([40, 41, 42, 43], np.int32), 2)])
    assert table.after([41])[0][0] == 42
    assert table.after([40]) == []  # what follows it is the prompt


def test_a_table_keeps_to_its_size_and_drops_what_says_least() -> None:
    random = np.random.default_rng(0)
    noise = random.integers(100, 4000, 4000).astype(np.int32)
    table = make_table([(TEXT, 0), (noise, 0)], entries=60)
    assert len(table) <= 60
    assert table.after([6, 7])[0][0] == 8
    with pytest.raises(UsageError, match="no text"):
        make_table([])


def written(tmp_path: Path, base: Path) -> Path:
    path = tmp_path / "table.gguf"
    with open_gguf(base) as file:
        package(file, table_content(make_table([(TEXT, 0)])), path, "sidecar")
    return path


def test_a_file_gives_back_the_table(tmp_path: Path) -> None:
    path = written(tmp_path, tiny_llama(tmp_path / "base.gguf"))
    made = make_table([(TEXT, 0)])
    with open_gguf(path) as file:
        read = NgramTable.from_gguf(file, 320)
        assert read is not None
        for context in ([5, 6], [7, 8, 5], [1], [9, 1]):
            assert read.after(context) == made.after(context)
        with pytest.raises(FormatError, match="vocabulary of 9 tokens"):
            NgramTable.from_gguf(file, 9)


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    content = table_content(make_table([(TEXT, 0)]))
    for change, kind, words in (
        ({"keys": {VERSION_KEY: typed("u32", 9)}}, UnsupportedError, "version 9"),
        ({"drop": "divine.table.tokens"}, FormatError, "tokens of the n-gram table is missing"),
        ({"drop": "divine.table.1.next"}, FormatError, "1.next"),
        ({"empty": "divine.table.1.shares"}, FormatError, "differ in length"),
    ):
        tensors = dict(content.tensors)
        tensors.pop(str(change.get("drop")), None)
        if "empty" in change:
            tensors[str(change["empty"])] = TensorData("I8", (1,), np.zeros(1, np.uint8))
        keys = {"general.architecture": "x", **content.keys, **change.get("keys", {})}  # type: ignore[dict-item]
        path = tmp_path / "damaged.gguf"
        write_gguf(path, keys, tensors)
        with open_gguf(path) as file, pytest.raises(kind, match=words):
            NgramTable.from_gguf(file, 320)


def test_a_tree_grows_by_its_likeliest_paths() -> None:
    drafter = TableDrafter(make_table([(TEXT, 0)]))
    tokens = [1, 5, 6]
    sampler = Sampler(SamplingParams(temperature=0.0), 320)
    session = drafter.begin(DraftTask(tokens, 3, sampler, 100))
    tree = session.propose((), Budget(nodes=6, depth=4))  # type: ignore[arg-type]
    tree.check(320)
    assert tree.tokens[:3] == [7, 8, 5]
    assert 9 in [tree.tokens[node] for node in tree.children(-1)]
    assert max(tree.depths()) <= 4
    assert len(session.propose((), Budget(nodes=6, depth=4, row_price=0.999))) == 0  # type: ignore[arg-type]


def test_a_table_changes_no_answer(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base.gguf")
    with divine.api.load(base) as plain:
        expected = plain.generate("hello", max_tokens=60, temperature=0, draft="none")
        sampled = plain.generate("hello", max_tokens=60, temperature=0.9, seed=3, draft="none")
    own = np.array(expected.tokens, np.int32)
    path = tmp_path / "own.gguf"
    with open_gguf(base) as file:
        package(file, table_content(make_table([(own, 0)])), path, "sidecar")
    with divine.api.load(base, heads=path) as model:
        assert "table" in model.drafters
        drafted = model.generate("hello", max_tokens=60, temperature=0, draft="table", draft_tree=4)
        assert drafted.tokens == expected.tokens
        assert sum(drafted.statistics.drafts["table"].accepted) > 10
        again = model.generate(
            "hello", max_tokens=60, temperature=0.9, seed=3, draft="table", draft_tree=4
        )
        assert again.tokens == sampled.tokens
