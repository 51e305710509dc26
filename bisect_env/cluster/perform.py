"""Performs one request on a worker: makes the prefix, runs the trial and answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from packaging.utils import canonicalize_name

from bisect_env.cluster.protocol import (
    BuildFailed,
    Completion,
    PrefixProgress,
    PrefixReady,
    PrefixRequest,
    TrialCompleted,
    TrialLost,
    TrialRequest,
)
from bisect_env.environments.integrity import changes_of, look, state_of
from bisect_env.environments.lock import Lock, UnbuildableError
from bisect_env.environments.prefix import NoPrefixError, Prefix
from bisect_env.environments.progress import Seldom, told_to
from bisect_env.environments.validation import cuda_majors, provided_to_pypi
from bisect_env.errors import BisectEnvError, InfrastructureError, InterpreterNotFoundError
from bisect_env.trials.harness_marks import LockedDistribution
from bisect_env.trials.judge import ChangedEnvironment
from bisect_env.trials.records import Outcome, TrialRecord, TrialSpec
from bisect_env.trials.run import GpuWatch, TrialCancelledError, harness_error_record, run_trial

# --------------------------------------------------------------------------------------------------
# What a lock says of the packages that a script can import. Pure.


def importable(lock: Lock) -> tuple[LockedDistribution, ...]:
    """Return the distributions of a lock under the names in their metadata, and the interpreter, sorted.

    The result is empty if a container image is the whole environment: its packages are not in the lock.
    """
    if not lock.python:
        return ()
    cuda = {package.name for package in lock.packages if cuda_majors((package,))}
    conda = [package for package in lock.packages if package.is_conda]
    found = {"python": LockedDistribution("python", lock.python)}
    for package in conda:
        # One at a time: several conda packages can bring the same distribution, a CUDA build among them.
        for name, version in provided_to_pypi((package,)).items():
            found[name] = LockedDistribution(name, version, package.name in cuda)
    for package in lock.packages:
        if package.manager == "pip":
            name = str(canonicalize_name(package.name))
            found[name] = LockedDistribution(name, package.version, package.name in cuda)
    return tuple(found[name] for name in sorted(found))


# --------------------------------------------------------------------------------------------------
# What happens on a worker for one request: make the prefix, run the trial, answer.

CANCELLED = "the trial was cancelled"


class PrefixBuilder(Protocol):
    """A function that builds or finds the prefix of a lock on this host, such as `ensure_prefix`.

    For a Dask cluster it must be picklable.
    """

    def __call__(self, lock: Lock, *, allow_source: bool | frozenset[str], existing: bool = False) -> Prefix:
        """Build or find the prefix; with `existing`, build it only in place of one that has changed.

        Raises:
            NoPrefixError: There is none, and `existing` is set.
            UnbuildableError: The prefix cannot be built.
            InfrastructureError: This host cannot build any prefix.
        """
        ...


class GpuUnavailableError(Exception):
    """An error raised when a GPU cannot be used: the trial did not run, or is void.

    Args:
        reason: Readable reason.
        crowded: Whether another trial on the same GPU may be the cause.
    """

    def __init__(self, reason: str, *, crowded: bool = False) -> None:
        super().__init__(reason)
        self.crowded = crowded


GpuTrial = Callable[[Sequence[str], GpuWatch | None], TrialRecord]
"""Runs a trial on these GPUs, which something may be watching."""


class GpuLender(Protocol):
    """An interface that lends this host's GPUs to trials and watches their health."""

    def run(self, spec: TrialSpec, trial: GpuTrial) -> TrialRecord:
        """Call `trial` with the UUIDs of the requested GPUs and with their watcher.

        A share of a GPU is one GPU that other trials of ours may use at the same time.

        Raises:
            GpuUnavailableError: Too few GPUs work.
        """
        ...


