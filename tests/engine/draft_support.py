"""A decoding loop with a drafter, as small as it can be: a pass over the tree, the walk, a commit.

The engine has its own; this one shows what a drafter proposed and what became of it, and does
nothing else. Also: tiny models and their drafters. Nothing here asserts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from divine.backends.base import COMMITTED, Executable, Rows, Want
from divine.backends.cpu.backend import CpuBackend
from divine.drafting import ROOT, Budget, DraftTask, DraftTree, load_draft_model, walk
from divine.gguf import open_gguf
from divine.models import build_program
from divine.sampling import Sampler, SamplingParams
from divine.text import Tokenizer
from tiny_models import tiny_llama

PROMPT = (1, 10, 11, 12, 13, 14, 15)
GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=1.0, seed=11)
PENALIZED = SamplingParams(
    temperature=1.0, seed=5, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.4,
    logit_bias={20: 3.0}, top_k=40, top_p=0.95, min_p=0.01,
)  # fmt: skip
PENALIZED_GREEDY = SamplingParams(temperature=0, repetition_penalty=1.5, frequency_penalty=1.0)
ALL = [GREEDY, SAMPLED, PENALIZED, PENALIZED_GREEDY]
CHAIN = Budget(nodes=5, depth=5, row_price=1e-9)
NAMES = ["greedy", "sampled", "penalized", "penalized greedy"]


@dataclass
class Step:
    """One pass: the tree, its accepted nodes, the tokens it gave."""

    tree: DraftTree
    nodes: list[int]
    tokens: list[int]


@dataclass
class Target:
    """A model that decodes with or without a drafter."""

    executable: Executable
    tokenizer: Tokenizer
    path: Path
    steps: list[Step] = field(default_factory=list)

    @staticmethod
    def load(path: Path, threads: int = 1) -> Target:
        gguf = open_gguf(path)
        executable = CpuBackend().compile(build_program(gguf), gguf, threads=threads)
        return Target(executable, Tokenizer.from_metadata(gguf.metadata, str(path)), path)

    def drafter(self, path: Path | None = None, **options: Any) -> Any:
        options = {"threads": 1, "vocabulary": 0, **options}
        return load_draft_model(
            path or self.path, self.tokenizer, target_file=str(self.path), **options
        )

    def plain(self, prompt: Sequence[int], count: int, params: SamplingParams) -> list[int]:
        """The text without drafting."""
        return self.decode(prompt, count, params, None, Budget(0, 0))

    def decode(
        self,
        prompt: Sequence[int],
        count: int,
        params: SamplingParams,
        drafter: Any,
        budget: Budget,
        *,
        context: int = 256,
        session_of: Callable[[DraftTask], Any] | None = None,
    ) -> list[int]:
        """`count` tokens after the prompt; what happened is in `steps`."""
        sampler = Sampler(params, self.executable.vocabulary)
        tokens = list(prompt)
        histories = sampler.start(tokens)
        state = self.executable.new_state(context)
        task = DraftTask(tokens, len(prompt), sampler, context)
        session = None if drafter is None else (session_of or drafter.begin)(task)
        self.steps = []
        while len(tokens) < len(prompt) + count:
            tree = DraftTree() if session is None else session.propose(histories, budget)
            tree.check(self.executable.vocabulary)
            self._step(state, tokens, tree, sampler, histories)
            for token in self.steps[-1].tokens:
                histories = sampler.advance(histories, token)
                tokens.append(token)
        if session is not None:
            session.close()
        state.close()
        return tokens[len(prompt) : len(prompt) + count]

    def _step(
        self, state: Any, tokens: list[int], tree: DraftTree, sampler: Sampler, histories: Any
    ) -> None:
        gap = tokens[state.length :]
        root = len(gap) - 1
        rows = Rows(
            np.array([*gap, *tree.tokens], np.int32),
            np.array([*range(-1, root), *(root + 1 + p for p in tree.parents)], np.int32),
            np.zeros(len(gap) + len(tree), np.int32),
        )
        result = self.executable.run([state], rows, Want(logits=range(root, len(rows))))
        at = {COMMITTED: histories}
        depths = [0, *tree.depths()]

        def choose(node: int) -> int:
            if node != COMMITTED:
                at[node] = sampler.advance(at[tree.parents[node]], tree.tokens[node])
            position = len(tokens) + depths[node + 1]
            return sampler.choose(at[node], result.logits[node + 1], position)

        found = walk(tree, choose)
        state.commit([*range(root + 1), *(root + 1 + node for node in found.nodes)])
        self.steps.append(Step(tree, found.nodes, found.tokens))


def models(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """A target and a draft model that is its beginning, so that they often agree."""
    target = tiny_llama(folder / "target.gguf", seed=1, **changes)
    draft = tiny_llama(folder / "draft.gguf", seed=1, layers=1, **changes)
    return target, draft


def first_chain(tree: DraftTree) -> list[int]:
    """The tokens of the tree's first child, its first child, and so on."""
    tokens, node = [], ROOT
    while node in tree.parents:
        node = tree.parents.index(node)
        tokens.append(tree.tokens[node])
    return tokens


def task_of(target: Target, tokens: list[int], params: SamplingParams, **options: Any) -> DraftTask:
    sampler = Sampler(params, target.executable.vocabulary)
    return DraftTask(tokens, len(tokens), sampler, options.pop("context", 256), **options)


def propose(session: Any, task: DraftTask, budget: Budget = CHAIN) -> DraftTree:
    histories = task.sampler.start(task.tokens[: task.prompt_length])
    for token in task.tokens[task.prompt_length :]:
        histories = task.sampler.advance(histories, token)
    tree: DraftTree = session.propose(histories, budget)
    tree.check(task.sampler.vocabulary)
    return tree


class Counting:
    """Stands before an executable and keeps the number of rows of each pass."""

    def __init__(self, executable: Any) -> None:
        self.inner = executable
        self.rows: list[int] = []
        self.shortlists: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, states: Any, rows: Rows, want: Want) -> Any:
        self.rows.append(len(rows))
        self.shortlists.append(want.shortlist)
        return self.inner.run(states, rows, want)
