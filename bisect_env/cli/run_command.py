"""`bisect-env run`: answer a matrix."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bisect_env.cli.options import (
    CacheOption,
    CacheSizeOption,
    DatabaseOption,
    GpusOption,
    MatrixArgument,
    OfflineOption,
    QuietOption,
    SchedulerFileOption,
    SchedulerOption,
    WorkersOption,
)
from bisect_env.cli.views import LogFileOption, VerboseOption, log_event, start_log
from bisect_env.cli.where import Where, stop_on_signals

if TYPE_CHECKING:
    from bisect_env.engine.study import Conclusion


def run(
    matrix: MatrixArgument,
    db: DatabaseOption = None,
    workers: WorkersOption = None,
    gpus: GpusOption = None,
    scheduler: SchedulerOption = None,
    scheduler_file: SchedulerFileOption = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Events as JSON lines on stdout; the last one is the verdict.")
    ] = False,
    quiet: QuietOption = False,
    lockfiles: Annotated[
        Path | None,
        typer.Option(
            envvar="BISECT_ENV_LOCKFILES",
            help="Write the locks below this directory, too; the database has them in any case.",
        ),
    ] = None,
    cache: CacheOption = None,
    every_corner: Annotated[
        bool,
        typer.Option(
            "--all", help="Go on to further failing corners until it is sure that there is no other."
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin a new study, and measure anew what was measured before.")
    ] = False,
    cache_size: CacheSizeOption = None,
    offline: OfflineOption = None,
    verbose: VerboseOption = False,
    log_file: LogFileOption = None,
) -> None:
    """Find the first bad combination of a matrix.

    The same command after an interruption goes on where it stopped.
    """
    # Imported here, so that `bisect-env --help` need not wait for Dask and numpy.
    import sys

    from bisect_env.cli import views
    from bisect_env.cli.output import with_options
    from bisect_env.engine import events
    from bisect_env.errors import BisectEnvError, StudyInterruptedError
    from bisect_env.report.text import print_report

    where = Where(workers, gpus, scheduler, scheduler_file, cache, cache_size, offline)
    start_log("run", verbose=verbose, log_file=log_file, quiet=quiet)
    stopped = stop_on_signals()
    view = views.choose(as_json=json_output, quiet=quiet, plain=verbose)
    told = False

    def notify(event: events.Event) -> None:
        nonlocal told
        told = told or isinstance(event, events.Failed)
        log_event(event)
        view(event)

    def answer() -> Conclusion:
        from bisect_env.cluster.local import default_workers
        from bisect_env.engine.study import run_study
        from bisect_env.matrix.load import load_matrix
        from bisect_env.storage.store import Store

        loaded = load_matrix(matrix)
        place, provider = where.open(loaded)
        with Store.open(db) as store, view, closing(place):
            return run_study(
                loaded,
                store=store,
                provider=provider,
                make_executor=place.executor,
                lockfiles=lockfiles,
                notify=notify,
                stopped=stopped.is_set,
                workers=default_workers(),
                machines=place.machines,
                fresh=fresh,
                every_corner=every_corner,
            )

    try:
        conclusion = answer()
    except KeyboardInterrupt:
        raise StudyInterruptedError(
            "interrupted; every trial that ended is stored",
            remedy=f"bisect-env run {matrix}   goes on from here",
        ) from None
    except BisectEnvError as error:
        if not told:  # it failed before there was a study
            log_event(events.Failed.of(error))
            view(events.Failed.of(error))
        raise
    if not json_output:
        print_report(conclusion.report, completed=lambda text: with_options(text, sys.argv[1:]))
    raise typer.Exit(int(conclusion.exit_code))
