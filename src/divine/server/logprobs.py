"""Log-probabilities in the shapes of OpenAI's two APIs; the numbers are the model's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from divine.api import TokenLogprob
from divine.text import Tokenizer


def chat(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """`content` of a chat's logprobs: token, logprob, bytes, top_logprobs."""
    return [
        {
            **_entry(entry.token, entry.logprob, tokenizer),
            "top_logprobs": [_entry(token, value, tokenizer) for token, value in entry.top],
        }
        for entry in entries
    ]


def completion(
    entries: Sequence[TokenLogprob], tokenizer: Tokenizer, offset: int
) -> dict[str, Any]:
    """`logprobs` of a plain completion whose first token is at character `offset`."""
    texts = [_text(entry.token, tokenizer) for entry in entries]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [
            {_text(token, tokenizer): value for token, value in reversed(entry.top)}
            for entry in entries
        ],
        "text_offset": offsets,
    }


def _entry(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    # JSON has no infinity; OpenAI's own floor for "practically never".
    return {
        "token": _text(token, tokenizer),
        "logprob": max(logprob, -9999.0),
        "bytes": list(_bytes(token, tokenizer)),
    }


def _text(token: int, tokenizer: Tokenizer) -> str:
    return _bytes(token, tokenizer).decode("utf-8", "replace")


def _bytes(token: int, tokenizer: Tokenizer) -> bytes:
    """A special token has no bytes in the text; its name says which it is."""
    return tokenizer.token_bytes(token) or tokenizer.token_text(token).encode()
