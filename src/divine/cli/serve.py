"""`divine serve`: thin; serving is divine.server's business."""

from __future__ import annotations

import importlib.util
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from divine.cli import options
from divine.cli.console import note, prepare_output
from divine.errors import UsageError

if TYPE_CHECKING:
    from divine.api import Model

KEY_VARIABLE = "DIVINE_API_KEY"
READ_SECONDS = 0.3  # of a pass that reads a prompt alone: a newcomer waits no longer


def command(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    hub: options.HubOption = None,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="ADDRESS", help="Where to listen; 127.0.0.1."),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="N", help="8080; 0 is any free one.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            help=f"Ask clients for this key; repeatable; {KEY_VARIABLE} is one more.",
        ),
    ] = None,
    alias: Annotated[
        str | None,
        typer.Option("-a", "--alias", metavar="NAME", help="The model's name for clients."),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option("-np", "--parallel", metavar="N", help="Answers in shared passes; 4."),
    ] = None,
    queue: Annotated[
        int | None,
        typer.Option("--queue", metavar="N", help="Requests that may wait beyond those; 64."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("-to", "--timeout", metavar="S", help="Seconds a request may take; 600."),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option("--grace", metavar="S", help="Seconds for running requests at the end; 10."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            "--cors", metavar="ORIGIN", help="Let pages of this origin call; repeatable; off."
        ),
    ] = None,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="A line for each request on standard error.")
    ] = False,
    context: options.Context = None,
    threads: options.Threads = None,
    kv: options.KvTypeOption = "f16",
    backend: options.BackendOption = "cpu",
    draft_model: options.DraftModel = None,
    draft_max: options.DraftMax = None,
    draft_min: options.DraftMin = None,
    heads: options.Heads = None,
    prefix_cache: options.PrefixCache = None,
    prefix_cache_size: options.PrefixCacheSize = None,
    debug: options.Debug = False,
) -> None:
    """Serve a model over HTTP: OpenAI's and Anthropic's APIs, metrics and a page to chat on.

    Answers of several requests are generated in shared passes, with drafts as long as they pay, and
    each is the text that it would be alone. -c is the context of each of them.
    """
    path = options.select_model(model, model_option, hub)
    loading = options.draft_loading(draft_model, draft_max, draft_min, heads)
    loading.update(options.prefix_cache(prefix_cache, prefix_cache_size))
    keys = [*(api_key or ()), *filter(None, [os.environ.get(KEY_VARIABLE)])]
    chosen = options.given(
        host=host,
        port=port,
        api_keys=tuple(keys),
        alias=_names(alias, model or model_option or hub),
        parallel=parallel,
        queue=queue,
        timeout=timeout,
        grace=grace,
        cors=tuple(cors) if cors else None,
        log_requests=log_requests,
    )
    prepare_output()
    started = time.perf_counter()
    _check_extra()
    from divine.server.settings import Settings

    settings = Settings(**chosen)
    loading.update(
        context=context,
        threads=threads,
        kv_type=kv,
        backend=backend,
        max_sequences=settings.parallel,
        read_seconds=READ_SECONDS,
    )

    def ready(url: str) -> None:
        if not settings.loopback and not settings.api_keys:
            note(
                f"warning: {settings.host} can be reached from other computers and no --api-key "
                "is set: anybody there can use this server"
            )
        seconds = time.perf_counter() - started
        note(f"serving {path.name} at {url} (ready in {seconds:.2f} s; Ctrl-C ends it)")

    with ThreadPoolExecutor(1) as aside:  # the weights are read while the server is imported
        reading = aside.submit(_load, path, loading)
        try:
            from divine.server.run import serve

            serve(reading.result, path, settings, ready)
        finally:
            if reading.exception() is None:
                reading.result().close()


def _names(alias: str | None, asked: str | None) -> tuple[str, ...] | None:
    """What clients may call the model beside its file's name: aliases, else as it was asked for.

    Not if that is a path, which is nobody's business.
    """
    if alias is not None:
        return tuple(name.strip() for name in alias.split(","))
    plain = asked is not None and "/" not in asked and not asked.endswith(".gguf")
    return (asked,) if asked is not None and plain else None


def _load(path: Path, options: dict[str, Any]) -> Model:
    from divine import api

    return api.load(path, **options)


def _check_extra() -> None:
    """Raise UsageError if a package of the extra is missing."""
    for name in ("starlette", "uvicorn", "pydantic", "prometheus_client"):
        if importlib.util.find_spec(name) is None:
            raise UsageError(
                f"`divine serve` needs the package {name}; install the extra: "
                "pip install 'divine-llm[server]'"
            )
