"""`divine pull`: fetch a model and say where it is."""

from __future__ import annotations

from typing import Annotated

import typer

from divine.cli import options
from divine.cli.console import gigabytes, write


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A short name of `divine list`, or hf:owner/repo[:quant or file].",
        ),
    ],
    debug: options.Debug = False,
) -> None:
    """Fetch a model unless it is here; an interrupted transfer goes on where it stopped.

    $DIVINE_MODELS names the folder it goes to. Hugging Face: $HF_TOKEN for gated models.
    """
    from divine.cli.progress import pull_with_progress

    path = pull_with_progress(name)
    write(f"{path}  {gigabytes(path.stat().st_size)}\n")
