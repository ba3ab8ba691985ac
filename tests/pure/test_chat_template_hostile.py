"""Templates that reach for Python, never end, or grow: one sentence, soon, in little memory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from divine.errors import TemplateError
from divine.text import ChatTemplate

USER = [{"role": "user", "content": "hi"}]
SECONDS = 6.0  # the sandbox stops at 2; the rest is for slow, shared machines

REACHING = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('touch pwned').read() }}",
    "{{ ('{0.__class__.__init__.__globals__}').format(messages) }}",
    "{{ '{0.__class__}'|format(messages) if false else messages|attr('__class__') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__func__ }}",
    "{{ 'x'['__class__'] }}",
    "{{ joiner.__init__ }}",
    "{% set x = namespace(a=1) %}{{ x.__dict__ }}",
    "{% set _ = messages.append(1) %}",
    "{% set _ = messages[0].update(role='x') %}",
]

ENDLESS = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{{ 10**10 * 'x' }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ [1]*10**9 }}",
    "{{ 10**10**10 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n < 30 %}{{ f(n+1) }}{{ f(n+1) }}{% endif %}{% endmacro %}{{ f(0) }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% set ns=namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns=namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns=namespace(s=[1]) %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns=namespace(s=[1]) %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
    "{{ ns.s }}",
    "{% set ns=namespace(n=10) %}{% for i in range(40) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "{% set ns=namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set ns.l = ns.l + ['x' * 100000] %}{% endfor %}",
    "{% set b='x' * 1000000 %}{% set ns=namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set ns.l = ns.l + [b[1:]] %}{% endfor %}",
    "{% macro m() %}{% set b='x' * 1000000 %}{% for i in range(99999) %}{{ b }}{% endfor %}"
    "{% endmacro %}{{ m() | length }}",
    "{% set b='x' * 1000000 %}{% for i in range(99999) %}{{ b }}{% endfor %}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.zfill(10**9) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10**9) }}",
    "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
    "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "{{ range(99999) | join('x' * 100000) }}",
    "{{ ('x' * 100000).join(range(9999) | map('string') | list) }}",
    "{{ ('a\n' * 100000) | indent('x' * 100000) }}",
    "{{ 'a' | indent(10**9) }}",
    "{{ {'a': 1} | tojson(indent=10**9) }}",
    "{{ 'x' | center(10**9) }}",
    "{{ lipsum(n=10**9) }}",
    "{{ strftime_now('%1000000000Y') }}",
    "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "{{ a" + ".b" * 30000 + " }}",
    "{% if true %}" * 3000 + "{% endif %}" * 3000,
    "x" * 20_000_000,
]

WRONG = [
    ("one\n{% endfor %}", "line 2"),
    ("{{ 1 + }}", "line 1"),
    ("{%", "line 1"),
    ("{% include '/etc/passwd' %}", "no loader"),
    ("{{ messages[0].content.foo.bar }}", "foo"),
    ("{{ 1 / 0 }}", "division"),
    ("{{ messages[0] + 1 }}", "unsupported operand"),
    ("{{ nothing() }}", "'nothing' is undefined"),
    ("{{ 'x' | nofilter }}", "nofilter"),
]


@pytest.mark.parametrize("source", REACHING)
def test_python_is_out_of_reach(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TemplateError, match="not allowed"):
        ChatTemplate({"default": source}).render(USER)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("source", ENDLESS, ids=range(len(ENDLESS)))
def test_time_is_bounded(source: str) -> None:
    begin = time.monotonic()
    template = ChatTemplate({"default": source}, file="model.gguf")
    with pytest.raises(TemplateError) as caught:
        template.render(USER)
    assert time.monotonic() - begin < SECONDS
    assert "chat template" in str(caught.value)
    assert len(str(caught.value)) < 700
    assert "\n" not in str(caught.value)


MEMORY = """
import resource, sys
from divine.errors import TemplateError
from divine.text import ChatTemplate
sys.path.insert(0, sys.argv[1])
from test_chat_template_hostile import ENDLESS, USER
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for source in ENDLESS:
    try:
        ChatTemplate({"default": source}).render(USER)
    except TemplateError:
        pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
def test_memory_is_bounded() -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", MEMORY, here]
    grown = int(subprocess.run(command, capture_output=True, check=True, timeout=250).stdout)
    assert grown < 400  # MB


@pytest.mark.parametrize(("source", "message"), WRONG)
def test_wrong_templates_stop_only_chats(source: str, message: str) -> None:
    template = ChatTemplate({"default": source}, file="model.gguf")
    assert template.sources["default"] == source
    with pytest.raises(TemplateError, match=message) as caught:
        template.render(USER)
    assert "\n" not in str(caught.value)


def test_long_messages_are_no_attack() -> None:
    long = "word \u00e9" * 500_000
    source = "{% for m in messages %}<|u|>{{ m.content | trim }}{{ m | tojson }}{% endfor %}"
    messages = [{"role": "user", "content": long}] * 3
    assert len(ChatTemplate({"default": source}).render(messages)) > 6 * len(long)
