"""The model card that is written beside an export: what is in it, for which base, how good it is.

Figures come from the provenance that the training run left in the weights; what it does not say is
not in the card. Knows no files but the card's.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from divine.files import replacing
from divine.heads.architectures import Definition
from divine.heads.section import Packaging

CARD = "README.md"
_MARK = "<!-- written by divine export -->"
_COMMAND, _MEASURED = "command", "held_out"  # of the provenance


@dataclass(frozen=True)
class Contents:
    """What an export holds besides its base; `table`: entries of the n-gram table."""

    definition: Definition | None
    table: int
    fingerprint: str
    provenance: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """Such as "drafting heads and an n-gram table"."""
        parts = ["drafting heads"] if self.definition is not None else []
        parts += ["an n-gram table"] if self.table else []
        return " and ".join(parts)


def write_card(export: Path, packaging: Packaging, base: str, contents: Contents) -> Path:
    """Write the card beside the export and return its path: README.md.

    If that is somebody else's, or another export's, NAME.README.md. Raises as replacing() does.
    """
    path = export.with_name(CARD)
    if path.exists() and not _is_of(path, export.name):
        path = export.with_name(f"{export.name}.{CARD}")
    with replacing(path) as place:
        place.write_text(card(export.name, packaging, base, contents), "utf-8")
    return path


def card(name: str, packaging: Packaging, base: str, contents: Contents) -> str:
    """The card's text."""
    definition, provenance = contents.definition, contents.provenance
    lines = [_MARK, "", _title(name), "", _what(packaging, base, contents.summary), ""]
    lines += ["```", _use(name, packaging), "```", ""]
    lines += [f"Fingerprint of the base: `{contents.fingerprint}`.", ""]
    if _MEASURED in provenance:
        lines += ["## On answers it was not trained on", "", *_measured(provenance[_MEASURED]), ""]
    if definition is not None:
        lines += ["## Heads", "", "| setting | value |", "|---|---|"]
        settings = {**definition.to_dict(), "parameters": f"{definition.parameters:,}"}
        lines += [f"| {key} | {_text(value)} |" for key, value in settings.items()]
        lines.append("")
    if contents.table:
        lines += ["## Table", "", f"{contents.table:,} entries.", ""]
    others = {key: value for key, value in provenance.items() if key not in (_COMMAND, _MEASURED)}
    if provenance:
        lines += ["## Where it comes from", ""]
        if _COMMAND in provenance:
            lines += ["```", command_line(provenance[_COMMAND]), "```", ""]
        lines += [f"* {key}: {value}" for key, value in described(others)]
        lines.append("")
    return "\n".join(lines)


def described(provenance: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Entries as lines of text: nested ones joined, those without a value left out."""
    for key, value in provenance.items():
        if key == _COMMAND:
            yield key, command_line(value)
        else:
            text = _text(value)
            if text:
                yield " ".join(str(key).split()), text


def command_line(command: Any) -> str:
    """As it is typed into a shell."""
    if isinstance(command, Sequence) and not isinstance(command, str):
        command = shlex.join(map(str, command))
    return " ".join(str(command).split())


def _is_of(path: Path, name: str) -> bool:
    """Whether a card is one of ours, and of this export."""
    text = path.read_text("utf-8", "replace")
    return text.startswith(_MARK) and _title(name) in text.splitlines()[:4]


def _title(name: str) -> str:
    return f"# {name}"


def _what(packaging: Packaging, base: str, summary: str) -> str:
    if packaging == "sidecar":
        text = f"{summary} for `{base}`, to be used beside it; the text stays the same."
        return text[:1].upper() + text[1:]
    if packaging == "appended":
        return (
            f"`{base}` with {summary} behind its last tensor. Divine uses them; llama.cpp and what "
            "is built on it load the file as the plain model. The text is the same with and "
            "without them."
        )
    return (
        f"`{base}` with {summary} among its tensors. Divine uses them; llama.cpp refuses files "
        "with tensors it does not know."
    )


def _use(name: str, packaging: Packaging) -> str:
    if packaging == "sidecar":
        return f"divine run BASE.gguf --heads {name} 'What is gravity?'"
    return f"divine run {name} 'What is gravity?'"


def _measured(figures: Any) -> list[str]:
    """Acceptance by depth as a table, and whatever else was measured."""
    if not isinstance(figures, Mapping):
        return [_text(figures)]
    lines = []
    shares = figures.get("acceptance")
    if isinstance(shares, Sequence) and not isinstance(shares, str) and shares:
        depths = " | ".join(map(str, range(1, len(shares) + 1)))
        lines += [f"| depth | {depths} |", "|---" * (len(shares) + 1) + "|"]
        lines += ["| right, if all before were | " + " | ".join(map(_text, shares)) + " |", ""]
    rest = {key: value for key, value in figures.items() if key != "acceptance"}
    if rest:
        lines.append(_text(rest) + ".")
    return lines


def _text(value: Any) -> str:
    """One line that cannot break out of a table."""
    if isinstance(value, Mapping):
        parts = []
        for key, item in value.items():
            text, name = _text(item), str(key).replace("_", " ")
            nested = isinstance(item, Mapping)
            parts += [f"{name} ({text})" if nested else f"{name} {text}"] if text else []
        return ", ".join(parts)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_text, value)) + "]"
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
