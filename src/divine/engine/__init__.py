"""Sequences in shared passes: scheduling, choosing, stopping, prefix reuse, figures."""

from divine.engine.engine import Engine
from divine.engine.sequence import FinishReason, Request, Sequence
from divine.engine.statistics import Statistics

__all__ = ["Engine", "FinishReason", "Request", "Sequence", "Statistics"]
