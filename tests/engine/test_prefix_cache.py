"""Prompts that begin as earlier ones did: rows that are not computed again, and the same text."""

from __future__ import annotations

import pytest
from draft_support import Counting

import divine
from divine.backends.prefix_store import BLOCK
from divine.constraints import json_object
from divine.errors import UsageError
from tiny_models import tiny_llama

PREFIX = [3 + 7 * i % 300 for i in range(1000)]
SAMPLED = {"temperature": 1.0, "seed": 7, "max_tokens": 12, "draft": "none"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_llama(
        tmp_path_factory.mktemp("model") / "tiny.gguf", seed=1, context=2048, head_dim=32
    )


class Counted:
    """A model and the rows that its passes have had."""

    def __init__(self, path, **options):
        self.model = divine.load(path, threads=1, context=0, **options)
        engine = self.model._engine
        self.counting = Counting(engine._executable)
        engine._executable = engine._passes._executable = self.counting

    def ask(self, prompt, **options):
        """The answer and the rows up to its first token."""
        self.counting.rows.clear()
        stream = self.model.stream(prompt, **{**SAMPLED, **options})
        next(stream)
        engine_rows = sum(self.counting.rows)
        first = engine_rows - (len(self.counting.rows) - self.prefill_passes())
        return stream.finish(), first

    def prefill_passes(self):
        """Passes before and with the first token: those after it have one row."""
        rows = list(self.counting.rows)
        while len(rows) > 1 and rows[-1] == 1:
            rows.pop()
        return len(rows)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.model.close()


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_after_a_restart_a_prefix_is_read_from_disk(path, tmp_path, kv_type):
    prompts = [[*PREFIX, 5, 6], [*PREFIX, 9, 9, 9], [*PREFIX[:500], 1, 2, 3], PREFIX]
    plain = []
    for prompt in prompts:
        with Counted(path, kv_type=kv_type) as cold:
            plain.append(cold.ask(prompt))
            assert plain[-1][1] == len(prompt)
    options = {"kv_type": kv_type, "prefix_cache": tmp_path / "kept"}
    with Counted(path, **options) as first:
        answer, rows = first.ask(prompts[0])
        assert (answer.tokens, rows) == (plain[0][0].tokens, len(prompts[0]))
    for prompt, (expected, _) in zip(prompts, plain, strict=True):
        with Counted(path, **options) as again:
            answer, rows = again.ask(prompt)
            assert answer.tokens == expected.tokens
            assert answer.statistics.reused_tokens == len(prompt) - rows
            assert rows <= 0.15 * len(prompt)
    other = {"f16": "q8_0", "q8_0": "f16"}[kv_type]
    with Counted(path, kv_type=other, prefix_cache=tmp_path / "kept") as different:
        assert different.ask(prompts[0])[1] == len(prompts[0])


def test_in_memory_a_prefix_costs_no_rows(path):
    with Counted(path) as model:
        _, cold = model.ask([*PREFIX, 5, 6, 7])
        assert cold == len(PREFIX) + 3
        answer, warm = model.ask([*PREFIX, 8, 9])
        assert warm <= 0.08 * cold
        assert warm == 2
    with Counted(path) as model:
        assert model.ask([*PREFIX, 8, 9])[0].tokens == answer.tokens


def test_answers_are_kept_too_and_talks_go_on(path, tmp_path):
    talk = list(PREFIX[:300])
    with Counted(path, prefix_cache=tmp_path) as model:
        answer, _ = model.ask(talk, max_tokens=80)
    talk += [*answer.tokens, 4, 4]
    with Counted(path, prefix_cache=tmp_path) as model:
        warm, rows = model.ask(talk)
    assert rows <= BLOCK + 2
    with Counted(path) as model:
        assert model.ask(talk)[0].tokens == warm.tokens


def test_another_model_of_the_same_shape_finds_nothing(path, tmp_path):
    other = tiny_llama(tmp_path / "other.gguf", seed=2, context=2048, head_dim=32)
    with Counted(path, prefix_cache=tmp_path / "kept") as model:
        model.ask(PREFIX)
    with Counted(other, prefix_cache=tmp_path / "kept") as model:
        assert model.ask(PREFIX)[1] == len(PREFIX)
    copied = tmp_path / "copy.gguf"
    copied.write_bytes(path.read_bytes())
    with Counted(copied, prefix_cache=tmp_path / "kept") as model:
        assert model.ask(PREFIX)[1] < BLOCK + 1


def test_damage_costs_rows_only(path, tmp_path):
    with Counted(path, prefix_cache=tmp_path) as model:
        expected, _ = model.ask(PREFIX)
    victim = sorted(tmp_path.glob("*.kv"), key=lambda path: -path.stat().st_mtime_ns)[7]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    with Counted(path, prefix_cache=tmp_path) as model:
        with pytest.warns(RuntimeWarning, match="is damaged"):
            answer, rows = model.ask(PREFIX)
        assert answer.tokens == expected.tokens
        assert len(PREFIX) - rows == 7 * BLOCK
    with Counted(path, prefix_cache=tmp_path) as model:  # written anew
        answer, rows = model.ask(PREFIX)
    assert answer.tokens == expected.tokens
    assert rows <= BLOCK


def test_drafts_and_constraints_with_a_restored_prefix(path, tmp_path):
    asked = {"draft": "auto", "constraint": json_object(), "max_tokens": 30, "draft_tree": 4}
    with divine.load(path, threads=1, context=0, draft_model=path) as model:
        expected = model.generate(PREFIX, **{**SAMPLED, **asked})
    for _ in range(2):
        with divine.load(
            path, threads=1, context=0, draft_model=path, prefix_cache=tmp_path
        ) as model:
            answer = model.generate(PREFIX, **{**SAMPLED, **asked})
            assert answer.tokens == expected.tokens
    assert answer.statistics.reused_tokens > 900


def test_with_the_reference_backend(path, tmp_path):
    short = PREFIX[: BLOCK + 10]
    options = {"backend": "reference", "prefix_cache": tmp_path, "context": 256}
    with divine.load(path, **options) as model:
        expected = model.generate(short, **SAMPLED)
    with divine.load(path, **options) as model:
        answer = model.generate(short, **SAMPLED)
    assert answer.tokens == expected.tokens
    assert answer.statistics.reused_tokens == BLOCK


def test_mistakes(path, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="prefix_cache is .*cannot be used as a folder"):
        divine.load(path, prefix_cache=tmp_path / "file")
    with pytest.raises(UsageError, match="prefix_cache_size is 5; allowed is"):
        divine.load(path, prefix_cache=tmp_path, prefix_cache_size=5)
    with pytest.raises(UsageError, match="prefix_cache_size needs a folder"):
        divine.load(path, prefix_cache_size=10**9)
