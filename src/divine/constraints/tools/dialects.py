"""How families of models write tool calls, as a table, and which family a chat template is of.

A call is JSON with a name and arguments between marks of the family's own. Knows text only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from divine.text import ChatTemplate


@dataclass(frozen=True)
class Dialect:
    """The marks of one family.

    begin     before a call, or before the list of them; one of several that are understood, the
              first is written; "" is the very beginning of the answer
    opening   text between begin and the first call
    between   text between two calls
    closing   after the last call, or after each where `each` is set
    each      begin and closing surround every single call
    arguments the key of the arguments
    named     the name stands before the JSON, which is the arguments alone: NAME[ARGS]{...}
    controls  marks that are control tokens in the family's vocabularies: without being shown they
              would be no part of the text
    id_size   characters of a call's id; 0: "call_" and 24 more, as elsewhere
    """

    begin: tuple[str, ...]
    opening: str = ""
    between: str = ""
    closing: str = ""
    each: bool = False
    arguments: str = "arguments"
    named: bool = False
    controls: tuple[str, ...] = ()
    id_size: int = 0


NAME_END = "[ARGS]"
_HERMES = Dialect(("<tool_call>",), opening="\n", between="\n", closing="\n</tool_call>", each=True)
DIALECTS: Mapping[str, Dialect] = {
    "hermes": _HERMES,
    "llama3": Dialect(
        ("", "<|python_tag|>"), between="; ", arguments="parameters", controls=("<|python_tag|>",)
    ),
    "mistral": Dialect(
        ("[TOOL_CALLS]",),
        opening="[",
        between=", ",
        closing="]",
        controls=("[TOOL_CALLS]",),
        id_size=9,
    ),
    "mistral-args": Dialect(
        ("[TOOL_CALLS]",),
        each=True,
        named=True,
        controls=("[TOOL_CALLS]", NAME_END),
        id_size=9,
    ),
    # Templates that take no tools, or have marks that are not known: ours, and what is common.
    "generic": Dialect(
        ("<tool_call>", "<|tool_call|>", "[TOOL_CALLS]", "<|python_tag|>", ""),
        opening="\n",
        between="\n",
        closing="\n</tool_call>",
        each=True,
        controls=("<|tool_call|>", "[TOOL_CALLS]", "<|python_tag|>"),
    ),
}


def tool_family(template: ChatTemplate) -> str:
    """The family whose marks a chat template writes; "generic" where it is none of them."""
    source = template.tool_source
    if source is None:
        return "generic"
    if "[TOOL_CALLS]" in source:
        return "mistral-args" if NAME_END in source else "mistral"
    if "<tool_call>" in source and "<function=" not in source:
        return "hermes"
    if "<|python_tag|>" in source or '"parameters": ' in source:
        return "llama3"
    return "generic"
