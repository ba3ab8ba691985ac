"""The Python API on tiny model files, computed by the reference backend."""

from __future__ import annotations

import dataclasses
import gc
import threading

import pytest

import divine
from divine.errors import CapacityError, DivineError, FormatError, UsageError
from divine.gguf import typed
from tiny_models import tiny_llama

GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", seed=1)


@pytest.fixture(scope="module")
def model(path):
    with divine.load(path, backend="reference", context=256) as loaded:
        yield loaded


def test_generate_stream_and_many_say_the_same(model):
    prompts = ["hello world", "the user is", "hello the model"]
    for options in (GREEDY, {"temperature": 1.0, "seed": 5, "max_tokens": 8}):
        alone = [model.generate(prompt, **options) for prompt in prompts]
        together = model.generate_many(prompts, **options)
        for prompt, one, shared in zip(prompts, alone, together, strict=True):
            assert one.text == shared.text
            assert one.tokens == shared.tokens
            with model.stream(prompt, **options) as stream:
                chunks = list(stream)
            assert "".join(chunk.text for chunk in chunks) == one.text
            assert [token for chunk in chunks for token in chunk.tokens] == one.tokens
            assert stream.completion.text == one.text
            assert stream.completion.finish_reason == one.finish_reason


def test_a_str_is_one_user_message(model):
    as_text = model.generate("hello", **GREEDY)
    as_messages = model.generate([{"role": "user", "content": "hello"}], **GREEDY)
    assert as_text.tokens == as_messages.tokens
    assert as_text.prompt_tokens == as_messages.prompt_tokens
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    raw = model.generate(rendered, raw=True, **GREEDY)
    assert raw.tokens == as_text.tokens
    ids = model.tokenize(rendered)
    assert model.generate(ids, **GREEDY).tokens == as_text.tokens
    assert as_text.prompt_tokens == len(ids)
    assert model.detokenize(ids) == rendered


def test_an_answer_can_be_begun(model):
    begun = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": " the"}]
    continued = model.generate(begun, continue_final_message=True, **GREEDY)
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n the"
    assert continued.tokens == model.generate(rendered, raw=True, **GREEDY).tokens


def test_figures_and_fields(model):
    completion = model.generate("hello", logprobs=2, **GREEDY)
    statistics = dataclasses.asdict(completion.statistics)
    assert statistics["tokens"] == len(completion.tokens) <= 8
    assert statistics["prompt_tokens"] == completion.prompt_tokens
    assert len(completion.logprobs) == len(completion.tokens)
    for token, entry in zip(completion.tokens, completion.logprobs, strict=True):
        assert entry.token == token == entry.top[0][0]
        assert entry.logprob == entry.top[0][1] <= 0
    assert model.generate("hello", **GREEDY).logprobs is None


def test_a_drawn_seed_is_reported_and_repeats_the_text(model):
    first = model.generate("hello", temperature=1.5, max_tokens=8)
    again = model.generate("hello", temperature=1.5, max_tokens=8, seed=first.seed)
    assert first.tokens == again.tokens


def test_max_tokens_zero_is_an_empty_answer(model):
    completion = model.generate("hello", max_tokens=0)
    assert (completion.text, completion.tokens, completion.finish_reason) == ("", [], "length")
    assert list(model.stream("hello", max_tokens=0)) == []


def test_stop_strings_end_the_text(model):
    whole = model.generate("hello", temperature=0, max_tokens=20, logit_bias={2: -100})
    cut = whole.text[5:7]
    stopped = model.generate("hello", temperature=0, max_tokens=20, logit_bias={2: -100}, stop=cut)
    assert stopped.text == whole.text[: whole.text.index(cut)]
    assert stopped.finish_reason == "stop"


def test_closing_a_stream_cancels_and_keeps_what_was_said(model):
    options = {"temperature": 0, "max_tokens": 100, "logit_bias": {2: -100}}
    with model.stream("hello", **options) as stream:
        with pytest.raises(UsageError, match="not ended"):
            _ = stream.completion
        first = next(stream)
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.text.startswith(first.text)
    assert list(stream) == []
    whole = model.generate("hello", **options)
    assert whole.text.startswith(stream.completion.text.rstrip("�"))


def test_an_abandoned_stream_stops_using_rows(model):
    stream = model.stream("hello", temperature=0, logit_bias={2: -100})
    next(stream)
    del stream
    gc.collect()
    model.generate("hello", **GREEDY)
    assert model._engine._running == []


def test_threads_share_a_model(model):
    prompts = [f"hello {i}" for i in range(4)]
    expected = [model.generate(prompt, **GREEDY).tokens for prompt in prompts]
    results = {}

    def work(prompt):
        results[prompt] = model.generate(prompt, **GREEDY).tokens

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[prompt] for prompt in prompts] == expected