def perform(
    request: TrialRequest,
    *,
    build: PrefixBuilder,
    cancelled: Callable[[], bool],
    worker: str,
    cpus: Collection[int] = (),
    gpus: GpuLender | None = None,
) -> Completion:
    """Perform one request; every error becomes an answer.

    Args:
        request: What to run.
        build: Builds the prefix.
        cancelled: Called before each step and ten times a second during the trial. A build in progress is
            finished, because other trials may be waiting for it.
        worker: Name of the worker, for the record.
        cpus: CPUs that the trial may use; empty means those of this process.
        gpus: Lends GPUs, for trials that ask for some.
    """
    spec = request.spec
    if cancelled():
        return TrialLost(spec.trial_id, CANCELLED)
    try:
        prefix = build(request.lock, allow_source=request.allow_source)
    except Exception as error:  # noqa: BLE001 - a worker's outermost frame: raised further, a defect in
        # building would look like a lost worker and be tried for ever instead of being shown.
        failure = _build_failed(request, error, spec.trial_id)
        return failure or TrialCompleted(harness_error_record(spec, error))

    state = state_of(prefix.path)

    def trial(uuids: Sequence[str] = (), watch: GpuWatch | None = None) -> TrialRecord:
        return run_trial(
            spec,
            prefix.path,
            python=prefix.python,
            gpus=uuids,
            cpus=cpus,
            cancelled=cancelled,
            worker=worker,
            inside=prefix.inside,
            locked=importable(request.lock),
            gpu_watch=watch,
        )

    try:
        record = trial() if gpus is None else gpus.run(spec, trial)
        # Wherever it failed: a trial beside it may have changed what this one imported. If it passed, only
        # a change that was found since it was given the prefix matters now; others are found later.
        if state and (record.outcome is not Outcome.PASS or state_of(prefix.path) != state):
            look(prefix.path, state, record.started_at)
    except TrialCancelledError:
        return TrialLost(spec.trial_id, CANCELLED)
    except GpuUnavailableError as error:
        return TrialLost(spec.trial_id, str(error), socket.gethostname(), error.crowded, under_trial=False)
    finally:
        prefix.release()
    changes = _changes(spec.lock_hash, prefix.path)
    return TrialCompleted(record, prefix.build_seconds, prefix.notes, changes)


def prepare(
    request: PrefixRequest, build: PrefixBuilder, tell: Callable[[PrefixProgress], None] = lambda _step: None
) -> PrefixReady | BuildFailed:
    """Build a prefix for later trials, or look at one; every error becomes an answer.

    A defect in the build code is not reported here: the first trial will meet it and record it.

    Args:
        request: The prefix.
        build: Builds it.
        tell: Called with its progress.
    """
    lock_hash = request.lock.content_hash
    try:
        with told_to(Seldom(lambda step: tell(PrefixProgress(lock_hash, step)))):
            prefix = build(request.lock, allow_source=request.allow_source, existing=request.look)
            state = state_of(prefix.path)
            if request.look and state and not look(prefix.path, state):
                prefix.release()
                prefix = build(request.lock, allow_source=request.allow_source)
    except NoPrefixError as error:
        # It was never made here, or had to make room: what was seen of it before is noted.
        return PrefixReady(lock_hash, changes=_changes(lock_hash, error.place))
    except Exception as error:  # noqa: BLE001 - as in `perform`
        return _build_failed(request, error, "") or PrefixReady(lock_hash)
    prefix.release()
    changes = _changes(lock_hash, prefix.path)
    return PrefixReady(lock_hash, prefix.build_seconds, prefix.notes, changes)


def _changes(lock_hash: str, prefix: Path) -> tuple[ChangedEnvironment, ...]:
    return tuple(ChangedEnvironment(lock_hash, one.host, one.since, one.until) for one in changes_of(prefix))


def _build_failed(
    request: TrialRequest | PrefixRequest, error: Exception, trial_id: str
) -> BuildFailed | None:
    """Return the failure of an environment that an error means; None if the error is a defect of our code."""
    match error:
        case UnbuildableError():
            message, transient = error.message, error.transient
        case InterpreterNotFoundError():
            message, transient = str(error), False
        case BisectEnvError():
            message, transient = str(error), True
        case _:
            return None
    return BuildFailed(trial_id, request.lock.content_hash, message, transient)


def refuse_gpus(request: TrialRequest) -> None:
    """Raise an error for a trial that needs GPUs on an executor without GPUs.

    Raises:
        InfrastructureError: The trial asks for a GPU; it would wait for ever.
    """
    if request.spec.gpus:
        raise InfrastructureError(
            f"a trial asks for {request.spec.gpus:g} GPU(s), and these workers hand out none",
            remedy="set `gpus: 0` in the matrix, or use workers that have GPUs",
        )
