"""GrammarProcessor: a grammar, compiled for one vocabulary, as a logit processor.

A state is a place: a token and the place before it. One matcher of the library stands at one place
of its sequence and is moved, back by rollback and forward by tokens, to the place that is asked
about; so a tree of drafts costs a step for each node and nothing is copied. What a place allows
depends on its own tokens only. Knows logits and tokens; no schemas, no models.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divine.errors import ConstraintError
from divine.text import Tokenizer

KEPT_MASKS = 64  # of a sequence; one for 150,000 tokens has 19 KB


@dataclass(eq=False, slots=True)
class Place:
    """One token of the answer and the place before it; the first has neither.

    After an end of the answer nothing is asked in earnest: a walk over drafts may look there.
    """

    parent: Place | None
    token: int
    length: int
    run: _Run
    ended: bool = False


class GrammarProcessor:
    """Forbids what the grammar does not allow; see sampling.TokenConstraint."""

    def __init__(
        self, matcher: Any, tokenizer: Tokenizer, what: str, on_error: Callable[[], None]
    ) -> None:
        """`matcher` has read nothing; `what` is the grammar's name for its user.

        `on_error` is told when the library gives up on the grammar: its tables are full then.
        """
        self._matcher = matcher
        self._vocabulary = tokenizer.vocabulary
        self._ends = tokenizer.end_ids
        self._what = what
        self._on_error = on_error

    def start(self, prompt: Sequence[int]) -> Place:
        """Before the answer; the grammar knows nothing of the prompt."""
        run = _Run(self._matcher)
        return run.here

    def advance(self, state: Place, token: int) -> Place:
        """After one more token."""
        ended = state.ended or token in self._ends
        return Place(state, token, state.length + 1, state.run, ended)

    def apply(self, state: Place, logits: NDArray[np.float32]) -> None:
        """-infinity for every token that is not allowed here. Raises ConstraintError."""
        allowed = self.allowed(state)
        np.copyto(logits, -np.inf, where=~allowed)

    def allowed(self, state: Place) -> NDArray[np.bool_]:
        """Which tokens may follow, bool [vocabulary]; ends where the answer is complete or ended.

        Raises ConstraintError if the grammar has become too complex, or cannot be gone on with.
        """
        if state.ended:
            ends = np.zeros(self._vocabulary, np.bool_)
            ends[list(self._ends)] = True
            return ends
        run = state.run
        bits = run.masks.get(state)
        if bits is None:
            bits = run.matcher.compute_bitmask() if run.move(state) else b""
            if run.matcher.is_error():
                bits = self._failed(state)
            if bits.count(0) == len(bits):
                raise ConstraintError(
                    f"{self._what} has no way to go on after {state.length} tokens of the answer"
                )
            run.keep_mask(state, bits)
        packed = np.frombuffer(bits, np.uint8)
        flags = np.unpackbits(packed, count=self._vocabulary, bitorder="little")
        return flags.view(np.bool_)

    def accepts(self, state: Place, token: int) -> bool:
        """Whether the token may follow; True for a few that `apply` forbids (same text, other
        cut)."""
        run = state.run
        if state.ended or not run.move(state):
            return False
        if token in self._ends:
            return bool(run.matcher.is_accepting())
        return bool(run.matcher.validate_tokens([token]) == 1)

    def forced(self, state: Place) -> tuple[list[int], bytes]:
        """The tokens that must follow, and further bytes that must, whose cut is not certain."""
        run = state.run
        if state.ended or not run.move(state) or run.matcher.is_stopped():
            return [], b""
        return run.matcher.compute_ff_tokens(), run.matcher.compute_ff_bytes()

    def complete(self, state: Place) -> bool:
        """Nothing may follow but an end of the answer."""
        run = state.run
        if state.ended or not run.move(state):
            return state.ended
        return bool(run.matcher.is_stopped() and run.matcher.is_accepting())

    def _failed(self, state: Place) -> bytes:
        """The library has given up here: b"" if no text goes on; raises ConstraintError otherwise.

        Other places of the answer are not harmed: a draft may have led here.
        """
        matcher = state.run.matcher
        reason = " ".join(matcher.get_error().split())[:200]
        stuck = "NoExtension" in reason
        state.run.renew()
        if stuck:
            return b""
        self._on_error()
        raise ConstraintError(
            f"{self._what} became too complex after {state.length} tokens of the answer: {reason}"
        )


class _Run:
    """One sequence's matcher and the place where it stands."""

    def __init__(self, matcher: Any) -> None:
        self._new = matcher
        self.masks: OrderedDict[Place, bytes] = OrderedDict()
        self._first = Place(None, -1, 0, self)
        self.renew()

    def renew(self) -> None:
        """Stand at the first place with a matcher that has met no error."""
        self.matcher = self._new.deep_copy()
        self.here = self._first

    def move(self, target: Place) -> bool:
        """Stand at `target`, before any end; False if its tokens are not allowed.

        Then it stands as far on the way as it could go, and may be moved again.
        """
        if self.matcher.is_error():  # some other place was too much
            self.renew()
        here, there, forward = self.here, target, []
        while here is not there:
            if there.length > here.length:
                forward.append(there)
                assert there.parent is not None
                there = there.parent
            else:
                assert here.parent is not None
                here = here.parent
        back = self.here.length - here.length
        if back and not self.matcher.rollback(back):
            self.renew()
            return self.move(target)
        self.here = here
        if not forward:
            return True
        forward.reverse()
        done: int = self.matcher.try_consume_tokens([place.token for place in forward])
        if done:
            self.here = forward[done - 1]
        return done == len(forward)

    def keep_mask(self, place: Place, bits: bytes) -> None:
        """Remember what is allowed there: drafters and the model ask about the same places."""
        self.masks[place] = bits
        if len(self.masks) > KEPT_MASKS:
            self.masks.popitem(last=False)
