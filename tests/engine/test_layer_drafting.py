"""Drafting with a layer: the plain text whatever it guesses, and a memory of the right rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import divine
from divine.drafting.base import Budget, DraftTask
from divine.drafting.drafters.layer import LayerSession
from divine.heads import HeadWeights, LayerDefinition
from divine.heads.packaging import Packaging
from divine.sampling import Sampler, SamplingParams
from heads_support import LAYERS, pack, random_heads
from tiny_models import tiny_llama

PROMPTS = [[1, 10, 11, 12, 13, 14, 15], [1, 20, 21, 20, 21, 20], [1, 30]]
GREEDY: dict[str, Any] = {"temperature": 0}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 7, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
TOKENS = 24


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("layer") / "base.gguf", seed=3)


@pytest.fixture(params=LAYERS, scope="module")
def packed(request: Any, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return pack(base, random_heads(LAYERS[request.param]), folder / "packed.divine")


@pytest.mark.parametrize("sampler", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_texts_are_the_plain_ones(packed: Path, sampler: dict[str, Any]) -> None:
    """Chains and trees, one sequence and three."""
    with divine.load(packed, threads=1) as model:
        options: dict[str, Any] = {"max_tokens": TOKENS, **sampler}
        plain = [model.generate(prompt, draft="none", **options).tokens for prompt in PROMPTS]
        for draft, tree in (("mtp", 1), ("mtp", 5), ("ngram,mtp", 12), ("mtp", None)):
            answer = model.generate(PROMPTS[0], draft=draft, draft_tree=tree, **options)
            assert answer.tokens == plain[0]
            if tree:
                assert sum(answer.statistics.drafts["mtp"].drafted) > 0
        answers = model.generate_many(PROMPTS, draft="mtp", draft_tree=3, **options)
        assert [answer.tokens for answer in answers] == plain


@pytest.mark.parametrize("packaging", ["appended", "sidecar", "inline"])
def test_every_packaging_brings_the_same_layer(
    base: Path, tmp_path: Path, packaging: Packaging
) -> None:
    weights = random_heads(LAYERS["narrow"])
    path = pack(base, weights, tmp_path / "packed.gguf", packaging)
    model_path, heads = (base, path) if packaging == "sidecar" else (path, None)
    with divine.load(model_path, threads=1, heads=heads) as model:
        drafter: Any = model._drafters["mtp"]
        assert drafter.levels.definition == weights.definition
        assert drafter.levels.packed is not None
        answer = model.generate(PROMPTS[0], max_tokens=8, draft="mtp", draft_tree=4, **GREEDY)
    assert sum(answer.statistics.drafts["mtp"].drafted) > 0


def test_a_good_layer_is_right(tmp_path: Path) -> None:
    """As with heads: a base that says each token's successor, and a layer made by hand for it."""
    rng = np.random.default_rng(0)
    dim, vocabulary = 64, 320
    table = rng.standard_normal((vocabulary, dim)).astype(np.float32)
    zeros = {
        f"blk.0.{name}.weight": np.zeros(shape, np.float32)
        for name, shape in (("attn_output", (64, 64)), ("ffn_down", (64, 96)))
    }
    path = tiny_llama(
        tmp_path / "chain.gguf", layers=1, tied=False, block_type="F32",
        tensor_overrides={
            "token_embd.weight": table, "output.weight": np.roll(table, 1, axis=0),
            "output_norm.weight": np.ones(dim, np.float32), **zeros,
        },
    )  # fmt: skip
    weights = random_heads(LayerDefinition(dim, 2, 2, 32, 96, depths=1, window=1))
    eye = np.eye(dim, dtype=np.float32)
    made = {  # rows see themselves alone, and hand their tokens on
        "fuse": np.concatenate([0 * eye, eye], axis=1), "attn_v": eye, "attn_output": eye,
        "residual": 0 * eye[0], "ffn_down": np.zeros((dim, 96), np.float32),
        "attn_norm": np.ones(dim, np.float32), "norm": np.ones(dim, np.float32),
    }  # fmt: skip
    named = {f"divine.mtp.layer.{part}.weight": data for part, data in made.items()}
    tensors = {**weights.tensors, **named}
    packed = pack(path, HeadWeights(weights.definition, tensors), tmp_path / "packed.gguf")
    with divine.load(packed, threads=1) as model:
        answer = model.generate([100, 101, 102], max_tokens=60, draft="mtp", draft_tree=5, **GREEDY)
    counts = answer.statistics.drafts["mtp"]
    assert answer.tokens[:8] == list(range(103, 111))
    assert len(counts.acceptance) == 5
    assert all(share is None or share > 0.9 for share in counts.acceptance)
    assert answer.statistics.tokens_per_pass > 4


