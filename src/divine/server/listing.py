"""GET /health, /metrics and /v1/models; and what stands where other servers have something."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from divine.server.answering import JsonResponse
from divine.server.context import Server, server_of
from divine.server.refusals import Refusal


async def health(request: Request) -> Response:
    """It listens, so the model is loaded."""
    running, waiting = server_of(request).model.load_now
    return JsonResponse({"status": "ok", "running": running, "waiting": waiting})


async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    return Response(server_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def models(request: Request) -> Response:
    """The model, in a list that clients of both APIs understand."""
    entry = _entry(server_of(request))
    return JsonResponse(
        {
            "object": "list",
            "data": [entry],
            "has_more": False,
            "first_id": entry["id"],
            "last_id": entry["id"],
        }
    )


async def model(request: Request) -> Response:
    """One model by name."""
    server = server_of(request)
    name = server.check_model(request.path_params["name"])
    return JsonResponse(_entry(server) | {"id": name})


def _entry(server: Server) -> dict[str, Any]:
    loaded = server.model
    created = datetime.fromtimestamp(server.started, UTC)
    return {
        "id": server.name,
        "object": "model",
        "created": server.started,
        "owned_by": "divine",
        "type": "model",
        "display_name": loaded.metadata.str("general.name", server.name),
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "divine": {
            "context": loaded.context,
            "parallel": server.settings.parallel,
            "drafters": list(loaded.drafters),
            "sampling": server.defaults,
            "level": loaded.level,
            "threads": loaded.threads,
        },
    }


async def use_chat(request: Request) -> Response:
    """POST /v1/responses is not here."""
    raise Refusal(
        404, "/v1/responses is not supported; use /v1/chat/completions", code="not_supported"
    )


async def use_openai(request: Request) -> Response:
    """Ollama's API is not here."""
    instead = {
        "chat": "/v1/chat/completions",
        "generate": "/v1/completions",
        "embeddings": "/v1/embeddings",
        "embed": "/v1/embeddings",
        "tags": "/v1/models",
        "show": "/v1/models",
    }.get(request.path_params["rest"], "OpenAI's API below /v1")
    raise Refusal(404, f"Ollama's API is not supported; use {instead}", code="not_supported")
