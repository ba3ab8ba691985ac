"""Options of llama.cpp that Divine has no use for, and what to do instead.

They are refused and not passed over: whoever sets one expects that it does something. Looked for
before the options are parsed, where -fa would be the file `a` and -ngl the number `gl`.
"""

from __future__ import annotations

from divine.errors import UsageError

COMMANDS = ("run", "chat", "serve")

_INSTEAD = {
    "-ngl --gpu-layers --n-gpu-layers": "Divine computes on the CPU; leave it out",
    "-b --batch-size -ub --ubatch-size": "Divine chooses the size of a pass itself; leave it out",
    "-fa --flash-attn": "Divine has one kind of attention only; leave it out",
    "--mlock --mmap --no-mmap": "Divine keeps the weights in memory of its own; leave it out",
    "-ctk --cache-type-k -ctv --cache-type-v": "in Divine --kv sets the type of keys and values",
    "-cnv --conversation": "in Divine `divine chat` is a conversation",
    "-no-cnv --no-conversation": "in Divine `divine run` answers one prompt, with --raw as it is",
    "--jinja --no-jinja": "Divine always uses the chat template, unless --raw is given to run",
}
_BY_NAME = {name: words for names, words in _INSTEAD.items() for name in names.split()}


def refuse_foreign(arguments: list[str]) -> None:
    """Raise UsageError for the first option of llama.cpp; what follows "--" is no option."""
    for argument in arguments:
        if argument == "--":
            return
        name = argument.partition("=")[0]
        if name in _BY_NAME:
            raise UsageError(f"{name} is an option of llama.cpp; {_BY_NAME[name]}")
