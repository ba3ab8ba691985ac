"""What /metrics tells, in Prometheus' text format.

Counted by the engine's thread as events come and by the loop for requests; nothing is measured
twice. Each server has its own registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from divine.server.jobs import Ended, Event, Job, Piece

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_TOTAL = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "divine_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self.refused = Counter(
            "divine_requests_refused", "Requests refused because too many wait.", registry=registry
        )
        self.cancelled = Counter(
            "divine_requests_cancelled", "Requests whose client went away.", registry=registry
        )
        self.seconds = Histogram(
            "divine_request_seconds",
            "Time of a request that ended.",
            buckets=_TOTAL,
            registry=registry,
        )
        self.passes = Counter("divine_passes", "Passes of the model.", registry=registry)
        self.prompt_tokens = Counter(
            "divine_prompt_tokens", "Tokens of prompts.", registry=registry
        )
        self.reused_tokens = Counter(
            "divine_prompt_tokens_reused",
            "Tokens of prompts whose state came from an earlier one.",
            registry=registry,
        )
        self.tokens = Counter("divine_tokens", "Tokens of answers.", registry=registry)
        self.drafts = Counter(
            "divine_drafted_tokens",
            "Drafted tokens that had a row in a pass, by what became of them.",
            ["drafter", "outcome"],
            registry=registry,
        )
        self.first_token = Histogram(
            "divine_time_to_first_token_seconds",
            "From a request to its first text.",
            buckets=_FIRST,
            registry=registry,
        )
        self.between_tokens = Histogram(
            "divine_time_between_tokens_seconds",
            "Between two pieces of text of one answer.",
            buckets=_BETWEEN,
            registry=registry,
        )
        self._most_open = Gauge(
            "divine_requests_open_max",
            "The most requests that were open at once.",
            registry=registry,
        )
        self._most = 0

    def watch(self, load: Callable[[], tuple[int, int, int]]) -> None:
        """`load` tells running sequences, waiting sequences and open requests."""
        self.registry.register(_Load(load))

    def queue_depth(self, requests: int) -> None:
        """So many requests are open."""
        if requests > self._most:
            self._most = requests
            self._most_open.set(requests)

    def observe(self, job: Job, events: Iterable[Event], now: float) -> None:
        """A job has got events; called by the engine's thread."""
        for event in events:
            if isinstance(event, Piece):
                self.tokens.inc(len(event.chunk.tokens))
                if job.last_news is None:
                    self.first_token.observe(now - job.began)
                elif len(job.streams) == 1:
                    self.between_tokens.observe(now - job.last_news)
                job.last_news = now
            elif isinstance(event, Ended):
                self._observe_end(event)
        if job.done:
            self.seconds.observe(now - job.began)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self.registry)

    def _observe_end(self, ended: Ended) -> None:
        statistics = ended.completion.statistics
        self.prompt_tokens.inc(statistics.prompt_tokens)
        self.reused_tokens.inc(statistics.reused_tokens)
        for name, counts in statistics.drafts.items():
            for outcome in ("accepted", "rejected", "unreached"):
                self.drafts.labels(name, outcome).inc(sum(getattr(counts, outcome)))


class _Load(Collector):
    """Gauges that are read when asked for."""

    def __init__(self, load: Callable[[], tuple[int, int, int]]) -> None:
        self._load = load

    def collect(self) -> Iterable[Metric]:
        running, waiting, requests = self._load()
        yield GaugeMetricFamily("divine_sequences_running", "Answers in shared passes.", running)
        yield GaugeMetricFamily("divine_sequences_waiting", "Answers that wait.", waiting)
        yield GaugeMetricFamily("divine_requests_open", "Requests not yet answered.", requests)
