"""Constrained output: what a text must look like, as masks over the vocabulary.

Constraints are made without a model and compiled for its tokenizer; the grammar library does the
parsing. Which tokens are drafted because of one is drafting's business.
"""

from divine.constraints.constraint import Constraint, grammar, json_object, json_schema, regex
from divine.constraints.matcher import GrammarProcessor
from divine.constraints.tools import (
    Arguments,
    CallEnded,
    CallStarted,
    Event,
    Text,
    ToolFormat,
    ToolParser,
    tool_calls,
    tool_family,
)

__all__ = [
    "Arguments",
    "CallEnded",
    "CallStarted",
    "Constraint",
    "Event",
    "GrammarProcessor",
    "Text",
    "ToolFormat",
    "ToolParser",
    "grammar",
    "json_object",
    "json_schema",
    "regex",
    "tool_calls",
    "tool_family",
]
