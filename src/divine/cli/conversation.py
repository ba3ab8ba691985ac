"""A conversation in `divine chat`: its messages, and which answers were cut. No terminal, no model.

Saved as a JSON object {"system": ..., "messages": [{"role", "content", "cut"?}]}.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from divine.cli.prompts import read_text
from divine.errors import UsageError
from divine.files import replacing


@dataclass
class Conversation:
    """Turns of a user and the model, alternating, below an optional system message."""

    system: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)

    def messages(self) -> list[dict[str, Any]]:
        """What the model is given: roles and contents only."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + [{"role": turn["role"], "content": turn["content"]} for turn in self.turns]

    def ask(self, text: str) -> None:
        """Add a user's turn."""
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str, *, cut: bool) -> None:
        """Add the model's turn; `cut` says that it was stopped before its end."""
        turn: dict[str, Any] = {"role": "assistant", "content": text}
        if cut:
            turn["cut"] = True
        self.turns.append(turn)

    def withdraw(self) -> None:
        """Drop a question that got no answer."""
        if self.turns and self.turns[-1]["role"] == "user":
            self.turns.pop()

    def reopen(self) -> bool:
        """Drop the last answer so that its question is asked again; False when there is none."""
        if self.turns and self.turns[-1]["role"] == "assistant":
            self.turns.pop()
        return bool(self.turns) and self.turns[-1]["role"] == "user"

    def save(self, path: Path) -> None:
        """Write the file whole or not at all. Raises as replacing() does."""
        document = {"system": self.system, "messages": self.turns}
        try:
            with replacing(path) as place:
                place.write_text(json.dumps(document, ensure_ascii=False, indent=1), "utf-8")
        except ValueError as error:
            raise UsageError(f"{path} cannot be written: {error}") from error

    @staticmethod
    def load(path: Path) -> Conversation:
        """Read a saved conversation. Raises UsageError naming the file and what is wrong."""
        try:
            document = json.loads(read_text(path, "--load"))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} cannot be read: {_reason(error)}") from error
        if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
            raise UsageError(f'{path} is no saved conversation: it has no list "messages"')
        system = document.get("system")
        if system is not None and not isinstance(system, str):
            raise UsageError(f'{path}: "system" is not text')
        conversation = Conversation(system)
        for number, turn in enumerate(document["messages"]):
            role = ("user", "assistant")[number % 2]
            if not isinstance(turn, dict) or turn.get("role") != role:
                raise UsageError(f'{path}: messages[{number}] must have the role "{role}"')
            if not isinstance(turn.get("content"), str):
                raise UsageError(f"{path}: messages[{number}].content is not text")
            if role == "user":
                conversation.ask(turn["content"])
            else:
                conversation.answer(turn["content"], cut=bool(turn.get("cut")))
        conversation.withdraw()
        return conversation


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
