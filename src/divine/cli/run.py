"""`divine run`: one prompt, one answer, written as it comes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from divine.cli import options
from divine.cli.console import note, prepare_output, print_json, write
from divine.cli.prompts import read_prompt
from divine.errors import UsageError

if TYPE_CHECKING:
    from divine.api import Completion, Stream
    from divine.cli.drafts import DraftColours

EPILOG = options.FIGURES


def command(
    model: options.ModelArgument = None,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt; - reads standard input.")
    ] = None,
    prompt_option: Annotated[
        str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The same as PROMPT.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="Read the prompt, or what follows PROMPT; - is standard input.",
        ),
    ] = None,
    model_option: options.ModelOption = None,
    hub: options.HubOption = None,
    system: options.System = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is: no chat template.")
    ] = False,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    repetition_penalty: options.RepetitionPenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    logit_bias: options.LogitBias = None,
    prefix_cache: options.PrefixCache = None,
    prefix_cache_size: options.PrefixCacheSize = None,
    json_schema: options.JsonSchema = None,
    json_schema_file: options.JsonSchemaFile = None,
    grammar: options.Grammar = None,
    grammar_file: options.GrammarFile = None,
    context: options.Context = None,
    threads: options.Threads = None,
    kv: options.KvTypeOption = "f16",
    backend: options.BackendOption = "cpu",
    draft: options.Draft = None,
    draft_model: options.DraftModel = None,
    heads: options.Heads = None,
    draft_max: options.DraftMax = None,
    draft_min: options.DraftMin = None,
    draft_text: options.DraftText = None,
    draft_tree: options.DraftTree = None,
    accept: options.Accept = None,
    show_drafts: options.ShowDrafts = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Answer one prompt: an argument, a file (-f), both, or standard input.

    The text goes to standard output as it comes, lines of figures to standard error. The prompt is
    put through the model's chat template as a user's message unless --raw is given.
    """
    if prompt is None and (model_option or hub):  # then the only argument is the prompt
        model, prompt = None, model
    path = options.select_model(model, model_option, hub)
    if raw and system is not None:
        raise UsageError(
            "--system needs the chat template, which --raw leaves out; drop one of them"
        )
    request: str | list[dict[str, Any]] = read_prompt(prompt, prompt_option, file)
    if system is not None:
        request = [
            {"role": "system", "content": system},
            {"role": "user", "content": request},
        ]
    seed = options.seed(seed)
    arguments = options.given(
        max_tokens=options.max_tokens(max_tokens),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop) if stop else None,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logit_bias=options.logit_bias(logit_bias),
        draft=options.draft(draft, draft_model, draft_text),
        draft_text=options.draft_text(draft_text),
        draft_tree=draft_tree,
        accept=accept,
        constraint=options.constraint(json_schema, json_schema_file, grammar, grammar_file),
    )
    options.check_sampling(arguments)
    loading = options.draft_loading(draft_model, draft_max, draft_min, heads)
    loading.update(options.prefix_cache(prefix_cache, prefix_cache_size))
    prepare_output()
    import divine.api
    from divine.cli import figures
    from divine.cli.drafts import DraftColours

    colours = DraftColours(wanted=show_drafts)
    started = time.perf_counter()
    with divine.api.load(
        path, context=context, threads=threads, kv_type=kv, backend=backend, **loading
    ) as loaded:
        load_s = time.perf_counter() - started
        stream = loaded.stream(request, raw=raw, **arguments)
        completion = stream.finish() if json else _show(stream, colours)
    if json:
        print_json(figures.as_data(completion, load_s))
    else:
        drawn = seed is None and temperature != 0
        limit = arguments.get("max_tokens")
        note(figures.figures(completion, load_s, drawn_seed=drawn, max_tokens=limit))
        colours.legend()


def _show(stream: Stream, colours: DraftColours) -> Completion:
    """The completion, written while it comes; ends its line even when it is cut."""
    last = "\n"
    with stream:
        try:
            for chunk in stream:
                if chunk.text:
                    colours.write(chunk)
                    last = chunk.text
        finally:
            if not last.endswith("\n"):
                write("\n")
        return stream.completion
