"""TextDrafter: the caller's own guess at the answer, such as the file that is to be edited.

Follows the guess from its first token on, and finds its place again where the answer differs from
it: by what a change would look like near the place, by longer matches anywhere. Tokens of the guess
need not begin where those of the answer do.
"""

from __future__ import annotations

from divine.drafting.base import DraftTask, FreeDrafter
from divine.drafting.drafters.suffixes import SuffixSession

# The first token of the guess is worth a match of this length, as right as any caller's guess.
_TRUST = 4


class TextDrafter(FreeDrafter):
    """Reads on in DraftTask.guess."""

    name = "text"

    def begin(self, task: DraftTask) -> SuffixSession:
        """A session at the start of the guess."""
        return SuffixSession(task.tokens, task.guess, start=task.prompt_length, trust=_TRUST)
