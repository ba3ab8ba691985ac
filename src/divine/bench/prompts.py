"""Prompts to measure with, from JSONL files: one object a line.

    {"id": "code/3", "class": "code", "prompt": "...", "draft_text": "..."}

Only "prompt" is needed: the class is else the file's name, the id its line. "draft_text" is a guess
at the answer, as a program that asks would know it; of the class "edit" it is else the text between
the first fences of the prompt: what is being edited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from divine.errors import UsageError

_FENCED = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class BenchPrompt:
    """One prompt; `guess` is what its answer may look like, None if nobody knows."""

    id: str
    class_: str
    text: str
    guess: str | None = None


def load_prompts(paths: Iterable[Path]) -> list[BenchPrompt]:
    """All prompts of the files, in order. Raises UsageError that names file and line."""
    prompts: list[BenchPrompt] = []
    for path in paths:
        found = [
            _parse(f"{path}, line {number}", line, path.stem, number)
            for number, line in enumerate(_lines(path), 1)
            if line.strip()
        ]
        if not found:
            raise UsageError(f"{path} has no prompts; each line is an object with a prompt")
        prompts += found
    return prompts


def _lines(path: Path) -> list[str]:
    try:
        # Not splitlines(): JSON strings may hold the line ends that only Unicode knows.
        return path.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from error


def _parse(where: str, line: str, stem: str, number: int) -> BenchPrompt:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON ({error}); allowed is one object a line") from None
    if not isinstance(record, dict):
        raise UsageError(f"{where} is no object; allowed is an object with a prompt")
    text = _text(where, record, "prompt")
    if not text:
        raise UsageError(f"{where} has no prompt; allowed is a text that is not empty")
    class_ = _text(where, record, "class") or stem
    guess = _text(where, record, "draft_text")
    if guess is None and class_ == "edit" and (fenced := _FENCED.search(text)):
        guess = fenced[1]
    id_ = _text(where, record, "id") or f"{stem}/{number}"
    return BenchPrompt(id_, class_, text, guess or None)


def _text(where: str, record: Mapping[str, object], field: str) -> str | None:
    value = record.get(field)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{where} has {field} {value!r}; allowed is a text")
    return value
