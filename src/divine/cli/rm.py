"""`divine rm`: delete a fetched model."""

from __future__ import annotations

from typing import Annotated

import typer

from divine.cli import options
from divine.cli.console import gigabytes, write


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `divine list` shows.")],
    debug: options.Debug = False,
) -> None:
    """Delete a model from the models folder, with all of its shards."""
    from divine.store import remove

    model = remove(name)
    write(f"removed {model.path}  {gigabytes(model.nbytes)}\n")
