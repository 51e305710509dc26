"""Rows of a question as a table, as JSON or as comma-separated values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

from bisect_env.report.untrusted import clean

Rows = Sequence[Sequence[object]]


def as_text(names: Sequence[str], rows: Rows, *, as_json: bool = False, as_csv: bool = False) -> str:
    """What is printed.

    Args:
        names: Of the columns.
        rows: Numbers, texts, None, or what becomes a text.
        as_json: A list of objects.
        as_csv: With a line of names.

    Raises:
        UsageError: Both forms are asked for.
    """
    from bisect_env.errors import UsageError

    if as_json and as_csv:
        raise UsageError("`--json` and `--csv` exclude each other", remedy="give one of them")
    plain = [[_plain(value) for value in row] for row in rows]
    if as_json:
        return json.dumps([dict(zip(names, row, strict=True)) for row in plain], indent=1) + "\n"
    if as_csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(plain)
        return text.getvalue()
    table: list[list[object]] = [list(names), *plain]
    cells = [[clean("" if value is None else str(value)) for value in row] for row in table]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    cells.insert(1, ["-" * width for width in widths])
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def named(combination: str) -> str:
    """A combination's JSON as people read it; what is none stays as it is."""
    try:
        return ", ".join(f"{axis} {value}" for axis, value in json.loads(combination))
    except (ValueError, TypeError):
        return combination


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)
