"""Names of models: every spelling, what is refused, and which file of a repository is meant."""

from __future__ import annotations

import pytest

from divine.errors import DownloadError, UsageError
from divine.store import HubName, parse_hub
from divine.store.names import choose, is_model, quantization, shard_names


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("hf:owner/repo", None),
        ("hf://owner/repo", None),
        ("HF:owner/repo:Q4_K_M", "Q4_K_M"),
        ("hf.co/owner/repo:q8_0", "q8_0"),
        ("huggingface.co/owner/repo", None),
        ("https://huggingface.co/owner/repo", None),
        ("https://huggingface.co/owner/repo/", None),
        ("https://hf.co/owner/repo:Q4_0", "Q4_0"),
        ("https://huggingface.co/owner/repo/tree/main", None),
        ("https://huggingface.co/owner/repo/blob/main/a%20b.gguf", "a b.gguf"),
        ("https://huggingface.co/owner/repo/resolve/main/Q8/x.gguf?download=true", "Q8/x.gguf"),
    ],
)
def test_spellings(text, selector):
    assert parse_hub(text) == HubName("owner", "repo", selector)


@pytest.mark.parametrize("text", ["smollm2", "owner/repo", "model.gguf", "./hf", "/hf:owner/repo"])
def test_other_texts_are_no_hub_names(text):
    assert parse_hub(text) is None


def test_bare_names():
    assert parse_hub("owner/repo:Q8_0", bare=True) == HubName("owner", "repo", "Q8_0")


@pytest.mark.parametrize(
    "text",
    [
        "hf:",
        "hf:owner",
        "hf:owner/repo/more",
        "hf:owner/repo:",
        "hf:../repo",
        "hf:owner/repo:../../x.gguf",
        "hf:own er/repo",
        "https://huggingface.co/owner/repo/blob/dev/x.gguf",
    ],
)
def test_malformed_names(text):
    with pytest.raises(UsageError):
        parse_hub(text)


FILES = [
    "README.md",
    "Model-Q4_K_M.gguf",
    "Model-Q8_0.gguf",
    "Model-UD-Q4_K_XL.gguf",
    "mmproj-Model-f16.gguf",
    "Model-imatrix.gguf",
    "BF16/Model-BF16-00001-of-00002.gguf",
    "BF16/Model-BF16-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("selector", "filename"),
    [
        (None, "Model-Q4_K_M.gguf"),
        ("q8_0", "Model-Q8_0.gguf"),
        ("UD-Q4_K_XL", "Model-UD-Q4_K_XL.gguf"),
        ("BF16", "BF16/Model-BF16-00001-of-00002.gguf"),
        ("Model-Q8_0.gguf", "Model-Q8_0.gguf"),
        ("Model-BF16-00002-of-00002.gguf", "BF16/Model-BF16-00001-of-00002.gguf"),
    ],
)
def test_choose(selector, filename):
    assert choose(HubName("o", "r", selector), FILES) == filename


def test_choose_refuses_with_what_there_is():
    with pytest.raises(DownloadError, match=r"nothing for 'Q3'; it has BF16, Q4_K_M, Q8_0"):
        choose(HubName("o", "r", "Q3"), FILES)
    with pytest.raises(DownloadError, match="holds no GGUF"):
        choose(HubName("o", "r"), ["README.md", "mmproj-x.gguf"])
    with pytest.raises(DownloadError, match=r"may mean a/x-Q8_0\.gguf or b/x-Q8_0\.gguf"):
        choose(HubName("o", "r", "Q8_0"), ["a/x-Q8_0.gguf", "b/x-Q8_0.gguf"])


def test_choose_without_a_preferred_quantization():
    assert choose(HubName("o", "r"), ["b-Q2_K.gguf", "a-IQ4_XS.gguf"]) == "a-IQ4_XS.gguf"


def test_shards_and_quantizations():
    assert shard_names("m-00002-of-00003.gguf") == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert shard_names("m.gguf") == ["m.gguf"]
    assert not is_model("m-00002-of-00003.gguf")
    assert quantization("SmolLM2-135M-Instruct.Q4_1.gguf") == "Q4_1"
    assert quantization("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf") == "Q4_K_M"
    assert quantization("qwen2.5.gguf") is None
