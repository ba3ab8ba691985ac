"""Finding special tokens in text: leftmost, longest first, in time linear in the text.

Knows texts and ids; which tokens are special, and when text may be parsed for them, is decided in
tokenizer.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any


class SpecialSplitter:
    """Cuts text at the given token texts."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = dict(ids)
        self._pattern = re.compile(f"({_alternatives(self._ids)})") if ids else None

    def split(self, text: str) -> Iterator[str | int]:
        """The pieces of text (never empty) and the ids of the tokens between them, in order."""
        parts = [text] if self._pattern is None else self._pattern.split(text)
        for index, part in enumerate(parts):
            if index % 2:
                yield self._ids[part]
            elif part:
                yield part

    def protect(self, text: str, sentinel: str) -> str:
        """The text with sentinels in it, so that no token text is found in it or across its ends.

        A sentinel goes after the first character of every token text, again where breaking one
        leaves another that overlapped it, and into what begins a token text at the end of the text
        or ends one at its start, and so might become whole beside other text. Texts of a single
        character cannot be protected.
        """
        breakable, beginnings, endings = self._breakable
        if breakable is None:
            return text
        while breakable.search(text):
            text = breakable.sub(lambda match: match[0][0] + sentinel + match[0][1:], text)
        size = len(text)
        longest = min(self._longest, size + 1)
        cuts = {size - n + 1 for n in range(2, longest) if text[size - n :] in beginnings}
        cuts |= {n - 1 for n in range(2, longest) if text[:n] in endings}
        for cut in sorted(cuts, reverse=True):
            text = text[:cut] + sentinel + text[cut:]
        return text

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)

    @cached_property
    def _breakable(self) -> tuple[re.Pattern[str] | None, frozenset[str], frozenset[str]]:
        """Pattern of the longer texts, and their proper beginnings and endings."""
        texts = {text: id_ for text, id_ in self._ids.items() if len(text) > 1}
        if not texts:
            return None, frozenset(), frozenset()
        return (
            re.compile(_alternatives(texts)),
            frozenset(text[:n] for text in texts for n in range(2, len(text))),
            frozenset(text[-n:] for text in texts for n in range(2, len(text))),
        )


def _alternatives(texts: Mapping[str, int]) -> str:
    """A pattern of all texts as a tree of common prefixes: trying thousands costs one walk."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return _pattern(tree)


def _pattern(node: dict[str, Any]) -> str:
    run = ""
    while len(node) == 1 and "" not in node:  # a chain without a choice: no group, no recursion
        ((character, node),) = node.items()
        run += re.escape(character)
    branches = [re.escape(c) + _pattern(child) for c, child in node.items() if c]
    if not branches:
        return run
    return f"{run}(?:{'|'.join(branches)}){'?' if '' in node else ''}"
