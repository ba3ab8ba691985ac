"""`divine evaluate`: thin; counting is divine.bench's business."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from divine.cli import options
from divine.cli.console import prepare_output
from divine.errors import DivineError, UsageError


def command(
    what: Annotated[
        Literal["heads"], typer.Argument(metavar="heads", help="Heads, and all else that drafts.")
    ],
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    heads: Annotated[
        str | None,
        typer.Option("--heads", metavar="FILE", help="A sidecar; by default what MODEL brings."),
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option("--prompts", metavar="FILE", help="JSONL files of prompts; repeatable."),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option("--draft", metavar="NAME", help="A drafter, or all; each and all by default."),
    ] = None,
    chains: Annotated[
        str | None, typer.Option("--chains", metavar="LIST", help="Lengths; 1,2,3,4,5,6,7,8.")
    ] = None,
    trees: Annotated[
        str | None, typer.Option("--trees", metavar="LIST", help="Nodes; 4,8,16.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("-n", "--max-tokens", metavar="N", help="Of each answer; 128.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temp", "--temperature", metavar="T", help="0, greedy.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="0.")] = None,
    threads: options.Threads = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the figures; - is stdout.")
    ] = None,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE.png", help="Draw tokens per pass.")
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Count tokens per pass and acceptance by depth, for chains and trees of set sizes.

    Use prompts that nothing was trained on. Sizes are forced: this says how right drafts are; what
    they are worth in time says `divine bench --prompts`.
    """
    if not prompts:
        raise UsageError("give --prompts FILE: prompts that nothing was trained on")
    path = options.select_model(model, model_option, None)
    sizes = {"chains": _sizes("chains", chains), "trees": _sizes("trees", trees)}
    prepare_output()
    from divine import bench
    from divine.cli.progress import prompt_progress
    from divine.cli.report import check_outputs, deliver

    settings = bench.AcceptanceSettings(
        **options.given(
            drafters=tuple(draft) if draft else None,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            **sizes,
        )
    )
    check_outputs(json, plot)
    files = [Path(name) for name in prompts]
    with prompt_progress() as progress:
        result = bench.evaluate_drafts(
            path, files, settings, heads=heads, threads=threads, progress=progress
        )
    deliver(result, json, show)
    if plot is not None:
        bench.plot_acceptance(result, Path(plot))
    if result["differences"]:
        first = result["differences"][0]
        raise DivineError(
            f"{len(result['differences'])} of {result['comparisons']} answers differ from plain "
            f"decoding, the first of prompt {first['id']} with draft {first['draft']}"
        )


def show(result: Mapping[str, Any]) -> None:
    """Print a table: tokens per pass by class, drafter and shape, and acceptance by depth."""
    from rich.console import Console

    from divine.bench.acceptance import EVERY_CLASS
    from divine.cli.report import table_of

    console = Console(markup=False, highlight=False)
    settings = result["settings"]
    console.print(
        f"{result['model']}, {settings['max_tokens']} tokens, temperature "
        f"{settings['temperature']:g}; sizes are forced"
    )
    table = table_of("class", "draft", "shape")
    for name in ("prompts", "tokens\nper pass"):
        table.add_column(name, justify="right")
    table.add_column("acceptance by depth")
    entries = result["acceptance"]
    if len({entry["class"] for entry in entries}) == 2:  # one and all are the same
        entries = [entry for entry in entries if entry["class"] != EVERY_CLASS]
    for entry in sorted(entries, key=lambda entry: str(entry["class"])):
        shares = ("-" if share is None else f"{share:.2f}" for share in entry["acceptance"])
        per_pass = entry["tokens_per_pass"]
        table.add_row(
            entry["class"],
            entry["draft"],
            f"{entry['shape']} {entry['size']}",
            str(entry["prompts"]),
            "-" if per_pass is None else f"{per_pass:.2f}",
            " ".join(shares),
        )
    console.print(table)


def _sizes(name: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"--{name} is {text!r}; allowed are numbers, such as 1,2,4")
    return tuple(int(part) for part in parts)
