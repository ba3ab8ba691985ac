"""open_model(): a model file with its program and its tokenizer, checked against each other.

What every way of loading a model begins with; nothing is compiled yet.
"""

from __future__ import annotations

import os

from divine.errors import FormatError
from divine.gguf import GGUFFile, open_gguf
from divine.models import build_program
from divine.program import Program
from divine.text import Tokenizer


def open_model(path: str | os.PathLike[str]) -> tuple[GGUFFile, Program, Tokenizer]:
    """The open file, its program and its tokenizer; nothing stays open after an error.

    Raises FormatError for a damaged file, UnsupportedError for what Divine cannot run.
    """
    file = open_gguf(path)
    try:
        program = build_program(file)
        tokenizer = Tokenizer.from_metadata(file.metadata, str(file.path))
        if tokenizer.vocabulary != program.vocabulary:
            raise FormatError(
                f"{file.path}: the tokenizer has {tokenizer.vocabulary} tokens, the model "
                f"{program.vocabulary}; they must be the same"
            )
    except BaseException:
        file.close()
        raise
    return file, program, tokenizer
