"""On which classes of machines the trials of a command run."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from bisect_env.cluster.protocol import Executor
from bisect_env.trials.records import Machine


@runtime_checkable
class _Knows(Protocol):
    def machines(self) -> frozenset[Machine]: ...


class Place:
    """Where the trials of one command run: the executor, started once, when it is needed.

    Args:
        start: Starts it, or finds it.
        gpus_per_trial: `trial.gpus` of the matrix.
        gpus: `--gpus`.
        is_remote: Whether its workers are on other hosts, which only they can describe.
    """

    def __init__(
        self, start: Callable[[], Executor], *, gpus_per_trial: int, gpus: str | None, is_remote: bool
    ) -> None:
        self._start = start
        self._gpus_per_trial = gpus_per_trial
        self._gpus = gpus
        self._is_remote = is_remote
        self._executor: Executor | None = None

    def executor(self) -> Executor:
        """The executor."""
        if self._executor is None:
            self._executor = self._start()
        return self._executor

    def machines(self) -> frozenset[Machine]:
        """Classes of machines as they are known before trials run; workers may join later.

        Only a remote cluster has to be connected to for that.

        Raises:
            InfrastructureError: It cannot be reached.
        """
        if self._is_remote:
            executor = self.executor()
            return executor.machines() if isinstance(executor, _Knows) else frozenset()
        if not self._gpus_per_trial:
            return frozenset({Machine(platform.machine())})
        return _local_gpus(self._gpus_per_trial, self._gpus)

    def close(self) -> None:
        """Close the executor if it was started."""
        if self._executor is not None:
            self._executor.close()


def _local_gpus(per_trial: int, selection: str | None) -> frozenset[Machine]:
    from bisect_env.cluster.gpu_choice import choose_gpus, group_gpus
    from bisect_env.cluster.nvml import open_nvml

    nvml = open_nvml()
    chosen = choose_gpus(nvml.gpus(), selection, os.environ.get("CUDA_VISIBLE_DEVICES"))
    groups = group_gpus(chosen, per_trial, None)
    return frozenset(Machine(platform.machine(), *nvml.describe(group)) for group in groups)
