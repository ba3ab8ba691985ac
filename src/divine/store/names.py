"""Names of models on Hugging Face, in all the spellings people paste, and which file they mean.

Pure text: no disk and no network. A repository holds many GGUF files, one per quantization, some of
them cut into shards name-00001-of-00003.gguf, and some that are not language models at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from divine.errors import DownloadError, UsageError

PREFERRED = ("Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_0", "Q8_0")  # when no quantization is named

_SCHEME = re.compile(
    r"^(?:hf://|hf:|hf\.co/|huggingface\.co/|https?://(?:www\.)?(?:huggingface\.co|hf\.co)/)",
    re.IGNORECASE,
)
_PART = re.compile(r"^[A-Za-z0-9][\w.\-]*$")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32|FP16|FP32))"
    r"(?=(?:-\d{5}-of-\d{5})?\.gguf$)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class HubName:
    """A repository, and what of it: a quantization, a file, or None for the preferred file."""

    owner: str
    repo: str
    selector: str | None = None

    def __str__(self) -> str:
        return f"hf:{self.owner}/{self.repo}" + (f":{self.selector}" if self.selector else "")


def parse_hub(text: str, *, bare: bool = False) -> HubName | None:
    """The repository that `text` names, or None when it is not such a name.

    With `bare`, owner/repo without a prefix is one too (what -hf takes). Raises UsageError for a
    text that starts like such a name and goes on wrongly.
    """
    match = _SCHEME.match(text)
    if not match and not bare:
        return None
    rest = text[match.end() :] if match else text
    if match and match[0].lower().startswith("http"):
        rest = unquote(urlsplit("//host/" + rest).path[1:])
    path, colon, selector = rest.partition(":")
    parts = path.strip("/").split("/")
    if len(parts) > 4 and parts[2] in ("blob", "resolve"):  # owner/repo/blob/revision/file
        if parts[3] != "main":
            raise UsageError(f"{text}: only files of the revision 'main' can be fetched")
        parts, selector = parts[:2], "/".join(parts[4:])
    elif len(parts) == 4 and parts[2:] == ["tree", "main"]:
        parts = parts[:2]
    wrong = len(parts) != 2 or not all(_PART.match(part) for part in parts) or ".." in selector
    if wrong or (colon and not selector):
        raise UsageError(
            f"{text!r} is not a model of Hugging Face: allowed is hf:owner/repo, "
            "optionally followed by :quantization or :file.gguf"
        )
    return HubName(parts[0], parts[1], selector or None)


def quantization(filename: str) -> str | None:
    """The quantization in a file's name, such as "Q4_K_M"."""
    match = _QUANT.search(filename)
    return match[1].upper() if match else None


def shard(filename: str) -> tuple[int, int] | None:
    """(number from 1, count) of a shard's name, or None for a whole file."""
    match = _SHARD.search(filename)
    return (int(match[1]), int(match[2])) if match else None


def shard_names(filename: str) -> list[str]:
    """All names of the set that `filename` belongs to, in order; itself when it is whole."""
    match = _SHARD.search(filename)
    if not match:
        return [filename]
    count = int(match[2])
    return [f"{filename[: match.start()]}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]


def is_model(filename: str) -> bool:
    """Whether this is the (first) file of a language model, by its name."""
    base = filename.rpartition("/")[2].lower()
    number = shard(base)
    extra = base.startswith(("mmproj", "imatrix")) or "-imatrix" in base or ".imatrix" in base
    return base.endswith(".gguf") and not extra and (number is None or number[0] == 1)


def fitting(name: HubName, filenames: Iterable[str]) -> list[str]:
    """The models among a repository's files that `name` may mean, first shards only."""
    models = sorted(filename for filename in filenames if is_model(filename))
    if not models or name.selector is None:
        return [_preferred(models)] if models else []
    wanted = name.selector.lower()
    if wanted.endswith(".gguf"):
        wanted = shard_names(wanted)[0]
        return [f for f in models if f.lower() == wanted or f.lower().endswith("/" + wanted)]
    return [f for f in models if (quantization(f) or "").lower() == wanted]


def choose(name: HubName, filenames: Iterable[str]) -> str:
    """The file that `name` means among a repository's; the first shard of a set.

    Raises DownloadError, listing what there is, when none or several fit.
    """
    filenames = list(filenames)
    found = fitting(name, filenames)
    if len(found) == 1:
        return found[0]
    models = sorted(filename for filename in filenames if is_model(filename))
    where = f"hf:{name.owner}/{name.repo}"
    if not models:
        raise DownloadError(f"{where} holds no GGUF model")
    known = ", ".join(sorted({quantization(f) or f for f in models})[:20])
    if found:
        raise DownloadError(f"{where}: {name.selector!r} may mean {' or '.join(found[:5])}")
    raise DownloadError(f"{where} has nothing for {name.selector!r}; it has {known}")


def _preferred(models: list[str]) -> str:
    for wanted in PREFERRED:
        for filename in models:
            if quantization(filename) == wanted:
                return filename
    return models[0]
