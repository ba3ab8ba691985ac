"""The loop of `divine chat`: reads a line, answers it or obeys it.

Errors of a turn are told and the conversation goes on; only the end of input or /quit ends it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divine.cli.console import complain, note, printable, write
from divine.cli.conversation import Conversation
from divine.cli.drafts import DraftColours
from divine.cli.figures import figures
from divine.cli.options import check_sampling
from divine.errors import CapacityError, DivineError, UsageError

if TYPE_CHECKING:
    from divine.api import Model, Stream

_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "max_tokens": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "seed": int,
    "repetition_penalty": float,
    "frequency_penalty": float,
    "presence_penalty": float,
}
_SHORT = {  # as the options are called that set them, and as others call them
    "n": "max_tokens",
    "temp": "temperature",
    "repeat_penalty": "repetition_penalty",
}


class _Quit(Exception):  # noqa: N818 - a signal, not an error
    """The user wants to leave."""


class Dialogue:
    """A conversation with a loaded model on standard input and output."""

    def __init__(
        self,
        model: Model,
        conversation: Conversation,
        arguments: dict[str, Any],
        *,
        show_drafts: bool = False,
    ) -> None:
        self._colours = DraftColours(wanted=show_drafts)
        self._model = model
        self._conversation = conversation
        self._arguments = arguments
        self._interactive = sys.stdin.isatty()
        self._commands: dict[str, tuple[str, Callable[[str], None]]] = {
            "help": ("show this list", self._help),
            "clear": ("forget the conversation", self._clear),
            "system": ("TEXT sets the system message, nothing shows it", self._system),
            "regenerate": ("answer the last message anew", self._regenerate),
            "params": ("NAME=VALUE ... sets, nothing shows the parameters", self._params),
            "save": ("FILE keeps the conversation", self._save),
            "load": ("FILE goes on with a kept one", self._load),
            "quit": ("leave", self._quit),
        }
        self._aliases = {"exit": "quit", "bye": "quit", "?": "help", "regen": "regenerate"}

    def talk(self) -> None:
        """Until the end of input, /quit, or Ctrl-C at an empty prompt twice in a row."""
        history = _History() if self._interactive else None
        interrupted = False
        try:
            while True:
                try:
                    line = self._read()
                    interrupted = False
                    self._obey_or_answer(line)
                except KeyboardInterrupt:
                    if not self._interactive or interrupted:
                        raise
                    interrupted = True
                    note("\nCtrl-C again, Ctrl-D or /quit ends")
                except DivineError as error:
                    complain(str(error))
        except (EOFError, _Quit):
            return
        finally:
            if history:
                history.save()

    def _read(self) -> str:
        """A message; a line that ends in a backslash goes on in the next."""
        prompt = "> "
        lines: list[str] = []
        while True:
            try:
                # On a terminal input() writes the prompt and edits the line.
                line = input(prompt if self._interactive else "")
            except UnicodeDecodeError as error:
                raise UsageError(f"the line is not UTF-8 at byte {error.start}") from error
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])
            prompt = "... "

    def _obey_or_answer(self, line: str) -> None:
        if not line.strip():
            return
        if not line.startswith("/"):
            self._conversation.ask(line)
            self._answer()
            return
        name, _, rest = line[1:].partition(" ")
        name = self._aliases.get(name, name)
        if name not in self._commands:
            known = " ".join("/" + command for command in self._commands)
            raise UsageError(f"/{name} is not known; there are {known}")
        self._commands[name][1](rest.strip())

    def _answer(self) -> None:
        """Stream the answer to the last question into the conversation."""
        pieces: list[str] = []
        cut = False
        try:
            stream = self._model.stream(self._conversation.messages(), **self._arguments)
            with contextlib.closing(stream):
                cut = _show(stream, pieces, self._colours)
        except CapacityError as error:
            self._conversation.withdraw()
            raise CapacityError(f"{error}; /clear starts afresh") from error
        except (DivineError, KeyboardInterrupt):  # Ctrl-C here came before the answer began
            self._conversation.withdraw()
            raise
        self._conversation.answer("".join(pieces), cut=cut)
        if cut:
            note("[stopped; the answer is kept as cut]")
        else:
            drawn = "seed" not in self._arguments and self._arguments.get("temperature") != 0
            limit = self._arguments.get("max_tokens")
            note(figures(stream.completion, None, drawn_seed=drawn, max_tokens=limit))
            self._colours.legend()

    def _help(self, _rest: str) -> None:
        for name, (text, _) in self._commands.items():
            note(f"  /{name:11} {text}")
        note("  a \\ at the end of a line goes on in the next; Ctrl-C stops an answer")

    def _clear(self, _rest: str) -> None:
        self._conversation.turns.clear()

    def _system(self, rest: str) -> None:
        if rest:
            self._conversation.system = rest
        note(f"system: {printable(self._conversation.system or '(none)')}")

    def _regenerate(self, _rest: str) -> None:
        if not self._conversation.reopen():
            raise UsageError("there is no answer to regenerate")
        self._answer()

    def _params(self, rest: str) -> None:
        """Set all of them or, when one is wrong, none."""
        arguments = dict(self._arguments)
        for item in rest.split():
            name, _, value = item.partition("=")
            name = _SHORT.get(name, name)
            if name not in _PARAMETERS:
                raise UsageError(f"{name!r} is no parameter; there are {', '.join(_PARAMETERS)}")
            if not value:
                arguments.pop(name, None)
                continue
            try:
                arguments[name] = _PARAMETERS[name](value)
            except ValueError:
                kind = _PARAMETERS[name].__name__
                raise UsageError(f"{name} is {value!r}; allowed is a number ({kind})") from None
        _check(arguments)
        self._arguments = arguments
        shown = {key: value for key, value in self._arguments.items() if key in _PARAMETERS}
        note("  ".join(f"{key}={value}" for key, value in shown.items()) or "(defaults)")

    def _save(self, rest: str) -> None:
        self._conversation.save(_file(rest, "/save"))
        note(f"saved {rest}")

    def _load(self, rest: str) -> None:
        self._conversation = Conversation.load(_file(rest, "/load"))
        note(f"loaded {rest}, {len(self._conversation.turns)} messages")

    def _quit(self, _rest: str) -> None:
        raise _Quit


def _check(arguments: dict[str, Any]) -> None:
    """Raise UsageError for a value out of its range, before a question meets it."""
    from divine.checks import check_integer

    check_sampling(arguments)
    if "max_tokens" in arguments:
        check_integer("max_tokens", arguments["max_tokens"], 0, None)


def _show(stream: Stream, pieces: list[str], colours: DraftColours) -> bool:
    """Write the answer as it comes, collecting it in `pieces`; True when Ctrl-C cut it."""
    try:
        for chunk in stream:
            pieces.append(chunk.text)
            colours.write(chunk)
    except KeyboardInterrupt:
        write("\n")
        return True
    write("\n")
    return False


def _file(rest: str, command: str) -> Path:
    if not rest:
        raise UsageError(f"{command} needs the name of a file")
    return Path(rest).expanduser()


class _History:
    """Lines typed before, in the user's state folder; silently absent where readline is."""

    def __init__(self) -> None:
        try:
            import readline
        except ImportError:
            self._readline = None
            return
        import platformdirs

        self._readline = readline
        self._path = Path(platformdirs.user_state_dir("divine")) / "chat_history"
        with contextlib.suppress(OSError):  # none yet, or unreadable: start without
            readline.read_history_file(self._path)
        readline.set_history_length(1000)
        # Python turns this off; with it, lines pasted together are one message.
        readline.parse_and_bind("set enable-bracketed-paste on")

    def save(self) -> None:
        if self._readline:
            with contextlib.suppress(OSError):  # a chat is worth more than its history
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._readline.write_history_file(self._path)
