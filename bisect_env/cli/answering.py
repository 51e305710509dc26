"""Runs the study that `run` or `map` was asked for, and prints its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import typer

from bisect_env.cli.asking import Flags
from bisect_env.cli.conduct import conduct, reporting
from bisect_env.cli.options import ExecutionOptions, ShownOptions, StudyOptions
from bisect_env.cli.report_command import exit_code, show_report
from bisect_env.cli.target import announce, find_target
from bisect_env.cli.views import choose
from bisect_env.engine.early import EarlyLocks
from bisect_env.engine.missing import MissingModules
from bisect_env.matrix.load import skipping
from bisect_env.matrix.schema import CommitAxis, PackageAxis
from bisect_env.search.goals import Goal


def answer(
    command: str,
    words: Sequence[str] | None,
    flags: Flags,
    study: StudyOptions,
    where: ExecutionOptions,
    shown: ShownOptions,
    goal: Goal,
    early: EarlyLocks | None = None,
) -> NoReturn:
    """Run the study that `run` or `map` was asked for, print the report, and exit.

    Args:
        command: Name of the command.
        words: The target, as given.
        flags: The options of a question.
        study: The options of the study.
        where: Options that say where trials run.
        shown: Options of the output.
        goal: The goal of the search.
        early: Solvers that have begun with the ends of the question; None if there are none.

    Raises:
        BisectEnvError: An error that the user can correct.
        typer.Exit: The study has ended.
    """
    view = choose(shown)
    with reporting(command, shown, view):
        target = find_target(words or (), flags, db=where.db, to=study.save)
        announce(target, shown)
        if study.lockfiles is None and target.study is None and target.matrix.path is not None:
            study = replace(study, lockfiles=Path("lockfiles"))
        matrix = skipping(target.matrix, study.skip or ())
        axes = matrix.file.axes.values()
        own = [axis.canonical_package for axis in axes if isinstance(axis, PackageAxis | CommitAxis)]
        report = conduct(
            matrix,
            where,
            view,
            study=study,
            missing=MissingModules(own) if target.words else None,
            goal=goal,
            early=early,
        )
    if not shown.as_json:  # with it, the event of the verdict has the report
        show_report(report)
    raise typer.Exit(exit_code(report))
