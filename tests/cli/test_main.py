"""The edge of the command line: help, exit codes, one sentence for everything that goes wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from divine import __version__
from divine.cli import main
from divine.errors import CapacityError, DivineError, UsageError

from .conftest import Result, assert_one_sentence


def test_version(divine):
    assert divine("--version").out == f"divine {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(divine, arguments):
    result = divine(*arguments)
    assert result.code == 0
    for name in main.COMMANDS:
        assert f"\n  {name} " in result.out


@pytest.mark.parametrize("command", list(main.COMMANDS))
def test_every_command_has_help(divine, command):
    result = divine(command, "--help")
    assert result.code == 0
    assert f"Usage: divine {command}" in result.out


def test_help_as_a_word(divine):
    assert divine("help").out == divine("--help").out
    assert divine("help", "rm").out == divine("rm", "--help").out


def test_help_imports_nothing_heavy():
    """What makes --help quick: none of these is needed for it."""
    heavy = ["numpy", "rich", "pydantic", "tokenizers", "jinja2", "huggingface_hub", "platformdirs"]
    code = (
        "import sys; from divine.cli.main import execute; execute(['run', '--help']);"
        f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "-sys, --system" in done.stdout
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], ["nope", "divine --help"]),
        (["rnu"], ["did you mean 'run'? See `divine --help`"]),
        (["run", "--nope"], ["--nope", "divine run --help"]),
        (["run", "m", "p", "-n"], ["-n"]),
        (["run", "m", "p", "-n", "2.5"], ["-n", "'2.5' is not a valid integer; see"]),
        (["run", "m", "p", "--temp", "hot"], ["--temp", "'hot' is not a valid number; see"]),
        (["run", "m", "p", "--kv", "f8"], ["'--kv': 'f8' is not one of", "f16", "q8_0"]),
        (["run", "m", "p", "--backend", "gpu"], ["--backend", "cpu", "reference"]),
        (["run", "m", "p", "extra"], ["extra"]),
        (["run"], ["no model"]),
        (["run", "a", "p", "-m", "b"], ["more than one model", "a, b"]),
        (["run", "-m", "b", "-hf", "o/r", "p"], ["more than one model"]),
        (["pull"], ["NAME"]),
        (["bench"], ["MODEL", "--shape"]),
    ],
)
def test_usage_errors_are_one_sentence_and_exit_2(divine, arguments, words):
    result = divine(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert_one_sentence(result, *words)


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-ngl", "99"], "-ngl is an option of llama.cpp; Divine computes on the CPU"),
        (["--n-gpu-layers=99"], "--n-gpu-layers is an option of llama.cpp"),
        (["-no-cnv"], "-no-cnv is an option of llama.cpp"),
        (["-cnv"], "`divine chat`"),
        (["-b", "512"], "-b is an option of llama.cpp"),
        (["-ub", "512"], "size of a pass"),
        (["-fa"], "attention"),
        (["--mlock"], "memory"),
        (["--no-mmap"], "memory"),
        (["-ctk", "q8_0"], "--kv"),
    ],
)
def test_options_of_llama_cpp_are_refused_by_name(divine, command, arguments, words):
    result = divine(command, "model", *arguments)
    assert (result.code, result.out) == (2, "")
    assert_one_sentence(result, "is an option of llama.cpp", words)


def test_what_follows_a_double_dash_is_no_option(divine):
    assert_one_sentence(divine("run", "no-model", "--", "-fa"), "no-model")


def _failing(error):
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (DivineError("a file is bad"), 1, ["a file is bad"]),
        (CapacityError("it is full"), 1, ["it is full"]),
        (UsageError("an option is bad"), 2, ["an option is bad"]),
        (UsageError("line\nbreak \x1b[31m"), 2, ["line\\nbreak \\x1b[31m"]),
        (MemoryError(), 1, ["memory"]),
        (OSError(28, "No space left on device", "out.json"), 1, ["out.json", "no space"]),
        (ZeroDivisionError("oops"), 1, ["internal error", "ZeroDivisionError", "--debug"]),
    ],
)
def test_errors_are_translated_once(divine, monkeypatch, error, code, words):
    monkeypatch.setattr("divine.cli.list_models.command", _failing(error))
    result = divine("list")
    assert result.code == code
    assert_one_sentence(result, *words)


def test_debug_shows_the_traceback(divine):
    result = divine("inspect", "nope", "--debug")
    assert result.code == 1
    assert "Traceback" in result.err
    assert "DownloadError" in result.err


@pytest.mark.parametrize("module", ["divine.cli.main", "divine.errors", "typing", "typer.main"])
def test_interrupt_while_importing(module):
    script = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(name, path, target=None):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted)\n"
        f"sys.modules.pop({module!r}, None)\n"
        "sys.argv = ['divine', '--help']\n"
        "from divine.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (main.INTERRUPTED, b"", b"")


def test_interrupt_exits_130_without_a_word(divine, monkeypatch):
    monkeypatch.setattr("divine.cli.list_models.command", _failing(KeyboardInterrupt()))
    result = divine("list")
    assert result.code == main.INTERRUPTED
    assert result.err == ""


def test_a_closed_pipe_is_quiet(tiny):
    """As in `divine inspect MODEL | head -1`: the reader leaves while there is more to write."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "divine", "inspect", str(tiny), "--tensors"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.close()
    errors = writer.stderr.read()
    writer.stderr.close()
    assert writer.wait(60) == 1
    assert errors == b""


def _with_closed(streams: str, *arguments: object) -> Result:
    """Run a command line with standard streams closed, such as ">&-"."""
    command = f'exec "$@" {streams}'
    done = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-m", "divine", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def test_closed_standard_streams(tiny):
    words = ["run", tiny, "hello", "-n", "1", "--temp", "0"]
    assert_one_sentence(_with_closed(">&-", *words), "standard output is closed")
    assert_one_sentence(_with_closed("<&-", "run", tiny), "standard input is empty")
    assert _with_closed("<&-", "chat", tiny).code == 0
    quiet = _with_closed("2>&-", *words)
    assert quiet.code == 0
    assert "tokens" not in quiet.out
    assert _with_closed("<&- >&- 2>&-", *words).code == 1


@pytest.mark.parametrize("arguments", [["--version"], ["list"], ["doctor", "--json"]])
def test_a_full_disk_is_one_sentence(arguments):
    result = _with_closed(">/dev/full", *arguments)
    assert result.code == 1
    assert_one_sentence(result, "no space left")


def test_the_edge_stands_before_the_libraries():
    """Ctrl-C while libraries are imported finds someone who takes it."""
    code = "import sys, divine.cli.main; sys.exit('typer' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
