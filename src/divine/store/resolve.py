"""From what a user types as MODEL to a file on this computer; quick, and never on the network."""

from __future__ import annotations

import os
from pathlib import Path

from divine.errors import DownloadError, UsageError
from divine.store.catalogue import CATALOGUE
from divine.store.folder import find
from divine.store.names import parse_hub

_ENDINGS = (".gguf", ".divine")


def resolve(model: str) -> Path:
    """The file that MODEL means: a path that exists, or the name of a pulled model.

    Raises UsageError for an empty or malformed name, DownloadError (with the command that helps)
    when there is no such file or it was not pulled.
    """
    if not model or "\0" in model:
        raise UsageError("the model's name is empty or holds a NUL; give a path or a name")
    hub = parse_hub(model)
    if hub is None and _is_path(model):
        return Path(model)
    found = find(model)
    if found is not None:
        return found.path
    if hub is not None or model in CATALOGUE:
        raise DownloadError(f"{model} is not on this computer; `divine pull {model}` fetches it")
    if os.path.isdir(model):  # noqa: PTH112 - unlike Path.is_dir, takes a name of any length
        raise DownloadError(f"{model} is a folder; give a GGUF file in it")
    if "/" in model or "\\" in model or model.lower().endswith(_ENDINGS):
        raise DownloadError(f"{model}: there is no such file{_hint(model)}")
    raise DownloadError(
        f"no model is called {model!r}; give the path of a GGUF file, a pulled name "
        f"(`divine list`) or one to pull: {', '.join(CATALOGUE)}, hf:owner/repo"
    )


def _hint(model: str) -> str:
    if model.startswith(("/", ".", "~")) or model.lower().endswith(_ENDINGS):
        return ""
    try:
        hub = parse_hub(model, bare=True)
    except UsageError:
        return ""
    return f"; if it is a repository of Hugging Face, `divine pull {hub}`"


def _is_path(model: str) -> bool:
    """Whether something other than a folder lies there; devices are for the reader to refuse."""
    return os.path.exists(model) and not os.path.isdir(model)  # noqa: PTH110, PTH112 - as above
