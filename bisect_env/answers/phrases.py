"""Says rates, intervals, probabilities, numbers of things and durations as people read them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percent(rate: float) -> str:
    """Return a share such as `16 %`; small rates keep two digits, and only 0 and 1 show as 0 % and 100 %."""
    return f"{_digits(rate)} %"


def interval(low: float, high: float) -> str:
    """Return an interval of shares, such as `11–24 %`."""
    return f"{_digits(low)}–{_digits(high)} %"


def probability(value: float) -> str:
    """Return a probability such as `97 %`, rounded down so that it never looks more certain than it is."""
    if value >= 1.0:
        return "100 %"
    if value > 0.999:
        return "> 99.9 %"
    if value > 0.99:
        return f"{math.floor(value * 1000) / 10:.1f} %"
    return f"{math.floor(value * 100)} %"


def how_many(number: int, one: str) -> str:
    """Return a number with its noun, `1 trial` or `12 trials`; the plural ends in s."""
    return f"{number} {one}{'' if number == 1 else 's'}"


def first_few(names: Sequence[str], most: int, *, more: str = "more") -> list[str]:
    """Return at most `most` of some texts, and how many there are besides, such as `3 more`."""
    rest = len(names) - most
    return [*names[:most], *([f"{rest} {more}"] if rest > 0 else [])]


def and_more(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return at most `most` of some texts and the number of the others: `a, b and 3 more`."""
    rest = len(names) - most
    return separator.join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def duration(seconds: float) -> str:
    """Return a duration such as `0.4 s`, `12 s`, `3 min 20 s` or `2 h 5 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _digits(rate: float) -> str:
    value = 100.0 * rate
    if value in (0.0, 100.0):
        return f"{value:.0f}"
    if value < 0.1:
        return "< 0.1"
    if value > 99.9:
        return "> 99.9"
    text = f"{value:.1f}" if value < 9.95 or value > 99.0 else f"{value:.0f}"
    return text.removesuffix(".0")
