"""Runs the study of a matrix, and shows how it goes on and what it found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from bisect_env.cli import views
from bisect_env.cli.log import log_event, start_log
from bisect_env.cli.options import ExecutionOptions, ShownOptions, StudyOptions
from bisect_env.cli.work import opened
from bisect_env.cluster.pool import default_workers
from bisect_env.engine import events
from bisect_env.engine.missing import MissingModules, package_of_module
from bisect_env.engine.study import Conclusion, StudyRun
from bisect_env.errors import (
    BisectEnvError,
    EndsNotAsStatedError,
    ExitCode,
    StudyInterruptedError,
    UsageError,
)
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis, PackageAxis
from bisect_env.report.build import report_document
from bisect_env.search.goals import Goal

_STUDY = StudyOptions()


class Reporter:
    """Shows and logs the events of a command.

    Args:
        view: Shows events.

    Attributes:
        view: As given.
        has_failed: Whether an error was shown.
        missing: Listens for a module that the matrix forgot; None if nobody listens.
    """

    def __init__(self, view: views.View) -> None:
        self.view = view
        self.has_failed = False
        self.missing: MissingModules | None = None

    def __call__(self, event: events.Event) -> None:
        """Show an event."""
        if isinstance(event, events.Failed) and self.lacking(event.exit_code):
            return  # `conduct` explains it
        self.has_failed = self.has_failed or isinstance(event, events.Failed)
        self.view(event)
        if self.missing is not None:
            self.missing.on_event(event)

    def lacking(self, exit_code: int) -> str | None:
        """Return the module for want of which a study ended, None if that is not why."""
        if self.missing is None:
            return None
        return self.missing.module or (
            self.missing.suspect if exit_code == ExitCode.ENDS_NOT_AS_STATED else None
        )


@contextlib.contextmanager
def reporting(command: str, shown: ShownOptions, *, plain: bool = False) -> Iterator[Reporter]:
    """Begin the log of a command, and show its errors as events, too.

    Args:
        command: Name of the command.
        shown: Options of what is shown.
        plain: Show lines even on a terminal.

    Raises:
        StudyInterruptedError: In place of Ctrl-C.
    """
    start_log(command, shown)
    view = views.choose(shown, plain=plain or shown.verbose)
    reporter = Reporter(view)
    try:
        yield reporter
    except KeyboardInterrupt:
        raise StudyInterruptedError(
            "interrupted; every trial that ended is stored", remedy="the same command goes on from here"
        ) from None
    except BisectEnvError as error:
        if not reporter.has_failed:  # it failed before there was a study
            log_event(events.Failed.of(error))
            view(events.Failed.of(error))
        raise


def conduct(
    matrix: Matrix,
    where: ExecutionOptions,
    reporter: Reporter,
    *,
    study: StudyOptions = _STUDY,
    missing: MissingModules | None = None,
    goal: Goal = Goal.FIRST_BAD,
    quick: bool = False,
    sure: bool = False,
    posterior: bool = False,
) -> Conclusion:
    """Run the study of a matrix.

    Args:
        matrix: The question.
        where: Options that say where trials run.
        reporter: Shows what happens.
        study: The options of the study; `save` and `skip` are done with.
        missing: Listens for a module that the matrix forgot, which ends the study; None if nobody listens.
        goal: What is asked.
        quick: End as soon as the answer stands.
        sure: Check the answer for as long as its checks take.
        posterior: Whether the report follows the answers through all trials.

    Raises:
        BisectEnvError: Whatever a user can correct.
    """
    reporter.missing = missing
    with opened(matrix, where, reporter) as work, reporter.view:
        try:
            conclusion = StudyRun(
                matrix,
                store=work.session.store,
                provider=work.session.provider,
                place=work.place,
                lockfiles=study.lockfiles,
                notify=work.session.notify,
                report=partial(report_document, posterior=posterior),
                stopped=lambda: work.stopped or (missing is not None and missing.module is not None),
                workers=default_workers(),
                fresh=study.fresh,
                only_mine=study.only_mine,
                goal=goal,
                quick=quick,
                sure=sure,
            ).run()
        except (StudyInterruptedError, EndsNotAsStatedError) as error:
            module = reporter.lacking(error.exit_code)
            if module is None or work.stopped:
                raise
            raise _forgotten(module, everywhere=missing is not None and missing.module is not None) from None
        return conclusion


def listener(matrix: Matrix) -> MissingModules:
    """Return a listener for modules that a question in words forgot."""
    axes = matrix.file.axes.values()
    return MissingModules(
        [axis.canonical_package for axis in axes if isinstance(axis, PackageAxis | CommitAxis)]
    )


def _forgotten(module: str, *, everywhere: bool) -> Exception:
    """Return the error about environments that lack a module which the command imports.

    Args:
        module: Name of the module.
        everywhere: Whether all environments lack it, as far as is known; else the one that should work does.
    """
    what = f"no environment has the module {module!r}, which the command imports: it fails everywhere alike"
    if not everywhere:
        what = f"the environment that should work lacks the module {module!r}, which the command imports"
    return UsageError(
        what,
        tried="several environments, before anything was searched" if everywhere else None,
        remedy=f"add the package that brings it: --with {package_of_module(module)}",
    )
