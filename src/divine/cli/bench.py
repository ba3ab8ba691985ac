"""`divine bench`: thin; measuring is divine.bench's business."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from divine.cli import options
from divine.cli.console import note, prepare_output
from divine.errors import UsageError


def command(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape",
            metavar="NAME:TYPE",
            help="Random weights of real shapes instead, such as llama-3.1-8b:Q4_K_M.",
        ),
    ] = None,
    threads: options.Threads = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the figures; - is stdout.")
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Measure memory roof, decoding, passes of 1 to 32 rows, prefill, load time and peak memory."""
    if (shape is None) == (model is None and model_option is None):
        raise UsageError("give a MODEL or --shape, one of the two")
    target: str | Path = shape or options.select_model(model, model_option, None)
    prepare_output()
    from divine import bench
    from divine.cli.console import print_json
    from divine.cli.report import check_writable, show, write_json

    if json is not None and json != "-":
        check_writable(Path(json))  # measuring takes minutes
    result = bench.run(target, threads=threads, progress=note)
    if json == "-":
        print_json(result)
        return
    show(result)
    if json is not None:
        write_json(Path(json), result)
