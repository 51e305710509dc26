"""The cluster on this host's GPUs, with a stand-in for dask-cuda that needs none."""

from __future__ import annotations

import copy
import os
import sys
from contextlib import closing
from types import ModuleType
from typing import Any

import distributed
import pytest

from bisect_env.cluster.local import gpu_executor
from tests.cluster.executor_contract import build

GROUPS = (("GPU-a", "GPU-b"), ("GPU-c", "GPU-d"))


class LocalCUDACluster(distributed.LocalCluster):
    """Starts a worker for each device as dask-cuda does: all devices, rotated, and a CUDA context."""

    def __init__(self, *, CUDA_VISIBLE_DEVICES: list[str], device_memory_limit: None, **options: Any) -> None:
        assert device_memory_limit is None
        self.devices = CUDA_VISIBLE_DEVICES
        super().__init__(n_workers=0, processes=True, **options)
        self.new_spec["options"]["preload_argv"] = ["--create-cuda-context"]
        self.scale(len(self.devices))
        self.sync(self._correct_state)

    def new_worker_spec(self) -> dict[str, Any]:
        name = min(set(self.devices) - set(self.worker_spec))
        spec = copy.deepcopy(self.new_spec)
        at = self.devices.index(name)
        rotated = self.devices[at:] + self.devices[:at]
        spec["options"]["env"] = {"CUDA_VISIBLE_DEVICES": ",".join(rotated)}
        return {name: spec}


def visible() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def context_wanted(dask_worker: Any) -> bool:
    return any("--create-cuda-context" in one.argv for one in dask_worker.preloads)


@pytest.mark.slow
@pytest.mark.integration
def test_each_worker_has_its_own_gpus_and_no_cuda_context(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("dask_cuda")
    module.LocalCUDACluster = LocalCUDACluster  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dask_cuda", module)
    with closing(gpu_executor(build, GROUPS)) as executor:
        executor.client.wait_for_workers(2, timeout=30)
        assert sorted(executor.client.run(visible).values()) == ["GPU-a,GPU-b", "GPU-c,GPU-d"]
        assert sorted(offer.gpus for offer in executor.look(0.0)) == [2, 2]
        assert executor.slots == 2
        assert not any(executor.client.run(context_wanted).values())
