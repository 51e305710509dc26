"""`bisect-env query`: ask the results database in SQL."""

from __future__ import annotations

from typing import Annotated

import typer

from bisect_env.cli.options import DatabaseOption


def query(
    question: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT.")],
    db: DatabaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of objects.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.01, max=86400.0, metavar="SECONDS", help="How long the answer may take.")
    ] = 30.0,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False,
) -> None:
    """Ask the results database in SQL; nothing can be changed this way."""
    from bisect_env.cli.output import as_text, deliver
    from bisect_env.storage.query import ask

    with ask(db, question, timeout=timeout) as (names, found):
        rows = list(found)
    deliver(as_text(names, rows, as_json=as_json, as_csv=as_csv), None)
