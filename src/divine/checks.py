"""Numbers that callers give, checked at the border: integers and reals within bounds.

Knows names of fields and options only as words for its messages.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import cast

from divine.errors import UsageError


def check_integer(name: str, value: object, low: int | None, high: int | None) -> None:
    """Raise UsageError unless value is an integer in [low, high]; None is no bound."""
    if not isinstance(value, bool) and isinstance(value, Integral):
        number = int(value)
        if (low is None or low <= number) and (high is None or number <= high):
            return
    raise UsageError(f"{name} is {value!r}; allowed is an integer{_bounds(low, high)}")


def check_number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """Raise UsageError unless value is a finite real number in [low, high], or `above` low."""
    if not isinstance(value, bool) and isinstance(value, Real):
        number = cast("float", value)
        if (low < number if above else low <= number) and number <= high:
            return
    bounds = f"above {low:g} and at most {high:g}" if above else f"from {low} to {high}"
    raise UsageError(f"{name} is {value!r}; allowed is a number {bounds}")


def _bounds(low: int | None, high: int | None) -> str:
    if low is None:
        return "" if high is None else f" of at most {high}"
    return f" of at least {low}" if high is None else f" from {low} to {high}"
