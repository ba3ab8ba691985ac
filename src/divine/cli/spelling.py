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
    "output": ("-o", "--output-dir"),
    "rate": ("--lr",),
    "stretches": ("--batch",),
}
# Further parameters that a message speaks of; not where they are part of a path or a quotation.
_PARAMETER = re.compile(r"(?<![\w./'\"-])[a-z]+(?:_[a-z]+)+(?![\w./'\"-])")
_SUBJECT = re.compile(r"([a-z]+(?:_[a-z]+)*)(?:\[\d+\])?(?= (?:has|is|must|names|needs)\b)")


def as_given(message: str, arguments: Sequence[str]) -> str:
    """The message with the options among the arguments in the place of parameters they set."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    found = _SUBJECT.match(message)
    if found is not None:
        message = _option(found[1], options, found[0]) + message[found.end() :]
    return _PARAMETER.sub(lambda match: _option(match[0], options, match[0]), message)


def _option(parameter: str, arguments: Sequence[str], otherwise: str) -> str:
    """The option that was given for a parameter."""
    for option in (*_OPTIONS.get(parameter, ()), "--" + parameter.replace("_", "-")):
        if any(one == option or _joined(one, option) for one in arguments):
            return option
    return otherwise


def _joined(argument: str, option: str) -> bool:
    """Whether option and value are one argument, as --temp=2 or -c512."""
    if option.startswith("--"):
        return argument.startswith(option + "=")
    return re.fullmatch(re.escape(option) + r"[-+.\d]+", argument) is not None
