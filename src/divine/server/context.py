"""What every endpoint needs: the model under its names, the worker, the metrics, the settings."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from starlette.requests import Request

from divine.api import Model
from divine.server.metrics import Metrics
from divine.server.refusals import Refusal
from divine.server.settings import Settings
from divine.server.worker import Worker

# A file's own recommendation -> the name of the option.
_RECOMMENDED = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
}
# What the APIs say where the file says nothing: the model's own distribution.
_API_DEFAULTS: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@dataclass(frozen=True)
class Server:
    """One model being served."""

    model: Model
    path: Path
    settings: Settings
    metrics: Metrics
    worker: Worker
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> tuple[str, ...]:
        """What the model is called, the name that is shown first."""
        stem = self.path.stem
        return tuple(dict.fromkeys((*self.settings.alias, stem, self.path.name)))

    @property
    def name(self) -> str:
        """The name in answers."""
        return self.names[0]

    @property
    def defaults(self) -> dict[str, Any]:
        """Sampling where a request says nothing: the file's recommendation, else the API's own."""
        metadata = self.model.metadata
        return _API_DEFAULTS | {
            name: getattr(self.model.defaults, name)
            for key, name in _RECOMMENDED.items()
            if key in metadata
        }

    def check_model(self, name: str | None) -> str:
        """The name to answer with; raises Refusal 404 for another model."""
        if name is None:
            return self.name
        if name not in self.names:
            others = f", also called {', '.join(self.names[1:])}" if self.names[1:] else ""
            raise Refusal(
                404,
                f"model is {name[:80]!r}; this server has {self.name}{others}",
                param="model",
                code="model_not_found",
            )
        return name


def server_of(request: Request) -> Server:
    """The server that got the request."""
    return cast("Server", request.app.state.server)
