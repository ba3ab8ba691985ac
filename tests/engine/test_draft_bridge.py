"""Drafting across vocabularies: texts agree, tokens are turned both ways, mismatches are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_support import PROMPT, Target
from hypothesis import given, settings
from hypothesis import strategies as st

from divine.drafting import Budget, DraftTask
from divine.drafting.drafters.bridge import TAIL, TextBridge
from divine.drafting.drafters.bridged import BridgedDrafter
from divine.drafting.drafters.draft_model import ModelDrafter
from divine.errors import UsageError
from divine.gguf import TensorData, open_gguf, typed, write_gguf
from divine.sampling import Sampler, SamplingParams
from divine.text import Tokenizer
from tiny_models import WORDS, byte_letters, tiny_llama, tiny_vocabulary

GREEDY = SamplingParams(temperature=0)
BUDGET = Budget(nodes=6, depth=6)


def other_vocabulary(words: tuple[str, ...], drop: str = "") -> dict[str, Any]:
    """Keys of a byte-level vocabulary in another order, with merges of its own."""
    letters = byte_letters()
    tokens = [letter for letter in reversed(letters) if letter not in drop]
    tokens += ["<|im_end|>", "<|im_start|>"]
    merges: list[str] = []
    for word in words:
        spelled = [letters[byte] for byte in word.encode()]
        left = spelled[0]
        for right in spelled[1:]:
            if f"{left} {right}" not in merges:
                merges.append(f"{left} {right}")
                tokens.append(left + right)
            left += right
    size = 340
    tokens += [f"[PAD{i}]" for i in range(len(tokens), size)]
    types = [3 if t.startswith("<|") else 5 if t.startswith("[PAD") else 1 for t in tokens]
    return {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": typed("[i32]", types),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
    }


DIFFERENT = other_vocabulary(("hello wor", " thing", " models", "ism", " an", "\n\n"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bridge")


@pytest.fixture(scope="module")
def target(folder: Path) -> Target:
    return Target.load(tiny_llama(folder / "target.gguf", seed=1))


@pytest.fixture(scope="module")
def different(folder: Path) -> Path:
    return tiny_llama(folder / "draft.gguf", vocab=340, seed=4, metadata_overrides=DIFFERENT)


@pytest.fixture(scope="module")
def tokenizers(target: Target, different: Path) -> tuple[Tokenizer, Tokenizer]:
    drafter = target.drafter(different)
    assert isinstance(drafter, BridgedDrafter)
    return target.tokenizer, drafter.draft


some_text = st.lists(
    st.sampled_from([*WORDS, "hello wor", "ld", "é", "漢", "🦙", "\n", "<|im_start|>", "a b c"]),
    max_size=12,
).map("".join)  # fmt: skip


@given(pieces=st.lists(some_text, min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_the_draft_reads_the_text_of_the_target(
    tokenizers: tuple[Tokenizer, Tokenizer], pieces: list[str]
) -> None:
    target, draft = tokenizers
    bridge = TextBridge(target, draft)
    tokens: list[int] = []
    for piece in pieces:
        tokens += target.encode(piece, special=True, continuation=True)
        before = list(bridge.settled)
        found = bridge.follow(tokens)
        assert found is not None
        assert draft.decode(found, special=True) == target.decode(tokens, special=True)
        assert found[: len(before)] == before
    if len("".join(pieces)) <= TAIL:
        assert found == draft.encode("".join(pieces), special=True, bos=False)


def test_long_texts_are_settled_at_word_breaks(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    target, draft = tokenizers
    bridge = TextBridge(target, draft)
    text = "hello world is the model and thing models; " * 200
    tokens = target.encode(text)
    for end in range(0, len(tokens), 97):
        found = bridge.follow(tokens[: end + 1])
        assert found == draft.encode(target.decode(tokens[: end + 1]))
    assert len(draft.decode(bridge.settled)) > len(text) - 2 * TAIL
    unbroken = TextBridge(target, draft)
    assert unbroken.follow(target.encode("x" * 1000)) == draft.encode("x" * 1000)


def test_sentencepiece_texts_begin_without_their_dummy_space(folder: Path, target: Target) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "\u2581hello", "\u2581world", "he", "llo", "\u2581is"]
    types = [2, 3, 3, *[6] * 256, *[1] * 6]
    keys = {
        "general.architecture": "llama", "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": typed("[i32]", types),
        "tokenizer.ggml.scores": typed("[f32]", [0.0] * 259 + [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]),
    }  # fmt: skip
    write_gguf(folder / "scored.gguf", keys, {})
    with open_gguf(folder / "scored.gguf") as gguf:
        scored = Tokenizer.from_metadata(gguf.metadata)
    plain = target.tokenizer
    for one, other in ((scored, plain), (plain, scored)):
        bridge = TextBridge(one, other)
        tokens = one.encode("hello world is hello é 漢字\n" * 30)
        for end in range(1, len(tokens), 5):
            found = bridge.follow(tokens[:end])
            assert found is None or other.decode(found) == one.decode(tokens[:end])
        guesses = other.encode(" world is hello", bos=False, continuation=True)
        drafted, _ = bridge.draft_of(guesses, [0.5] * len(guesses))
        assert " world is hello".startswith(one.decode(drafted, continuation=True))
        assert len(drafted) > 1


def test_nothing_is_drafted_within_a_character(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    target, draft = tokenizers
    bridge = TextBridge(target, draft)
    first, second, third, fourth = target.encode("🦙")
    assert bridge.follow([first]) is None
    assert bridge.follow([first, second, third]) is None
    assert bridge.follow([first, second, third, fourth]) == draft.encode("🦙")


def test_drafted_tokens_become_the_targets(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    target, draft = tokenizers
    bridge = TextBridge(target, draft)
    guesses = draft.encode("hello world is")
    claims = [0.9 - 0.01 * i for i in range(len(guesses))]
    tokens, found = bridge.draft_of(guesses, claims)
    assert tokens == target.encode("hello world is")[:-1]
    parts = [draft.token_bytes(guess) for guess in guesses]
    starts = [sum(map(len, parts[:i])) for i in range(len(parts))]
    place = 0
    for token, claim in zip(tokens, found, strict=True):
        end = place + len(target.token_bytes(token))
        expected = 1.0
        for start, guessed in zip(starts, claims, strict=True):
            expected *= guessed if place <= start < end else 1.0
        assert claim == pytest.approx(expected)
        place = end
    half = draft.encode("a b🦙")[:-1]
    assert bridge.draft_of(half, [0.5] * len(half))[0] == target.encode("a b")[:-1]
    assert bridge.draft_of([], []) == ([], [])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bridged_drafts_change_no_text(target: Target, different: Path, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=4, repetition_penalty=1.1)
    drafter = target.drafter(different, vocabulary=300)
    prompt = target.tokenizer.encode("hello world is the model and the user", special=True)
    plain = target.plain(prompt, 30, params)
    assert target.decode(prompt, 30, params, drafter, BUDGET) == plain
    assert any(len(step.tree) for step in target.steps)
    drafter.close()


def test_a_bridged_copy_of_the_target_is_often_right(target: Target, folder: Path) -> None:
    """The same weights behind other ids: what it drafts is what the target says."""
    tokens, types, merges = tiny_vocabulary()
    tokens = [*tokens[1:], tokens[0]]  # all ids one lower
    types = [*types[1:], types[0]]
    with open_gguf(target.path) as gguf:
        name = "token_embd.weight"
        raw = gguf.raw(name).reshape(320, -1)
        data = np.ascontiguousarray(np.roll(raw, -1, axis=0)).reshape(-1)
        moved = TensorData(gguf.block_type(name), gguf.shape(name), data)
    path = tiny_llama(
        folder / "moved.gguf", seed=1, tensor_overrides={"token_embd.weight": moved},
        metadata_overrides={
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": typed("[i32]", types),
            "tokenizer.ggml.merges": merges, "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.unknown_token_id": 319,
            "tokenizer.ggml.padding_token_id": 1,
        },
    )  # fmt: skip
    drafter = target.drafter(path)
    assert isinstance(drafter, BridgedDrafter)
    prompt = target.tokenizer.encode("hello world is")
    # Ascii only: random models rarely write whole characters.
    ascii_only = SamplingParams(
        temperature=0,
        logit_bias={
            i: -np.inf for i in range(320)
            if not target.tokenizer.token_bytes(i).isascii() or not target.tokenizer.token_bytes(i)
        },
    )  # fmt: skip
    plain = target.plain(prompt, 30, ascii_only)
    assert target.decode(prompt, 30, ascii_only, drafter, BUDGET) == plain
    drafted = sum(len(step.tree) for step in target.steps)
    assert sum(len(step.nodes) for step in target.steps) > 0
    assert drafted > 0
    drafter.close()


def test_bridged_limits(target: Target, different: Path) -> None:
    drafter = target.drafter(different, draft_max=2)
    sampler = Sampler(GREEDY, 320)

    def tree_of(tokens: list[int], context: int = 256) -> Any:
        session = drafter.begin(DraftTask(tokens, len(tokens), sampler, context))
        assert session.cost_ms(3) > 0
        return session.propose((), BUDGET)

    prompt = target.tokenizer.encode("hello world")
    assert len(tree_of(prompt)) <= 2
    assert len(tree_of(prompt, len(prompt))) == 0
    assert len(tree_of(target.tokenizer.encode("a🦙")[:-1])) == 0
    assert len(tree_of(list(PROMPT) * 40, 512)) == 0  # beyond what the draft model can read
    drafter.close()


# ---- which vocabularies are the same ----


def edited(change: Any) -> dict[str, Any]:
    tokens, types, merges = tiny_vocabulary()
    change(tokens, types)
    return {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": typed("[i32]", types),
        "tokenizer.ggml.merges": merges,
    }


def swap(tokens: list[str], types: list[int]) -> None:
    tokens[40], tokens[41] = tokens[41], tokens[40]


def rename_padding(tokens: list[str], types: list[int]) -> None:
    tokens[-1] = "<unused7>"


def retype(tokens: list[str], types: list[int]) -> None:
    types[2] = 4


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({}, ModelDrafter),
        ({"tokenizer.ggml.eos_token_id": 0}, ModelDrafter),
        (edited(rename_padding), ModelDrafter),
        (edited(retype), ModelDrafter),
        (edited(swap), BridgedDrafter),
    ],
)
def test_texts_decide(target: Target, folder: Path, keys: dict[str, Any], kind: type) -> None:
    path = tiny_llama(folder / "edited.gguf", metadata_overrides=keys)
    drafter = target.drafter(path)
    assert type(drafter) is kind
    drafter.close()


def test_vocabularies_that_cannot_be_bridged(target: Target, folder: Path) -> None:
    lacking = other_vocabulary((" and",), drop=byte_letters()[ord("4")])
    path = tiny_llama(folder / "lacking.gguf", vocab=340, metadata_overrides=lacking)
    with pytest.raises(UsageError, match=r"lacking\.gguf cannot draft for .*target\.gguf") as told:
        target.drafter(path)
    assert "lacking.gguf cannot write every text" in str(told.value)
