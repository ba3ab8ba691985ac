"""GET /openapi.json: what the server takes and gives, from the schemas that check it."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from divine import __version__
from divine.server.answering import JsonResponse
from divine.server.fields import (
    ChatRequest,
    CompletionRequest,
    CountRequest,
    EmbeddingRequest,
    MessagesRequest,
)

_POSTS: dict[str, tuple[type[BaseModel], str]] = {
    "/v1/chat/completions": (ChatRequest, "Answer a conversation."),
    "/v1/completions": (CompletionRequest, "Continue a text."),
    "/v1/embeddings": (EmbeddingRequest, "Mean of the final hidden states of a text."),
    "/v1/messages": (MessagesRequest, "Answer a conversation, in Anthropic's shape."),
    "/v1/messages/count_tokens": (CountRequest, "Count the tokens of a conversation."),
}
_GETS = {
    "/v1/models": "The model.",
    "/health": "Whether the server is up.",
    "/metrics": "Figures in Prometheus' text format.",
}
_STREAMING = ("/v1/chat/completions", "/v1/completions", "/v1/messages")
_REFUSALS = {
    "400": "A field is wrong; the message names it.",
    "401": "The API key is missing or wrong.",
    "404": "No such model or endpoint.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "415": "Not JSON.",
    "429": "Too many requests wait; Retry-After says when to come again.",
    "503": "Shutting down, or no memory.",
    "504": "The answer took too long.",
}


async def openapi(request: Request) -> Response:
    """The document."""
    return JsonResponse(document())


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    models = [(schema, "validation") for schema, _ in _POSTS.values()]
    _, definitions = models_json_schema(
        models,  # type: ignore[arg-type]
        ref_template="#/components/schemas/{model}",
    )
    schemas: dict[str, Any] = definitions["$defs"]
    schemas["Error"] = _error_schema()
    paths: dict[str, Any] = {}
    for path, (schema, summary) in _POSTS.items():
        paths[path] = {"post": _post(path, schema, summary)}
    for path, summary in _GETS.items():
        kind = "text/plain" if path == "/metrics" else "application/json"
        content = {kind: {"schema": {"type": "string" if path == "/metrics" else "object"}}}
        responses = {"200": {"description": summary, "content": content}, **_refusals("401")}
        paths[path] = {"get": {"summary": summary, "responses": responses}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Divine", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _post(path: str, schema: type[BaseModel], summary: str) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if path in _STREAMING:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    reference = {"$ref": f"#/components/schemas/{schema.__name__}"}
    return {
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        },
        "responses": {
            "200": {"description": summary, "content": content},
            **_refusals(*_REFUSALS),
        },
    }


def _refusals(*statuses: str) -> dict[str, Any]:
    reference = {"$ref": "#/components/schemas/Error"}
    return {
        status: {
            "description": _REFUSALS[status],
            "content": {"application/json": {"schema": reference}},
        }
        for status in statuses
    }


def _error_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    }
