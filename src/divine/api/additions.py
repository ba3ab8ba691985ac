"""Which of Divine's additions a model is loaded with: its own, a sidecar's, shipped ones, none; and
the drafters that they make, beside those that need nothing.

Whatever is wrong with heads that nobody asked for by name means plain decoding and one warning, as
they can only change the speed. Draft models are opened elsewhere (drafting/loading.py).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from divine.backends.base import Executable
from divine.drafting import (
    Drafter,
    ForcedDrafter,
    NgramDrafter,
    NgramTable,
    TableDrafter,
    TextDrafter,
    load_heads,
)
from divine.errors import DivineError, FormatError, UsageError
from divine.gguf import GGUFFile
from divine.heads.fingerprint import base_fingerprint
from divine.heads.section import Additions, find_additions, open_sidecar
from divine.program import Program
from divine.text import Tokenizer

SHIPPED = Path(__file__).parent.parent / "heads" / "shipped"  # fingerprint.gguf


def choose_additions(base: GGUFFile, heads: str | os.PathLike[str] | None) -> Additions | None:
    """The additions to use with a base; None for plain decoding.

    `heads`: None or "auto": what the file itself has, or what is shipped for it; "none";
    "required": as "auto", but what is wrong is raised, and UsageError if there are none; else a
    file.
    """
    if heads == "none":
        return None
    if heads not in (None, "auto", "required"):
        assert heads is not None
        return _checked(base, open_sidecar(heads))
    found = None
    with only_warned(heads):
        own = find_additions(base) or _shipped(base)
        found = None if own is None else _checked(base, own)
    if found is None and heads == "required":
        raise UsageError(
            f'{base.path} has no drafting heads, and heads is "required"; give a file that has '
            "them, or export the model with heads"
        )
    return found


def free_drafters(tokenizer: Tokenizer) -> dict[str, Drafter]:
    """Those that every model has, by name."""
    return {
        "forced": ForcedDrafter(tokenizer.encode_answer, tokenizer.token_bytes),
        "text": TextDrafter(),
        "ngram": NgramDrafter(),
    }


def added_drafters(
    additions: Additions,
    base: GGUFFile,
    program: Program,
    executable: Executable,
    ends: frozenset[int],
) -> dict[str, Drafter]:
    """Those of a base's additions, by name; `ends`: tokens that end an answer.

    Raises FormatError for what does not fit the base, UnsupportedError for what Divine cannot run.
    """
    drafters: dict[str, Drafter] = {}
    table = NgramTable.from_gguf(additions.file, program.vocabulary)
    if table is not None:
        drafters["table"] = TableDrafter(table)
    if additions.has_heads:
        drafters["mtp"] = load_heads(additions, base, program, executable, ends)
    return drafters


@contextmanager
def only_warned(heads: str | os.PathLike[str] | None) -> Iterator[None]:
    """Turns errors into one warning, unless these heads were asked for."""
    try:
        yield
    except DivineError as error:
        if heads not in (None, "auto"):
            raise
        warnings.warn(f"{error}; decoding without drafting heads", RuntimeWarning, stacklevel=4)


def _checked(base: GGUFFile, additions: Additions) -> Additions:
    try:
        additions.check_base(base)
        if additions.has_heads:
            additions.definition()
    except BaseException:
        additions.close()
        raise
    return additions


def _shipped(base: GGUFFile) -> Additions | None:
    """Heads that come with Divine for this very base."""
    if not SHIPPED.is_dir():
        return None
    # The fingerprint takes some reading: not for models that nothing is shipped for.
    files = {path.stem: path for path in SHIPPED.glob("*.gguf")}
    path = files.get(base_fingerprint(base)) if files else None
    if path is None:
        return None
    try:
        return open_sidecar(path)
    except DivineError as error:
        raise FormatError(f"the drafting heads that come with Divine: {error}") from None
