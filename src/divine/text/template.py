"""Chat templates: messages to the prompt text a model was trained on, as transformers renders them.

Templates are programs in jinja2 that came with a model file: sandbox.py keeps them from harm. Knows
which template of a file to take and what variables a template gets. Tokens are chat.py's concern.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.exceptions import SecurityError

from divine.errors import FormatError, TemplateError, UsageError
from divine.gguf import Metadata, keys
from divine.text.messages import Message, check_messages, check_tools, map_texts
from divine.text.sandbox import BoundedEnvironment, LimitError, metered

MAX_TEMPLATE = 1 << 16  # characters; real ones have up to 20,000
TOOL_TEMPLATE = "tool_use"
RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
_END_OF_CONTENT = "\ufdd0 "  # the space tells whether the template strips content

# What a template can make Python raise; anything else is a bug of ours.
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """The templates of one model file; compiled when first used, so a bad one stops only chats."""

    def __init__(
        self,
        sources: Mapping[str, str],
        tokens: Mapping[str, str] | None = None,
        file: str = "the model file",
    ) -> None:
        """`sources` by name, "default" being the usual one; `tokens` such as bos_token."""
        self._sources = dict(sources)
        self._tokens = dict(tokens or {})
        self._file = file
        self._compiled: dict[str, _Compiled] = {}

    @classmethod
    def from_metadata(cls, metadata: Metadata, file: str = "the model file") -> ChatTemplate:
        """A file without a template gives a ChatTemplate without one. Raises FormatError."""
        sources = {}
        if keys.CHAT_TEMPLATE in metadata:
            sources["default"] = _source(metadata, keys.CHAT_TEMPLATE, file)
        prefix = keys.CHAT_TEMPLATE + "."
        for key in metadata:
            if key.startswith(prefix):
                sources[key.removeprefix(prefix)] = _source(metadata, key, file)
        return cls(sources, _token_texts(metadata), file)

    @property
    def sources(self) -> Mapping[str, str]:
        """The templates' text by name; nothing is run to show it."""
        return self._sources

    def __bool__(self) -> bool:
        return bool(self._sources)

    @property
    def tool_source(self) -> str | None:
        """The text of the template that tools are given to; None if it does not look at them.

        Raises TemplateError if it cannot be compiled.
        """
        if not self._sources or not self._select(True).takes_tools:
            return None
        return self._sources.get(TOOL_TEMPLATE) or self._sources["default"]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text, special tokens written out, BOS included if the template writes it.

        By default a trailing assistant message is a finished turn and the model answers in a new
        one; with `continue_final_message` the prompt ends right after its content, and the model
        goes on with it. `extra` are further variables, such as enable_thinking. Tools select the
        template "tool_use" if there is one. Raises TemplateError and UsageError.
        """
        checked = check_messages(messages)
        if continue_final_message:
            if checked[-1]["role"] != "assistant":
                raise UsageError(
                    "continue_final_message needs an assistant message at the end of messages, "
                    f"not one of role {checked[-1]['role']!r}"
                )
            checked[-1]["content"] += _END_OF_CONTENT
        text = self._render(
            checked,
            check_tools(tools),
            add_generation_prompt and not continue_final_message,
            _check_extra(extra),
        )
        _check_rendered(text, self._file)
        return self._cut_at_content(text) if continue_final_message else text

    def _render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        extra: dict[str, Any],
    ) -> str:
        compiled = self._select(tools is not None)
        if tools and not compiled.takes_tools:
            raise TemplateError(
                f"{self._file}: the chat template does not take tools; leave them out, or use a "
                "model that was trained with tools"
            )
        variables = {
            **self._tokens,
            **extra,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with metered(_size(messages) + _size(tools)):
                # Not render(): it would rewrite tracebacks through jinja2's debugging.
                context = compiled.template.new_context(variables)
                return "".join(compiled.template.root_render_func(context))
        except (LimitError, *_TEMPLATE_FAILURES) as error:
            raise TemplateError(self._explain(error)) from None

    def _select(self, with_tools: bool) -> _Compiled:
        if not self._sources:
            raise TemplateError(
                f"{self._file}: the file has no chat template (tokenizer.chat_template); give the "
                "prompt as raw text"
            )
        name = TOOL_TEMPLATE if with_tools and TOOL_TEMPLATE in self._sources else "default"
        if name not in self._sources:
            raise TemplateError(
                f"{self._file}: the file has only the named chat templates "
                f"{', '.join(sorted(self._sources))} and no default one"
            )
        if name not in self._compiled:
            self._compiled[name] = self._compile(self._sources[name])
        return self._compiled[name]

    def _compile(self, source: str) -> _Compiled:
        if len(source) > MAX_TEMPLATE:
            raise TemplateError(
                f"{self._file}: the chat template has {len(source)} characters; "
                f"{MAX_TEMPLATE} are allowed"
            )
        try:
            with metered(len(source)):
                return _Compiled(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"{self._file}: the chat template is wrong in line {error.lineno}: {error.message}"
            ) from None
        except (LimitError, SyntaxError, *_TEMPLATE_FAILURES) as error:
            raise TemplateError(self._explain(error)) from None

    def _explain(self, error: BaseException) -> str:
        reason = " ".join(str(error).split())[:500] or type(error).__name__
        if isinstance(error, RefusedError):
            return f"the chat template refuses the messages: {reason}"
        if isinstance(error, SecurityError):
            return f"{self._file}: the chat template does what is not allowed: {reason}"
        if isinstance(error, RecursionError | MemoryError):
            reason = "it nests or recurses too deeply"
        if isinstance(error, LimitError | RecursionError | MemoryError):
            return f"{self._file}: the chat template was stopped: {reason}"
        return f"{self._file}: the chat template failed: {reason}"

    def _cut_at_content(self, text: str) -> str:
        place = text.rfind(_END_OF_CONTENT[0])
        if place < 0:
            raise TemplateError(
                f"{self._file}: the last message cannot be continued; the chat template does not "
                "show its content"
            )
        kept = text[:place]
        return kept if text.startswith(_END_OF_CONTENT, place) else kept.rstrip()


class RefusedError(jinja2.TemplateError):
    """The template called raise_exception."""


class _Compiled:
    """A template ready to run, and whether it looks at tools."""

    def __init__(self, source: str) -> None:
        environment = BoundedEnvironment()
        environment.add_filter("tojson", _tojson)
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self.template = environment.compile_bounded(source)
        self._tree = environment.parse(source)

    @cached_property
    def takes_tools(self) -> bool:
        return "tools" in meta.find_undeclared_variables(self._tree)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain json.dumps, as transformers has it: key order kept, nothing escaped for HTML."""
    if len(indent) > 16 if isinstance(indent, str) else (indent or 0) > 16:
        raise LimitError("it indents JSON by more than 16")
    if separators is not None and max(map(len, separators)) > 16:
        raise LimitError("it separates JSON by more than 16 characters")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> None:
    raise RefusedError(str(message))


