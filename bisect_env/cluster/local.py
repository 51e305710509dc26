"""Trials on a Dask cluster of processes on this host."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.config
import distributed

from bisect_env.cluster.inline import take
from bisect_env.cluster.perform import PrefixBuilder, refuse_gpus
from bisect_env.cluster.protocol import Completion, TrialLost, TrialRequest
from bisect_env.cluster.worker import WorkerSettings, perform_on_worker
from bisect_env.errors import InfrastructureError

START_TIMEOUT = 60.0
"""Seconds for workers to start; a machine under load takes some."""
NO_WORKERS_GRACE = 60.0
"""Seconds without any worker after which the cluster counts as lost; a killed worker is back in about two."""
LOOK = 1.0
"""Seconds between two looks at the cluster's health while waiting."""
SCRATCH_GRACE = 60.0
"""Seconds between making a scratch directory and having locked it, and many more."""
CLOSE_GRACE = 10.0
"""Seconds that cancelled trials get to end before their workers are closed."""

_CONFIG: dict[str, Any] = {
    # One trial waits at each worker, which hides the way to the scheduler and back; the rest wait at the
    # scheduler, or a worker that dies would take its whole share of them with it.
    "distributed.scheduler.worker-saturation": 1.1,
    # Dask's own profiler wakes a hundred times a second; trials deserve that CPU.
    "distributed.worker.profile.enabled": False,
    # A worker that the host starves of CPU is slow, not dead.
    "distributed.scheduler.worker-ttl": "15 minutes",
}


_SCHEDULER: dict[str, Any] = {
    # With the default of 3, a trial whose worker dies is run again in silence.
    "allowed_failures": 0,
    # Without a dashboard it serves HTTP all the same, by default on a fixed port and for everybody.
    "dashboard": False,
    "dashboard_address": "127.0.0.1:0",
}

_SCRATCH = "bisect-env-cluster-"

_local_cluster: Any = distributed.LocalCluster
_client: Any = distributed.Client


def default_workers() -> int:
    """One for each CPU that this process may use."""
    return len(os.sched_getaffinity(0))


