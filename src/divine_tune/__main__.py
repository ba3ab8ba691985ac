"""`python -m divine_tune --base_model ... --output_dir ...`, also under torchrun or accelerate."""

from __future__ import annotations

import sys

from divine.cli.main import execute

if __name__ == "__main__":
    sys.exit(execute(["tune", *sys.argv[1:]]))
