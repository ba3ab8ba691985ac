"""The folder of models: where it is, what lies in it under which name, and removing from it.

$DIVINE_MODELS, or "models" in the cache folder. Catalogue models lie at its top, those of
Hugging Face under owner/repo. Files that are still being fetched end in .partial and do not count.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from divine.errors import DownloadError
from divine.machine import cache_folder
from divine.store.catalogue import CATALOGUE
from divine.store.names import (
    HubName,
    choose,
    fitting,
    is_model,
    parse_hub,
    quantization,
    shard_names,
)


@dataclass(frozen=True)
class Stored:
    """One model on this computer."""

    name: str  # what commands call it
    path: Path  # the file, or the first of its shards
    nbytes: int  # of all shards


def models_folder() -> Path:
    """Where models lie; it may not exist yet."""
    named = os.environ.get("DIVINE_MODELS")
    if named:
        return Path(named).expanduser()
    return cache_folder() / "models"


def writable_folder(*below: str) -> Path:
    """The folder (or one below it), made if need be. Raises DownloadError if unwritable."""
    folder = models_folder().joinpath(*below)
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DownloadError(
            f"models cannot be stored in {folder}: {reason}; set DIVINE_MODELS to another folder"
        ) from error
    return folder


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raise DownloadError when the disk has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{what} needs {needed / 1e9:.2f} GB in {folder}, where {free / 1e9:.2f} GB are free"
        )


def stored() -> list[Stored]:
    """All models in the folder, by name."""
    folder = models_folder()
    try:
        paths = [path for path in folder.rglob("*.gguf") if path.is_file()]
    except OSError as error:
        raise DownloadError(f"{folder} cannot be read: {error.strerror or error}") from error
    found = []
    for path in paths:
        relative = path.relative_to(folder)
        if relative.parts[0].startswith(".") or not is_model(path.name):
            continue
        files = [path.with_name(name) for name in shard_names(path.name)]
        nbytes = sum(file.stat().st_size for file in files if file.exists())
        found.append(Stored(_name(relative), path, nbytes))
    return sorted(found, key=lambda model: model.name)


def _name(relative: Path) -> str:
    if len(relative.parts) >= 3:
        owner, repo = relative.parts[:2]
        inside = "/".join(relative.parts[2:])
        return str(HubName(owner, repo, quantization(inside) or inside))
    for entry in CATALOGUE.values():
        if relative.name == entry.filename:
            return entry.name
    return relative.stem


def find(name: str) -> Stored | None:
    """The stored model called `name`: catalogue name, hub name, file name or its stem.

    A hub name without a selector finds the preferred file among those that are here. Raises
    DownloadError when it fits several.
    """
    models = stored()
    hub = parse_hub(name)
    if hub is None:
        for model in models:
            if name in (model.name, model.path.name, model.path.stem):
                return model
        return None
    base = models_folder() / hub.owner / hub.repo
    here = {m.path.relative_to(base).as_posix(): m for m in models if base in m.path.parents}
    found = fitting(hub, here)
    if len(found) > 1:
        choose(hub, here)  # raises with the names
    return here[found[0]] if found else None


def remove(name: str) -> Stored:
    """Delete a stored model, its shards and what is left of unfinished transfers.

    Raises DownloadError when there is none of that name, or when it cannot be deleted.
    """
    model = find(name)
    if model is None:
        raise DownloadError(
            f"no stored model is called {name!r}; `divine list` shows those that are"
        )
    folder = model.path.parent
    try:
        for filename in shard_names(model.path.name):
            (folder / filename).unlink(missing_ok=True)
            for partial in folder.glob(f"{filename}.*partial"):
                partial.unlink()
        _prune(folder)
    except OSError as error:
        raise DownloadError(f"{model.path} cannot be removed: {error.strerror or error}") from error
    return model


def _prune(folder: Path) -> None:
    """Remove folders of a repository that hold no model any more, up to the models folder."""
    top = models_folder()
    while folder != top and top in folder.parents:
        if any(folder.rglob("*.gguf")):
            return
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub library's bookkeeping
        if any(folder.iterdir()):
            return
        folder.rmdir()
        folder = folder.parent
