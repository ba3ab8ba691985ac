"""Models on this computer by name: where they lie, what they are called, how they get here.

A name is a short one of the catalogue (smollm2), or a Hugging Face repository (hf:owner/repo with
an optional :quantization or :file). resolve() is quick and offline; pull() fetches. It never reads
what is inside a model file, and it prints nothing: progress is reported to a callback.
"""

from divine.store.catalogue import CATALOGUE, DATASETS, Entry
from divine.store.folder import Stored, models_folder, remove, stored
from divine.store.names import HubName, parse_hub
from divine.store.progress import Progress, silent
from divine.store.pull import pull, pull_dataset
from divine.store.resolve import resolve

__all__ = [
    "CATALOGUE",
    "DATASETS",
    "Entry",
    "HubName",
    "Progress",
    "Stored",
    "models_folder",
    "parse_hub",
    "pull",
    "pull_dataset",
    "remove",
    "resolve",
    "silent",
    "stored",
]
