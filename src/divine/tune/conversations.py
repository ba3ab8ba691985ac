"""Conversations from files: JSON lines or one JSON array, in the three shapes that people have.

    {"messages": [{"role": "user", "content": "..."}, ...]}
    {"conversations": [{"from": "human", "value": "..."}, ...]}            ShareGPT
    {"instruction": "...", "input": "...", "output": "..."}                alpaca

Records that are broken or empty are counted and left out, and so is the tail of a file that was cut
off; a file without any conversation is an error. Knows no models.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from divine.errors import UsageError

Message = dict[str, str]

_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "model": "assistant",
}
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that alternate, perhaps after a system message, from a user's on."""

    messages: tuple[Message, ...]
    class_: str = "other"

    @property
    def first_prompt(self) -> Conversation | None:
        """Everything up to the first user message."""
        for index, message in enumerate(self.messages):
            if message["role"] == "user":
                return Conversation(self.messages[: index + 1], self.class_)
        return None

    @property
    def text(self) -> str:
        """The last message."""
        return self.messages[-1]["content"]


@dataclass(slots=True)
class Skipped:
    """What was left out, by reason."""

    reasons: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return sum(self.reasons.values())

    def add(self, reason: str) -> None:
        """One more for this reason."""
        self.reasons[reason] += 1

    def sentence(self) -> str:
        """Such as "12 left out: 10 empty, 2 of an unknown shape"."""
        parts = ", ".join(f"{count} {reason}" for reason, count in self.reasons.most_common())
        return f"{len(self)} left out: {parts}"


def load_conversations(path: Path, skipped: Skipped) -> list[Conversation]:
    """All conversations of a file, in order. Raises UsageError if there is none."""
    found = [
        conversation
        for record in _records(path, skipped)
        if (conversation := parse_conversation(record, path.stem, skipped)) is not None
    ]
    if not found:
        more = f" ({skipped.sentence()})" if len(skipped) else ""
        raise UsageError(
            f"{path} holds no conversations{more}; allowed are JSON lines or one JSON array of "
            "objects with messages, conversations (ShareGPT), instruction and output (alpaca) or "
            "prompt"
        )
    return found


def parse_conversation(record: object, class_: str, skipped: Skipped) -> Conversation | None:
    """A record in one of the shapes; None, and counted, if it is broken or empty."""
    if not isinstance(record, Mapping):
        skipped.add("no objects")
        return None
    given = record.get("class")
    class_ = given if isinstance(given, str) and given else class_
    messages: list[Message] | None
    if "messages" in record:
        messages = _turns(record["messages"], "role", "content")
    elif "conversations" in record:
        messages = _turns(record["conversations"], "from", "value")
    elif "instruction" in record:
        messages = _alpaca(record)
    elif isinstance(record.get("prompt"), str):
        messages = [{"role": "user", "content": record["prompt"]}]
    else:
        skipped.add("of an unknown shape")
        return None
    if messages is None:
        skipped.add("broken")
        return None
    messages = _alternating(messages)
    if not messages:
        skipped.add("empty")
        return None
    return Conversation(tuple(messages), class_)


def _records(path: Path, skipped: Skipped) -> Iterator[object]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            start = file.read(64).lstrip()[:1]
            file.seek(0)
            if start == "[":
                yield from _array(iter(lambda: file.read(_CHUNK), ""), skipped)
                return
            for line in file:
                if line.strip():
                    try:
                        yield json.loads(line)
                    except (ValueError, RecursionError):
                        skipped.add("no JSON")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from error


def _array(chunks: Iterable[str], skipped: Skipped) -> Iterator[object]:
    """The elements of a JSON array that may be cut off, without having all of it in memory."""
    decoder = json.JSONDecoder()
    text, at = "", 0
    opened = False
    for chunk in chunks:
        text, at = text[at:] + chunk, 0
        if not opened:
            at, opened = text.index("[") + 1, True
        while True:
            while at < len(text) and text[at] in " \t\r\n,":
                at += 1
            if at == len(text):
                break
            if text[at] == "]":
                return
            try:
                value, end = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                break  # the rest of it comes with the next chunk, or never
            yield value
            at = end
    if text[at:].strip():
        skipped.add("cut off")


def _turns(turns: object, role_key: str, text_key: str) -> list[Message] | None:
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        return None
    messages = []
    for turn in turns:
        if not isinstance(turn, Mapping):
            return None
        role, text = turn.get(role_key), turn.get(text_key)
        known = _ROLES.get(role) if isinstance(role, str) else None
        if known is None or not isinstance(text, str):
            return None
        messages.append({"role": known, "content": text.strip()})
    return messages


def _alpaca(record: Mapping[str, Any]) -> list[Message] | None:
    parts = [record.get(key) or "" for key in ("instruction", "input", "output")]
    if not all(isinstance(part, str) for part in parts):
        return None
    instruction, context, answer = (part.strip() for part in parts)
    prompt = "\n\n".join(part for part in (instruction, context) if part)
    messages = [{"role": "user", "content": prompt}]
    return [*messages, {"role": "assistant", "content": answer}] if answer else messages


def _alternating(messages: list[Message]) -> list[Message]:
    """From the first user message, after a system message, as far as turns alternate."""
    kept: list[Message] = []
    for message in messages:
        if not message["content"]:
            if message["role"] == "user" or kept:
                break
            continue
        if message["role"] == "system":
            if kept:
                break
            kept.append(message)
            continue
        asks = message["role"] == "user"
        if asks == (bool(kept) and kept[-1]["role"] == "user"):
            if not kept or kept[-1]["role"] == "system":
                continue  # answers before the first question
            break
        kept.append(message)
    return kept if any(message["role"] == "user" for message in kept) else []
