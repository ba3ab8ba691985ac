"""Log-probabilities in the shapes of OpenAI's two APIs; the numbers are the model's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from divine.api import TokenLogprob
from divine.text import Tokenizer

_NEVER = -9999.0  # JSON has no infinity; OpenAI's own floor for "practically never"


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
    """`logprobs` of a plain completion whose first token is at character `offset`.

    The token that was said is among the top ones too, as in OpenAI's API, unless none is asked for.
    """
    texts = [_text(entry.token, tokenizer) for entry in entries]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(entry.logprob, _NEVER) for entry in entries],
        "top_logprobs": [_top(entry, tokenizer) for entry in entries],
        "text_offset": offsets,
    }


def _top(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, float]:
    """By text; of tokens with one text (halves of a character) the likeliest counts."""
    said = [(entry.token, entry.logprob)] if entry.top else []
    return {
        _text(token, tokenizer): max(value, _NEVER) for token, value in (*said, *entry.top[::-1])
    }


def _entry(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": _text(token, tokenizer),
        "logprob": max(logprob, _NEVER),
        "bytes": list(_bytes(token, tokenizer)),
    }


def _text(token: int, tokenizer: Tokenizer) -> str:
    return _bytes(token, tokenizer).decode("utf-8", "replace")


def _bytes(token: int, tokenizer: Tokenizer) -> bytes:
    """A special token has no bytes in the text; its name says which it is."""
    return tokenizer.token_bytes(token) or tokenizer.token_text(token).encode()
