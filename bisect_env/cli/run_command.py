"""`bisect-env run`: find the first bad combination."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bisect_env.cli.asking import FAILURE, Flags
from bisect_env.cli.commands import with_groups
from bisect_env.cli.conduct import Reporter, conduct, listener, reporting
from bisect_env.cli.options import (
    STUDY,
    DatabaseOption,
    ExecutionOptions,
    SaveOption,
    ShownOptions,
    TargetArgument,
    opt,
)
from bisect_env.cli.output import say
from bisect_env.cli.report_command import show_report
from bisect_env.cli.target import FoundTarget, announce, find_target
from bisect_env.engine.study import Conclusion
from bisect_env.errors import UsageError
from bisect_env.matrix.load import skipping
from bisect_env.search.goals import Goal

LockfilesOption = Annotated[
    Path | None,
    opt(
        "--lockfiles",
        "Write the locks below this directory, too; default for a matrix file: lockfiles.",
        STUDY,
        envvar="BISECT_ENV_LOCKFILES",
    ),
]
SkipOption = Annotated[
    list[str] | None,
    opt("--skip", "Do not try this value; may be given again.", STUDY, metavar="[AXIS=]VALUE"),
]
FreshOption = Annotated[
    bool, opt("--fresh", "Begin a new study, and measure again what was measured before.", STUDY)
]
OnlyMineOption = Annotated[
    bool, opt("--only-mine", "Use no trial that another user's study recorded.", STUDY)
]


@with_groups()
def run(
    words: TargetArgument = None,
    *,
    flags: Flags,
    every_configuration: Annotated[
        bool,
        opt(
            "--all",
            "Find every failing configuration: call each combination good or bad, as `map` does.",
            FAILURE,
        ),
    ] = False,
    quick: Annotated[
        bool, opt("--quick", "End as soon as the answer stands, without checking it further.", FAILURE)
    ] = False,
    sure: Annotated[bool, opt("--sure", "Check the answer for as long as its checks take.", FAILURE)] = False,
    save: SaveOption = None,
    skip: SkipOption = None,
    fresh: FreshOption = False,
    only_mine: OnlyMineOption = False,
    lockfiles: LockfilesOption = None,
    db: DatabaseOption = None,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Find the first bad combination: of a matrix, of a study, or of a question in words.

    `bisect-env run "orjson>=3.8" repro.py` asks which release of orjson broke a script. With several
    packages, `-p` names each, and the command stands behind `--`. With `--git PATH --from v1 --to v2` it
    asks for the commit. The same command after an interruption goes on where it stopped.
    """
    if quick and sure:
        raise UsageError(
            "--quick leaves checks out, and --sure asks for all of them", remedy="give one of the two"
        )
    with reporting("run", shown) as reporter:
        target = find_target(words or (), flags, db=db, to=save)
        conclusion = answer(
            target,
            reporter,
            where=where,
            db=db,
            shown=shown,
            skip=skip,
            lockfiles=lockfiles,
            goal=Goal.EVERY_CONFIGURATION if every_configuration else Goal.FIRST_BAD,
            fresh=fresh,
            only_mine=only_mine,
            quick=quick,
            sure=sure,
        )
    if not shown.as_json:
        show_report(conclusion.report)
    raise typer.Exit(int(conclusion.exit_code))


def answer(
    target: FoundTarget,
    reporter: Reporter,
    *,
    where: ExecutionOptions,
    db: str | None,
    shown: ShownOptions,
    skip: list[str] | None,
    lockfiles: Path | None,
    goal: Goal,
    fresh: bool,
    only_mine: bool,
    quick: bool = False,
    sure: bool = False,
) -> Conclusion:
    """Say how a question was understood, and run its study; for `run` and `map`.

    Raises:
        BisectEnvError: Whatever a user can correct.
    """
    if (text := announce(target)) and not (shown.quiet or shown.as_json):
        say(text, sys.stderr)
    if lockfiles is None and target.study is None and not target.words:
        lockfiles = Path("lockfiles")
    target = replace(target, matrix=skipping(target.matrix, skip or ()))
    return conduct(
        target.matrix,
        where,
        db,
        reporter,
        missing=listener(target.matrix) if target.words else None,
        lockfiles=lockfiles,
        goal=goal,
        fresh=fresh,
        only_mine=only_mine,
        quick=quick,
        sure=sure,
        posterior=shown.as_json,
    )
