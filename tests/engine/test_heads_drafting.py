"""Drafting with heads: the plain text whatever they guess and however they are packed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import divine
from divine.backends.base import Want
from divine.errors import FormatError, UsageError
from divine.gguf import open_gguf
from divine.heads import HeadsDefinition, HeadWeights
from divine.heads.packaging import Packaging
from divine.heads.section import FOOTER
from heads_support import FORMS, copying_heads, pack, random_heads
from tiny_models import split_gguf, tiny_llama

PROMPT = [1, 10, 11, 12, 13, 14, 15]
PROMPTS = [PROMPT, [1, 20, 21, 20, 21, 20], [1, 30], [1, 44, 45, 46, 44, 45]]
GREEDY: dict[str, Any] = {"temperature": 0}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 7, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PENALIZED: dict[str, Any] = {
    "temperature": 1.0, "seed": 5, "repetition_penalty": 1.3, "frequency_penalty": 0.5,
    "logit_bias": {20: 3.0}, "top_k": 40, "top_p": 0.95,
}  # fmt: skip
SAMPLERS = {"greedy": GREEDY, "sampled": SAMPLED, "penalized": PENALIZED}
TOKENS = 24


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("heads") / "base.gguf", seed=3)


@pytest.fixture(scope="module")
def plain(base: Path) -> dict[str, list[list[int]]]:
    """The answers without any drafting, by sampler."""
    with divine.load(base, threads=1) as model:
        return {
            name: [
                model.generate(prompt, max_tokens=TOKENS, draft="none", **sampler).tokens
                for prompt in PROMPTS
            ]
            for name, sampler in SAMPLERS.items()
        }


@pytest.fixture(params=FORMS, scope="module")
def packed(request: Any, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base with heads that guess at random; one that hands on what it got among them."""
    weights = random_heads(FORMS[request.param])
    if request.param == "mixed":
        weights = copying_heads(base, weights.definition)
    return pack(base, weights, tmp_path_factory.mktemp(request.param) / "packed.divine")


def test_texts_are_the_plain_ones(packed: Path, plain: dict[str, list[list[int]]]) -> None:
    """Chains and trees, one sequence and four, greedy and sampled."""
    with divine.load(packed, threads=1) as model:
        assert "mtp" in model.drafters
        for name, sampler in SAMPLERS.items():
            for draft, tree in (("mtp", 1), ("mtp", 5), ("ngram,mtp", 12), ("mtp", None)):
                options = {"max_tokens": TOKENS, "draft": draft, "draft_tree": tree, **sampler}
                answer = model.generate(PROMPTS[0], **options)
                assert answer.tokens == plain[name][0]
                if tree:
                    assert sum(answer.statistics.drafts["mtp"].drafted) > 0
            for count in (2, 4):
                options = {"max_tokens": TOKENS, "draft": "mtp", "draft_tree": 3, **sampler}
                answers = model.generate_many(PROMPTS[:count], **options)
                assert [answer.tokens for answer in answers] == plain[name][:count]


def test_two_threads_and_the_reference_say_the_same(base: Path, tmp_path: Path) -> None:
    path = pack(base, random_heads(FORMS["best"]), tmp_path / "packed.gguf")
    options: dict[str, Any] = {"max_tokens": 10, "temperature": 0, "draft_tree": 4}
    for backend, threads in (("cpu", 2), ("reference", None)):
        with divine.load(path, threads=threads, backend=backend) as model:
            plain = model.generate(PROMPT, draft="none", max_tokens=10, temperature=0)
            drafted = model.generate(PROMPT, draft="mtp", **options)
            assert drafted.tokens == plain.tokens
            assert sum(drafted.statistics.drafts["mtp"].drafted) > 0


@pytest.mark.parametrize("packaging", ["appended", "sidecar", "inline"])
def test_every_packaging_drafts_the_same(base: Path, tmp_path: Path, packaging: Packaging) -> None:
    """Not only the text: the same drafts, accepted at the same places."""
    weights = copying_heads(base, FORMS["best"])
    path = pack(base, weights, tmp_path / "packed.gguf", packaging)
    model_path, heads = (base, path) if packaging == "sidecar" else (path, None)
    with divine.load(model_path, threads=1, heads=heads) as model:
        answer = model.generate(PROMPT, max_tokens=40, draft="mtp", draft_tree=4, **GREEDY)
    sidecar = pack(base, weights, tmp_path / "side.gguf", "sidecar")
    with divine.load(base, threads=1, heads=sidecar) as model:
        again = model.generate(PROMPT, max_tokens=40, draft="mtp", draft_tree=4, **GREEDY)
    assert answer.tokens == again.tokens
    assert answer.statistics.drafts == again.statistics.drafts


