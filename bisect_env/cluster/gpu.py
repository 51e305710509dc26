"""Trials on the GPUs of this host: dask-cuda's `LocalCUDACluster`, without what would spoil a trial."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from bisect_env.cluster.local import HostExecutor
from bisect_env.cluster.nvml import INSTALL
from bisect_env.cluster.perform import PrefixBuilder
from bisect_env.cluster.resources import GPU
from bisect_env.errors import InfrastructureError

CONTEXT_PRELOAD = "dask_cuda.initialize"
"""dask-cuda's preload that creates a CUDA context in every worker. It would hold memory of the GPU for the
whole study, and share the fault of any trial that breaks the GPU."""


class GpuExecutor(HostExecutor):
    """An `Executor` with one worker for as many GPUs as one trial needs.

    Workers never open CUDA. Each trial sees the GPUs it was lent and no others, by UUID.

    Args:
        build: Makes prefixes; has to survive a pickle.
        groups: UUIDs of the GPUs of each worker.

    Raises:
        InfrastructureError: dask-cuda is not installed, or the cluster does not start.
    """

    def __init__(self, build: PrefixBuilder, groups: Sequence[tuple[str, ...]]) -> None:
        self._groups = {group[0]: group for group in groups}
        self._cluster_class = _cluster_class()
        super().__init__(build, len(groups), gpus_per_trial=len(groups[0]))

    def _make_cluster(self, workers: int, options: dict[str, Any]) -> Any:
        return self._cluster_class(
            groups=self._groups,
            CUDA_VISIBLE_DEVICES=list(self._groups),
            n_workers=workers,
            # None: nothing of ours is ever in GPU memory, so nothing is to be spilled from it.
            device_memory_limit=None,
            **options,
        )


def refuse_without_dask_cuda() -> Any:
    """The module `dask_cuda`.

    Raises:
        InfrastructureError: It is not installed.
    """
    try:
        return importlib.import_module("dask_cuda")
    except ImportError as error:
        raise InfrastructureError(f"dask-cuda cannot be used: {error}", remedy=INSTALL) from error


def _cluster_class() -> Any:
    dask_cuda = refuse_without_dask_cuda()

    class _Cluster(dask_cuda.LocalCUDACluster):  # type: ignore[misc,name-defined]
        def __init__(self, *, groups: dict[str, tuple[str, ...]], **options: Any) -> None:
            self.groups = groups
            super().__init__(**options)

        def new_worker_spec(self) -> dict[str, Any]:
            (named,) = super().new_worker_spec().items()
            name, spec = named
            gpus = self.groups[name]
            options = spec["options"]
            kept = [one for one in options["preload"] if one != CONTEXT_PRELOAD]
            spec["options"] = {
                **options,
                "preload": kept,
                "preload_argv": [[] for _ in kept],
                # CPU affinity, memory pools, libraries to import: all for tasks that compute in the worker.
                # Trials do not; theirs are the CPUs of the command.
                "plugins": (),
                "env": {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
                "resources": {GPU: len(gpus)},
            }
            return {name: spec}

    return _Cluster
