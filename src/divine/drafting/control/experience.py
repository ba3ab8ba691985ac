"""What drafting has learned, in a file: the costs of passes, and how often claims came true.

It makes the next process as quick from its first answer on as this one has become; it cannot change
a text. A file that is damaged, foreign or of another version is as good as none.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

from divine.drafting.control.calibration import Calibration
from divine.drafting.control.costs import CostTable

_FORMAT = "divine drafting 2"


def save_experience(path: Path, costs: CostTable, calibration: Calibration) -> None:
    """Write what was learned; the file is whole or not there. Never raises at a user."""
    learned = costs.data()
    if learned is None:
        return
    data = {"format": _FORMAT, "costs": learned, "claims": calibration.data()}
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file)
        Path(temporary).replace(path)
    except OSError:  # a full disk or a folder of someone else: the next start learns anew
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def load_experience(path: Path, costs: CostTable, calibration: Calibration) -> bool:
    """Take over what save_experience() wrote; False, and nothing changed, without one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            return False
        claims = data.get("claims")
        Calibration().restore(claims)  # all or nothing
        costs.restore(data.get("costs"))
        calibration.restore(claims)
    except (OSError, ValueError, RecursionError):
        return False
    return True
