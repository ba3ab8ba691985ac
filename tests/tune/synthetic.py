"""A language whose every token is a function of a hidden code and the tokens before, as answers.

The code of a position is in its hidden state; it changes from position to position by a fixed
permutation, and the token two further on depends on it: y[t+2] = GRAMMAR[code[t], y[t+1]]. So what
a head can know of y[t+k+1] follows from the state at t and y[t+1..t+k], and from nothing less.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from divine.tune.answers import Answer, AnswerStore, AnswerWriter, Finish
from divine.tune.tables import Tables

CODES, TOKENS, DIM = 8, 12, 48
_random = np.random.default_rng(5)
GRAMMAR = _random.integers(0, TOKENS, (CODES, TOKENS))
NEXT_CODE = np.roll(np.arange(CODES), 3)  # a single cycle: 3 and 8 have no common factor
STATES = _random.standard_normal((CODES, DIM)).astype(np.float32)
EMBEDDING = _random.standard_normal((TOKENS, DIM)).astype(np.float32)
OUTPUT = _random.standard_normal((TOKENS, DIM)).astype(np.float32)

SETTINGS = {
    "base": "synthetic",
    "fingerprint": "synthetic",
    "dim": DIM,
    "vocabulary": TOKENS,
    "states": True,
}


def synthetic_store(
    folder: Path, answers: int = 120, length: int = 40, seed: int = 0
) -> AnswerStore:
    """Answers of the language; the states carry a little noise."""
    random = np.random.default_rng(seed)
    with AnswerWriter(folder, SETTINGS) as writer:
        for number in range(answers):
            code, token = random.integers(CODES), random.integers(TOKENS)
            tokens, states = [int(random.integers(TOKENS))], []
            for _ in range(length):
                # The state at t has code u[t] and has chosen y[t+1].
                tokens.append(int(token))
                states.append(STATES[code] + 0.01 * random.standard_normal(DIM))
                token, code = GRAMMAR[code, token], NEXT_CODE[code]
            writer.append(
                Answer(
                    number,
                    np.array(tokens, np.int32),
                    1,
                    np.array(states, np.float16),
                    Finish.LENGTH,
                )
            )
    return AnswerStore(folder)


def remembered_store(folder: Path, answers: int = 160, length: int = 24) -> AnswerStore:
    """Answers that repeat their first five tokens, random ones; every state is the same."""
    random = np.random.default_rng(9)
    state = np.tile(STATES[0], (length, 1)).astype(np.float16)
    with AnswerWriter(folder, SETTINGS) as writer:
        for number in range(answers):
            motif = random.permutation(TOKENS)[:5]
            tokens = np.resize(motif, length)
            whole = np.concatenate([[0], tokens]).astype(np.int32)
            writer.append(Answer(number, whole, 1, state, Finish.LENGTH))
    return AnswerStore(folder)


def synthetic_tables() -> Tables:
    """All tokens may be drafted."""
    every = np.arange(TOKENS, dtype=np.int32)
    return Tables(every, EMBEDDING, every, OUTPUT, None, np.ones(DIM, np.float32), 1e-5, TOKENS)
