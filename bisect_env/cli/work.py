"""Opens what a command runs trials with, and closes it: database, executor, environments, log, signals."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from bisect_env.cli.log import log_event
from bisect_env.cli.options import ExecutionOptions
from bisect_env.cli.output import tell
from bisect_env.cli.signals import is_stopping, stop_on_signals
from bisect_env.cluster.choose import Place, executor_maker, machines_here, unprotected
from bisect_env.engine import events
from bisect_env.engine.session import Session
from bisect_env.environments.cache import free_bytes, growth
from bisect_env.environments.provider import EnvironmentProvider, Environments, OfflineEnvironments
from bisect_env.environments.settings import default_cache_dir, parse_size
from bisect_env.environments.uv_tool import end_running
from bisect_env.matrix.load import Matrix
from bisect_env.storage.store import Store

Show = Callable[[events.Event], None]


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that a command has open while it runs trials.

    Attributes:
        session: Database, environments, executor and the receiver of events.
        place: The executor that the session starts.
        stopping: Set when the user wants to stop.
    """

    session: Session
    place: Place
    stopping: threading.Event

    @property
    def stopped(self) -> bool:
        """Return whether the user wants to stop."""
        return self.stopping.is_set()


@contextlib.contextmanager
def opened(matrix: Matrix, where: ExecutionOptions, show: Show) -> Iterator[Work]:
    """Open everything that a command needs to run trials of a matrix, and close it at the end of the block.

    Args:
        matrix: The question.
        where: Options that say where trials run, and where results are.
        show: Called with everything that happens, which is logged, too.

    Raises:
        UsageError: Options exclude each other.
        StorageError: The database cannot be used.
    """
    stopping = stop_on_signals()
    cache = (where.cache or default_cache_dir()).absolute()
    free = free_bytes(cache)
    place, provider = open_place(matrix, where)
    with contextlib.ExitStack() as stack:
        stack.callback(end_running)  # solvers may still work on what is not wanted any more
        stack.enter_context(closing(place))
        store = stack.enter_context(Store.open(where.db))
        session = Session(store, provider, place.executor, logged(show), stopping.is_set)
        yield Work(session, place, stopping)
        if text := growth(cache, free):
            session.say(text)


def open_place(matrix: Matrix, where: ExecutionOptions) -> tuple[Place, EnvironmentProvider]:
    """Return where the trials of a matrix run, for the caller to close, and what makes environments.

    Args:
        matrix: The question.
        where: Options of the command.

    Raises:
        UsageError: Options exclude each other, or a size is invalid.
    """
    if warning := unprotected(where.scheduler, where.scheduler_file):
        tell(f"warning: {warning}")
    offline = None if where.offline is None else where.offline.absolute()
    start = executor_maker(
        gpus_per_trial=matrix.file.trial.gpus,
        workers=where.workers,
        gpus=where.devices,
        scheduler=where.scheduler,
        scheduler_file=where.scheduler_file,
        cache=where.cache,
        cache_limit=None if where.cache_size is None else parse_size(where.cache_size, "--env-cache-size"),
        offline=offline,
    )
    here = partial(machines_here, matrix.file.trial.gpus, where.devices)
    return Place(start, here if where.is_local else None, is_stopping), open_provider(matrix, where)


def open_provider(matrix: Matrix, where: ExecutionOptions) -> EnvironmentProvider:
    """Return what makes the environments of a matrix."""
    cache_dir = (where.cache or default_cache_dir()).absolute()
    if where.offline is None:
        return Environments.of(matrix, cache_dir)
    return OfflineEnvironments(where.offline.absolute(), matrix.name, cache_dir)


def logged(show: Show) -> Show:
    """Return a receiver of events that writes each into the log, too."""

    def both(event: events.Event) -> None:
        log_event(event)
        show(event)

    return both
