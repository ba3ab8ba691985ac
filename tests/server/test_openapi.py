"""Random requests made from the server's own OpenAPI document never find an error of the server."""

from __future__ import annotations

import json

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from tests.server.conftest import Running

from divine.server.openapi import document

EXAMPLES = 25  # of each endpoint; the document has eight
SCHEMA = schemathesis.openapi.from_dict(document())


@pytest.mark.filterwarnings("ignore")
@SCHEMA.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_no_request_breaks_the_server(server: Running, case: schemathesis.Case) -> None:
    if isinstance(case.body, dict) and case.path.startswith("/v1/"):
        # Random limits are huge: what matters here is what is refused and what is not.
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(case.body.get(name), int):
                case.body[name] = min(case.body[name], 4)
        if isinstance(case.body.get("n"), int):
            case.body["n"] = min(case.body["n"], 2)
    response = case.call(base_url=server.url, timeout=60)
    assert response.status_code < 500, response.text
    if response.status_code >= 400 and response.status_code != 405:
        assert json.loads(response.text)["error"]["message"]


def test_the_document_is_served(server: Running) -> None:
    found = server.client.get("/openapi.json").json()
    assert found == json.loads(json.dumps(document()))
    assert set(found["paths"]["/v1/chat/completions"]) == {"post"}
