"""The web application: routes, and how errors become responses."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from divine.errors import DivineError
from divine.server import chat, completions, embeddings, listing, messages, openapi
from divine.server.context import Server
from divine.server.gate import Gate, refused
from divine.server.page import Page, nothing_at
from divine.server.refusals import Refusal, refusal_of

_PROMPTS = {"/v1/completions": "prompt", "/v1/embeddings": "input"}  # else it is in messages


def build_app(server: Server) -> Starlette:
    """The application for one server."""
    post, every = ["POST"], ["GET", "POST", "PUT", "DELETE", "HEAD"]
    routes = [
        Route("/v1/chat/completions", chat.chat, methods=post),
        Route("/v1/completions", completions.completions, methods=post),
        Route("/v1/embeddings", embeddings.embeddings, methods=post),
        Route("/v1/messages", messages.messages, methods=post),
        Route("/v1/messages/count_tokens", messages.count_tokens, methods=post),
        Route("/v1/models", listing.models),
        Route("/v1/models/", listing.models),
        Route("/v1/models/{name:path}", listing.model),
        Route("/v1/responses", listing.use_chat, methods=every),
        Route("/v1/responses/{rest:path}", listing.use_chat, methods=every),
        Route("/api/{rest:path}", listing.use_openai, methods=every),
        Route("/health", listing.health),
        Route("/openapi.json", openapi.openapi),
        Route("/metrics", listing.metrics),
    ]
    # The last route takes every GET, so it must know which paths are there for POST.
    page = Page({route.path: "POST" for route in routes if route.methods == {"POST"}})
    routes += [Route("/", page.file), Route("/{path:path}", page.file)]
    middleware = []
    if server.settings.cors:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(server.settings.cors),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["Retry-After"],
            )
        )
    middleware.append(Middleware(Gate, settings=server.settings, metrics=server.metrics))
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            Refusal: _refused,
            DivineError: _refused,
            HTTPException: _http_error,
            Exception: _broken,
        },
    )
    app.router.redirect_slashes = False
    app.state.server = server
    app.state.page = page
    return app


async def _refused(request: Request, error: Exception) -> Response:
    path = request.url.path
    return refused(refusal_of(error, _PROMPTS.get(path, "messages")), path)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    page: Page = request.app.state.page
    if error.status_code == 404 or page.lacks(request.path_params.get("path")):
        return refused(Refusal(404, nothing_at(path)), path)
    message = str(error.detail)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{request.method[:20]} is not allowed for {path[:80]}; use {allowed}"
    headers: Mapping[str, str] = error.headers or {}
    return refused(Refusal(error.status_code, message, headers=headers), path)


async def _broken(request: Request, error: Exception) -> Response:
    traceback.print_exception(error, file=sys.stderr)
    return refused(refusal_of(error), request.url.path)
