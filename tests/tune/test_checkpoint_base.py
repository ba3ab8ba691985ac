"""A Hugging Face checkpoint as the base: the same heads from one process and from two."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="checkpoints need transformers: the extra `tune`")
pytest.importorskip("accelerate", reason="several processes need accelerate: the extra `tune`")

from divine.cli.main import execute
from divine.heads import HeadWeights
from divine.tune.answers import AnswerStore
from divine.tune.training import WEIGHTS

WORDS = ["<pad>", "<end>", "<user>", "<assistant>", *(f"w{n}" for n in range(60))]
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% if m['role'] == 'assistant' %}"
    "<end> {% endif %}{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("checkpoint")
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, "<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", pad_token="<pad>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, eos_token_id=1, pad_token_id=0,
        bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("data") / "talks.jsonl"

    def words(count: int) -> str:
        return " ".join(f"w{n}" for n in random.integers(0, 60, count))

    talks: list[Any] = [{"instruction": words(3), "output": words(12)} for _ in range(30)]
    talks += [{"messages": []}, {"conversations": "broken"}, 7]
    path.write_text("\n".join(json.dumps(talk) for talk in talks))
    return path


def arguments(checkpoint: Path, dataset: str, output: Path) -> list[str]:
    return [
        "--base_model", str(checkpoint), "--num_heads", "2", "--rank", "8", "--dataset", dataset,
        "--output_dir", str(output), "--steps", "6", "--draft_vocab", "0", "--device", "cpu",
        "--loss", "hard",
    ]  # fmt: skip


def test_one_process_and_two_train_the_same_heads(
    checkpoint: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert execute(["tune", *arguments(checkpoint, str(dataset), tmp_path / "one")]) == 0
    assert "3 left out" in capfd.readouterr().err
    # As torchrun starts them, without a third process that imports torch.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {
        **os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    command = [sys.executable, "-m", "divine_tune"]
    command += arguments(checkpoint, str(dataset), tmp_path / "two")
    processes = [
        subprocess.Popen(command, env={**common, "RANK": rank, "LOCAL_RANK": rank},
                         stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]  # fmt: skip
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-2000:]
    whole, parts = (AnswerStore(tmp_path / name / "answers") for name in ("one", "two"))
    assert [a.tokens.tolist() for a in whole] == [a.tokens.tolist() for a in parts]
    one, other = (HeadWeights.load(tmp_path / name / WEIGHTS) for name in ("one", "two"))
    assert one.fingerprint == other.fingerprint
    for name, values in one.tensors.items():
        assert np.abs(values - other.tensors[name]).max() < 1e-4, name  # sums in another order


def test_it_answers_prompts_itself(checkpoint: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"w{n} w{n + 1}"}) for n in range(8)))
    options = arguments(checkpoint, "self", tmp_path / "out")
    options += ["--prompts", str(prompts), "--answer-tokens", "9", "--sequences", "3"]
    assert execute(["tune", *options, "--capture-only"]) == 0
    store = AnswerStore(tmp_path / "out" / "answers")
    assert len(store) == 8
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    for answer in store:
        with torch.no_grad():
            ids = torch.from_numpy(answer.tokens.astype(np.int64))[None]
            logits = model(ids).logits[0]
        chosen = logits.argmax(-1)[answer.prompt - 1 : -1].numpy()
        assert np.array_equal(chosen, answer.answer)
        again = answer.states.astype(np.float32) @ model.lm_head.weight.detach().numpy().T
        assert np.array_equal(again.argmax(-1), chosen)
