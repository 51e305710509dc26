"""`bisect-env map`: call every combination good or bad."""

from __future__ import annotations

import typer

from bisect_env.cli.asking import Flags
from bisect_env.cli.commands import with_groups
from bisect_env.cli.conduct import reporting
from bisect_env.cli.options import ExecutionOptions, ShownOptions, StudyOptions, TargetArgument
from bisect_env.cli.report_command import show_report
from bisect_env.cli.run_command import answer
from bisect_env.search.goals import Goal


@with_groups()
def map(  # noqa: A001 - so is the command called
    words: TargetArgument = None,
    *,
    flags: Flags,
    study: StudyOptions,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Call every combination good or bad, with as few environments as that takes.

    `bisect-env map -p "attrs>=22" -p "pytest>=7" --step minor -- pytest -q` prints which releases of both go
    together; `bisect-env report --format md` prints the same table in other formats. Where the table has
    frontiers only some combinations are tried; the others are told apart in it. The same command after an
    interruption goes on where it stopped.
    """
    with reporting("map", shown) as reporter:
        conclusion = answer(words, flags, study, where, shown, reporter, goal=Goal.TABLE)
    if not shown.as_json:
        show_report(conclusion.report)
    raise typer.Exit(int(conclusion.exit_code))
