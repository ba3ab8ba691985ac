"""What drafting has learned, in a file: the costs of passes, and how often claims came true.

It makes the next process as quick from its first answer on as this one has become; it cannot change
a text. A file that is damaged, foreign or of another version is as good as none.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from divine.drafting.control.calibration import Calibration
from divine.drafting.control.costs import CostTable
from divine.errors import DivineError
from divine.files import replacing

_FORMAT = "divine drafting 2"


def save_experience(path: Path, costs: CostTable, calibration: Calibration) -> None:
    """Write what was learned; the file is whole or not there. Never raises at a user."""
    learned = costs.data()
    if learned is None:
        return
    data = {"format": _FORMAT, "costs": learned, "claims": calibration.data()}
    # A full disk or a folder of someone else: the next start learns anew.
    with contextlib.suppress(OSError, DivineError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as place:
            place.write_text(json.dumps(data), "utf-8")


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
