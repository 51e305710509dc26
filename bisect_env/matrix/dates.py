"""Days and instants of `exclude_newer` and of date axes. Pure; nothing here reads a clock."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_STEP = re.compile(r"(\d+)\s*(d|w|days?|weeks?)?")

MAX_DATES = 10_000
"""A range with more days than this is a slip of the pen."""


def cutoff(text: str) -> datetime:
    """The first instant that is too new, in UTC.

    A day counts whole (`2020-09-22` lets in what was uploaded on that day, as uv does); an instant such
    as `2020-09-22T12:00:00Z` is itself the limit. An instant without an offset is UTC.

    Raises:
        ValueError: Neither a day nor an instant; the message names a remedy.
    """
    try:
        if _DAY.fullmatch(text):
            day = date.fromisoformat(text)
            return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        instant = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a date; write a day like 2026-01-31 or an instant like 2026-01-31T12:00:00Z"
        ) from None
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def parse_day(text: str) -> date:
    """Read a day such as `2026-01-31`.

    Raises:
        ValueError: It is none; the message names a remedy.
    """
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not a day; write one like 2026-01-31")


def parse_step(text: str) -> int:
    """Read the step of a date range, in days: `3`, `1d`, `2w`.

    Raises:
        ValueError: It is none; the message names a remedy.
    """
    match = _STEP.fullmatch(text.strip())
    if match is None or int(match[1]) < 1:
        raise ValueError(f"{text!r} is not a step of days; write one like 1d or 2w")
    return int(match[1]) * (7 if (match[2] or "d").startswith("w") else 1)


def days_between(first: str, last: str, step: str) -> tuple[str, ...]:
    """Every `step` days from `first` on; `last` itself always belongs to it.

    The end stays on the axis even when the step would miss it: it is the day on which the user saw the
    trouble.

    Raises:
        ValueError: The days cannot be read, are in the wrong order, or are too many.
    """
    start, end, width = parse_day(first), parse_day(last), parse_step(step)
    if end < start:
        raise ValueError(f"the range ends ({last}) before it begins ({first}); swap `from` and `to`")
    count = (end - start).days // width + 1
    if count > MAX_DATES:
        raise ValueError(f"the range has {count} dates, more than {MAX_DATES}; use a larger step")
    days = [start + timedelta(days=width * i) for i in range(count)]
    if days[-1] != end:
        days.append(end)
    return tuple(day.isoformat() for day in days)
