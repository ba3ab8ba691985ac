"""`divine bench serve`: thin; measuring is divine.bench's business."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from divine.cli import options
from divine.cli.console import note, prepare_output
from divine.errors import DivineError, UsageError


def command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL|URL", help="What to serve, or a server that runs."),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option("--levels", metavar="N,N,...", help="Requests at once; 1,2,4,8."),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option("--requests", metavar="N", help="For each client, in one queue for all; 4."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("-n", "--max-tokens", metavar="N", help="Tokens of each answer at most; 96."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="N", help="Times that all is measured; 2.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temp", "--temperature", metavar="T", help="0, greedy, by default."),
    ] = None,
    draft_model: options.DraftModel = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", metavar="KEY", help="Of the server that runs.")
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the figures; - is stdout.")
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Measure a server with several requests at once, drafting on and off in turn.

    Tokens per second of all requests together, time to the first token and between tokens. The
    texts with and without drafts are compared: if any differ, the exit code is 1.
    """
    if model is None:
        raise UsageError("give a MODEL to serve, or the address of a server, as http://HOST:PORT")
    chosen = options.given(
        levels=_levels(levels),
        requests=requests,
        max_tokens=max_tokens,
        rounds=rounds,
        temperature=temperature,
    )
    prepare_output()
    from divine import bench
    from divine.cli.report import check_outputs, deliver, show_serving

    settings = bench.ServingSettings(**chosen)
    check_outputs(json)
    if model.startswith(("http://", "https://")):
        if draft_model is not None:
            raise UsageError("-md is for a MODEL; a server that runs has its own")
        key = api_key or os.environ.get("DIVINE_API_KEY")
        result = bench.bench_serving(model, settings, key=key, progress=note)
    else:
        path = options.select_model(model, None, None)
        given = ["-md", str(options.draft_model(draft_model))] if draft_model else []
        with bench.started(str(path), max(settings.levels), given) as (url, _):
            key = os.environ.get("DIVINE_API_KEY")
            result = bench.bench_serving(url, settings, key=key, progress=note)
    deliver(result, json, show_serving)
    if result["differences"]:
        raise DivineError(_different(result))


def _levels(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"--levels is {text!r}; allowed are numbers with commas, as 1,2,4,8")
    return tuple(int(part) for part in parts)


def _different(result: dict[str, Any]) -> str:
    differences = result["differences"]
    first = differences[0]
    return (
        f"{len(differences)} of {result['comparisons']} answers differ from those without drafts, "
        f"the first with {first['concurrent']} at once in round {first['round'] + 1}"
    )
