"""Where Divine keeps what can be made again: models that were fetched, measured costs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$DIVINE_CACHE, or the user's cache folder on this system; it may not exist yet."""
    named = os.environ.get("DIVINE_CACHE")
    if named:
        return Path(named).expanduser()
    import platformdirs  # only here: most calls of a server or a test name the folder

    return Path(platformdirs.user_cache_dir("divine"))
