"""`bisect-env run`: find the first bad combination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from bisect_env.cli.asking import Flags
from bisect_env.cli.commands import with_groups
from bisect_env.cli.conduct import conduct, listener, reporting
from bisect_env.cli.options import FAILURE, ExecutionOptions, ShownOptions, StudyOptions, TargetArgument, opt
from bisect_env.cli.report_command import exit_code, show_report
from bisect_env.cli.target import announce, find_target
from bisect_env.cli.views import choose
from bisect_env.errors import UsageError
from bisect_env.matrix.load import skipping
from bisect_env.search.goals import Goal


@with_groups()
def run(
    words: TargetArgument = None,
    *,
    flags: Flags,
    every_configuration: Annotated[
        bool,
        opt(
            "--all",
            "Find every failing configuration, not only the first.",
            FAILURE,
        ),
    ] = False,
    study: StudyOptions,
    where: ExecutionOptions,
    shown: ShownOptions,
) -> None:
    """Find the first bad combination: of a matrix, of a study, or of a question in words.

    `bisect-env run "orjson>=3.8" repro.py` asks which release of orjson broke a script. With several
    packages, `-p` names each, and the command stands behind `--`. With `--git PATH --from v1 --to v2` it
    asks for the commit. The same command after an interruption goes on where it stopped.
    """
    if study.quick and study.sure:
        raise UsageError(
            "--quick leaves checks out, and --sure asks for all of them", remedy="give one of the two"
        )
    goal = Goal.EVERY_CONFIGURATION if every_configuration else Goal.FIRST_BAD
    answer("run", words, flags, study, where, shown, goal)


def answer(
    command: str,
    words: Sequence[str] | None,
    flags: Flags,
    study: StudyOptions,
    where: ExecutionOptions,
    shown: ShownOptions,
    goal: Goal,
) -> NoReturn:
    """Run the study that `run` or `map` was asked for, print the report, and exit.

    Args:
        command: Name of the command.
        words: The target, as given.
        flags: The options of a question.
        study: The options of the study.
        where: Options that say where trials run.
        shown: Options of what is shown.
        goal: What the search must find.

    Raises:
        BisectEnvError: An error that the user can correct.
        typer.Exit: The study has ended.
    """
    view = choose(shown)
    with reporting(command, shown, view):
        target = find_target(words or (), flags, db=where.db, to=study.save)
        announce(target, shown)
        is_file = study.save is not None or not target.words
        if study.lockfiles is None and target.study is None and is_file:
            study = replace(study, lockfiles=Path("lockfiles"))
        matrix = skipping(target.matrix, study.skip or ())
        report = conduct(
            matrix,
            where,
            view,
            study=study,
            missing=listener(matrix) if target.words else None,
            goal=goal,
            posterior=shown.as_json,
        )
    if not shown.as_json:  # with it, the event of the verdict has the report
        show_report(report)
    raise typer.Exit(exit_code(report))
