"""Tool calls: how families of models write them, forced to be valid or found in free text."""

from divine.constraints.tools.calls import ToolFormat, tool_calls
from divine.constraints.tools.dialects import tool_family
from divine.constraints.tools.parsing import (
    Arguments,
    CallEnded,
    CallStarted,
    Event,
    Text,
    ToolParser,
)

__all__ = [
    "Arguments",
    "CallEnded",
    "CallStarted",
    "Event",
    "Text",
    "ToolFormat",
    "ToolParser",
    "tool_calls",
    "tool_family",
]
