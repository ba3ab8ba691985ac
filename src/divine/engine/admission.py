"""Where a waiting sequence gets its state: an earlier one's, a running one's, or a new one.

Two sequences whose prompts begin the same read that beginning once: the second waits until the
first has read it and takes a copy. Compares tokens and hands out states; runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from divine.backends.base import Executable, KvType, State
from divine.backends.prefixes import FORK_FROM, Prefixes, common_prefix
from divine.engine.sequence import Sequence


class Admission:
    """Chooses and makes states for the sequences of one engine."""

    def __init__(
        self, executable: Executable, prefixes: Prefixes, context: int, kv_type: KvType
    ) -> None:
        self._executable = executable
        self._prefixes = prefixes
        self._context = context
        self._kv_type: KvType = kv_type

    def state_for(self, sequence: Sequence, running: SequenceOf[Sequence]) -> State | None:
        """A state that has committed a beginning of the prompt, all but its last token at most.

        None: a running sequence is just reading that beginning, so wait. Raises CapacityError.
        """
        if not sequence.request.cache_prompt:
            return self._empty()
        wanted = sequence.prompt_ids[:-1]
        giver, common = None, 0
        for other in running:
            length = common_prefix(other.prompt_ids, wanted)
            if length > common:
                giver, common = other, length
        if giver is not None and common >= self._prefixes.common(wanted) + FORK_FROM:
            if giver.committed < common:
                return None
            assert giver.state is not None
            state = giver.state.fork()
            state.truncate(common)
            return state
        return self._prefixes.take(sequence.tokens) or self._empty()

    def _empty(self) -> State:
        recycled = self._prefixes.recycle()
        return recycled or self._executable.new_state(self._context, self._kv_type)