def test_good_heads_are_right(base: Path, tmp_path: Path) -> None:
    """Heads that know the truth are accepted at every depth: alignment, from the tap to the walk.

    A base without layers that says each token's successor lets heads be made by hand: the hidden
    state is the token's own embedding, so zero heads predict from the token they are given.
    """
    rng = np.random.default_rng(0)
    dim, vocabulary = 64, 320
    table = rng.standard_normal((vocabulary, dim)).astype(np.float32)
    successor = np.roll(np.arange(vocabulary), 1)  # what t's row of the output answers to
    output = np.empty_like(table)
    output[np.arange(vocabulary)] = table[successor]
    zeros = {
        f"blk.0.{name}.weight": np.zeros(shape, np.float32)
        for name, shape in (("attn_output", (64, 64)), ("ffn_down", (64, 96)))
    }
    path = tiny_llama(
        tmp_path / "chain.gguf", layers=1, tied=False, block_type="F32",
        tensor_overrides={
            "token_embd.weight": table, "output.weight": output,
            "output_norm.weight": np.ones(dim, np.float32), **zeros,
        },
    )  # fmt: skip
    definition = HeadsDefinition(
        3, 64, dim, activation="none", bias=False, residual_weight=True, carry="unit"
    )
    eye = np.eye(dim, dtype=np.float32)
    tensors = {}
    for name, shape in definition.tensor_shapes().items():
        if "proj_down" in name:
            tensors[name] = np.concatenate([0 * eye, eye], axis=1)
        elif "proj_up" in name:
            tensors[name] = eye
        else:
            tensors[name] = np.full(shape, 0.0 if "residual" in name else 1.0, np.float32)
    packed = pack(path, HeadWeights(definition, tensors), tmp_path / "packed.gguf")
    with divine.load(packed, threads=1) as model:
        for sampler in (GREEDY, {**SAMPLED, "temperature": 0.3}):
            answer = model.generate(
                [100, 101, 102], max_tokens=60, draft="mtp", draft_tree=5, **sampler
            )
            counts = answer.statistics.drafts["mtp"]
            assert answer.tokens[:8] == list(range(103, 111))
            assert len(counts.acceptance) == 5
            assert all(share is None or share > 0.9 for share in counts.acceptance)
            assert counts.acceptance[0] is not None
            assert answer.statistics.tokens_per_pass > 4


def test_rejection_sampling_draws_from_the_heads(base: Path, tmp_path: Path) -> None:
    """Another rule, another text: here it counts that drafts are drawn, accepted and refused."""
    path = pack(base, copying_heads(base, FORMS["best"]), tmp_path / "packed.gguf")
    with divine.load(path, threads=1) as model:
        answer = model.generate(
            PROMPT, max_tokens=60, draft="mtp", draft_tree=3, accept="rejection", **SAMPLED
        )
    counts = answer.statistics.drafts["mtp"]
    assert 0 < sum(counts.accepted) < sum(counts.drafted)


# ---- which heads are used ----


def drafters(path: Path, **options: Any) -> tuple[str, ...]:
    with divine.load(path, threads=1, **options) as model:
        return model.drafters


def test_none_required_and_a_file(base: Path, tmp_path: Path) -> None:
    path = pack(base, random_heads(FORMS["best"]), tmp_path / "packed.gguf")
    assert "mtp" not in drafters(base)
    assert "mtp" not in drafters(path, heads="none")
    assert "mtp" in drafters(path, heads="required")
    assert "mtp" in drafters(path, heads="auto")
    assert "mtp" in drafters(base, heads=path)  # those of another copy of the base
    with pytest.raises(UsageError, match="has no drafting heads"):
        divine.load(base, threads=1, heads="required")
    with pytest.raises(UsageError, match="there is no such file"):
        divine.load(base, threads=1, heads=tmp_path / "none.gguf")
    with (
        divine.load(base, threads=1) as model,
        pytest.raises(UsageError, match='"mtp" needs drafting'),
    ):
        model.generate(PROMPT, draft="mtp")


def test_split_bases_take_a_sidecar(base: Path, tmp_path: Path) -> None:
    shard = split_gguf(base, 2, tmp_path)[0]
    sidecar = pack(base, random_heads(FORMS["best"]), tmp_path / "heads.gguf", "sidecar")
    assert "mtp" in drafters(shard, heads=sidecar)


