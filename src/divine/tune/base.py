"""Base: a GGUF model opened for capturing, without chat, drafters or an engine of its own.

Knows the parts that load() puts together; nothing of answers or training.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from divine.backends import create_backend
from divine.backends.base import Executable
from divine.heads.fingerprint import base_fingerprint
from divine.models.opening import open_model
from divine.text import ChatTemplate, encode_chat


class Base:
    """The model whose drafts are to be learned."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        backend: str = "cpu",
    ) -> None:
        """Raises FormatError, UnsupportedError, UsageError and CapacityError like load().

        The file alone is opened; what runs it is made when it is first asked for.
        """
        self.path = Path(path)
        self.file, self.program, self.tokenizer = open_model(path)
        self._threads = threads
        self._backend = backend
        self._executable: Executable | None = None

    @property
    def executable(self) -> Executable:
        """What runs the program."""
        if self._executable is None:
            self._executable = create_backend(self._backend).compile(
                self.program, self.file, threads=self._threads
            )
        return self._executable

    @cached_property
    def fingerprint(self) -> str:
        """Of the base's weights; see heads.fingerprint."""
        return base_fingerprint(self.file)

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template; raises TemplateError if the file has none or a wrong one."""
        return ChatTemplate.from_metadata(self.file.metadata, str(self.path))

    def encode(self, messages: Sequence[Mapping[str, Any]], *, answered: bool) -> list[int]:
        """Token ids of a conversation, ready for an answer unless its last message is one."""
        return encode_chat(
            self.tokenizer, self.template, messages, add_generation_prompt=not answered
        )

    def close(self) -> None:
        """Free the weights."""
        if self._executable is not None:
            self._executable.close()
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
