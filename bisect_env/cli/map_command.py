"""`bisect-env map`: call every combination good or bad."""

from __future__ import annotations

from bisect_env.cli.answering import answer
from bisect_env.cli.asking import Flags
from bisect_env.cli.commands import with_groups
from bisect_env.cli.options import ExecutionOptions, ShownOptions, StudyOptions, TargetArgument
from bisect_env.search.goals import Goal


@with_groups(without=("quick", "sure"))
def map(  # noqa: A001 - so is the command called
    words: TargetArgument = None,
    *,
    flags: Flags,
    study: StudyOptions,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Call every combination good or bad, trying as few as that takes.

    `bisect-env map -p "attrs>=22" -p "pytest>=7" --step minor -- pytest -q` prints which releases of both go
    together; `bisect-env report --format md` prints the same table in other formats. If
    a frontier divides good from bad, only combinations near it are tried; the table marks the others.
    The same command after an interruption goes on where it stopped.
    """
    answer("map", words, flags, study, where, shown, Goal.TABLE)
