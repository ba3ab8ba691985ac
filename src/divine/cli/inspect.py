"""`divine inspect`: what a model file holds, from its header; no weight is read, no template run.

Strings come from the file and may be anything: on a terminal they are escaped and cut, as JSON they
are valid and whole. Long arrays (vocabularies) are shown by length and first elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from divine.cli import options
from divine.cli.console import columns_left, gigabytes, prepare_output, print_json, printable, write

if TYPE_CHECKING:
    from divine.gguf import GGUFFile, Metadata, TensorInfo

_ELEMENTS = 8  # shown of an array
_WIDTH = 100  # characters shown of a string where no terminal is narrower
_INDENT = 20  # of what was added to a model, behind its names
_TEMPLATE = "tokenizer.chat_template"
_EMBEDDING = "token_embd.weight"
_PACKAGING, _OWN = "divine.packaging", "divine."


def command(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    hub: options.HubOption = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Show what a model file holds: sizes, metadata, tensors by type, bytes read per token."""
    path = options.select_model(model, model_option, hub)
    prepare_output()
    from divine.gguf import open_gguf

    with open_gguf(path) as file:
        if json:
            print_json(_document(file, tensors))
        else:
            _show(file, tensors)


def _bytes_per_token(metadata: Metadata, tensors: Sequence[TensorInfo]) -> int:
    """File bytes that decoding one token reads; of experts, the share that a token uses."""
    from divine.models import bytes_per_token

    architecture = metadata.get("general.architecture")
    experts = metadata.get(f"{architecture}.expert_count")
    used = metadata.get(f"{architecture}.expert_used_count")
    if not (isinstance(experts, int) and isinstance(used, int) and 0 < used <= experts):
        experts = used = 1  # none, or nonsense: the loader refuses that, here it is shown
    nbytes = {
        tensor.name: tensor.nbytes * used // experts if "_exps." in tensor.name else tensor.nbytes
        for tensor in tensors
        if not tensor.name.startswith(_OWN)
    }
    rows = next((one.shape[0] for one in tensors if one.name == _EMBEDDING and one.shape), 1)
    return bytes_per_token(nbytes, rows)


def _by_type(tensors: Iterable[TensorInfo]) -> dict[str, tuple[int, int, int]]:
    """Block type -> (tensors, weights, bytes), the most bytes first."""
    groups: dict[str, tuple[int, int, int]] = {}
    for tensor in tensors:
        count, weights, nbytes = groups.get(tensor.block_type, (0, 0, 0))
        groups[tensor.block_type] = (count + 1, weights + _weights(tensor), nbytes + tensor.nbytes)
    return dict(sorted(groups.items(), key=lambda item: -item[1][2]))


def _weights(tensor: TensorInfo) -> int:
    product = 1
    for size in tensor.shape:
        product *= size
    return product


def _document(file: GGUFFile, with_tensors: bool) -> dict[str, Any]:
    tensors = list(file.tensors.values())
    document: dict[str, Any] = {
        "additions": _additions(file),
        "files": [{"path": str(p), "bytes": p.stat().st_size} for p in file.paths],
        "version": file.version,
        "weights": sum(map(_weights, tensors)),
        "bytes_per_token": _bytes_per_token(file.metadata, tensors),
        "types": {
            name: {"tensors": count, "weights": weights, "bytes": nbytes}
            for name, (count, weights, nbytes) in _by_type(tensors).items()
        },
        "metadata": {key: _value(file.metadata, key) for key in file.metadata},
    }
    if with_tensors:
        document["tensors"] = [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "type": tensor.block_type,
                "bytes": tensor.nbytes,
            }
            for tensor in tensors
        ]
    return document


def _additions(file: GGUFFile) -> dict[str, Any] | None:
    """What Divine has added to the model, or what is wrong with it; None if there is nothing."""
    from divine.drafting import table_entries
    from divine.errors import DivineError
    from divine.heads.section import find_additions, open_sidecar

    try:
        alone = file.metadata.get(_PACKAGING) == "sidecar"
        additions = open_sidecar(file.path) if alone else find_additions(file)
        if additions is None:
            return None
        try:
            own = {n: info for n, info in additions.file.tensors.items() if n.startswith(_OWN)}
            return {
                "packaging": additions.packaging,
                "made_for": additions.fingerprint,
                "bytes": additions.nbytes,
                "heads": additions.definition().to_dict() if additions.has_heads else None,
                "table_entries": table_entries(additions.file),
                "tensors": {name: [info.block_type, *info.shape] for name, info in own.items()},
                "provenance": additions.provenance(),
            }
        finally:
            additions.close()
    except DivineError as error:
        return {"error": str(error)}


