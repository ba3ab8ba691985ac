"""`divine bench`: thin; measuring is divine.bench's business."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from divine.cli import options
from divine.cli.console import note, prepare_output
from divine.errors import DivineError, UsageError

if TYPE_CHECKING:
    from divine.bench import Settings


def command(
    model: options.ModelArgument = None,
    more_prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="More files of --prompts.", show_default=False),
    ] = None,
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
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            "--prompts",
            metavar="FILE...",
            help="Measure drafting instead, on the prompts of JSONL files.",
        ),
    ] = None,
    draft_model: options.DraftModel = None,
    heads: options.Heads = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            "--draft",
            metavar="LIST",
            help="What to compare with plain decoding; repeatable; by default each drafter, auto.",
        ),
    ] = None,
    draft_tree: options.DraftTree = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("-n", "--max-tokens", metavar="N", help="Tokens of each answer at most; 128."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temp", "--temperature", metavar="T", help="0, greedy, by default."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Of every answer; 0.")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", metavar="N", help="Times that each prompt is answered; 1."),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE.png", help="Draw speed-up and acceptance."),
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Measure a model here: the machine's limits, or with --prompts what drafting is worth.

    Without --prompts: memory roof, decoding, passes of 1 to 32 rows, prefill, load time and peak
    memory. With them each prompt is answered plainly and with each drafter, in turn, and all tokens
    are compared: if any differ, the exit code is 1.
    """
    if prompts:
        if model_option is not None and model is not None:  # then it is one more file
            more_prompts, model = [model, *(more_prompts or [])], None
        if shape is not None:
            raise UsageError("--shape has random weights, which answer no prompts; give a MODEL")
        path = options.select_model(model, model_option, None)
        for names in draft or ():
            options.draft(names, draft_model)
        chosen = options.given(
            drafts=tuple(draft) if draft else None,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            rounds=rounds,
            draft_tree=draft_tree,
        )
        files = [Path(name) for name in (*prompts, *(more_prompts or ()))]
        prepare_output()
        from divine.bench import Settings

        settings = Settings(**chosen)
        loading = options.draft_loading(draft_model, None, None, heads)
        _speculation(path, files, settings, {**loading, "threads": threads}, json, plot)
        return
    _check_unused(
        more_prompts=more_prompts,
        draft_model=draft_model,
        heads=heads,
        draft=draft,
        draft_tree=draft_tree,
        max_tokens=max_tokens,
        temp=temperature,
        seed=seed,
        rounds=rounds,
        plot=plot,
    )
    if (shape is None) == (model is None and model_option is None):
        raise UsageError("give a MODEL or --shape, one of the two")
    target: str | Path = shape or options.select_model(model, model_option, None)
    prepare_output()
    from divine import bench
    from divine.cli.report import check_outputs, deliver, show

    check_outputs(json)
    deliver(bench.run(target, threads=threads, progress=note), json, show)


def _check_unused(more_prompts: list[str] | None, **values: object) -> None:
    if more_prompts:
        raise UsageError(f"{more_prompts[0]!r} is one argument too many; files go with --prompts")
    for name, value in values.items():
        if value not in (None, []):
            raise UsageError(f"--{name.replace('_', '-')} is for --prompts; give FILE there too")


def _speculation(
    path: Path,
    files: list[Path],
    settings: Settings,
    loading: Mapping[str, Any],
    json: str | None,
    plot: str | None,
) -> None:
    from divine import bench
    from divine.cli.progress import prompt_progress
    from divine.cli.report import check_outputs, deliver, show_speculation

    check_outputs(json, plot)
    with prompt_progress() as progress:
        result = bench.speculate(path, files, settings, progress=progress, **loading)
    deliver(result, json, show_speculation)
    if plot is not None:
        bench.plot(result, Path(plot))
    if result["differences"]:
        raise DivineError(_different(result))


def _different(result: dict[str, Any]) -> str:
    differences = result["differences"]
    first = differences[0]
    return (
        f"{len(differences)} of {result['comparisons']} answers differ from plain decoding, the "
        f"first of prompt {first['id']} with draft {first['draft']} at token {first['token']}"
    )
