"""NgramDrafter: what came next when prompt or answer ended like this before.

Copies of the prompt, with changes too, and the answer's own repetitions are what it is good at. It
needs no model and takes microseconds, whatever the length of the text. A claim grows with the match
and with the places that agree.
"""

from __future__ import annotations

from divine.drafting.base import DraftTask, FreeDrafter
from divine.drafting.drafters.suffixes import SuffixSession


class NgramDrafter(FreeDrafter):
    """Looks up the end of the sequence in all that is before it."""

    name = "ngram"

    def begin(self, task: DraftTask) -> SuffixSession:
        """A session with an index of its own, made when it first proposes."""
        return SuffixSession(task.tokens)
