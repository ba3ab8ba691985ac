"""A Hugging Face checkpoint as the base: frozen, in torch, on CPUs or GPUs.

Answers and hidden states go into the same folders of answers as those of the engine, each process
writing a part of its own, so training does not know where they come from. Knows transformers; only
this module does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from divine.errors import CapacityError, UnsupportedError, UsageError
from divine.tune.answers import MAX_STATE, Answer, AnswerWriter, Finish
from divine.tune.capture import Captured, CaptureSettings
from divine.tune.conversations import Conversation, Skipped
from divine.tune.tables import Tables
from divine.tune.workers import Workers

_NORMS = ("norm", "final_layernorm", "ln_f", "final_norm")
_SAMPLED = 4096  # numbers of each matrix that the fingerprint looks at


class Checkpoint:
    """A causal language model of transformers, with its tokenizer."""

    def __init__(self, name: str, workers: Workers) -> None:
        """`name`: a folder, or a repository of the hub. Raises UnsupportedError, UsageError."""
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError:
            raise UnsupportedError(
                f"{name} is a Hugging Face checkpoint, which needs the package transformers: "
                "pip install 'divine-llm[tune]'"
            ) from None
        self.name = name
        self.device = workers.device
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(name)
            model: Any = AutoModelForCausalLM.from_pretrained(
                name, dtype=workers.half or torch.float32
            )
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(f"the checkpoint {name!r} cannot be loaded: {reason}") from error
        self.model: Any = model.to(self.device).eval().requires_grad_(False)
        norm = next((n for n in _NORMS if hasattr(model.base_model, n)), None)
        if norm is None:
            raise UnsupportedError(
                f"{name}: the final norm of {type(model).__name__} was not found; known names are "
                + ", ".join(_NORMS)
            )
        self._norm: Any = getattr(model.base_model, norm)
        if self.tokenizer.chat_template is None:
            raise UnsupportedError(f"{name} has no chat template, which conversations need")

    @property
    def dim(self) -> int:
        """Width of the hidden states."""
        return int(self.model.get_input_embeddings().weight.shape[1])

    @property
    def vocabulary(self) -> int:
        """Rows of the output matrix."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def end_ids(self) -> list[int]:
        """Tokens that end an answer."""
        ends = self.model.generation_config.eos_token_id
        if ends is None:
            ends = self.tokenizer.eos_token_id
        return [ends] if isinstance(ends, int) else sorted(ends or [])

    def fingerprint(self) -> str:
        """Of the weights: shapes, and some numbers of each."""
        digest = hashlib.sha256()
        for name, values in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tuple(values.shape)}\n".encode())
            digest.update(values.flatten()[:_SAMPLED].float().cpu().numpy().tobytes())
        return digest.hexdigest()[:32]

    def encode(self, messages: Sequence[dict[str, str]], *, answered: bool) -> list[int]:
        """Token ids of a conversation, ready for an answer unless its last message is one."""
        ids = self.tokenizer.apply_chat_template(
            list(messages), tokenize=True, add_generation_prompt=not answered, return_dict=False
        )
        return [int(id_) for id_ in ids]

    def tables(self, tokens: NDArray[np.int32], draft_vocab: NDArray[np.int32]) -> Tables:
        """The rows that training needs."""
        head = self.model.get_output_embeddings()
        eps = getattr(self._norm, "variance_epsilon", getattr(self._norm, "eps", 1e-5))
        bias = None if head.bias is None else _array(head.bias)[draft_vocab]
        return Tables(
            tokens,
            _rows(self.model.get_input_embeddings().weight, tokens),
            draft_vocab,
            _rows(head.weight, draft_vocab),
            bias,
            _array(self._norm.weight),
            float(eps),
            self.vocabulary,
        )

    @torch.no_grad()
    def answers(
        self, prompts: Sequence[list[int]], settings: CaptureSettings, seed: int
    ) -> list[list[int]]:
        """The model's answers, each with the token that ended it, if one did."""
        longest = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=self.device)
        there = torch.tensor(
            [[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self.device
        )
        torch.manual_seed(seed)
        sampled = {"temperature": settings.temperature, "top_k": 0, "top_p": 1.0}
        made = self.model.generate(
            ids,
            attention_mask=there,
            max_new_tokens=settings.answer_tokens,
            do_sample=settings.temperature > 0,
            pad_token_id=pad,
            **(sampled if settings.temperature > 0 else {}),
        )
        ends, answers = set(self.end_ids), []
        for row in made[:, longest:].tolist():
            end = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
            answers.append(row[:end])
        return answers

    @torch.no_grad()
    def states(self, texts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Hidden states after the final norm, [tokens, dim], of each text."""
        longest = max(map(len, texts))
        ids = torch.tensor([t + [0] * (longest - len(t)) for t in texts], device=self.device)
        there = torch.tensor(
            [[1] * len(t) + [0] * (longest - len(t)) for t in texts], device=self.device
        )
        hidden = self.model.base_model(ids, attention_mask=there).last_hidden_state
        return [_array(row[: len(text)]) for row, text in zip(hidden, texts, strict=True)]


def capture_checkpoint(
    checkpoint: Checkpoint,
    prompts: Sequence[Conversation],
    folder: Path,
    settings: CaptureSettings,
    *,
    source: dict[str, Any],
    workers: Workers,
    progress: Callable[[Captured], None] | None = None,
) -> tuple[Captured, Skipped]:
    """capture() for a checkpoint: every process takes each of its prompts in order.

    Raises UsageError, CapacityError (what was written stays whole).
    """
    kept = {
        "base": Path(checkpoint.name).name,
        "fingerprint": checkpoint.fingerprint(),
        "dim": checkpoint.dim,
        "vocabulary": checkpoint.vocabulary,
        **settings.kept,
        "source": source,
        "processes": workers.ranks,
    }
    wanted = None if settings.tokens is None else -(-settings.tokens // workers.ranks)
    skipped = Skipped()
    part = folder if workers.ranks == 1 else folder / f"part-{workers.rank:03}"
    with AnswerWriter(part, kept) as writer:
        begun = max(writer.numbers, default=workers.rank - workers.ranks) + workers.ranks
        mine = range(begun, len(prompts), workers.ranks)
        state = Captured(writer.answer_tokens, wanted, len(writer.numbers), begun, len(prompts))
        for start in range(0, len(mine), settings.sequences):
            if wanted is not None and state.tokens >= wanted:
                break
            numbers = mine[start : start + settings.sequences]
            for answer in _answers(checkpoint, prompts, numbers, settings, skipped):
                if wanted is not None and state.tokens >= wanted:
                    break
                writer.append(answer)
                state.answers += 1
                state.tokens = writer.answer_tokens
                state.run_tokens += len(answer.answer)
            state.prompts = numbers[-1] + 1
            if progress is not None:
                progress(state)
    return state, skipped


def _answers(
    checkpoint: Checkpoint,
    prompts: Sequence[Conversation],
    numbers: Sequence[int],
    settings: CaptureSettings,
    skipped: Skipped,
) -> Iterator[Answer]:
    """Answers to some prompts, made or given, with their states."""
    asked: list[tuple[int, list[int], int]] = []  # number, tokens, of which so many are the prompt
    for number in numbers:
        messages = prompts[number].messages
        try:
            prompt = checkpoint.encode(
                messages[:-1] if settings.given else messages, answered=False
            )
            tokens = checkpoint.encode(messages, answered=True) if settings.given else prompt
        except Exception:  # noqa: BLE001 - templates raise anything
            skipped.add("refused by the chat template")
            continue
        if len(prompt) > settings.prompt_tokens:
            skipped.add(f"longer than {settings.prompt_tokens} tokens")
        elif tokens[: len(prompt)] != prompt:
            skipped.add("with an answer that the chat template writes otherwise")
        else:
            asked.append((number, tokens[: len(prompt) + settings.answer_tokens], len(prompt)))
    if not asked:
        return
    texts = [tokens for _, tokens, _ in asked]
    try:
        if not settings.given:
            seed = (settings.seed << 32) + numbers[0]
            made = checkpoint.answers(texts, settings, seed)
            texts = [prompt + answer for prompt, answer in zip(texts, made, strict=True)]
        states = checkpoint.states(texts) if settings.states else [None] * len(texts)
    except torch.cuda.OutOfMemoryError as error:
        raise CapacityError(
            f"the device has no memory for {len(texts)} sequences; --sequences takes fewer"
        ) from error
    ends = set(checkpoint.end_ids)
    for (number, _, asking), text, hidden in zip(asked, texts, states, strict=True):
        if len(text) == asking:
            skipped.add("without an answer")
            continue
        rows = np.zeros((0, checkpoint.dim), np.float32)
        if hidden is not None:
            rows = hidden[asking - 1 : len(text) - 1]
        yield Answer(
            number,
            np.array(text, np.int32),
            asking,
            np.clip(rows, -MAX_STATE, MAX_STATE).astype(np.float16),
            Finish.STOP if text[-1] in ends else Finish.LENGTH,
        )


def _rows(matrix: torch.Tensor, rows: NDArray[np.int32]) -> NDArray[np.float32]:
    return _array(matrix[torch.from_numpy(rows.astype(np.int64)).to(matrix.device)])


def _array(values: torch.Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.detach().float().cpu().numpy()
    return array
