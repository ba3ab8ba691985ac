"""Writes the golden answers anew: python tests/golden/update.py

Do so only when numbers were meant to change, and say why in the commit.
"""

from __future__ import annotations

import json
import sys

from golden_cases import CASES, GOLDEN, MODEL, answer, read_golden

from divine import load
from divine.store import resolve


def main() -> None:
    before = read_golden() if GOLDEN.exists() else {}
    with load(resolve(MODEL)) as model:
        found = {case.name: answer(model, case) for case in CASES}
    text = json.dumps(found, indent=2, ensure_ascii=False)
    GOLDEN.write_text(text + "\n", encoding="utf-8")
    for name, value in found.items():
        state = "as before" if before.get(name) == value else "changed"
        sys.stdout.write(f"{name}: {state}: {value['text']!r}\n")


if __name__ == "__main__":
    main()
