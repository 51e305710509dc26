"""`bisect-env run`: find the first bad combination.

Only what reads a question is imported on top. The rest of the program is imported after solvers have begun,
because most of the time before the first trial is otherwise spent on importing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from typing import Annotated

from bisect_env.cli.asking import Flags, with_search
from bisect_env.cli.commands import with_groups
from bisect_env.cli.options import FAILURE, ExecutionOptions, ShownOptions, StudyOptions, TargetArgument, opt
from bisect_env.cli.providing import open_provider
from bisect_env.cli.question import asked_target, refuse_broken_scripts
from bisect_env.engine.early import EarlyLocks
from bisect_env.errors import BisectEnvError, UsageError
from bisect_env.matrix.load import skipping
from bisect_env.trials.forks import SERVER


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
    early = _lock_early(words or (), flags, study, where)
    with nullcontext() if early is None else closing(early):
        from bisect_env.cli.answering import answer
        from bisect_env.search.goals import Goal

        goal = Goal.EVERY_CONFIGURATION if every_configuration else Goal.FIRST_BAD
        answer("run", words, flags, study, where, shown, goal, early)


def _lock_early(
    words: Sequence[str], flags: Flags, study: StudyOptions, where: ExecutionOptions
) -> EarlyLocks | None:
    """Begin to lock the ends of the question that a command line asks, or return None if it asks none.

    An error is not shown here, because `answer` reads the same command line and shows it.
    """
    try:
        target = asked_target(words, flags)
        if target is None:
            return None
        matrix = skipping(with_search(target.matrix, flags), study.skip or ())
        refuse_broken_scripts(matrix)
        if where.is_local and matrix.file.trial.gpus == 0:
            # Workers with GPUs are processes with servers of their own.
            SERVER.prepare()
        return EarlyLocks(matrix, open_provider(matrix, where))
    except BisectEnvError:
        return None
