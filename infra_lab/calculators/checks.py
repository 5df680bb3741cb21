"""What every calculator asks of its arguments, and the one line it says when they make no sense."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import isqrt
from typing import TypeVar

from infra_lab.errors import UsageError

Value = TypeVar("Value")
LARGEST_COUNT = 10**15  # more than there is of anything, and products of some still are floats


def require_count(name: str, value: int, minimum: int = 1) -> None:
    """A whole number of at least `minimum`: layers, heads, tokens, GPUs."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} must be a whole number, not {value!r}")
    if value < minimum:
        raise UsageError(f"{name} must be at least {minimum}, not {value}")
    if value > LARGEST_COUNT:
        raise UsageError(f"{name} must be at most 10^15, and has {len(str(value))} digits")


def require_lengths(lengths: Sequence[int]) -> None:
    """Tokens of each request, and at least one request."""
    if not lengths:
        raise UsageError("no requests: give at least one length")
    for length in lengths:
        require_count("a request's length", length)


def require_positive(name: str, value: float) -> None:
    """A finite number above 0: a bandwidth, a peak, a size."""
    if not math.isfinite(value) or value <= 0:
        finite = " and finite" if value == math.inf else ""
        raise UsageError(f"{name} must be above 0{finite}, not {value}")


def require_not_negative(name: str, value: float) -> None:
    """A finite number of at least 0: a latency, an overhead."""
    if not math.isfinite(value) or value < 0:
        finite = " and finite" if value == math.inf else ""
        raise UsageError(f"{name} must be at least 0{finite}, not {value}")


def require_share(name: str, value: float) -> None:
    """A number from 0 to 1: a probability, a utilization."""
    if not 0 <= value <= 1:
        raise UsageError(f"{name} must be from 0 to 1, not {value}")


def require_within(name: str, value: float, most: float) -> None:
    """A number above 0 that has a limit."""
    if not 0 < value <= most:
        raise UsageError(f"{name} must be above 0 and at most {most:g}, not {value}")


def require_efficiency(name: str, value: float) -> None:
    """A share of a peak that is reached: above 0, at most 1."""
    require_within(name, value, 1)


def require_divides(divisor_name: str, divisor: int, name: str, value: int) -> None:
    """`divisor` must go into `value` without a rest."""
    if value % divisor:
        raise UsageError(
            f"{divisor_name} {divisor} does not divide {name} {value}: "
            f"choose one of {', '.join(map(str, divisors(value)))}"
        )


def divisors(value: int) -> list[int]:
    """Every divisor of a positive number, ascending."""
    small = [one for one in range(1, isqrt(value) + 1) if value % one == 0]
    return small + [value // one for one in reversed(small) if one * one != value]


def look_up(kind: str, name: str, known: Mapping[str, Value]) -> Value:
    """The entry of that name; letters' case does not matter. Says near names for an unknown."""
    wanted = name.strip().lower()
    if wanted in known:
        return known[wanted]
    close = get_close_matches(wanted, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"
    raise UsageError(f"no {kind} is called {name!r}: {hint}")