class LocalExecutor:
    """An `Executor` on a `LocalCluster`: one process a worker, one trial a worker at a time.

    Args:
        build: Makes prefixes; has to survive a pickle.
        workers: How many; by default one for each CPU that may be used.

    Raises:
        InfrastructureError: The cluster does not start.
    """

    def __init__(self, build: PrefixBuilder, workers: int | None = None) -> None:
        self._build = build
        self._cpus = tuple(sorted(os.sched_getaffinity(0)))
        self._scratch, self._scratch_lock = _make_scratch()
        self._started_dir = self._scratch / "started"
        self._started_dir.mkdir()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._futures: dict[str, tuple[str, Any]] = {}
        self._attempts = 0
        self._epoch = 0
        self._closed = False
        self._workerless_since: float | None = None
        # `Any`: distributed marks itself as typed, and is so in parts only.
        self._cluster: Any = None
        self._client: Any = None
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove_scratch)
            self._start(default_workers() if workers is None else workers)
            undo.pop_all()

    def _start(self, workers: int) -> None:
        try:
            with dask.config.set(_CONFIG):
                self._cluster = _local_cluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    # Dask's limit does not see a worker's children, who do all the work here.
                    memory_limit=0,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                    local_directory=str(self._scratch),
                    preload=["bisect_env.cluster.worker"],
                    scheduler_kwargs=_SCHEDULER,
                )
        except (OSError, RuntimeError, TimeoutError) as error:
            raise _start_error(workers, error) from error
        try:
            self._client = _client(
                self._cluster, set_as_default=False, direct_to_workers=True, timeout=START_TIMEOUT
            )
            self._client.wait_for_workers(workers, timeout=START_TIMEOUT)
        except (OSError, TimeoutError) as error:
            self._cluster.close()
            raise _start_error(workers, error) from error

    @property
    def slots(self) -> int:
        """How many trials can run at the same time, now."""
        return int(self._cluster.scheduler.total_nthreads)

    def submit(self, request: TrialRequest) -> None:
        """Accept a trial; see `Executor.submit`."""
        if self._closed:
            raise InfrastructureError("the cluster is closed")
        refuse_gpus(request)
        self._check_client()
        self._attempts += 1
        attempt = f"{request.spec.trial_id}-{self._attempts}"
        settings = WorkerSettings(self._build, self._cancel_file, self._started_dir, self._cpus)
        # The key is unique and the function declared impure, or equal submits would be run once. The common
        # first part makes the trials one group, to which alone the worker saturation applies.
        future = self._client.submit(
            perform_on_worker, request, attempt, settings, key=("trial", attempt), pure=False, retries=0
        )
        self._futures[attempt] = (request.spec.trial_id, future)
        future.add_done_callback(lambda _future: self._answers.put(attempt))

    @property
    def _cancel_file(self) -> Path:
        return self._scratch / f"cancelled-{self._epoch}"

    def wait(self, timeout: float | None = None) -> list[Completion]:
        """Answers since the last call; see `Executor.wait`. Empty at once when none is due."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._futures:
            left = LOOK if deadline is None else min(LOOK, deadline - time.monotonic())
            done = take(self._answers, max(0.0, left))
            if done:
                return [self._answer(*self._futures.pop(attempt)) for attempt in done]
            self._check_health()
            if deadline is not None and time.monotonic() >= deadline:
                break
        return []

    def _answer(self, trial_id: str, future: Any) -> Completion:
        try:
            completion: Completion = future.result()
        except distributed.scheduler.KilledWorker:
            return TrialLost(trial_id, "the worker died while the trial ran")
        except Exception as error:  # noqa: BLE001 - `perform` raises nothing, so this is Dask's: a task that
            # was cancelled, a message that could not be read. Whatever it is, it says nothing of the script.
            return TrialLost(trial_id, f"{type(error).__name__}: {error}")
        finally:
            future.release()
        return completion

    def _check_client(self) -> None:
        if self._client.status != "running":
            raise InfrastructureError(
                f"the Dask cluster is lost (its client is {self._client.status})",
                remedy="start the same command again; it goes on where it stopped",
            )

    def _check_health(self) -> None:
        self._check_client()
        if self.slots:
            self._workerless_since = None
            return
        now = time.monotonic()
        self._workerless_since = self._workerless_since or now
        if now > self._workerless_since + NO_WORKERS_GRACE:
            raise InfrastructureError(
                f"every worker is gone, and none came back in {NO_WORKERS_GRACE:.0f} s",
                remedy="see whether this host is out of memory, then start the same command again",
            )

    def cancel(self) -> None:
        """End what runs and what waits; trials submitted later are not touched.

        Dask cannot stop a function that runs, and would forget it at once: a file tells the workers, and the
        answers come when the processes have really ended.
        """
        self._cancel_file.touch()
        self._epoch += 1

    def close(self) -> None:
        """Cancel, wait a little for trials to end, and end the workers with whatever they still run."""
        if self._closed:
            return
        self._closed = True
        self.cancel()
        deadline = time.monotonic() + CLOSE_GRACE
        with _despite_lost_cluster():
            while self._futures and time.monotonic() < deadline:
                self.wait(deadline - time.monotonic())
        self._futures.clear()
        with _despite_lost_cluster():
            self._client.close()
        with _despite_lost_cluster():
            self._cluster.close()
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._scratch_lock)


def _make_scratch() -> tuple[Path, int]:
    """A directory for the workers, and a descriptor that keeps it locked as long as this process lives.

    A command that was killed could not remove its own: the next one does, knowing it by the free lock.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):  # somebody else's, or locked, or just gone
            if time.time() - old.stat().st_mtime > SCRATCH_GRACE:
                fd = _lock(old)
                shutil.rmtree(old, ignore_errors=True)
                os.close(fd)
    path = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    return path, _lock(path)


def _lock(directory: Path) -> int:
    fd = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def _despite_lost_cluster() -> Iterator[None]:
    """Each step of closing is tried, also when what it closes is gone."""
    with contextlib.suppress(InfrastructureError, OSError, TimeoutError):
        yield


def _start_error(workers: int, error: BaseException) -> InfrastructureError:
    return InfrastructureError(
        f"the local Dask cluster does not start: {error}",
        tried=f"{workers} worker processes, for {START_TIMEOUT:.0f} s",
        remedy="try fewer workers (`--workers 1`)",
    )
