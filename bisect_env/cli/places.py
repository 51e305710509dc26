"""Opens the place where the trials of a command run, and what makes their environments."""

from __future__ import annotations

from functools import partial

import typer

from bisect_env.cli.options import ExecutionOptions
from bisect_env.cli.signals import is_stopping
from bisect_env.cluster.choose import Place, executor_maker, machines_here, unprotected
from bisect_env.environments.provider import EnvironmentProvider, Environments, OfflineEnvironments
from bisect_env.environments.settings import default_cache_dir, parse_size
from bisect_env.matrix.load import Matrix


def open_place(where: ExecutionOptions, matrix: Matrix) -> tuple[Place, EnvironmentProvider]:
    """Return where the trials of a matrix run, for the caller to close, and what makes environments.

    Args:
        where: The options of the command.
        matrix: As loaded.

    Raises:
        UsageError: Options that exclude each other, or a size that is none.
    """
    if warning := unprotected(where.scheduler, where.scheduler_file):
        typer.echo(f"warning: {warning}", err=True)
    offline = None if where.offline is None else where.offline.absolute()
    start = executor_maker(
        gpus_per_trial=matrix.file.trial.gpus,
        workers=where.workers,
        gpus=where.gpus,
        scheduler=where.scheduler,
        scheduler_file=where.scheduler_file,
        cache=where.cache,
        cache_limit=None if where.cache_size is None else parse_size(where.cache_size, "--env-cache-size"),
        offline=offline,
    )
    cache_dir = (where.cache or default_cache_dir()).absolute()
    provider: EnvironmentProvider
    if offline is None:
        provider = Environments.of(matrix, cache_dir)
    else:
        provider = OfflineEnvironments(offline, matrix.name, cache_dir)
    here = partial(machines_here, matrix.file.trial.gpus, where.gpus)
    return Place(start, here if where.is_local else None, is_stopping), provider
