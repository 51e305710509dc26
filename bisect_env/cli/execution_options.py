"""The options that say where a command runs its trials and how it makes its environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from bisect_env.cli.options import (
    CacheOption,
    CacheSizeOption,
    Cluster,
    ClusterOption,
    GpusOption,
    OfflineOption,
    SchedulerFileOption,
    SchedulerOption,
    WorkersOption,
)
from bisect_env.cli.signals import is_stopping

if TYPE_CHECKING:
    from bisect_env.cluster.choose import LazyExecutor
    from bisect_env.environments.provider import EnvironmentProvider
    from bisect_env.matrix.load import Matrix


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """The options of a command that runs trials, as the user gave them; a group, see `with_groups`."""

    workers: WorkersOption = None
    gpus: GpusOption = None
    scheduler: SchedulerOption = None
    scheduler_file: SchedulerFileOption = None
    cache: CacheOption = None
    cache_size: CacheSizeOption = None
    offline: OfflineOption = None
    cluster: ClusterOption = Cluster.THREADS

    @property
    def starting(self) -> str:
        """The message before the executor is used for the first time, which may take seconds."""
        return "starting workers" if self._is_local else "connecting to the Dask cluster"

    @property
    def makes_here(self) -> bool:
        """Whether trials find the environments that this process makes, where it could make them at once."""
        return self._is_local and self.offline is None

    @property
    def tries_here(self) -> bool:
        """Whether trials are started by this process, with nothing to start before."""
        return self.makes_here and self.cluster is Cluster.THREADS

    @property
    def _is_local(self) -> bool:
        return self.scheduler is None and self.scheduler_file is None

    def open(self, matrix: Matrix) -> tuple[LazyExecutor, EnvironmentProvider]:
        """The place for trials of a matrix, to be closed by the caller, and who makes environments.

        Raises:
            UsageError: Options that exclude each other, or a size that is none.
        """
        # Imported here, so that `bisect-env --help` need not wait for Dask.
        from bisect_env.cluster.choose import LazyExecutor, executor_maker, unprotected
        from bisect_env.environments.offline import OfflineEnvironments
        from bisect_env.environments.provider import Environments
        from bisect_env.environments.settings import default_cache_dir, parse_size

        if warning := unprotected(self.scheduler, self.scheduler_file):
            typer.echo(f"warning: {warning}", err=True)
        offline = None if self.offline is None else self.offline.absolute()
        start = executor_maker(
            gpus_per_trial=matrix.file.trial.gpus,
            workers=self.workers,
            gpus=self.gpus,
            scheduler=self.scheduler,
            scheduler_file=self.scheduler_file,
            cache=self.cache,
            cache_limit=None if self.cache_size is None else parse_size(self.cache_size, "--env-cache-size"),
            offline=offline,
            dask=self.cluster is Cluster.LOCAL,
        )
        cache_dir = (self.cache or default_cache_dir()).absolute()
        provider: EnvironmentProvider
        if offline is None:
            provider = Environments(cache_dir, index=matrix.file.index)
        else:
            provider = OfflineEnvironments(offline, matrix.name, cache_dir)
        place = LazyExecutor(
            start,
            gpus_per_trial=matrix.file.trial.gpus,
            gpus=self.gpus,
            is_remote=not self._is_local,
            stopped=is_stopping,
        )
        return place, provider
