"""`divine list`: the models on this computer, and those that a short name would fetch."""

from __future__ import annotations

from divine.cli import options
from divine.cli.console import columns_left, gigabytes, print_json, printable, write


def command(json: options.Json = False, debug: options.Debug = False) -> None:
    """Show the models in the models folder ($DIVINE_MODELS, or the user's cache)."""
    from divine.store import CATALOGUE, models_folder, stored

    models = stored()
    if json:
        print_json(
            {
                "folder": str(models_folder()),
                "models": [
                    {"name": m.name, "path": str(m.path), "bytes": m.nbytes} for m in models
                ],
            }
        )
        return
    lines = [(model.name, gigabytes(model.nbytes), str(model.path)) for model in models]
    here = {model.name for model in models}
    lines += [
        (name, gigabytes(entry.nbytes), f"not here: divine pull {name}")
        for name, entry in CATALOGUE.items()
        if name not in here
    ]
    width = max(len(line[0]) for line in lines)
    room = columns_left(width + len("  123.45 GB  "))
    for name, size, where in lines:
        shown = printable(where)
        if room is not None and len(shown) > room:
            shown = "..." + shown[3 - room :]  # of a path the end tells more
        write(f"{printable(name):{width}}  {size:>9}  {shown}\n")
