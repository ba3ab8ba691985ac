"""The few kinds of error a user can meet; nothing else is raised at one.

Every message is one sentence that names the file, field or option, what was found and what is
allowed. The command line turns a DivineError into that sentence and an exit code; it never shows a
traceback unless --debug is given. This module knows nothing about where errors come from.
"""

from __future__ import annotations


class DivineError(Exception):
    """Base of all errors meant for a user; str(error) is the sentence to show."""

    exit_code = 1


class FormatError(DivineError):
    """A file is damaged, hostile or not of the kind that was expected."""


class UnsupportedError(DivineError):
    """The input is well-formed but needs something that Divine does not have."""


class UsageError(DivineError):
    """An option, argument or request field has a value that is not allowed."""

    exit_code = 2


class TemplateError(DivineError):
    """A chat template is missing, wrong, forbidden, or refused the messages."""


class CapacityError(DivineError):
    """The request does not fit: the prompt exceeds the context, or memory is short."""


class ConstraintError(CapacityError):
    """What constrains an answer became too complex, or forbids every token that could follow."""


class NumericError(DivineError):
    """The model produced NaN or infinity where a number was needed."""


class DownloadError(DivineError):
    """A model could not be fetched, found or stored."""
