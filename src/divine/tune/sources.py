"""Where prompts come from, mixed into one list: files, data sets by name, templates.

The list is a function of the sources and the seed; its digest says whether two are the same. Near
copies of prompts that are kept for measuring are left out. Knows conversations; no models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from divine.errors import UnsupportedError, UsageError
from divine.tune.conversations import Conversation, Skipped, load_conversations, parse_conversation
from divine.tune.generated import CLASSES, generated

GENERATED = "generated"
_SHINGLE = 8  # words
_COPIED = 0.3  # of a prompt's shingles: then it is a near copy
_LONGEST = 6000  # characters of a prompt that is worth counting in tokens


@dataclass(frozen=True)
class Source:
    """A name, and where its conversations are.

    path   a file; None: GENERATED, or a data set of that name for the package datasets
    share  the part of the file that is used, from its beginning; the rest is for measuring
    """

    name: str
    path: Path | None = None
    share: float = 1.0


@dataclass(frozen=True)
class Prompts:
    """Conversations in the order in which they are to be used."""

    conversations: Sequence[Conversation]
    description: dict[str, Any]  # for provenance, and to tell one list from another
    skipped: Skipped

    def __len__(self) -> int:
        return len(self.conversations)


def gather(
    sources: Sequence[Source],
    *,
    seed: int,
    answers: bool = False,
    exclude: Iterable[Path] = (),
    classes: Sequence[str] | None = None,
    limit: int = 100_000,
) -> Prompts:
    """Mix the sources: one of each in turn, each shuffled, repeats left out.

    `answers`: whole conversations that end in an answer, else first prompts. `classes`: of the
    conversations that are used; None: all. Raises UsageError, UnsupportedError.
    """
    skipped = Skipped()
    held_out = _HeldOut(exclude)
    lists = [_shuffled(source, seed, classes, skipped) for source in sources]
    seen: set[bytes] = set()
    digest = hashlib.sha256()
    kept: list[Conversation] = []
    for conversation in islice(_in_turn(lists), limit):
        if classes is not None and conversation.class_ not in classes:
            skipped.add("of another class")
            continue
        used = _answered(conversation) if answers else conversation.first_prompt
        if used is None:
            skipped.add("without an answer" if answers else "without a prompt")
            continue
        if not answers and len(used.text) > _LONGEST:
            skipped.add(f"longer than {_LONGEST} characters")
            continue
        mark = hashlib.sha256(json.dumps(used.messages, ensure_ascii=True).encode()).digest()
        if mark in seen:
            skipped.add("repeated")
            continue
        seen.add(mark)
        if held_out.near(used.messages[-2 if answers else -1]["content"]):
            skipped.add("kept for measuring")
            continue
        digest.update(mark)
        kept.append(used)
    if not kept:
        why = f"; {skipped.sentence()}" if len(skipped) else ""
        if classes is not None:
            why += f"; classes is {','.join(classes)!r}, generated ones are {', '.join(CLASSES)}"
        raise UsageError(f"no prompt is left of {', '.join(s.name for s in sources)}{why}")
    description = {
        "sources": [source.name for source in sources],
        "seed": seed,
        "conversations": len(kept),
        "digest": digest.hexdigest()[:32],
    }
    return Prompts(kept, description, skipped)


def _shuffled(
    source: Source, seed: int, classes: Sequence[str] | None, skipped: Skipped
) -> Iterator[Conversation]:
    if source.path is None and source.name == GENERATED:
        wanted = CLASSES if classes is None else tuple(c for c in CLASSES if c in classes)
        return generated(seed, wanted)
    if source.path is not None:
        found = load_conversations(source.path, skipped)
    else:
        found = _named(source.name, skipped)
    found = found[: max(1, int(source.share * len(found)))]
    Random(f"{seed} {source.name}").shuffle(found)
    return iter(found)


def _named(name: str, skipped: Skipped) -> list[Conversation]:
    """A data set through the package datasets, its split after a colon ("train" without)."""
    try:
        import datasets
    except ImportError:
        raise UnsupportedError(
            f"{name!r} is no file, and data sets by name need the package datasets: "
            "pip install 'divine-llm[tune]'"
        ) from None
    path, _, split = name.partition(":")
    try:
        records = datasets.load_dataset(path, split=split or "train")
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"the data set {name!r} cannot be loaded: {reason}") from error
    parsed = (parse_conversation(record, path.split("/")[-1], skipped) for record in records)
    found = [conversation for conversation in parsed if conversation is not None]
    if not found:
        raise UsageError(f"the data set {name!r} holds no conversations; {skipped.sentence()}")
    return found


def _in_turn(lists: list[Iterator[Conversation]]) -> Iterator[Conversation]:
    while lists:
        for conversations in list(lists):
            conversation = next(conversations, None)
            if conversation is None:
                lists.remove(conversations)
            else:
                yield conversation


def _answered(conversation: Conversation) -> Conversation | None:
    """The conversation up to its last answer."""
    messages = conversation.messages
    if messages[-1]["role"] != "assistant":
        messages = messages[:-1]
    return Conversation(messages, conversation.class_) if len(messages) > 1 else None


class _HeldOut:
    """Prompts that nothing may be learned from."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._shingles: set[tuple[str, ...]] = set()
        self._texts: set[tuple[str, ...]] = set()
        for path in paths:
            for conversation in load_conversations(path, Skipped()):
                for message in conversation.messages:
                    words = _words(message["content"])
                    self._texts.add(words)
                    self._shingles.update(_shingles(words))

    def near(self, text: str) -> bool:
        if not self._texts:
            return False
        words = _words(text)
        if words in self._texts:
            return True
        shingles = list(_shingles(words))
        copied = sum(shingle in self._shingles for shingle in shingles)
        return copied > _COPIED * len(shingles)


def _words(text: str) -> tuple[str, ...]:
    return tuple("".join(c if c.isalnum() else " " for c in text.lower()).split())


def _shingles(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (words[i : i + _SHINGLE] for i in range(len(words) - _SHINGLE + 1))