def test_an_interrupt_leaves_the_model_usable(path, monkeypatch):
    with divine.load(path, backend="reference", context=256) as model:
        expected = model.generate("hello", **GREEDY).tokens
        run = model._executable.run
        calls = 0

        def interrupted(*arguments):
            nonlocal calls
            calls += 1
            if calls == 3:
                raise KeyboardInterrupt
            return run(*arguments)

        monkeypatch.setattr(model._executable, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.generate("hello", **GREEDY)
        assert model._engine._running == []
        assert model.generate("hello", **GREEDY).tokens == expected


def test_prompts_beyond_the_context_are_refused_with_both_numbers(model):
    with pytest.raises(CapacityError, match=r"prompt of 256 tokens exceeds the context of 256"):
        model.generate([5] * 256)
    full = model.generate([5] * 255, temperature=0)
    assert (len(full.tokens), full.finish_reason) in [(1, "length"), (0, "stop")]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": -1}, "temperature is -1; allowed is a number from 0 to 100"),
        ({"top_p": 1.0001}, "top_p is 1.0001"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": "5"}, "max_tokens is '5'"),
        ({"stop": [""]}, "stop has ''"),
        ({"stop": ""}, "stop has ''"),
        ({"stop": ["a", "\udcff"]}, "stop has '\\udcff', with a lone"),
        ({"stop": 5}, "stop is 5"),
        ({"logit_bias": {10**6: 1}}, "logit_bias names token 1000000"),
        ({"logprobs": 21}, "logprobs is 21; allowed is an integer from 0 to 20"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"tempratur": 1}, "option 'tempratur' is unknown; allowed are max_tokens, "),
        ({"raw": True, "tools": [{}]}, "tools need the chat template"),
    ],
)
def test_wrong_options_are_refused_by_name(model, options, sentence):
    with pytest.raises(UsageError) as caught:
        model.generate("hello", **options)
    assert str(caught.value).startswith(sentence)


def test_wrong_prompts_are_refused(model):
    with pytest.raises(UsageError, match="empty"):
        model.generate("", raw=True)
    with pytest.raises(UsageError, match="prompt token 1 is 320"):
        model.generate([1, 320])
    with pytest.raises(UsageError, match=r"prompt token 1 is 1\.5"):
        model.generate([1, 1.5])
    with pytest.raises(UsageError, match="prompt token 0 is -1"):
        model.generate([-1])
    with pytest.raises(DivineError):
        model.generate([])
    with pytest.raises(UsageError, match="raw leaves out the chat template"):
        model.generate([{"role": "user", "content": "hello"}], raw=True)
    for prompt in (None, 5, b"hello", {"role": "user", "content": "hello"}):
        with pytest.raises(UsageError, match="allowed are a text, a list of messages"):
            model.generate(prompt)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"context": -1}, "context is -1"),
        ({"context": 10**9}, "the model was trained for"),
        ({"threads": 0}, "threads is 0"),
        ({"kv_type": "f32"}, 'kv_type is \'f32\'; allowed are "f16" and "q8_0"'),
        ({"backend": "tpu"}, 'backend "tpu" is unknown'),
        ({"backend": []}, 'backend "[]" is unknown'),
        ({"heads": 5}, "heads is 5; allowed is a path"),
        ({"draft_model": []}, "draft_model is []; allowed is a path"),
        ({"prefix_cache": 1.5}, "prefix_cache is 1.5; allowed is a path"),
    ],
)
def test_wrong_load_options_are_refused(path, options, sentence):
    with pytest.raises(UsageError) as caught:
        divine.load(path, **{"backend": "reference", **options})
    assert sentence in str(caught.value)


def test_paths_tokens_and_texts_of_another_type_are_refused(model):
    for path in (None, 5, b"model.gguf", []):
        with pytest.raises(UsageError, match=r"model is .*; allowed is a path"):
            divine.load(path)
    for text in (None, 5, b"a", []):
        with pytest.raises(UsageError, match="allowed is a str"):
            model.tokenize(text)
    for tokens in (None, 5, "abc", [None], [1.5]):
        with pytest.raises(UsageError, match="token"):
            model.detokenize(tokens)
        with pytest.raises(UsageError, match="token"):
            model.embedding(tokens)


def test_sampling_defaults_come_from_the_file(tmp_path):
    keys = {
        "general.sampling.temp": typed("f32", 0.25),
        "general.sampling.top_k": typed("i32", 7),
    }
    file = tiny_llama(tmp_path / "a.gguf", metadata_overrides=keys)
    with divine.load(file, backend="reference") as model:
        found = model.defaults
    assert (found.temperature, found.top_k, found.top_p, found.min_p) == (0.25, 7, 0.95, 0.05)
    keys["general.sampling.temp"] = typed("f32", -3.0)
    file = tiny_llama(tmp_path / "b.gguf", metadata_overrides=keys)
    with pytest.raises(FormatError, match="temperature is -3"):
        divine.load(file, backend="reference")


def test_a_closed_model_says_so(path):
    model = divine.load(path, backend="reference")
    model.close()
    model.close()
    with pytest.raises(UsageError, match="closed"):
        model.generate("hello")


def test_public_names_are_listed_and_lazy():
    assert set(divine.__all__) <= set(dir(divine))
    assert divine.load.__module__ == "divine.api.loading"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = divine.nonsense


def test_what_was_kept_is_forgotten_on_demand(path):
    with divine.load(path) as model:
        forgotten = []
        model._drafters["ngram"].forget = lambda: forgotten.append("ngram")
        reused = []
        for _ in range(2):
            model.generate("hello the world", max_tokens=2, temperature=0)
            again = model.generate("hello the world", max_tokens=2, temperature=0)
            reused.append(again.statistics.reused_tokens)
            model.forget()
            anew = model.generate("hello the world", max_tokens=2, temperature=0)
            reused.append(anew.statistics.reused_tokens)
            model.forget()
        assert reused[0] == reused[2] > 0
        assert reused[1] == reused[3] == 0
        assert len(forgotten) == 4
