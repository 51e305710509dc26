"""Runs the study of a matrix, and shows its progress and its result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bisect_env.answers.remedies import Asked
from bisect_env.cli.log import start_log
from bisect_env.cli.options import ExecutionOptions, ShownOptions, StudyOptions
from bisect_env.cli.views import View
from bisect_env.cli.work import opened
from bisect_env.cluster.pool import default_workers
from bisect_env.engine import events
from bisect_env.engine.early import EarlyLocks
from bisect_env.engine.missing import MissingModules
from bisect_env.engine.study import StudyRun
from bisect_env.errors import (
    BisectEnvError,
    EndsNotAsStatedError,
    ExitCode,
    StudyInterruptedError,
    UsageError,
)
from bisect_env.matrix.import_names import package_of_module
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.project import file_naming, how_to_take, local_module
from bisect_env.report.build import report_document
from bisect_env.report.model import Report
from bisect_env.search.goals import Goal

_STUDY = StudyOptions()


@contextlib.contextmanager
def reporting(command: str, shown: ShownOptions, view: View) -> Iterator[None]:
    """Start the log of a command, and show errors that are raised inside the `with` block.

    Args:
        command: Name of the command.
        shown: Options of the output.
        view: Shows the events of the command.
    """
    start_log(command, shown)
    try:
        yield
    except BisectEnvError as error:
        if not view.has_failed:  # the error occurred before the study began, so no event has shown it
            view(events.Failed.of(error))
        raise


def conduct(
    matrix: Matrix,
    where: ExecutionOptions,
    view: View,
    *,
    study: StudyOptions = _STUDY,
    missing: MissingModules | None = None,
    goal: Goal = Goal.FIRST_BAD,
    early: EarlyLocks | None = None,
) -> Report:
    """Run the study of a matrix, and return its report.

    Args:
        matrix: The question.
        where: Options that say where trials run.
        view: Shows what happens.
        study: Options of the study; `save` and `skip` must already be applied to the matrix.
        missing: Listener that ends the study if environments lack a module; None if there is none.
        goal: The goal of the search.
        early: Solvers that have begun with the ends of a matrix; unused if it is not this matrix.

    Raises:
        BisectEnvError: An error that the user can correct.
    """

    def lacking(exit_code: int) -> str | None:
        """Return the name of the missing module that ended the study, or None if there is none."""
        if missing is None:
            return None
        return missing.module or (missing.suspect if exit_code == ExitCode.ENDS_NOT_AS_STATED else None)

    def notify(event: events.Event) -> None:
        if isinstance(event, events.Failed) and lacking(event.exit_code):
            return  # the error is replaced below
        view(event)
        if missing is not None and isinstance(event, events.TrialFinished):
            missing.tell(event.record)

    if early is not None and early.matrix != matrix:
        early = None
    provider = None if early is None else early.provider
    with opened(matrix, where, notify, provider) as session, view:
        try:
            report = StudyRun(
                matrix,
                replace(
                    session,
                    stopped=lambda: session.stopped() or (missing is not None and missing.module is not None),
                ),
                report_document,
                lockfiles=study.lockfiles,
                workers=default_workers(),
                fresh=study.fresh,
                only_mine=study.only_mine,
                goal=goal,
                quick=study.quick,
                sure=study.sure,
                early=early,
            ).run()
        except (StudyInterruptedError, EndsNotAsStatedError) as error:
            module = lacking(error.exit_code)
            if module is None or session.stopped():
                raise
            everywhere = missing is not None and missing.module is not None
            raise _forgotten(matrix, module, everywhere=everywhere) from None
        return Report.read(report)


def _how_to_bring(matrix: Matrix, module: str, asked: Asked) -> str:
    """Return how to bring a missing module into the trials: a local file, or the package that has it."""
    folder = Path.cwd() if matrix.path is None else matrix.path.parent
    if place := local_module(module, folder, [file.name for file in matrix.files]):
        option = asked.add_option(how_to_take(place), f"files: [{place}]")
        return f"{place} lies beside what is run and was not copied into the trials: {option}"
    return asked.add_package(module, file_naming(package_of_module(module), folder))


def _forgotten(matrix: Matrix, module: str, *, everywhere: bool) -> Exception:
    """Return the error to raise if the command imports a module that is not installed in the environments.

    Args:
        matrix: The question.
        module: Name of the module.
        everywhere: Whether all tried environments lack it; if False, the one that should work lacks it.
    """
    what = f"no environment has the module {module!r}, which the command imports: it fails everywhere alike"
    if not everywhere:
        what = f"the environment that should work lacks the module {module!r}, which the command imports"
    asked = Asked.of(matrix.path, matrix.file.axes)
    return UsageError(
        what,
        tried="several environments, before anything was searched" if everywhere else None,
        remedy=_how_to_bring(matrix, module, asked),
    )
