"""Checkpoints: all that training needs to go on exactly where it was, in one file, whole or not.

Knows files and what torch can save; not what it means.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from divine.errors import FormatError
from divine.files import replacing

NAME = "checkpoint.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the folder's checkpoint. Raises as replacing() does; the earlier one then stays."""
    path = folder / NAME
    data = io.BytesIO()
    torch.save(state, data)  # into a file it would wrap what the disk says
    with replacing(path, kept="the checkpoint before it is kept") as place:
        place.write_bytes(data.getbuffer())


def load(folder: Path) -> dict[str, Any] | None:
    """The folder's checkpoint; None if there is none. Raises FormatError for a damaged one."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise FormatError(
            f"{path} is damaged ({type(error).__name__}); delete it to train anew"
        ) from error
    if not isinstance(state, dict):
        raise FormatError(f"{path} is no checkpoint of this program; delete it to train anew")
    return state
