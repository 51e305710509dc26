"""`bisect-env run`: find the first bad combination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bisect_env.cli.asking import FAILURE, Flags
from bisect_env.cli.commands import with_groups
from bisect_env.cli.conduct import Reporter, conduct, listener, reporting
from bisect_env.cli.options import ExecutionOptions, ShownOptions, StudyOptions, TargetArgument, opt
from bisect_env.cli.report_command import show_report
from bisect_env.cli.target import announce, find_target
from bisect_env.engine.study import Conclusion
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
            "Find every failing configuration: call each combination good or bad, as `map` does.",
            FAILURE,
        ),
    ] = False,
    quick: Annotated[
        bool, opt("--quick", "End as soon as the answer stands, without checking it further.", FAILURE)
    ] = False,
    sure: Annotated[bool, opt("--sure", "Check the answer for as long as its checks take.", FAILURE)] = False,
    study: StudyOptions,
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
        goal = Goal.EVERY_CONFIGURATION if every_configuration else Goal.FIRST_BAD
        conclusion = answer(words, flags, study, where, shown, reporter, goal=goal, quick=quick, sure=sure)
    if not shown.as_json:
        show_report(conclusion.report)
    raise typer.Exit(int(conclusion.exit_code))


def answer(
    words: Sequence[str] | None,
    flags: Flags,
    study: StudyOptions,
    where: ExecutionOptions,
    shown: ShownOptions,
    reporter: Reporter,
    *,
    goal: Goal,
    quick: bool = False,
    sure: bool = False,
) -> Conclusion:
    """Find the question of `run` or `map`, say how it was understood, and run its study.

    Args:
        words: The target, as given.
        flags: The options of a question.
        study: The options of the study.
        where: Options that say where trials run.
        shown: Options of what is shown.
        reporter: Shows what happens.
        goal: What is asked.
        quick: End as soon as the answer stands.
        sure: Check the answer for as long as its checks take.

    Raises:
        BisectEnvError: Whatever a user can correct.
    """
    target = find_target(words or (), flags, db=where.db, to=study.save)
    announce(target, shown)
    if study.lockfiles is None and target.study is None and not target.words:
        study = replace(study, lockfiles=Path("lockfiles"))
    matrix = skipping(target.matrix, study.skip or ())
    missing = listener(matrix) if target.words else None
    return conduct(
        matrix,
        where,
        reporter,
        study=study,
        missing=missing,
        goal=goal,
        quick=quick,
        sure=sure,
        posterior=shown.as_json,
    )
