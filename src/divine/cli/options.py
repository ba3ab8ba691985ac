"""The options that several commands share, in the spellings people know from other programs.

An option that is not given is None and not passed on: the library's own defaults (and those in the
model file) hold. Ranges are checked where the values are used.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from divine.cli.prompts import read_text
from divine.errors import UsageError

if TYPE_CHECKING:
    from divine.constraints import Constraint

ModelArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="A GGUF file, or the name of a pulled model."),
]
ModelOption: TypeAlias = Annotated[
    str | None, typer.Option("-m", "--model", metavar="MODEL", help="The same as MODEL.")
]
HubOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "-hf",
        "--hf-repo",
        metavar="OWNER/REPO[:QUANT]",
        help="A model of Hugging Face, fetched if it is not here.",
    ),
]
Context: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "-c",
        "--ctx",
        "--ctx-size",
        metavar="N",
        help="Positions of context; the model's own by default, 8192 at most; 0: the model's own.",
    ),
]


def _checked_threads(threads: int | None) -> int | None:
    """Refused before anything is loaded, whatever the command."""
    if threads is not None:
        from divine.checks import check_integer

        check_integer("threads", threads, 1, 256)
    return threads


Threads: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "-t",
        "--threads",
        metavar="N",
        help="Threads; physical cores by default.",
        callback=_checked_threads,
    ),
]
KvTypeOption: TypeAlias = Annotated[
    Literal["f16", "q8_0"], typer.Option("--kv", help="Type of the key and value cache.")
]
BackendOption: TypeAlias = Annotated[
    Literal["cpu", "reference"], typer.Option("--backend", help="What computes.")
]
MaxTokens: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--max-tokens",
        "--n-predict",
        metavar="N",
        help="Tokens at most; -1 or nothing: to the end of the turn or of the context.",
    ),
]
Temperature: TypeAlias = Annotated[
    float | None,
    typer.Option("--temp", "--temperature", metavar="T", help="0 is greedy; 0.8 by default."),
]
TopK: TypeAlias = Annotated[
    int | None, typer.Option("--top-k", metavar="N", help="Keep the N likeliest; 40; 0 is off.")
]
TopP: TypeAlias = Annotated[
    float | None,
    typer.Option("--top-p", metavar="P", help="Keep the likeliest up to P in sum; 0.95."),
]
MinP: TypeAlias = Annotated[
    float | None, typer.Option("--min-p", metavar="P", help="Keep those above P x the best; 0.05.")
]
Seed: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--seed", metavar="N", help="Same seed, same text; without, or -1: drawn and shown."
    ),
]
System: TypeAlias = Annotated[
    str | None, typer.Option("-sys", "--system", metavar="TEXT", help="The system message.")
]
Stop: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("-r", "--stop", metavar="TEXT", help="End before TEXT; may be repeated."),
]
RepetitionPenalty: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--repeat-penalty",
        "--repetition-penalty",
        metavar="X",
        help="Divides logits of tokens in prompt and answer; 1 is off.",
    ),
]
FrequencyPenalty: TypeAlias = Annotated[
    float | None,
    typer.Option("--frequency-penalty", metavar="X", help="Per occurrence in the answer."),
]
PresencePenalty: TypeAlias = Annotated[
    float | None,
    typer.Option("--presence-penalty", metavar="X", help="Once if in the answer."),
]
LogitBias: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias", metavar="ID=X", help="Added to a token's logit; -inf bans; repeatable."
    ),
]
DraftModel: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "-md",
        "--draft-model",
        "--model-draft",
        metavar="MODEL",
        help="A smaller model, which guesses what MODEL will say; best of the same vocabulary.",
    ),
]
# How run and chat end.
FIGURES = (
    "The last lines: `ngram 3/4 2/3` says that 3 of 4 guesses of ngram were right at depth 1, and "
    "2 of 3 at depth 2, below right ones; a token that several had guessed counts for each. `..`: "
    "deeper ones are left out."
)
Draft: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="LIST",
        help="Who guesses ahead: none, auto, synthetic:P, or some of ngram,text,table,mtp,model,"
        "forced; auto is all that are there. Changes the speed, never the text.",
    ),
]
DraftMax: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--draft-max",
        "--draft-n",
        metavar="N",
        help="Tokens that the draft model guesses at once at most, 0 to 255; 16.",
    ),
]
DraftMin: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--draft-min",
        "--draft-n-min",
        metavar="N",
        help="Fewer tokens of the draft model are not worth a pass; 0.",
    ),
]
Heads: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--heads",
        metavar="FILE|none|required",
        help="Drafting heads: a file that has them; without, those in the model's own file.",
    ),
]
DraftText: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--draft-text",
        metavar="FILE",
        help="Your own guess at the answer, such as the file that is being edited.",
    ),
]
DraftTree: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--draft-tree", metavar="N", help="Nodes of each draft, 1 to 64; without, as many as pay."
    ),
]
Accept: TypeAlias = Annotated[
    Literal["shared", "rejection"] | None,
    typer.Option(
        "--accept",
        help="How drafts are accepted: shared noise keeps the text; rejection sampling keeps only "
        "its probabilities, and one drafter guesses.",
    ),
]
ShowDrafts: TypeAlias = Annotated[
    bool, typer.Option("--show-drafts", help="Colour the text by who had drafted it.")
]
PrefixCache: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--prefix-cache",
        metavar="DIR",
        help="Keep the states of prompts there, so that one that begins alike is not read again.",
    ),
]
PrefixCacheSize: TypeAlias = Annotated[
    str | None,
    typer.Option("--prefix-cache-size", metavar="SIZE", help="Of DIR at most, such as 500M; 2G."),
]
JsonSchema: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "-j",
        "--json-schema",
        metavar="SCHEMA",
        help="The answer is JSON that follows this JSON schema; {} is any JSON.",
    ),
]
JsonSchemaFile: TypeAlias = Annotated[
    str | None,
    typer.Option("-jf", "--json-schema-file", metavar="FILE", help="The same from a file."),
]
Grammar: TypeAlias = Annotated[
    str | None,
    typer.Option("--grammar", metavar="TEXT", help="The answer follows a grammar: Lark or GBNF."),
]
GrammarFile: TypeAlias = Annotated[
    str | None, typer.Option("--grammar-file", metavar="FILE", help="The same from a file.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Debug: TypeAlias = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.")
]  # read by cli.main; here so that every command accepts it

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)[bB]?")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_DRAFTERS = ("text", "ngram", "table", "mtp", "model", "forced")
_NUMBER = re.compile(r"\s*[+-]?\d+\s*")
_BIAS = re.compile(r"(\d+)(?:=|:|(?=[+-]))([+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf))", re.IGNORECASE)


def given(**values: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in values.items() if value is not None}


def check_sampling(arguments: Mapping[str, Any]) -> None:
    """Refuse sampling values out of range before a model is loaded. Raises UsageError."""
    from divine.sampling import SamplingParams

    fields = SamplingParams.__annotations__
    SamplingParams(**{name: value for name, value in arguments.items() if name in fields})


def max_tokens(value: int | None) -> int | None:
    """-1 is the known spelling of "no limit"; other negatives are mistakes."""
    if value is not None and value < -1:
        raise UsageError(f"-n is {value}; allowed is 0 or more, or -1 for no limit")
    return None if value == -1 else value


def seed(value: int | None) -> int | None:
    """-1 is the known spelling of "draw one"."""
    return None if value == -1 else value


def logit_bias(items: list[str] | None) -> dict[int, float] | None:
    """["15=-2.5", "7-inf"] as {15: -2.5, 7: -inf}."""
    if not items:
        return None
    biases: dict[int, float] = {}
    for item in items:
        match = _BIAS.fullmatch(item.strip())
        if not match or float(match[2]) == math.inf:
            raise UsageError(
                f"--logit-bias is {item!r}; allowed is ID=X, such as 15=-2.5 or 15=-inf"
            )
        biases[int(match[1])] = float(match[2])
    return biases


def select_model(model: str | None, option: str | None, hub: str | None) -> Path:
    """The file that MODEL, -m or -hf means; -hf fetches it. Raises UsageError, DownloadError."""
    from divine.store import parse_hub, resolve

    named = [name for name in (model, option, hub) if name is not None]
    if len(named) != 1:
        found = "no model" if not named else "more than one model: " + ", ".join(named)
        raise UsageError(f"{found}; give one, as MODEL, with -m or with -hf")
    if hub is None:
        return resolve(named[0])
    name = parse_hub(hub, bare=True)
    from divine.cli.progress import pull_with_progress
    from divine.store.folder import find

    stored = find(str(name))
    return stored.path if stored else pull_with_progress(str(name))


def draft(value: str | None, model: str | None = None, text: str | None = "") -> str | None:
    """Names of drafters, checked before anything is loaded, with the -md and --draft-text beside.

    Elsewhere the option of this name takes a number, which is refused. Raises UsageError.
    """
    if value is not None and _NUMBER.fullmatch(value):
        raise UsageError(
            f"--draft is {value.strip()}; it takes names of drafters, such as ngram,model, and "
            "--draft-max takes the number of tokens"
        )
    if value is None or value.strip() in ("none", "auto"):
        return value
    for name in (part.strip() for part in value.split(",")):
        if name not in _DRAFTERS and not name.startswith(("synthetic:", "chain:")):
            known = ", ".join(_DRAFTERS)
            raise UsageError(
                f"--draft names {name!r}; allowed are none, auto, synthetic:P, or some of {known}"
            )
        if name == "model" and model is None:
            raise UsageError("--draft model needs a draft model; give one with -md")
        if name == "text" and text is None:
            raise UsageError("--draft text needs the guess itself; give it with --draft-text FILE")
    return value


def draft_model(name: str | None) -> Path | None:
    """The file that -md means. Raises UsageError, DownloadError."""
    from divine.store import resolve

    return None if name is None else resolve(name)


def draft_loading(
    model: str | None, most: int | None, least: int | None, heads: str | None = None
) -> dict[str, Any]:
    """What load() needs for -md, --draft-max, --draft-min and --heads.

    Raises UsageError, DownloadError.
    """
    for name, value in (("--draft-max", most), ("--draft-min", least)):
        if value is not None and model is None:
            raise UsageError(f"{name} is for a draft model; give one with -md")
    return given(draft_model=draft_model(model), draft_max=most, draft_min=least, heads=heads)


def prefix_cache(folder: str | None, size: str | None) -> dict[str, Any]:
    """What load() needs for --prefix-cache and --prefix-cache-size. Raises UsageError."""
    if size is not None and folder is None:
        raise UsageError("--prefix-cache-size is for a folder; give one with --prefix-cache")
    match = None if size is None else _SIZE.fullmatch(size.strip())
    if size is not None and match is None:
        raise UsageError(f"--prefix-cache-size is {size!r}; allowed is a size such as 500M or 2G")
    count = None if match is None else int(float(match[1]) * _UNITS[match[2].upper()])
    return given(prefix_cache=folder, prefix_cache_size=count)


def constraint(
    schema: str | None, schema_file: str | None, grammar: str | None, grammar_file: str | None
) -> Constraint | None:
    """What -j, -jf, --grammar and --grammar-file mean. Raises UsageError."""
    named = given(
        **{
            "--json-schema": schema,
            "--json-schema-file": schema_file,
            "--grammar": grammar,
            "--grammar-file": grammar_file,
        }
    )
    if not named:
        return None
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} are given; an answer follows one of them")
    import divine.constraints

    ((option, text),) = named.items()
    if option.endswith("-file"):
        text = read_text(Path(text), option)
    if "grammar" in option:
        return divine.constraints.grammar(text, option)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} is not valid JSON: {error}") from None
    return divine.constraints.json_schema(value, option)


def draft_text(file: str | None) -> str | None:
    """The guess that --draft-text means. Raises UsageError for a file that has none."""
    if file is None:
        return None
    text = read_text(Path(file), "--draft-text")
    if not text:
        raise UsageError(f"{file} is empty; --draft-text takes a guess")
    return text
