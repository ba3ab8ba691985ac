"""`divine export`: a base model and what drafts for it, packed into one file or beside it.

The sources may be trained weights (safetensors) or files that have additions already (sidecars,
exported models). Writing is heads/packaging.py's business; here options become calls.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from divine.cli import options
from divine.cli.console import gigabytes, note, prepare_output
from divine.errors import DivineError, UsageError

if TYPE_CHECKING:
    from divine.gguf import GGUFFile
    from divine.heads.card import Contents
    from divine.heads.packaging import Content, HeadsType
    from divine.heads.section import Additions, Packaging

_ENDINGS = {"appended": "divine.gguf", "sidecar": "heads.gguf", "inline": "inline.gguf"}


def command(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The model: a path or a name.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WEIGHTS",
            help="What to add: trained heads (.safetensors, or a folder with one), files that "
            "have additions.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to write; beside the base."),
    ] = None,
    packaging: Annotated[
        Literal["appended", "sidecar", "inline"] | None,
        typer.Option(
            "--packaging",
            help="appended: one file that other programs load as the plain model; sidecar: the "
            "additions alone; inline: among the tensors, which others refuse.",
        ),
    ] = None,
    heads_type: Annotated[
        Literal["f16", "q8_0", "f32"] | None,
        typer.Option("--heads-type", help="Type of the heads' matrices; f16."),
    ] = None,
    strip: Annotated[
        bool, typer.Option("--strip", help="Write the plain model, without any additions.")
    ] = False,
    debug: options.Debug = False,
) -> None:
    """Pack drafting heads into a model file, beside it, or take them out again."""
    if base.endswith(".safetensors"):
        raise UsageError(f"{base} holds trained weights; BASE, the model, comes before them")
    path = options.select_model(base, None, None)
    prepare_output()
    from divine.gguf import open_gguf
    from divine.heads import packaging as pack

    if strip:
        for name, value in (
            ("WEIGHTS", sources), ("--packaging", packaging), ("--heads-type", heads_type)
        ):  # fmt: skip
            if value:
                raise UsageError(f"--strip takes everything out; {name} is for packing")
        target = _target(path, output, "plain.gguf")
        done = _done(target)
        with open_gguf(path) as file:
            pack.strip(file, target)
        note(f"{done} {target}, {gigabytes(target.stat().st_size)}")
        return
    if not sources:
        raise UsageError("no WEIGHTS are given; what should be packed with the model?")
    if heads_type is not None and not any(_is_trained(Path(source)) for source in sources):
        raise UsageError(
            f"--heads-type is for trained weights, and {', '.join(sources)} has the types of its "
            "tensors already; leave it out"
        )
    with open_gguf(path) as file:
        chosen: Packaging = packaging or ("sidecar" if len(file.paths) > 1 else "appended")
        content = pack.Content()
        for source in sources:
            content.add(_content(Path(source), heads_type), source)
        target = _target(path, output, _ENDINGS[chosen])
        done = _done(target)
        kept = chosen == "sidecar" or any(path.samefile(source) for source in sources)
        own = "" if kept else _own(file)
        pack.package(file, content, target, chosen)
    card = _card(path, target, chosen)
    note(f"{done} {target}, {gigabytes(target.stat().st_size)} and {card}")
    if own:
        note(f"the {own} that {path} had are not in it; it has what was given")
    if chosen == "inline":
        note("llama.cpp and what is built on it refuse inline files; Divine reads them")


def _target(base: Path, output: str | None, ending: str) -> Path:
    target = base.with_name(f"{base.stem}.{ending}") if output is None else Path(output)
    if not target.parent.is_dir():
        raise UsageError(f"{target} cannot be written: there is no folder {target.parent}")
    return target


def _done(target: Path) -> str:
    return "replaced" if target.exists() else "wrote"


def _is_trained(source: Path) -> bool:
    return source.is_dir() or source.suffix == ".safetensors"


def _content(source: Path, heads_type: HeadsType | None) -> Content:
    from divine.heads.packaging import additions_content, heads_content
    from divine.heads.section import open_sidecar
    from divine.heads.weights import HeadWeights

    if source.is_dir():
        found = sorted(source.glob("*.safetensors"))
        if len(found) != 1:
            raise UsageError(
                f"{source} is a folder with {len(found)} .safetensors files; give one of them"
            )
        source = found[0]
    if _is_trained(source):
        return heads_content(HeadWeights.load(source), heads_type or "f16")
    # Stays open: its tensors are read as they are written.
    return additions_content(open_sidecar(source))


def _own(base: GGUFFile) -> str:
    """What BASE has added to it, which is not carried over; "" for what cannot be read."""
    from divine.heads.section import find_additions

    with suppress(DivineError):
        additions = find_additions(base)
        if additions is not None:
            with closing(additions):
                return _contents(additions).summary
    return ""


def _contents(additions: Additions) -> Contents:
    from divine.drafting import table_entries
    from divine.heads.card import Contents

    return Contents(
        additions.definition() if additions.has_heads else None,
        table_entries(additions.file),
        additions.fingerprint or "",
        additions.provenance(),
    )


def _card(base: Path, target: Path, packaging: Packaging) -> Path:
    """The card beside the export, from what can be read back of it."""
    from divine.heads.card import write_card
    from divine.heads.section import open_sidecar

    additions = open_sidecar(target)
    try:
        return write_card(target, packaging, base.name, _contents(additions))
    finally:
        additions.file.close()
