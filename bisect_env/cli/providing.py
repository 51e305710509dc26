"""Opens the provider that locks and builds the environments of a command."""

from __future__ import annotations

from bisect_env.cli.options import ExecutionOptions
from bisect_env.environments.provider import EnvironmentProvider, Environments, OfflineEnvironments
from bisect_env.environments.settings import default_cache_dir
from bisect_env.matrix.load import Matrix


def open_provider(matrix: Matrix, where: ExecutionOptions) -> EnvironmentProvider:
    """Return the provider that locks and builds the environments of a matrix."""
    cache_dir = (where.cache or default_cache_dir()).absolute()
    if where.offline is None:
        return Environments.of(matrix, cache_dir)
    return OfflineEnvironments(where.offline.absolute(), matrix.name, cache_dir)