def _show_additions(found: dict[str, Any], with_tensors: bool) -> None:
    if "error" in found:
        write(f"\ndrafting heads: {printable(found['error'])}\n")
        return
    from divine.heads.card import described

    write(f"\nadditions of Divine: {found['packaging']}, {gigabytes(found['bytes'])}")
    write(f", for the base {found['made_for']}\n" if found["made_for"] else "\n")
    for name, value in (found["heads"] or {}).items():
        write(f"  {name:17} {value}\n")
    if found["table_entries"]:
        write(f"  {'table':17} {found['table_entries']:,} entries\n")
    for name, value in described(found["provenance"]):
        room = min(_WIDTH, columns_left(_INDENT) or _WIDTH)
        lines = wrap(printable(value), room, break_on_hyphens=False) or [""]
        write(f"  {printable(name):17} {lines[0]}\n")
        for line in lines[1:]:
            write(" " * _INDENT + line + "\n")
    for name, (kind, *shape) in found["tensors"].items() if with_tensors else ():
        write(f"  {printable(name):40} {kind:8} {' x '.join(map(str, shape))}\n")


def _value(metadata: Metadata, key: str) -> Any:
    """The value, or of a long array its type, length and first elements."""
    length = metadata.length(key)
    if length is None or length <= _ELEMENTS:
        return metadata[key]
    return {
        "type": metadata.type_name(key),
        "length": length,
        "first": metadata.first(key, _ELEMENTS),
    }


def _show(file: GGUFFile, with_tensors: bool) -> None:
    tensors = list(file.tensors.values())
    for path in file.paths:
        write(f"{printable(str(path))}  {gigabytes(path.stat().st_size)}\n")
    weights = sum(map(_weights, tensors))
    reads = gigabytes(_bytes_per_token(file.metadata, tensors))
    write(f"GGUF version {file.version}, {len(tensors)} tensors, {_millions(weights)} weights\n")
    write(f"a token reads {reads} of the file\n\n")
    for name, (count, number, nbytes) in _by_type(tensors).items():
        bits = 8 * nbytes / number if number else 0.0
        write(
            f"{name:8}{count:6} tensors {_millions(number):>12} weights {gigabytes(nbytes):>10}"
            f"{bits:8.2f} bits a weight\n"
        )
    write("\n")
    width = min(50, max((len(printable(key)) for key in file.metadata), default=0))
    for key in file.metadata:
        if key != _TEMPLATE:
            room = min(_WIDTH, columns_left(width + 2) or _WIDTH)
            write(f"{printable(key):{width}}  {_text(file.metadata, key, room)}\n")
    additions = _additions(file)
    if additions is not None:
        _show_additions(additions, with_tensors)
    template = file.metadata.get(_TEMPLATE)
    if isinstance(template, str):
        lines = "\n".join("  " + printable(line) for line in template.splitlines())
        write(f"\n{_TEMPLATE}\n{lines}\n")
    if with_tensors:
        write("\n")
        for tensor in tensors:
            shape = " x ".join(map(str, tensor.shape))
            size = gigabytes(tensor.nbytes)
            write(f"{printable(tensor.name):40} {tensor.block_type:8} {shape:18} {size:>10}\n")


def _millions(weights: int) -> str:
    return f"{weights / 1e6:,.{1 if weights >= 1e6 else 3}f} M"


def _text(metadata: Metadata, key: str, room: int) -> str:
    """The value in one line of at most `room` characters."""
    value = _value(metadata, key)
    if isinstance(value, dict):
        first = ", ".join(repr(item) for item in value["first"])
        text = f"{value['length']:,}: [{first}, ...]"
    else:
        text = value if isinstance(value, str) else repr(value)
    text = printable(text)
    return text if len(text) <= room else text[: room - 3] + "..."
