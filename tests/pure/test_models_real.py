"""Real model files through the reference backend: the answer to a simple question is the right one.

The chat prompt is given as ids, and tokens are read from the metadata, so that only the model is
under test here, not the tokenizer.
"""

from __future__ import annotations

import numpy as np
import pytest

from divine.backends.base import Rows, Want
from divine.backends.reference.backend import ReferenceBackend
from divine.gguf import open_gguf
from divine.models import build_program
from divine.store.folder import models_folder

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"

# <|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face
# <|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n
PROMPT = [
    *(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411),
    *(407, 19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1),
    *(520, 9531, 198),
]
END = 2  # <|im_end|>
ANSWER = "ĠtheĠcapitalĠofĠFranceĠisĠParis."


@pytest.mark.model
def test_smollm2_knows_the_capital_of_france() -> None:
    path = models_folder() / SMOLLM2
    if not path.exists():
        pytest.skip(f"{SMOLLM2} is not in {path.parent}; divine pull smollm2 fetches it")
    with open_gguf(path) as gguf:
        tokens = gguf.metadata.strings("tokenizer.ggml.tokens")
        executable = ReferenceBackend(batched=True).compile(build_program(gguf), gguf)
    state = executable.new_state(64)
    said: list[int] = []
    pending = PROMPT
    while len(said) < 12 and END not in said:
        rows = Rows.chain(np.array(pending, np.int32))
        last = len(rows) - 1
        found = executable.run([state], rows, Want(best=[last]))
        state.commit(range(len(rows)))
        said.append(int(found.best_ids[0]))
        pending = said[-1:]
    assert said[-1] == END
    assert "".join(tokens[token] for token in said[:-1]).lower() == ANSWER.lower()[1:]