def test_a_damaged_section_means_plain_decoding_with_one_warning(
    base: Path, tmp_path: Path, plain: dict[str, list[list[int]]]
) -> None:
    path = pack(base, random_heads(FORMS["best"]), tmp_path / "packed.gguf")
    data = bytearray(path.read_bytes())
    data[-FOOTER.size - 100] ^= 4
    path.write_bytes(data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with divine.load(path, threads=1) as model:
            assert "mtp" not in model.drafters
            answer = model.generate(PROMPT, max_tokens=TOKENS, **GREEDY)
    assert answer.tokens == plain["greedy"][0]
    (warning,) = caught
    assert "checksum differs; decoding without drafting heads" in str(warning.message)
    with pytest.raises(FormatError, match="checksum differs"):
        divine.load(path, threads=1, heads="required")
    assert "mtp" not in drafters(path, heads="none")  # and not a word


def test_heads_of_another_base_are_refused(base: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf", seed=4)
    sidecar = pack(other, random_heads(FORMS["best"]), tmp_path / "heads.gguf", "sidecar")
    with pytest.raises(UsageError, match=r"heads.gguf: .*made for another model .fingerprint"):
        divine.load(base, threads=1, heads=sidecar)
    # Behind another base's tensors, where only someone's hand could have put it.
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(base.read_bytes() + sidecar.read_bytes())
    with pytest.warns(RuntimeWarning, match="made for another model"):
        assert "mtp" not in drafters(moved)


def test_heads_that_fail_while_drafting_are_left_out(
    base: Path, tmp_path: Path, plain: dict[str, list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack(base, random_heads(FORMS["best"]), tmp_path / "packed.gguf")
    with divine.load(path, threads=1) as model:
        drafter: Any = model._drafters["mtp"]
        monkeypatch.setattr(drafter.levels, "run", lambda *_: 1 / 0)
        with pytest.warns(RuntimeWarning, match="drafter 'mtp' failed and is left out"):
            answer = model.generate(PROMPT, max_tokens=TOKENS, draft="mtp", draft_tree=3, **GREEDY)
        assert answer.tokens == plain["greedy"][0]


def test_drafts_may_be_anything_of_the_list_and_of_the_text(base: Path, tmp_path: Path) -> None:
    """The draft vocabulary is the container's list, the text's own tokens and those that end."""
    path = pack(base, random_heads(FORMS["best"]), tmp_path / "packed.gguf")
    with divine.load(path, threads=1) as model:
        drafter: Any = model._drafters["mtp"]
        listed = set(random_heads(FORMS["best"]).draft_vocab.tolist())  # type: ignore[union-attr]
        assert set(drafter.levels.packed.ids.tolist()) == listed | model.tokenizer.end_ids
        from divine.drafting.base import DraftTask
        from divine.sampling import Sampler, SamplingParams

        sampler = Sampler(SamplingParams(temperature=0), 320)
        session = drafter.begin(DraftTask([5, 6, 7], 3, sampler, 50))
        ids = session._vocabulary.of([5, 6, 7]).ids.tolist()
        assert set(ids) == listed | model.tokenizer.end_ids | {5, 6, 7}
        hidden = np.ones((1, 64), np.float32)
        want = Want(logits=[0], shortlist=session._vocabulary.of([5, 6, 7]))
        result, _ = drafter.levels.run(0, hidden, np.array([5], np.int32), want)
        assert np.flatnonzero(np.isfinite(result.logits[0])).tolist() == ids


def test_nothing_is_proposed_without_the_last_row_s_state(base: Path, tmp_path: Path) -> None:
    from divine.drafting.base import Budget, DraftTask
    from divine.sampling import Sampler, SamplingParams

    path = pack(base, random_heads(FORMS["best"]), tmp_path / "packed.gguf")
    with divine.load(path, threads=1) as model:
        drafter: Any = model._drafters["mtp"]
        sampler = Sampler(SamplingParams(temperature=0), 320)
        tokens = [5, 6, 7]
        session = drafter.begin(DraftTask(tokens, 3, sampler, 6))
        histories, budget = sampler.start(tokens), Budget(4, 4, 1e-9)
        assert session.cost_ms(1) == np.inf
        assert len(session.propose(histories, budget)) == 0
        session.observe({"final": np.ones((2, 64), np.float32)})
        assert 0 < session.cost_ms(1) < session.cost_ms(2)
        tree = session.propose(histories, budget)
        assert 1 <= len(tree) <= 4
        assert max(tree.depths()) <= 3  # the context has 6 tokens
        tokens.append(8)  # somebody appended without a pass
        assert session.cost_ms(1) == np.inf
        assert len(session.propose(histories, budget)) == 0


def test_shipped_heads_are_found_by_the_base_s_fingerprint(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from divine.heads import base_fingerprint

    with open_gguf(base) as file:
        name = base_fingerprint(file)
    monkeypatch.setattr("divine.api.additions.SHIPPED", tmp_path)
    pack(base, random_heads(FORMS["best"]), tmp_path / f"{name}.gguf", "sidecar")
    assert "mtp" in drafters(base)
    assert "mtp" not in drafters(base, heads="none")
    assert "mtp" not in drafters(tiny_llama(tmp_path / "other", seed=9))
