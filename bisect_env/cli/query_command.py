"""`bisect-env query`: ask the results database in SQL."""

from __future__ import annotations

from typing import Annotated

import typer

from bisect_env.cli.options import DatabaseOption, JsonOption, opt
from bisect_env.cli.output import deliver_rows
from bisect_env.storage.query import ask


def query(
    question: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT.")],
    timeout: Annotated[
        float, opt("--timeout", "How long the answer may take.", min=0.01, max=86400.0, metavar="SECONDS")
    ] = 30.0,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, opt("--csv", "Comma-separated values.")] = False,
    db: DatabaseOption = None,
) -> None:
    """Ask the results database in SQL; nothing can be changed this way.

    `bisect-env query "SELECT study, outcome FROM v_trials" --json` prints an object for each row, on a line
    of its own. The views are v_trials, v_combinations, v_verdicts and v_packages; a question about a column
    that is not there is answered with those that are.
    """
    with ask(db, question, timeout=timeout) as (names, found):
        rows = list(found)
    deliver_rows(names, rows, as_json=as_json, as_csv=as_csv)