def _strftime_now(format_: str) -> str:
    if len(format_) > 200 or re.search(r"\d{3}", format_):
        raise LimitError("it formats the date to a great width")
    return datetime.now().strftime(format_)


def _check_extra(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    variables: dict[str, Any] = map_texts(dict(extra or {}), str, "extra template variables")
    for name in RESERVED:
        if name in variables:
            raise UsageError(
                f"the extra template variables have {name!r}, which has an option of its own"
            )
    return variables


def _token_texts(metadata: Metadata) -> dict[str, str]:
    """The special tokens that templates know by name."""
    if keys.TOKENS not in metadata:
        return {}
    sentencepiece = metadata.str(keys.TOKENIZER_MODEL, "") == "llama"
    names = {
        "bos_token": (keys.BOS_ID, 1),
        "eos_token": (keys.EOS_ID, 2),
        "unk_token": (keys.UNKNOWN_ID, 0),
        "pad_token": (keys.PADDING_ID, None),
    }
    texts = metadata.strings(keys.TOKENS)
    found = {}
    for name, (key, default) in names.items():
        id_ = metadata.int(key, default if sentencepiece else None)
        if id_ is not None and 0 <= id_ < len(texts):
            found[name] = texts[id_]
    return found


def _source(metadata: Metadata, key: str, file: str) -> str:
    """A template, strictly UTF-8: one with characters replaced would be another program."""
    text = metadata.str(key)
    if "\ufffd" in text:
        try:
            metadata.typed(key).payload[8:].decode()  # behind its length
        except UnicodeDecodeError as error:
            raise FormatError(f"{file}: {key} is not UTF-8 at byte {error.start}") from None
    return text


def _check_rendered(text: str, file: str) -> None:
    if not text:
        raise TemplateError(f"{file}: the chat template made no text of the messages")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TemplateError(
            f"{file}: the chat template wrote the lone surrogate U+{ord(text[error.start]):04X}; "
            "a prompt must be valid Unicode"
        ) from None


def _size(value: Any) -> int:
    """Characters in a JSON value, roughly."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(key) + _size(item) + 8 for key, item in value.items())
    if isinstance(value, list):
        return sum(_size(item) + 8 for item in value)
    return 8
