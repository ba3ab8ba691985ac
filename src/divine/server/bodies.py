"""From the bytes of a request's body to a checked object, with sentences that name the field.

Reads within limits of size and time, parses JSON strictly (no NaN, no key twice), and has pydantic
check types. Ranges are checked where the values are used. Knows no endpoint.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from divine.server.refusals import Refusal
from divine.server.settings import Settings

_Body = TypeVar("_Body", bound=BaseModel)
_BIG = 65536  # bytes whose parsing would keep the event loop from others
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # escaped, perhaps half of a pair
_ALLOWED = {  # what pydantic says -> what a client of JSON calls it
    "a valid boolean": "a boolean",
    "a valid dictionary": "an object",
    "a valid integer": "an integer",
    "a valid list": "a list",
    "a valid number": "a number",
    "a valid string": "a text",
    "List should have at least 1 item after validation, not 0": "a list that is not empty",
}
_DRAINED = 8  # times the limit: what is read and dropped so that a client can read the refusal


async def read_body(request: Request, schema: type[_Body], settings: Settings) -> _Body:
    """The body as the schema has it. Raises Refusal 400, 408, 413 or 415."""
    _check_headers(request)
    try:
        async with asyncio.timeout(settings.body_seconds):
            data = await _read(request, settings.body_limit)
    except TimeoutError:
        raise Refusal(
            408,
            f"the body did not come within {settings.body_seconds:g} s",
            headers={"Connection": "close"},
        ) from None
    if len(data) < _BIG:
        return check(parse(data), schema)
    return await asyncio.to_thread(lambda: check(parse(data), schema))


def parse(data: bytes) -> Any:
    """JSON, strictly, of valid Unicode; raises Refusal."""
    try:
        value = json.loads(
            data.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_unique
        )
    except UnicodeDecodeError as error:
        raise Refusal(
            400, f"the body is not UTF-8 at byte {error.start}; JSON must be UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        raise Refusal(
            400,
            f"the body is not valid JSON at line {error.lineno}, column {error.colno}: "
            f"{error.msg[:1].lower()}{error.msg[1:]}",
        ) from None
    except RecursionError:
        raise Refusal(400, "the body is not valid JSON here: it is nested too deeply") from None
    except ValueError as error:
        raise Refusal(400, f"the body is not valid JSON: {_short(str(error))}") from None
    if _SURROGATE.search(data):
        _check_unicode(value)
    return value


def _check_unicode(value: Any) -> None:
    """Raise Refusal for a text with a lone surrogate, which no encoding can write."""
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        path, here = left.pop()
        if isinstance(here, dict):
            left += [(path, name) for name in here]
            left += [(f"{path}.{name}" if path else name, item) for name, item in here.items()]
        elif isinstance(here, list):
            left += [(f"{path}[{at}]", item) for at, item in enumerate(here)]
        elif isinstance(here, str):
            try:
                here.encode()
            except UnicodeEncodeError as error:
                where = ascii(_short(path or "the body"))[1:-1]
                raise Refusal(
                    400,
                    f"{where} has the lone surrogate U+{ord(here[error.start]):04X} at character "
                    f"{error.start}; text must be valid Unicode",
                    param=where,
                ) from None


def check(value: Any, schema: type[_Body]) -> _Body:
    """The value as the schema has it; raises Refusal naming the first field that is wrong."""
    if not isinstance(value, dict):
        raise Refusal(400, f"the body is {_kind(value)}; allowed is a JSON object")
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise _explain(error, value, schema) from None


def _check_headers(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, f"Content-Type is {_short(repr(kind))}; allowed is application/json")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise Refusal(415, f"Content-Encoding is {_short(repr(encoding))}; send the body as it is")


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    too_large = declared.isdigit() and int(declared[:20]) > limit
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            too_large = too_large or size > limit
            if not too_large:
                parts.append(part)
            elif size > _DRAINED * limit:
                break
    except ClientDisconnect:
        raise Refusal(400, "the connection ended before the body did") from None
    if too_large:
        raise Refusal(
            413,
            f"the body is larger than {limit} bytes, which is the most that is allowed",
            headers={"Connection": "close"},
        )
    return b"".join(parts)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} comes twice in an object")
    return found


def _explain(error: ValidationError, value: Any, schema: type[BaseModel]) -> Refusal:
    details = error.errors(include_url=False, include_context=False)
    unknown = [detail for detail in details if detail["type"] == "extra_forbidden"]
    first = (unknown or details)[0]
    if not unknown:  # of a field with alternatives the one that came furthest
        same = [detail for detail in details if detail["loc"][:1] == first["loc"][:1]]
        first = max(same, key=lambda detail: len(_path(detail["loc"], value)))
    where = _path(first["loc"], value, first["type"] == "missing")
    if unknown:
        known = [field.alias or name for name, field in schema.model_fields.items()]
        near = difflib.get_close_matches(str(first["loc"][-1]), known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return Refusal(
            400, f"{where} is not a field that is supported here{hint}", param=where, code="unknown"
        )
    if first["type"] == "missing":
        return Refusal(400, f"{where} is missing; it is required", param=where, code="missing")
    allowed = [
        _allowed(detail["msg"]) for detail in details if _path(detail["loc"], value) == where
    ]
    found = _short(json.dumps(first["input"], ensure_ascii=True, default=str))
    return Refusal(
        400, f"{where} is {found}; allowed is {' or '.join(dict.fromkeys(allowed))}", param=where
    )


def _allowed(words: str) -> str:
    words = words.removeprefix("Value error, ").removeprefix("Input should be ")
    return _ALLOWED.get(words, words)


def _path(loc: Sequence[int | str], value: Any, missing: bool = False) -> str:
    """The field as the client wrote it: pydantic's own marks of alternatives are left out."""
    path, here = "", value
    for step in loc:
        if isinstance(step, int) and isinstance(here, list) and step < len(here):
            path, here = f"{path}[{step}]", here[step]
        elif isinstance(here, Mapping) and (step in here or missing):
            path, here = f"{path}.{step}" if path else str(step), here.get(str(step))
    return _short(path or "the body")


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "a text"
    return "null" if value is None else f"a {type(value).__name__}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
