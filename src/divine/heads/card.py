"""The model card that is written beside an export: what is in it, for which base, how good it is.

Figures come from the provenance that the training run left in the weights; what it does not say is
not in the card. Knows no files but the card's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from divine.errors import UsageError
from divine.heads.architectures import Definition
from divine.heads.section import Packaging

CARD = "README.md"
_MARK = "<!-- written by divine export -->"
_FIGURES = ("tokens_per_pass", "acceptance")  # of the provenance, shown as tables
_MOST_TEXT = 400  # characters of any other entry


def write_card(
    export: Path,
    packaging: Packaging,
    definition: Definition | None,
    fingerprint: str,
    base: str,
    provenance: Mapping[str, Any],
) -> Path:
    """Write the card beside the export and return its path: README.md.

    If somebody else's README.md is there, NAME.README.md. Raises UsageError if it cannot be
    written.
    """
    path = export.with_name(CARD)
    try:
        if path.exists() and _MARK not in path.read_text("utf-8", "replace"):
            path = export.with_name(f"{export.name}.{CARD}")
        text = card(export.name, packaging, definition, fingerprint, base, provenance)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return path


def card(
    name: str,
    packaging: Packaging,
    definition: Definition | None,
    fingerprint: str,
    base: str,
    provenance: Mapping[str, Any],
) -> str:
    """The card's text; `definition` None: there are no heads, but something else that drafts."""
    lines = [_MARK, "", f"# {name}", "", _what(packaging, base), "", "```", _use(name, packaging)]
    lines += ["```", "", f"Fingerprint of the base: `{fingerprint}`.", ""]
    if definition is not None:
        lines += ["## Heads", "", "| setting | value |", "|---|---|"]
        settings = {**definition.to_dict(), "parameters": f"{definition.parameters:,}"}
        lines += [f"| {key} | {value} |" for key, value in settings.items()]
        lines.append("")
    for figure in _FIGURES:
        if figure in provenance:
            lines += [f"## Measured {figure.replace('_', ' ')}", "", *_table(provenance[figure])]
            lines.append("")
    others = {key: value for key, value in provenance.items() if key not in _FIGURES}
    if others:
        lines += ["## Where it comes from", ""]
        lines += [f"* {_cell(key)}: {_cell(value)}" for key, value in others.items()]
        lines.append("")
    return "\n".join(lines)


def _what(packaging: Packaging, base: str) -> str:
    if packaging == "sidecar":
        return f"Drafting heads for `{base}`, to be used beside it. They change its speed only."
    if packaging == "appended":
        return (
            f"`{base}` with drafting heads behind its last tensor. Divine uses them; llama.cpp and "
            "what is built on it load the file as the plain model. The text is the same with and "
            "without them."
        )
    return (
        f"`{base}` with drafting heads among its tensors. Divine uses them; llama.cpp refuses "
        "files with tensors it does not know."
    )


def _use(name: str, packaging: Packaging) -> str:
    if packaging == "sidecar":
        return f"divine run BASE.gguf --heads {name} 'What is gravity?'"
    return f"divine run {name} 'What is gravity?'"


def _table(figures: Any) -> list[str]:
    """A mapping or a list of numbers as a Markdown table, anything else as JSON."""
    if isinstance(figures, Sequence) and not isinstance(figures, str):
        figures = {str(depth): value for depth, value in enumerate(figures, 1)}
    if not isinstance(figures, Mapping):
        return [_cell(figures)]
    rows = [f"| {_cell(key)} | {_cell(value)} |" for key, value in figures.items()]
    return ["| | |", "|---|---|", *rows]


def _cell(value: Any) -> str:
    """One line that cannot break out of a table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."
