"""`bisect-env run`: answer a matrix."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import closing
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bisect_env.cluster.protocol import Executor
    from bisect_env.engine.study import Conclusion


def run(
    matrix: Annotated[Path, typer.Argument(help="Matrix file, such as matrices/quickstart.yaml.")],
    db: Annotated[
        str | None,
        typer.Option(envvar="BISECT_ENV_DB", help="Results database: a file or a URL."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes; default: one for each core, or for each trial's GPUs."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="GPUs to use, such as 0,2 (or UUIDs); default: all that are visible.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Run trials on this Dask cluster, such as tcp://host:8786.")
    ] = None,
    scheduler_file: Annotated[
        Path | None, typer.Option(help="The same, by the file that `dask scheduler` writes.")
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Events as JSON lines on stdout; the last one is the verdict.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show warnings and the verdict alone.")
    ] = False,
    lockfiles: Annotated[
        Path, typer.Option(envvar="BISECT_ENV_LOCKFILES", help="Where locks are written.")
    ] = Path("lockfiles"),
    cache: Annotated[
        Path | None, typer.Option(envvar="BISECT_ENV_CACHE", help="Where environments are built.")
    ] = None,
    every_corner: Annotated[
        bool,
        typer.Option(
            "--all", help="Go on to further failing corners until it is sure that there is no other."
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin a new study, and measure anew what was measured before.")
    ] = False,
    cache_size: Annotated[
        str | None,
        typer.Option(
            "--env-cache-size",
            envvar="BISECT_ENV_CACHE_SIZE",
            help="Take away what was used least recently when the cache grows above this, such as 50GB.",
        ),
    ] = None,
    offline: Annotated[
        Path | None,
        typer.Option(
            envvar="BISECT_ENV_OFFLINE",
            help="Use no network, but what `bisect-env fetch` put into this directory.",
        ),
    ] = None,
) -> None:
    """Find the first bad combination of a matrix.

    The same command after an interruption goes on where it stopped.
    """
    # Imported here, so that `bisect-env --help` need not wait for Dask and numpy.
    from bisect_env.cli import views
    from bisect_env.engine import events
    from bisect_env.errors import BisectEnvError, StudyInterruptedError
    from bisect_env.report.text import print_report

    stopped = _stop_on_signals()
    view = views.choose(as_json=json_output, quiet=quiet)
    told = False

    def notify(event: events.Event) -> None:
        nonlocal told
        told = told or isinstance(event, events.Failed)
        view(event)

    def answer() -> Conclusion:
        from bisect_env.cluster.choose import executor_maker
        from bisect_env.cluster.local import default_workers
        from bisect_env.cluster.machines import Place
        from bisect_env.engine.study import run_study
        from bisect_env.environments.offline import OfflineEnvironments
        from bisect_env.environments.provider import EnvironmentProvider, Environments
        from bisect_env.environments.settings import default_cache_dir, parse_size
        from bisect_env.matrix.load import load_matrix
        from bisect_env.storage.store import Store

        loaded = load_matrix(matrix)
        cache_dir = (cache or default_cache_dir()).absolute()
        start = executor_maker(
            gpus_per_trial=loaded.file.trial.gpus,
            workers=workers,
            gpus=gpus,
            scheduler=scheduler,
            scheduler_file=scheduler_file,
            cache=cache,
            cache_limit=None if cache_size is None else parse_size(cache_size, "--env-cache-size"),
            offline=None if offline is None else offline.absolute(),
        )
        provider: EnvironmentProvider
        if offline is None:
            provider = Environments(cache_dir, index=loaded.file.index)
        else:
            provider = OfflineEnvironments(offline.absolute(), loaded.name, cache_dir)
        place = Place(
            lambda: _deaf_to_ctrl_c(start),
            gpus_per_trial=loaded.file.trial.gpus,
            gpus=gpus,
            is_remote=scheduler is not None or scheduler_file is not None,
        )
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
            view(events.Failed.of(error))
        raise
    if not json_output:
        print_report(conclusion.report)
    raise typer.Exit(int(conclusion.exit_code))


def _deaf_to_ctrl_c(start: Callable[[], Executor]) -> Executor:
    """Start the cluster in such a way that Ctrl-C does not reach its processes.

    A terminal sends it to every process of the foreground group. Workers that are still importing would die
    of it, with a traceback each, and the command would believe that the cluster cannot start. They inherit
    the mask; trials get a clean one from their supervisor. Here a Ctrl-C waits until the cluster stands.
    """
    # Starting it later would unblock SIGINT in the thread that starts the workers.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop_on_signals() -> threading.Event:
    """The first Ctrl-C (or SIGTERM, SIGHUP) stops in an orderly way; a second Ctrl-C ends at once."""
    stop = threading.Event()

    def handle(_signum: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGHUP, handle)
    return stop
