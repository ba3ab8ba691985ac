"""Messages about parameters name the option that was given."""

from __future__ import annotations

import pytest

from divine.cli.spelling import as_given


@pytest.mark.parametrize(
    ("message", "arguments", "told"),
    [
        ("context is -5; allowed", "serve m -c -5", "-c is -5; allowed"),
        ("context is -5; allowed", "serve m -c-5", "-c is -5; allowed"),
        ("context is -5; allowed", "serve m --ctx-size=-5", "--ctx-size is -5; allowed"),
        ("temperature is 500", "run m p --temp 500", "--temp is 500"),
        ("temperature is 500", "run m p --temperature 500", "--temperature is 500"),
        ("stop has ''", "run m p -r x", "-r has ''"),
        ("draft_tree is 0", "run m p --draft-tree 0", "--draft-tree is 0"),
        ("prefix_cache is 'x'", "serve m --prefix-cache x", "--prefix-cache is 'x'"),
        ("temperature is 500", "run m p", "temperature is 500"),
        ("temperature is 500", "run m -- --temp", "temperature is 500"),
        ("m.gguf: context is wrong", "run m.gguf -c 5", "m.gguf: context is wrong"),
    ],
)
def test_messages_name_the_option_that_was_given(message, arguments, told):
    assert as_given(message, arguments.split()) == told