# ---- what is remembered ----


class Text:
    """A sequence as a session sees it; the hidden states are random ones."""

    def __init__(self, drafter: Any, answer: int, prompt: int = 5, context: int = 400) -> None:
        rng = np.random.default_rng(3)
        self.hidden = rng.standard_normal((prompt + answer, 64)).astype(np.float32)
        self.ids = rng.integers(5, 300, prompt + answer + 1).tolist()
        self.prompt, self.tokens = prompt, self.ids[:prompt]
        self.sampler = Sampler(SamplingParams(temperature=0), 320)
        self.session: LayerSession = drafter.begin(
            DraftTask(self.tokens, prompt, self.sampler, context)
        )

    def passed(self, first: int, last: int, chooses: bool = True) -> None:
        """A pass has committed these rows."""
        self.tokens[:] = self.ids[: max(self.prompt, last + chooses)]
        self.session.observe({"final": self.hidden[first:last]})

    def tree(self) -> tuple[list[int], list[float]]:
        histories = self.sampler.start(self.tokens)
        tree = self.session.propose(histories, Budget(6, 3, 1e-9))
        return list(tree.tokens), list(tree.claims)


@pytest.fixture(scope="module")
def drafter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    wide = LayerDefinition.for_width(64, heads=2, head_dim=32, ffn=96, window=100)
    path = pack(base, random_heads(wide), tmp_path_factory.mktemp("one") / "packed.gguf")
    with divine.load(path, threads=1) as model:
        yield model._drafters["mtp"]


def test_the_division_into_passes_and_drafts_does_not_show(drafter: Any) -> None:
    """Row by row or many at once, asked after each pass or only at the end, asked twice."""
    whole, steps, lazy = (Text(drafter, 75) for _ in range(3))
    whole.passed(0, 5)
    whole.passed(5, 80)
    expected = whole.tree()
    assert whole.session._fed == 76  # the prompt's last row, and the answer's
    assert len(expected[0]) == 6
    assert whole.tree() == expected
    steps.passed(0, 3, chooses=False)  # a prompt in two passes
    steps.passed(3, 5)
    before = steps.tree()
    first = 5
    for last in (6, 9, 10, 31, 80):
        steps.passed(first, last)
        now = steps.tree()
        assert now != before
        first, before = last, now
    assert now == expected
    lazy.passed(0, 5)
    for first in range(5, 80, 3):
        lazy.passed(first, first + 3)
    assert lazy.tree() == expected


def test_earlier_rows_are_seen_and_the_prompt_s_are_not(drafter: Any) -> None:
    plain, early, prompt = (Text(drafter, 20) for _ in range(3))
    early.hidden[8] += 1.0
    prompt.hidden[2] += 1.0
    for text in (plain, early, prompt):
        text.passed(0, 5)
        text.passed(5, 25)
    assert plain.tree()[1] == prompt.tree()[1]
    assert plain.tree()[1] != early.tree()[1]


def test_what_waits_too_long_is_left_out(drafter: Any) -> None:
    """More rows than the window shows: the first are never fed, and it goes on."""
    text = Text(drafter, 300)
    text.passed(0, 5)
    text.passed(5, 105)
    assert text.session.cost_ms(1) < text.session.cost_ms(3) < np.inf
    text.passed(105, 285)
    assert len(text.tree()[0]) == 6
    assert text.session._fed == 100
    text.passed(285, 286)
    assert len(text.tree()[0]) == 6
    assert text.session._fed == 101


def test_a_text_that_is_read_again_begins_anew(drafter: Any) -> None:
    text, fresh = Text(drafter, 20), Text(drafter, 20)
    text.passed(0, 5)
    text.passed(5, 12)
    text.tree()
    text.passed(0, 13)  # its state was taken away, and it was read again
    fresh.passed(0, 13)
    assert text.tree() == fresh.tree()
    assert text.session._fed == fresh.session._fed == 9


def test_nothing_is_proposed_without_the_last_row_s_state(drafter: Any) -> None:
    text = Text(drafter, 5)
    assert text.session.cost_ms(1) == np.inf
    text.passed(0, 5)
    assert len(text.tree()[0]) == 6
    text.tokens.append(8)  # somebody appended without a pass
    assert text.session.cost_ms(1) == np.inf
    assert len(text.tree()[0]) == 0
    text.session.close()
    text.session.close()
