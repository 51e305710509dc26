"""Opens and closes what a command needs to run trials: database, executor, environments, signals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing

from bisect_env.cli.options import ExecutionOptions
from bisect_env.cli.output import tell
from bisect_env.cli.providing import open_provider
from bisect_env.cli.signals import stop_on_signals
from bisect_env.cluster.choose import Place, executor_maker, tls_warning
from bisect_env.engine import events
from bisect_env.engine.session import Session
from bisect_env.engine.specs import allowed_sources, within_limits
from bisect_env.environments.cache import free_bytes, growth, refuse_noexec
from bisect_env.environments.lock import Lock
from bisect_env.environments.prefix import Prefix
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.environments.settings import default_cache_dir, parse_size
from bisect_env.matrix.load import Matrix
from bisect_env.running import end_running
from bisect_env.storage.store import Store

Show = Callable[[events.Event], None]


@contextlib.contextmanager
def opened(
    matrix: Matrix, where: ExecutionOptions, show: Show, provider: EnvironmentProvider | None = None
) -> Iterator[Session]:
    """Open the results database, the workers and the environments of a matrix for the duration of the block.

    Inside the block, a signal such as Ctrl-C stops the work in an orderly way.

    Args:
        matrix: The question.
        where: Options for the place of trials and of results.
        show: Receiver of every event.
        provider: Provider of the matrix's environments, if there is one already.

    Raises:
        UsageError: Options exclude each other, or a size is invalid.
        StorageError: The database cannot be used.
        InfrastructureError: Trials run here, and nothing can be executed from the cache.
    """
    with contextlib.ExitStack() as stack:
        stopping = stack.enter_context(stop_on_signals())
        cache = (where.cache or default_cache_dir()).absolute()
        if where.is_local:
            refuse_noexec(cache)
        free = free_bytes(cache)
        if warning := tls_warning(where.scheduler, where.scheduler_file):
            tell(f"warning: {warning}")
        gpus = matrix.file.trial.gpus
        start = executor_maker(
            gpus_per_trial=gpus,
            workers=where.workers,
            gpus=where.devices,
            scheduler=where.scheduler,
            scheduler_file=where.scheduler_file,
            cache=where.cache,
            cache_limit=None
            if where.cache_size is None
            else parse_size(where.cache_size, "--env-cache-size"),
            offline=None if where.offline is None else where.offline.absolute(),
            indexes=matrix.file.package_indexes,
        )
        place = Place(start, stopping.is_set)
        provider = provider or open_provider(matrix, where)
        stack.callback(end_running)  # solvers may still be running for results that are no longer needed
        stack.enter_context(closing(place))
        store = stack.enter_context(Store.open(where.db))
        session = Session(store, provider, place.executor, show, stopping.is_set)
        try:
            yield session
        finally:  # also after an error, which may be that of a full disk
            if text := growth(cache, free):
                session.say(text)


def environment_of(matrix: Matrix, lock: Lock, provider: EnvironmentProvider) -> Prefix:
    """Return the installed environment of a lock, and build it if necessary.

    The caller must release the environment.
    """
    return provider.ensure_prefix(within_limits(matrix, lock), allow_source=allowed_sources(matrix))
