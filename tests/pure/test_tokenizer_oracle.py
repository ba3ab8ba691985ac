"""Ids equal llama.cpp's for every one of its test vocabularies that is supported."""

from __future__ import annotations

import pytest
from vocabularies import llama_cpp_vocabularies

from divine.gguf import open_gguf
from divine.text import Tokenizer

SUPPORTED = (
    *("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe"),
    *("llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)


@pytest.mark.oracle
@pytest.mark.parametrize("name", SUPPORTED)
def test_ids_equal_those_of_llama_cpp(name: str) -> None:
    path = llama_cpp_vocabularies() / f"ggml-vocab-{name}.gguf"
    with open_gguf(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata, path.name)
    inputs = path.with_suffix(".gguf.inp").read_bytes().decode()
    texts = inputs.split("\n__ggml_vocab_test__\n")
    lines = path.with_suffix(".gguf.out").read_text().split("\n")
    assert len(texts) > 40
    for text, line in zip(texts, lines, strict=False):
        ids = [int(id_) for id_ in line.split()]
        assert tokenizer.encode(text, bos=False) == ids
        assert tokenizer.decode(ids) == text


@pytest.mark.oracle
def test_whole_words_are_looked_up_before_merging_for_llama_bpe_only() -> None:
    folder = llama_cpp_vocabularies()
    for name, ids in (("llama-bpe", [101798]), ("qwen2", [128324])):
        with open_gguf(folder / f"ggml-vocab-{name}.gguf") as file:
            tokenizer = Tokenizer.from_metadata(file.metadata, name)
        assert tokenizer.encode(" Vi\u1ec7t", bos=False) == ids


@pytest.mark.oracle
def test_the_dummy_space_of_sentencepiece() -> None:
    with open_gguf(llama_cpp_vocabularies() / "ggml-vocab-llama-spm.gguf") as file:
        tokenizer = Tokenizer.from_metadata(file.metadata, "llama-spm")
    assert tokenizer.encode("", bos=False) == []
    assert tokenizer.encode(" ", bos=False) == [259]
    (user,) = tokenizer.encode("user", bos=False)
    assert tokenizer.token_text(user) == "\u2581user"
    assert tokenizer.encode("user") == [1, user]
    assert tokenizer.encode("<s>user", special=True) == [1, user]
    assert tokenizer.encode("</s>", special=True, bos=False) == [2]
    assert tokenizer.decode([1, user]) == "user"
