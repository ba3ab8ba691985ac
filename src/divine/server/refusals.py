"""Why a request is not answered: a status, one sentence, and the error bodies of both APIs.

Everything that is refused, or fails, becomes a Refusal here. Knows statuses and DivineErrors; it
knows no routes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from divine.errors import CapacityError, ConstraintError, DivineError, NumericError

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_FIELD = re.compile(
    r"[a-z_]+(\[\d+\])?(\.[a-z_]+(\[\d+\])?)*"
    r"(?= (?:allows|became|cannot|has|is|must|names|needs)\b)"
)


class Refusal(Exception):  # noqa: N818 - not every one is an error of the client
    """An answer with a status of 4xx or 5xx."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def openai(self) -> dict[str, Any]:
        """The body that clients of OpenAI's API expect."""
        kind = _OPENAI_TYPES.get(self.status)
        if kind is None:
            kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic(self) -> dict[str, Any]:
        """The body that clients of Anthropic's API expect."""
        kind = _ANTHROPIC_TYPES.get(self.status)
        if kind is None:
            kind = "api_error" if self.status >= 500 else "invalid_request_error"
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def refusal_of(error: BaseException, prompt: str = "messages") -> Refusal:
    """What a client is told of an error, wherever it came from; `prompt`: the field of the text."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, MemoryError):
        return Refusal(503, "the memory does not suffice for this request now", code="no_memory")
    if isinstance(error, NumericError):
        return Refusal(500, str(error), code="not_a_number")
    if isinstance(error, CapacityError) and not isinstance(error, ConstraintError):
        if "exceeds the context" in str(error):
            return Refusal(400, str(error), param=prompt, code="context_length_exceeded")
        return Refusal(503, str(error), code="no_memory")
    if isinstance(error, DivineError):
        named = _FIELD.match(str(error))
        return Refusal(400, str(error), param=named[0] if named else None)
    return Refusal(500, f"internal error, {type(error).__name__}; the server's log has it")
