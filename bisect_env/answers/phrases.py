"""Format rates, intervals, probabilities, counts and durations for people. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence


def percent(rate: float) -> str:
    """Format a share, such as `16 %`. Small shares keep two digits; only 0 and 1 become `0 %` and `100 %`."""
    return f"{_digits(rate)} %"


def interval(low: float, high: float) -> str:
    """Format an interval of shares, such as `11–24 %`."""
    return f"{_digits(low)}–{_digits(high)} %"


def probability(value: float) -> str:
    """Format a posterior probability, such as `97 %`, rounded down so that it never looks higher than it is.

    It is never shown as 100 %: a posterior of 1 is a rounding error of the computer.
    """
    if value > 0.999:
        return "> 99.9 %"
    if value > 0.99:
        return f"{math.floor(value * 1000) / 10:.1f} %"
    return f"{math.floor(value * 100)} %"


def how_many(number: int, one: str) -> str:
    """Return a number with its noun, such as `1 trial`, `12 trials`, `2 studies` or `3 passes`."""
    if number == 1:
        return f"1 {one}"
    if one.endswith(("s", "x", "ch")):
        return f"{number} {one}es"
    return f"{number} {one[:-1]}ies" if re.search(r"[^aeiou]y$", one) else f"{number} {one}s"


_MAX_LINES = 4
"""Maximum number of lines of a builder's message that is shown in full."""


def brief(text: str) -> str:
    """Join the lines of a message with colons; if there are many lines, only the first and the last one.

    There are many if there are more than `_MAX_LINES`. The last line mostly states the cause.
    """
    lines: list[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join(lines if len(lines) <= _MAX_LINES else [lines[0], lines[-1]]) or "(no words)"


def first_few(names: Sequence[str], most: int, *, one: str = "more", many: str = "more") -> list[str]:
    """Return the first `most` texts, followed by the number of further ones, such as `3 more hosts`.

    Args:
        names: All texts.
        most: Maximum number of texts to keep.
        one: The words behind the number if one text is left out, such as `more host`.
        many: The words behind any other number, such as `more hosts`.
    """
    rest = len(names) - most
    return [*names[:most], *([f"{rest} {one if rest == 1 else many}"] if rest > 0 else [])]


def and_more(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first `most` texts and add the number of further ones: `a, b and 3 more`."""
    rest = len(names) - most
    return separator.join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def enumerated(names: Sequence[str], word: str = "and") -> str:
    """Join texts as in a sentence: `a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def duration(seconds: float) -> str:
    """Format a duration in seconds, such as `0.4 s`, `12 s`, `3 min 20 s` or `2 h 5 min`."""
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


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of texts as lines whose columns begin at the same place, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
