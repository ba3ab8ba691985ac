"""Opening what drafters need: a draft model's file and executable, or drafting heads.

Decides between drafting token by token and through text, and which tokens are always in the draft
vocabulary. Knows files and tokenizers; the drafters know neither.
"""

from __future__ import annotations

import math
import os

import numpy as np
from numpy.typing import NDArray

from divine.backends import create_backend
from divine.backends.base import Executable, KvType, WeightSource
from divine.checks import check_integer
from divine.drafting.control.costs import MULTIPLY_ADDS_PER_CORE, prior_costs
from divine.drafting.drafters.bridge import check_bridge
from divine.drafting.drafters.bridged import BridgedDrafter
from divine.drafting.drafters.draft_model import DRAFT_MAX, WIDTH, DraftModel, ModelDrafter
from divine.drafting.drafters.heads import HeadsDrafter
from divine.drafting.drafters.layer import LayerDrafter
from divine.errors import FormatError, UnsupportedError, UsageError
from divine.gguf import GGUFFile
from divine.heads import LayerDefinition
from divine.heads.layer_program import LayerLevels
from divine.heads.levels import Levels
from divine.heads.section import Additions
from divine.models.opening import open_model
from divine.program import Program
from divine.text import Tokenizer

DRAFT_VOCABULARY = 32768  # ids of byte-pair vocabularies are in order of merging: frequent first
MAX_DRAFT = 255  # with the token before them the rows of one pass


def load_draft_model(
    path: str | os.PathLike[str],
    target: Tokenizer,
    *,
    target_file: str = "the model",
    threads: int | None = None,
    backend: str = "cpu",
    kv_type: KvType = "f16",
    vocabulary: int = DRAFT_VOCABULARY,
    draft_max: int = DRAFT_MAX,
    draft_min: int = 0,
    width: int = WIDTH,
) -> ModelDrafter | BridgedDrafter:
    """A drafter with the model in a GGUF file.

    `vocabulary`: how many of the first ids are always drafted from; 0 is all. At most draft_max
    tokens are proposed, and none if they would be fewer than draft_min; `width` is the most guesses
    at one place, 1 makes chains. All executables of a process share its threads.

    Raises FormatError for a damaged file, UnsupportedError for what Divine cannot run, UsageError
    for values out of range and for a vocabulary that cannot be used with the target's.
    """
    check_integer("draft vocabulary", vocabulary, 0, None)
    check_integer("draft_max", draft_max, 0, MAX_DRAFT)
    check_integer("draft_min", draft_min, 0, MAX_DRAFT)
    check_integer("draft width", width, 1, MAX_DRAFT)
    if draft_min > draft_max:
        raise UsageError(
            f"draft_min is {draft_min}; allowed is at most draft_max, which is {draft_max}"
        )
    chosen = create_backend(backend)
    file, program, tokenizer = open_model(path)
    try:
        shared = target.shared_ids(tokenizer)
        if shared is None:
            check_bridge(target, tokenizer, target_file, str(file.path))
        executable = chosen.compile(program, file, threads=threads)
    except BaseException:
        file.close()
        raise
    if shared is None:
        always = _always(tokenizer, tokenizer.vocabulary, vocabulary)
    else:
        always = _always(target, shared, vocabulary)
    model = DraftModel(
        executable,
        program.context,
        prior_of(program, file, executable.threads, listed=float(always.mean())),
        draft_max=draft_max,
        draft_min=draft_min,
        width=width,
        kv_type=kv_type,
        on_close=file.close,
    )
    if shared is None:
        return BridgedDrafter(model, always, target, tokenizer)
    return ModelDrafter(model, always, target.end_ids)


def load_heads(
    additions: Additions,
    base: GGUFFile,
    program: Program,
    executable: Executable,
    ends: frozenset[int] = frozenset(),
) -> HeadsDrafter | LayerDrafter:
    """A drafter with the heads among a base's additions; closes them when it is closed.

    `executable`: of the base's program. `ends`: tokens that end an answer. Raises FormatError for
    heads that do not fit the base, UnsupportedError for what Divine cannot run.
    """
    definition = additions.definition()
    additions.check_numbers()
    listed = additions.draft_vocab()
    if listed is not None:
        listed = np.union1d(listed, np.array(sorted(ends), np.int32)).astype(np.int32)
    place = (additions.file, program, executable, base, listed)
    levels: Levels | LayerLevels
    try:
        if isinstance(definition, LayerDefinition):
            levels = LayerLevels(definition, *place)
        else:
            levels = Levels(definition, *place)
    except (FormatError, UnsupportedError) as error:
        raise type(error)(f"{additions.where}: {error}") from None
    always = np.ones(program.vocabulary, np.bool_)
    if listed is not None:
        always[:] = False
        always[listed] = True
    matrix = program.head.weight
    head_share = float(always.mean())
    products = definition.parameters / definition.sets
    products += head_share * math.prod(base.shape(matrix))
    nbytes = additions.nbytes / definition.sets + head_share * len(base.raw(matrix))
    prior = prior_costs(nbytes, products, mac_s=MULTIPLY_ADDS_PER_CORE * executable.threads)
    if isinstance(levels, LayerLevels):
        return LayerDrafter(levels, always, prior, ends=ends, on_close=additions.close)
    return HeadsDrafter(levels, always, prior, ends=ends, on_close=additions.close)


def prior_of(
    program: Program, weights: WeightSource, threads: int, *, listed: float = 1.0
) -> dict[int, float]:
    """A first estimate of what passes cost: rows -> milliseconds.

    `listed`: the share of the vocabulary that the head is computed for.
    """
    table, head = program.embed.table, program.head.weight
    nbytes = products = 0.0
    for name in program.weights():
        shape = weights.shape(name)
        if len(shape) != 2 or name == table != head:  # of an embedding few rows are read
            continue
        share = listed if name == head else 1.0
        nbytes += share * len(weights.raw(name))
        products += share * math.prod(shape)
    return prior_costs(nbytes, products, mac_s=MULTIPLY_ADDS_PER_CORE * threads)


def _always(tokenizer: Tokenizer, shared: int, first: int) -> NDArray[np.bool_]:
    """bool [shared]: the first ids, what ends an answer, and the special tokens with a text."""
    if first == 0 or first >= shared:
        return np.ones(shared, np.bool_)
    always = np.zeros(shared, np.bool_)
    always[:first] = True
    for id_ in (*tokenizer.end_ids, *tokenizer.specials.ids):
        if id_ < shared:
            always[id_] = True
    return always
