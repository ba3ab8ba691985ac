"""load(): from the path of a GGUF file to a Model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from divine.api.additions import added_drafters, choose_additions, free_drafters, only_warned
from divine.api.identity import state_identity
from divine.api.model import Model
from divine.backends import create_backend
from divine.backends.base import Executable, KvType
from divine.backends.prefix_store import DEFAULT_SIZE, LEAST_SIZE, PrefixStore
from divine.backends.prefixes import Prefixes
from divine.checks import check_integer, check_number
from divine.drafting import (
    Calibration,
    Controller,
    CostTable,
    Drafter,
    load_draft_model,
    load_experience,
    prior_of,
)
from divine.errors import FormatError, UsageError
from divine.gguf import GGUFFile
from divine.heads.section import Additions
from divine.machine import cache_folder, probe_cpu
from divine.models.opening import open_model
from divine.program import Program
from divine.sampling import SamplingParams

DEFAULT_CONTEXT = 8192


def load(
    model: str | os.PathLike[str],
    *,
    context: int | None = None,
    threads: int | None = None,
    kv_type: str = "f16",
    backend: str = "cpu",
    draft_model: str | os.PathLike[str] | None = None,
    draft_max: int | None = None,
    draft_min: int | None = None,
    heads: str | os.PathLike[str] | None = None,
    prefix_cache: str | os.PathLike[str] | None = None,
    prefix_cache_size: int | None = None,
    max_sequences: int = 16,
    read_seconds: float | None = None,
) -> Model:
    """Load a GGUF file.

    `context`: the most tokens of prompt and answer together; by default the model's own, 8,192 at
    most; 0 is the model's own, however long. `threads` None: as many as the machine has cores.
    `kv_type`: "f16", or "q8_0" for half the memory. `backend`: "cpu", or "reference" (NumPy, slow).

    `draft_model`: a second, smaller GGUF file that guesses what this one will say; `draft_max` and
    `draft_min`: the most tokens that it guesses at once (16), and how few are not worth a pass (0).
    `heads`: where drafting heads are: "auto" (the default: in the file, or shipped for it), "none",
    "required" (an error instead of a warning if there are none that can be used), or a file.

    `prefix_cache`: a folder for the states of prompts, so that a prompt which begins as an earlier
    one did need not be read again, after a restart neither; `prefix_cache_size`: its size in bytes
    at most (2,000,000,000). Answers are the same with and without. States of a draft model are not
    kept; it reads a prompt when it is first asked.
    `max_sequences`: how many answers are generated in shared passes at once; more wait.
    `read_seconds`: the most that a pass which reads a prompt may take while nothing else runs, for
    who may come meanwhile; None is no bound. Beside other answers it is 0.15 in any case.

    Raises FormatError for a damaged file, UnsupportedError for what Divine cannot run, UsageError
    for arguments out of range, CapacityError if the memory does not suffice.
    """
    optional = {"draft_model": draft_model, "heads": heads, "prefix_cache": prefix_cache}
    _check_paths({"model": model, **{n: p for n, p in optional.items() if p is not None}})
    if kv_type not in ("f16", "q8_0"):
        raise UsageError(f'kv_type is {kv_type!r}; allowed are "f16" and "q8_0"')
    if threads is not None:
        check_integer("threads", threads, 1, 256)
    check_integer("max_sequences", max_sequences, 1, 256)
    if read_seconds is not None:
        check_number("read_seconds", read_seconds, 0.01, 3600)
    given = {"draft_max": draft_max, "draft_min": draft_min}
    limits = {name: value for name, value in given.items() if value is not None}
    if limits and draft_model is None:
        raise UsageError("draft_max and draft_min need a draft model: give draft_model")
    if prefix_cache_size is not None:
        check_integer("prefix_cache_size", prefix_cache_size, LEAST_SIZE, None)
        if prefix_cache is None:
            raise UsageError("prefix_cache_size needs a folder: give prefix_cache")
    chosen = create_backend(backend)
    with ExitStack() as opened:  # closed again if anything below fails
        file, program, tokenizer = open_model(model)
        opened.callback(file.close)
        context = _context(context, program.context)
        defaults = _file_defaults(file)
        store = None
        if prefix_cache is not None:
            identity = state_identity(file, program, backend, kv_type)
            store = PrefixStore(prefix_cache, identity, prefix_cache_size or DEFAULT_SIZE)
        smaller = None
        if draft_model is not None:  # before the large model: what is wrong with it is known sooner
            smaller = load_draft_model(
                draft_model,
                tokenizer,
                target_file=str(file.path),
                threads=threads,
                backend=backend,
                kv_type=cast("KvType", kv_type),
                **limits,
            )
            opened.callback(smaller.close)
        additions = choose_additions(file, heads)
        executable = chosen.compile(program, file, threads=threads)
        opened.callback(executable.close)
        drafters = free_drafters(tokenizer)
        if additions is not None:
            with only_warned(heads):
                added = added_drafters(additions, file, program, executable, tokenizer.end_ids)
                drafters.update(added)
        if smaller is not None:  # after those that take less time
            drafters["model"] = smaller
        controller, experience = _controller(
            file, program, executable, drafters, draft_model, additions
        )
        opened.pop_all()
    return Model(
        file,
        tokenizer,
        executable,
        defaults,
        context,
        cast("KvType", kv_type),
        drafters,
        controller,
        experience,
        Prefixes(store=store),
        max_sequences,
        read_seconds,
    )


def _controller(
    file: GGUFFile,
    program: Program,
    executable: Executable,
    drafters: dict[str, Drafter],
    draft_model: str | os.PathLike[str] | None,
    additions: Additions | None,
) -> tuple[Controller, Path]:
    """The controller, with what earlier processes have learned, and the file that keeps it."""
    identity = "\n".join(
        [
            probe_cpu().name,
            f"{executable.level} {executable.threads}",
            "" if draft_model is None else Path(draft_model).name,
            *(() if additions is None else additions.identity()),
            *(f"{name} {file.block_type(name)} {file.shape(name)}" for name in program.weights()),
        ]
    )
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    path = cache_folder() / "drafting" / f"{name}.json"
    costs, calibration = CostTable(prior_of(program, file, executable.threads)), Calibration()
    load_experience(path, costs, calibration)
    controller = Controller(
        costs,
        drafters,
        executable.vocabulary,
        executable.max_rows,
        calibration=calibration,
        taps=executable.tap_names,
    )
    return controller, path


def _check_paths(paths: Mapping[str, object]) -> None:
    for name, path in paths.items():
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"{name} is {path!r}; allowed is a path")


def _context(asked: int | None, trained: int) -> int:
    if asked is None:
        return min(trained, DEFAULT_CONTEXT)
    if asked == 0:  # as elsewhere: all that the model was trained for
        return trained
    check_integer("context", asked, 0, None)
    if asked > trained:
        raise UsageError(f"context is {asked}; the model was trained for {trained} at most")
    return asked


def _file_defaults(file: GGUFFile) -> SamplingParams:
    """What the file recommends, else what users of GGUF files are used to."""
    metadata = file.metadata
    try:
        return SamplingParams(
            temperature=metadata.float("general.sampling.temp", 0.8),
            top_k=metadata.int("general.sampling.top_k", 40),
            top_p=metadata.float("general.sampling.top_p", 0.95),
            min_p=metadata.float("general.sampling.min_p", 0.05),
        )
    except UsageError as error:
        raise FormatError(f"{file.path}: general.sampling: {error}") from None
