"""POST /v1/embeddings: the mean of the final hidden states over the tokens of a text.

The states are those behind the last norm, the mean is not scaled to length 1. Models for
generation are not trained for this: good enough to group texts, no match for an embedding model.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from divine.errors import UsageError
from divine.server.answering import ClientGone, JsonResponse, while_connected
from divine.server.bodies import read_body
from divine.server.completions import split_prompts
from divine.server.context import Server, server_of
from divine.server.fields import EmbeddingRequest, refuse_unsupported

MAX_INPUTS = 256


async def embeddings(request: Request) -> Response:
    """The vectors of one text or several."""
    server = server_of(request)
    body = await read_body(request, EmbeddingRequest, server.settings)
    name = server.check_model(body.model)
    refuse_unsupported(body)
    inputs = split_prompts(body.input, "input")
    if len(inputs) > MAX_INPUTS:
        raise UsageError(f"input has {len(inputs)} texts; allowed are {MAX_INPUTS} at most")
    try:
        value = await while_connected(request.receive, _embed(server, inputs, body))
    except ClientGone:
        server.metrics.cancelled.inc()
        return Response(status_code=499)  # to nobody
    return JsonResponse(value | {"model": name})


async def _embed(
    server: Server, inputs: list[str | list[int]], body: EmbeddingRequest
) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    count = 0
    for index, text in enumerate(inputs):
        tokens = await server.worker.prepare(partial(server.model.encode, text, raw=True))
        vector = await server.worker.embed(tokens)
        count += len(tokens)
        value: Any = vector.tolist()
        if body.encoding_format == "base64":
            value = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": value})
    return {
        "object": "list",
        "data": data,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
