"""A decoder made of random numbers and a clock that moves only when told, to try the controller on.

The model always says the next number; a drafter is right with a given probability. What a pass and
a drafter cost is added to the clock, so a run gives milliseconds that depend on nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from divine.drafting import (
    Budget,
    Controller,
    CostTable,
    DraftTask,
    DraftTree,
    SequenceDraft,
    walk,
)
from divine.sampling import Histories, Sampler, SamplingParams

VOCABULARY = 10_000_000
WRONG = VOCABULARY - 1
REAL = {1: 56.0, 2: 57.0, 3: 63.0, 4: 67.0, 5: 77.0, 6: 90.0, 8: 116.0, 16: 221.0}
FLAT = {1: 50.0, 64: 52.0}
STEEP = {1: 50.0, 2: 65.0, 64: 995.0}
STEPS = {n: 40.0 + 14.0 * ((n + 3) // 4) for n in range(1, 65)}  # tiles of four rows

Quality = Callable[[int, int], float]  # (position of the node, depth) -> probability of being right
Claim = Callable[[float], float]  # probability -> what the drafter says it is


def honest(probability: float) -> float:
    return probability


def always(claim: float) -> Claim:
    return lambda probability: claim


def quality(*by_depth: float) -> Quality:
    return lambda position, depth: by_depth[min(depth, len(by_depth)) - 1]


@dataclass
class Clock:
    """Milliseconds, and a callable that gives seconds."""

    ms: float = 0.0

    def __call__(self) -> float:
        return self.ms / 1e3


@dataclass
class FakeDrafter:
    """Proposes a chain; with `level_ms` it costs time, and first reads what it has not read."""

    right: Quality
    claim: Claim = honest
    name: str = "fake"
    clock: Clock = field(default_factory=Clock)
    level_ms: float = 0.0
    row_ms: float = 0.0  # of a token that it has not read yet
    most: int = 64
    seed: int = 0
    obeys: bool = True  # it stops where its claims say that a level is not worth its time
    taps: tuple[str, ...] = ()
    asked: int = 0
    filled_ms: float = 0.0

    @property
    def free(self) -> bool:
        return self.level_ms == 0

    def begin(self, task: DraftTask) -> FakeSession:
        return FakeSession(self, task)

    def close(self) -> None:
        pass


class FakeSession:
    def __init__(self, drafter: FakeDrafter, task: DraftTask) -> None:
        self.drafter = drafter
        self.task = task
        self.read = 0
        self.drafted: list[int] = []
        self.random = random.Random(drafter.seed)

    def cost_ms(self, depth: int) -> float:
        behind = max(len(self.task.tokens) - self.read - 1, 0)
        return depth * self.drafter.level_ms + behind * self.drafter.row_ms

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        drafter, tree = self.drafter, DraftTree()
        drafter.asked += 1
        if not drafter.free:
            fill = self.cost_ms(0)
            drafter.filled_ms += fill
            drafter.clock.ms += fill
            self.read = len(self.task.tokens) - 1
        self.drafted = []
        root, reach, alive = self.task.tokens[-1], 1.0, True
        for depth in range(1, min(budget.depth, budget.nodes, drafter.most) + 1):
            share = drafter.right(root + depth, depth)
            claim = drafter.claim(share)
            reach *= budget.calibrate(depth, claim)
            if drafter.obeys and depth > 1:
                worth = budget.row_price + budget.time_price * drafter.level_ms
                if reach < worth:
                    break
            drafter.clock.ms += drafter.level_ms
            alive = alive and self.random.random() < share
            self.drafted.append(root + depth if alive else WRONG)
            tree.add(root + depth if alive else WRONG - depth, depth - 2, claim)
        return tree

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """It has read the tokens that it drafted itself, but for the last one."""
        for token in self.drafted[:-1]:
            if self.read + 1 < len(self.task.tokens) and self.task.tokens[self.read + 1] == token:
                self.read += 1
        self.drafted = []

    def close(self) -> None:
        pass


@dataclass
class Reader:
    """A sequence of the simulated decoder."""

    draft: SequenceDraft
    tokens: list[int]
    end: int
    confidence: Quality
    started: float = 0.0
    history: list[tuple[float, int, int]] = field(default_factory=list)  # (ms, tokens, nodes)

    @property
    def done(self) -> bool:
        return len(self.tokens) >= self.end


class Simulator:
    """Runs sequences under a controller; `true_costs` is what passes really take."""

    def __init__(
        self,
        drafters: Sequence[FakeDrafter],
        true_costs: Mapping[int, float],
        known: CostTable | None = None,
        noise: float = 0.0,
        max_rows: int = 64,
        seed: int = 1,
    ) -> None:
        self.clock = Clock()
        for drafter in drafters:
            drafter.clock = self.clock
        self.true = CostTable.frozen(true_costs)
        self.names = [drafter.name for drafter in drafters]
        self.controller = Controller(
            self.true if known is None else known,
            {drafter.name: drafter for drafter in drafters},
            VOCABULARY,
            max_rows,
            self.clock,
        )
        self._noise = noise
        self._random = random.Random(seed)

    def start(
        self,
        answer: int,
        *,
        prompt: int = 100,
        names: Sequence[str] | None = None,
        nodes: int | None = None,
        confidence: float | Quality | None = None,
    ) -> Reader:
        """A sequence that says `answer` tokens."""
        tokens = list(range(prompt))
        params = SamplingParams(temperature=0.0)
        task = DraftTask(tokens, prompt, Sampler(params, VOCABULARY), prompt + answer)
        draft = self.controller.begin(task, self.names if names is None else names, nodes=nodes)
        level = confidence
        known: Quality = level if callable(level) else lambda position, depth: level  # type: ignore[assignment,return-value]
        return Reader(draft, tokens, prompt + answer, known, self.clock.ms)

    def step(self, readers: Sequence[Reader], prompt_rows: int = 0) -> None:
        """One pass with all of them."""
        began = self.clock.ms
        wanting = [(r.draft, (), r.end - len(r.tokens) - 1) for r in readers]
        trees = self.controller.plan(wanting, len(readers) + prompt_rows, 0)
        rows = len(readers) + prompt_rows + sum(map(len, trees))
        ms = self.true.cost(rows, 0) * self._random.lognormvariate(0.0, self._noise)
        if self._noise and self._random.random() < 0.03:
            ms *= 2.5  # another program had the machine
        self.clock.ms += ms
        for reader, tree in zip(readers, trees, strict=True):
            assert len(tree) <= max(reader.end - len(reader.tokens) - 1, 0)
            root = reader.tokens[-1]
            depths = tree.depths()
            said = walk(tree, lambda n: root + (depths[n] if n >= 0 else 0) + 1)  # noqa: B023
            reader.tokens += said.tokens
            sure = reader.confidence(reader.tokens[-1], 1)
            self.controller.settle(reader.draft, tree, said, {}, sure)
            reader.history.append((self.clock.ms - began, len(said.tokens), len(tree)))
        self.controller.observe_pass(rows, 0, ms)

    def together(self, readers: Sequence[Reader]) -> None:
        """Several sequences, until all have ended."""
        while open_ := [reader for reader in readers if not reader.done]:
            self.step(open_)

    def run(self, answer: int, **options: object) -> Reader:
        """One sequence alone, to its end."""
        reader = self.start(answer, **options)  # type: ignore[arg-type]
        while not reader.done:
            self.step([reader])
        self.controller.close(reader.draft)
        return reader


def speedup(reader: Reader, costs: Mapping[int, float], skip: int = 0) -> float:
    """Times as fast as plain decoding; the first `skip` passes left out."""
    history = reader.history[skip:]
    plain = CostTable.frozen(costs).cost(1, 0)
    return plain * sum(entry[1] for entry in history) / sum(entry[0] for entry in history)


def best_speedup(right: Quality, costs: Mapping[int, float], level_ms: float = 0.0) -> float:
    """What the best fixed number of nodes of a chain would give."""
    table = CostTable.frozen(costs)
    best, reach, tokens = 1.0, 1.0, 1.0
    for nodes in range(1, 64):
        reach *= right(0, nodes)
        tokens += reach
        ms = table.cost(1 + nodes, 0) + nodes * level_ms
        best = max(best, tokens * table.cost(1, 0) / ms)
    return best
