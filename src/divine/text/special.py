"""Finding special tokens in text: leftmost, longest first, in time linear in the text.

Knows texts and ids; which tokens are special, and when text may be parsed for them, is decided in
tokenizer.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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

    def break_up(self, text: str, sentinel: str) -> str:
        """The text with a sentinel after the first character of every token text in it.

        Repeated until none is left: breaking one may leave another that overlapped it.
        """
        if self._pattern is None:
            return text
        while self._pattern.search(text):
            text = self._pattern.sub(lambda match: match[0][0] + sentinel + match[0][1:], text)
        return text


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
