"""`bisect-env query`: query the results database in SQL."""

from __future__ import annotations

from typing import Annotated

import typer

from bisect_env.cli.commands import with_groups
from bisect_env.cli.options import DatabaseOption, TableOptions, opt
from bisect_env.cli.output import deliver_rows
from bisect_env.storage.query import ask


@with_groups()
def query(
    question: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT.")],
    time_limit: Annotated[
        float, opt("--time-limit SECONDS", "Time limit of the query.", min=0.01, max=86400.0)
    ] = 30.0,
    *,
    form: TableOptions,
    db: DatabaseOption = None,
) -> None:
    """Query the results database in SQL, read-only.

    `bisect-env query "SELECT study, outcome FROM v_trials" --json` prints an object for each row, on a line
    of its own. The views are v_trials, v_combinations, v_verdicts and v_packages. A query for an unknown
    table or column is answered with the known ones.
    """
    with ask(db, question, timeout=time_limit) as (names, found):
        rows = list(found)
    deliver_rows(names, rows, form)
