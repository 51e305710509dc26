"""`bisect-env query`: ask the results database in SQL."""

from __future__ import annotations

from typing import Annotated

import typer


def query(
    question: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT.")],
    db: Annotated[
        str | None,
        typer.Option(envvar="BISECT_ENV_DB", help="Results database: a file or a URL."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of objects.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False,
) -> None:
    """Ask the results database in SQL; nothing can be changed this way."""
    import csv
    import io
    import json

    from bisect_env.cli.output import deliver
    from bisect_env.errors import UsageError
    from bisect_env.report.untrusted import clean
    from bisect_env.storage.ask import ask

    if as_json and as_csv:
        raise UsageError("`--json` and `--csv` exclude each other", remedy="give one of them")
    with ask(db, question) as (names, found):
        rows = [[_plain(value) for value in row] for row in found]
    if as_json:
        deliver(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=1) + "\n", None)
        return
    if as_csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
        deliver(text.getvalue(), None)
        return
    table: list[list[object]] = [list(names), *rows]
    cells = [[clean("" if value is None else str(value)) for value in row] for row in table]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    cells.insert(1, ["-" * width for width in widths])
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    deliver("".join(f"{line.rstrip()}\n" for line in lines), None)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)
