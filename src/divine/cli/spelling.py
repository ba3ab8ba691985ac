"""Messages about Python's parameters, told with the option that was given for them.

What checks values knows them by the names that load() and generate() have. Whoever typed an option
is told of that option, as it was spelled. Knows names only; checks nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# parameter -> the options that set it, where the parameter's own name is not enough
_OPTIONS: dict[str, tuple[str, ...]] = {
    "context": ("-c", "--ctx", "--ctx-size"),
    "kv_type": ("--kv",),
    "max_sequences": ("-np", "--parallel"),
    "max_tokens": ("-n", "--n-predict"),
    "repetition_penalty": ("--repeat-penalty",),
    "stop": ("-r",),
    "temperature": ("--temp",),
    "threads": ("-t",),
    "draft_max": ("--draft-n",),
    "draft_min": ("--draft-n-min",),
}
_SUBJECT = re.compile(r"([a-z]+(?:_[a-z]+)*)(?:\[\d+\])?(?= (?:has|is|must|names|needs)\b)")


def as_given(message: str, arguments: Sequence[str]) -> str:
    """The message, its subject being the option among the arguments that it speaks of, if any."""
    found = _SUBJECT.match(message)
    if found is None:
        return message
    long = "--" + found[1].replace("_", "-")
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for option in (*_OPTIONS.get(found[1], ()), long):
        if any(one == option or _joined(one, option) for one in options):
            return option + message[found.end() :]
    return message


def _joined(argument: str, option: str) -> bool:
    """Whether option and value are one argument, as --temp=2 or -c512."""
    if option.startswith("--"):
        return argument.startswith(option + "=")
    return re.fullmatch(re.escape(option) + r"[-+.\d]+", argument) is not None
