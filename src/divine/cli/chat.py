"""`divine chat`: a conversation in the terminal.

Ctrl-C stops the answer, which stays in the conversation marked as cut; the next question goes on
from there. Ctrl-D or /quit ends. Lines come from any standard input, so a script can talk too.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from divine.cli import options
from divine.cli.console import note, prepare_output

EPILOG = options.FIGURES


def command(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    hub: options.HubOption = None,
    system: options.System = None,
    load: Annotated[
        str | None, typer.Option("--load", metavar="FILE", help="Go on with a saved conversation.")
    ] = None,
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
    prefix_cache: options.PrefixCache = None,
    prefix_cache_size: options.PrefixCacheSize = None,
    debug: options.Debug = False,
) -> None:
    """Talk with a model. /help lists what can be typed besides messages; Ctrl-C stops an answer."""
    path = options.select_model(model, model_option, hub)
    arguments = options.given(
        max_tokens=options.max_tokens(max_tokens),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=options.seed(seed),
        stop=tuple(stop) if stop else None,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logit_bias=options.logit_bias(logit_bias),
        draft=options.draft(draft, draft_model, draft_text),
        draft_text=options.draft_text(draft_text),
        draft_tree=draft_tree,
        accept=accept,
    )
    options.check_sampling(arguments)
    loading = options.draft_loading(draft_model, draft_max, draft_min, heads)
    loading.update(options.prefix_cache(prefix_cache, prefix_cache_size))
    prepare_output()
    from pathlib import Path

    import divine.api
    from divine.cli.conversation import Conversation
    from divine.cli.dialogue import Dialogue

    conversation = Conversation.load(Path(load)) if load else Conversation()
    if system is not None:
        conversation.system = system
    started = time.perf_counter()
    with divine.api.load(
        path, context=context, threads=threads, kv_type=kv, backend=backend, **loading
    ) as loaded:
        note(f"{path.name}, loaded in {time.perf_counter() - started:.2f} s; /help, Ctrl-D ends")
        Dialogue(loaded, conversation, arguments, show_drafts=show_drafts).talk()
