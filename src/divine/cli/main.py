"""One command line: finds the command, runs it, and turns what goes wrong into one sentence.

Exit codes: 0 done, 1 a DivineError (2 for UsageError and for wrong options), 130 after Ctrl-C.
Only the called command's module is imported, and nothing heavy before its body runs, so that help
is instant.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, TextIO

from divine import __version__
from divine.cli import foreign
from divine.cli.console import complain
from divine.cli.spelling import as_given
from divine.errors import DivineError

if TYPE_CHECKING:
    import typer

# name -> (module with a function `command`, summary shown by --help)
COMMANDS = {
    "run": ("divine.cli.run", "Answer one prompt."),
    "chat": ("divine.cli.chat", "Talk with a model."),
    "serve": ("divine.cli.serve", "Serve a model over HTTP: OpenAI's API, metrics, a page."),
    "inspect": ("divine.cli.inspect", "Show what a model file holds; nothing in it is run."),
    "export": ("divine.cli.export", "Pack drafting heads with a model, or take them out."),
    "pull": ("divine.cli.pull", "Fetch a model."),
    "list": ("divine.cli.list_models", "Show the models on this computer."),
    "rm": ("divine.cli.rm", "Delete a fetched model."),
    "bench": ("divine.cli.bench", "Measure speed here, as a share of what the memory allows."),
    "bench serve": ("divine.cli.bench_serve", "Measure a server with several requests at once."),
    "tune": ("divine.cli.tune", "Train what drafts for a model, on what it says itself."),
    "evaluate": ("divine.cli.evaluate", "Count what drafts bring, on prompts of your own."),
    "doctor": ("divine.cli.doctor", "Show what this computer offers, for bug reports."),
}
INTERRUPTED = 130
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def execute(arguments: list[str]) -> int:
    """Run one command line and return its exit code; errors are told on standard error."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    try:
        _check_streams()
        warnings.showwarning = _warn
        if arguments == ["--version"]:
            sys.stdout.write(f"divine {__version__}\n")
            sys.stdout.flush()
            return 0
        from typer.main import get_command  # here, where Ctrl-C leaves no traceback

        if arguments and arguments[0] in foreign.COMMANDS:
            foreign.refuse_foreign(arguments[1:])
        # Not standalone: typer would print its own errors.
        command, rest = _command(arguments)
        if command:
            app, name = _one(command), f"divine {command}"
        else:
            app, name, rest = _all(), "divine", arguments or ["--help"]
        result = get_command(app).main(rest, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BrokenPipeError:  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the edge: nobody above would tell it
        if "--debug" in arguments:
            traceback.print_exc()
        return _tell(error, arguments)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as a line like others; those for programmers are not for whoever runs commands."""
    if issubclass(category, RuntimeWarning | UserWarning):
        complain(f"warning: {message}")


def _check_streams() -> None:
    """A closed standard stream is None in Python; input that is closed is an empty one."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - until the end
    if sys.stdout is None:
        raise DivineError("standard output is closed; there is nowhere to write to")


def _tell(error: Exception, arguments: list[str]) -> int:
    if isinstance(error, DivineError):
        complain(as_given(str(error), arguments))
        return error.exit_code
    if hasattr(error, "format_message"):  # a wrong option, in typer's words
        words = _usage(error, str(error.format_message()))
        command, _ = _command(arguments)
        help_line = f"divine {command} --help" if command else "divine --help"
        joined = f"{words} See" if words.endswith("?") else f"{words}; see"
        complain(f"{joined} `{help_line}`")
        return 2
    if isinstance(error, MemoryError):
        complain("not enough memory")
    elif isinstance(error, OSError) and error.errno:
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{(error.strerror or 'input or output failed').lower()}")
    else:
        complain(
            f"internal error, {type(error).__name__}: {error}; "
            "please report it with what --debug shows"
        )
    return 1


def _command(arguments: list[str]) -> tuple[str, list[str]]:
    """The command that arguments begin with, of two words or one, and the rest; "" for none."""
    for words in (2, 1):
        name = " ".join(arguments[:words])
        if len(arguments) >= words and name in COMMANDS:
            return name, arguments[words:]
    return "", arguments


def _usage(error: Exception, words: str) -> str:
    """Typer's words for a wrong option as the middle of a sentence, without pydantic's prefixes."""
    words = words.strip().rstrip(".").replace("Value error, ", "")
    words = re.sub(r"\.? Did you mean", "; did you mean", words)
    wrong = re.search(r"Input should be a valid (\w+), .*", words)
    if wrong:
        details: list[Any] = getattr(error.__cause__, "errors", list)()
        found = repr(details[0].get("input")) if details else "it"
        words = f"{words[: wrong.start()]}{found} is not a valid {wrong[1]}"
    return words[:1].lower() + words[1:]


def _one(name: str) -> typer.Typer:
    """The called command alone: a group above it would cost each call 0.1 s."""
    app = _empty()
    module = importlib.import_module(COMMANDS[name][0])
    app.command(
        context_settings=CONTEXT | getattr(module, "CONTEXT", {}),
        epilog=getattr(module, "EPILOG", None),
    )(module.command)
    return app


def _all() -> typer.Typer:
    """The list of commands, for help and for names that do not exist."""
    app = _empty()
    app.callback()(_top)
    for name, (_, summary) in COMMANDS.items():
        app.command(name, help=summary)(_not_loaded)
    return app


def _empty() -> typer.Typer:
    import typer

    # Help drawn by rich would cost 0.2 s.
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=CONTEXT,
    )


def _not_loaded() -> None:
    raise DivineError("options stand after the command: `divine COMMAND OPTIONS`")


def _top() -> None:
    """Exact language models on ordinary computers; `divine --version` shows the version."""
