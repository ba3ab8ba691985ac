"""A jinja2 sandbox in which a hostile template can neither reach Python nor run or grow for long.

jinja2's immutable sandbox keeps templates from Python's internals. What it does not bound is
bounded here: every loop step, call, filter, operator and joining of text is charged to a Meter with
limits on time, on the size of one value and on all that is produced. Knows nothing about chats.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

SECONDS = 2.0
VALUE_SIZE = 1 << 21  # characters or list elements of one value, beside what was passed in
TOTAL_SIZE = 1 << 26  # characters produced in all, intermediate values included
MAX_NUMBER = 100_000  # the largest integer argument: a width, a count
MAX_BITS = 4096
_LONG_WIDTH = re.compile(r"\d{5}|%[^a-zA-Z%]*\*")
_AMPLIFIERS = frozenset(
    {"center", "expandtabs", "ljust", "maketrans", "rjust", "translate", "zfill"}
)  # methods of str that make text longer by a number
_DROPPED_FILTERS = [
    "center",
    "filesizeformat",
    "pprint",
    "random",
    "slice",
    "urlize",
    "wordwrap",
    "xmlattr",
]  # they amplify, or are no use in a prompt
# Filters that look at the elements of a list, but never write the whole list as text.
_STRUCTURAL_FILTERS = frozenset(
    {
        *(
            "attr",
            "batch",
            "count",
            "d",
            "default",
            "dictsort",
            "first",
            "groupby",
            "items",
            "last",
        ),
        *("length", "list", "map", "max", "min", "reject", "rejectattr", "reverse", "select"),
        *("selectattr", "sort", "sum", "unique", "_counted", "_made"),
    }
)


class LimitError(Exception):
    """The template takes too long or too much memory; the text says which."""


class Meter:
    """What one rendering may still use."""

    def __init__(self, input_size: int = 0) -> None:
        self.value_size = VALUE_SIZE + 4 * input_size
        self.left = TOTAL_SIZE + 64 * input_size
        self.deadline = time.monotonic() + SECONDS

    def tick(self) -> None:
        """One step of a loop, or one call."""
        if time.monotonic() > self.deadline:
            raise LimitError(f"it ran for more than {SECONDS:g} seconds")

    def reserve(self, size: int) -> None:
        """Before a value of this size is made."""
        if size > self.value_size:
            raise LimitError(f"it makes a value of more than {self.value_size} characters")
        self.left -= size
        if self.left < 0:
            raise LimitError("it makes too much text")

    def made(self, value: Any) -> Any:
        """After a value was made from bounded ones."""
        if isinstance(value, str):
            self.reserve(len(value))
        elif isinstance(value, list | tuple | dict):
            self.reserve(16 * len(value))
        return value

    def reserve_text_of(self, value: Any) -> None:
        """Before a value is written as text, however nested it is."""
        if isinstance(value, str):
            self.reserve(len(value))
            return
        size = 0
        pending = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, Mapping):
                pending += item.keys()
                pending += item.values()
                size += 4 * len(item)
            elif isinstance(item, list | tuple | set | frozenset):
                pending += item
                size += 2 * len(item)
            else:
                size += len(item) if isinstance(item, str) else 32
            if size > self.value_size:
                break
        self.reserve(size)


_METER: ContextVar[Meter] = ContextVar("meter")


@contextmanager
def metered(input_size: int = 0) -> Iterator[None]:
    """Everything a template does inside is charged to one new Meter."""
    token = _METER.set(Meter(input_size))
    try:
        yield
    finally:
        _METER.reset(token)


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """As transformers sets jinja2 up for chat templates, with limits. Use it inside metered()."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # folding constants would compute without a limit
            finalize=_finalize,
            extensions=[jinja2.ext.loopcontrols, GenerationTag],
        )
        del self.globals["lipsum"]
        for name in _DROPPED_FILTERS:
            del self.filters[name]
        self.filters |= {"_counted": _Counted, "_made": lambda value: value}
        self.filters = {name: _guarded(name, filter_) for name, filter_ in self.filters.items()}

    def add_filter(self, name: str, filter_: Callable[..., Any]) -> None:
        """A filter whose arguments and result are bounded like those of the others."""
        self.filters[name] = _guarded(name, filter_)

    def compile_bounded(self, source: str) -> jinja2.Template:
        """Raises jinja2.TemplateSyntaxError."""
        template = self.from_string(source)
        namespace = template.root_render_func.__globals__
        for name in ("concat", "str_join", "markup_join"):
            namespace[name] = _concat
        return template

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        return _Charge().visit(tree)  # type: ignore[no-any-return]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = _METER.get()
        if operator == "%" and isinstance(left, str):
            if _LONG_WIDTH.search(left):
                raise LimitError("it formats a value to a great width")
            meter.reserve_text_of([left, right])
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            meter.reserve(len(left) + len(right))
        elif operator == "*":
            _check_product(meter, left, right)
        elif operator == "**" and not (abs(left) <= MAX_NUMBER and abs(right) <= 64):
            raise LimitError("it raises a number to a great power")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        meter = _METER.get()
        meter.tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            _check_method(meter, owner, __obj.__name__, args)
        return meter.made(super().call(__context, __obj, *args, **kwargs))

    def getattr(self, obj: Any, attribute: str) -> Any:
        _refuse_internal(attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, str) and not isinstance(obj, Mapping):
            _refuse_internal(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None
        pattern = value.__self__

        @wraps(formatted)
        def bounded(*args: Any, **kwargs: Any) -> str:
            # A width may come from an argument, so a specification may not hold a field itself.
            if _LONG_WIDTH.search(pattern) or re.search(r"\{[^{}]*\{", pattern):
                raise LimitError("it formats a value to a great width")
            _METER.get().reserve_text_of([pattern, args, kwargs])
            return formatted(*args, **kwargs)

        return bounded


class GenerationTag(jinja2.ext.Extension):
    """{% generation %}: marks the model's own text for training; rendered, it is its body."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Charge(NodeTransformer):
    """Puts a filter that charges the Meter around what jinja2 compiles to bare Python."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2's naming
        self.generic_visit(node)
        node.iter = _filter(node.iter, "_counted")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filter(node, "_made") if isinstance(node.arg, nodes.Slice) else node


def _filter(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Counted:
    """An iterable whose steps are charged; its length stays known to `loop`."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        tick = _METER.get().tick
        for item in self._iterable:
            tick()
            yield item

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # TypeError is what loop expects


@jinja2.pass_environment
def _finalize(environment: jinja2.Environment, value: Any) -> Any:
    """What is written out; being passed the environment also keeps it from constant folding."""
    meter = _METER.get()
    meter.tick()
    meter.reserve_text_of(value)
    return value


def _concat(parts: Iterable[Any]) -> str:
    meter = _METER.get()
    items = list(parts)
    for item in items:
        if not isinstance(item, str):
            meter.reserve_text_of(item)
    texts = list(map(str, items))
    meter.reserve(sum(map(len, texts)))
    return "".join(texts)


def _guarded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter_, updated=("__dict__",))
    def guarded(*args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        meter.tick()
        skip = 1 if hasattr(filter_, "jinja_pass_arg") else 0
        args = _bounded_arguments(meter, name, args, skip, kwargs)
        return meter.made(filter_(*args, **kwargs))

    return guarded


def _bounded_arguments(
    meter: Meter, name: str, args: tuple[Any, ...], skip: int, kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """The filter's arguments after checks; an iterator to be joined becomes a list."""
    value, *options = args[skip:] or (None,)
    options += kwargs.values()
    for option in options:
        if isinstance(option, int) and abs(option) > MAX_NUMBER:
            raise LimitError(f"it calls {name} with the number {option}")
    texts = [len(option) for option in options if isinstance(option, str)]
    numbers = [option for option in options if isinstance(option, int)]
    if name == "join":
        value = list(value)
        meter.reserve(len(value) * max(texts, default=0))
        args = (*args[:skip], value, *args[skip + 1 :])
    elif name == "replace":
        _check_replace(meter, str(value), *args[skip + 1 : skip + 3])
    elif name in ("indent", "tojson"):
        meter.reserve_text_of(value)
        lines = str(value).count("\n") + 1 if name == "indent" else 16
        meter.reserve(lines * max([*texts, *numbers, 0]))
    elif name == "format":
        if _LONG_WIDTH.search(str(value)):
            raise LimitError("it formats a value to a great width")
        meter.reserve_text_of([value, options])
    if name not in _STRUCTURAL_FILTERS and not isinstance(value, str):
        meter.reserve_text_of(value)
    return args


def _check_product(meter: Meter, left: Any, right: Any) -> None:
    for value, factor in ((left, right), (right, left)):
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise LimitError("it computes with a huge number")
        if isinstance(factor, int) and isinstance(value, str | list | tuple | bytes):
            meter.reserve(len(value) * max(0, factor))


def _check_method(meter: Meter, text: str, name: str, args: tuple[Any, ...]) -> None:
    if name in _AMPLIFIERS:
        raise LimitError(f"the method {name} of a text is not available")
    if name == "replace":
        _check_replace(meter, text, *args[:2])
    elif name == "join" and args and hasattr(args[0], "__len__"):
        meter.reserve(len(text) * len(args[0]) + sum(len(item) for item in args[0]))
    elif name == "join":
        raise LimitError("the method join of a text needs a list")


def _check_replace(meter: Meter, text: str, old: Any = "", new: Any = "") -> None:
    if isinstance(old, str) and isinstance(new, str):
        meter.reserve(len(text) + text.count(old) * len(new))


def _refuse_internal(name: str) -> None:
    if name.startswith("__"):
        raise SecurityError(f"access to {name[:40]!r} is not allowed")
