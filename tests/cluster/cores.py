"""A Dask cluster of processes on this host, for what the executor on this host's GPUs shares with it."""

from __future__ import annotations

from functools import partial

import distributed

from bisect_env.cluster.local import HostExecutor
from bisect_env.cluster.perform import PrefixBuilder


def cores_executor(build: PrefixBuilder, workers: int) -> HostExecutor:
    """Start as many workers, each for one trial at a time and without GPUs."""
    cluster = partial(distributed.LocalCluster, n_workers=workers, processes=True)
    return HostExecutor(build, cluster)
