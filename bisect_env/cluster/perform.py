"""Perform one request on a worker: build the prefix (installed environment), run the trial, and answer."""

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
from bisect_env.environments.progress import listening
from bisect_env.environments.validation import cuda_majors, provided_to_pypi
from bisect_env.errors import BisectEnvError, InterpreterNotFoundError
from bisect_env.trials.harness_marks import LockedDistribution
from bisect_env.trials.judge import ChangedEnvironment
from bisect_env.trials.records import Outcome, TrialRecord, TrialSpec
from bisect_env.trials.run import GpuWatch, TrialCancelledError, harness_error_record, run_trial

# --------------------------------------------------------------------------------------------------
# List the packages of a lock that a script can import. Pure.


def importable(lock: Lock) -> tuple[LockedDistribution, ...]:
    """List Python and the packages that a script can import in the environment of a lock, sorted by name.

    The names are those in the packages' own metadata, such as those that pip lists. The result is empty if a
    container image is the whole environment, because its packages are not in the lock.
    """
    if not lock.python:
        return ()
    cuda = {package.name for package in lock.packages if cuda_majors((package,))}
    conda = [package for package in lock.packages if package.is_conda]
    found = {"python": LockedDistribution("python", lock.python)}
    for package in conda:
        # Pass one package at a time: if several contain the same distribution, one may be a CUDA build.
        for name, version in provided_to_pypi((package,)).items():
            found[name] = LockedDistribution(name, version, package.name in cuda)
    for package in lock.packages:
        if package.manager == "pip":
            name = str(canonicalize_name(package.name))
            found[name] = LockedDistribution(name, package.version, package.name in cuda)
    return tuple(found[name] for name in sorted(found))


# --------------------------------------------------------------------------------------------------
# Perform one request on a worker: build the prefix, run the trial, and answer.

CANCELLED = "the trial was cancelled"


class PrefixBuilder(Protocol):
    """A function that builds the environment of a lock on this host, or returns the existing one.

    An example is `ensure_prefix`. For a Dask cluster, the function must be picklable.
    """

    def __call__(self, lock: Lock, *, allow_source: bool | frozenset[str], existing: bool = False) -> Prefix:
        """Return the installed environment of a lock, after building it if necessary.

        If `existing` is set, an environment is built only to replace one whose files have changed.

        Raises:
            NoPrefixError: There is no such environment, and `existing` is set.
            UnbuildableError: The prefix cannot be built.
            InfrastructureError: This host cannot build any prefix.
        """
        ...


class GpuUnavailableError(Exception):
    """Raised if a trial did not run, or its result is void, because a GPU cannot be used.

    Args:
        reason: The reason in words.
        crowded: Whether another trial on the same GPU may be the cause.
    """

    def __init__(self, reason: str, *, crowded: bool = False) -> None:
        super().__init__(reason)
        self.crowded = crowded


GpuTrial = Callable[[Sequence[str], GpuWatch | None], TrialRecord]
"""A function that runs a trial on the GPUs with the given UUIDs, with a watcher of these GPUs or None."""

Lend = Callable[[TrialSpec, GpuTrial], TrialRecord]
"""A function that runs a trial with GPUs that it lends, such as `HostGpus.run`. It raises
`GpuUnavailableError` if too few GPUs work."""


def perform(
    request: TrialRequest,
    *,
    build: PrefixBuilder,
    cancelled: Callable[[], bool],
    worker: str,
    cpus: Collection[int] = (),
    lend: Lend | None = None,
) -> Completion:
    """Build the environment of a requested trial, run the trial, and return the result.

    Errors are returned as results, too.

    Args:
        request: What to run.
        build: Builds the prefix.
        cancelled: Called before each step and ten times a second during the trial. A build in progress is
            finished, because other trials may be waiting for it.
        worker: Name of the worker, for the record.
        cpus: CPUs that the trial may use; empty means those of this process.
        lend: Runs a trial that asks for GPUs with some that it lends; None for a trial without GPUs.
    """
    spec = request.spec
    if cancelled():
        return TrialLost(spec.trial_id, CANCELLED)
    try:
        prefix = build(request.lock, allow_source=request.allow_source)
        # Use the state that the build reported, because the cache may have been deleted since.
        state = prefix.state

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
            record = trial() if lend is None else lend(spec, trial)
            # After a failure, always check the prefix: another trial may have changed what this one imported.
            # After a pass, check it only if a change was recorded since; other changes are found later.
            if state and (record.outcome is not Outcome.PASS or state_of(prefix.path) != state):
                look(prefix.path, state, record.started_at)
        finally:
            prefix.release()
        return TrialCompleted(record, _changes(spec.lock_hash, prefix.path))
    except TrialCancelledError:
        return TrialLost(spec.trial_id, CANCELLED)
    except GpuUnavailableError as error:
        return TrialLost(spec.trial_id, str(error), socket.gethostname(), error.crowded, under_trial=False)
    except Exception as error:  # noqa: BLE001 - the outermost frame of a worker: raised further, a defect of
        # ours would end a thread, or look like a lost worker and be tried for ever, instead of being shown.
        failure = _build_failed(request, error, spec.trial_id)
        return failure or TrialCompleted(harness_error_record(spec, error))


def prepare(
    request: PrefixRequest, build: PrefixBuilder, tell: Callable[[PrefixProgress], None] = lambda _step: None
) -> PrefixReady | BuildFailed:
    """Build or check an environment before trials need it, and return the result.

    Errors are returned, never raised. A defect in our own build code is not reported here, because the first
    trial in the environment meets and records the same defect.

    Args:
        request: The environment.
        build: Builds the environment.
        tell: Called with each step of the build.
    """
    lock_hash = request.lock.content_hash
    try:
        with listening(lambda step: tell(PrefixProgress(lock_hash, step))):
            prefix = build(request.lock, allow_source=request.allow_source, existing=request.look)
            state = prefix.state
            if request.look and state and not look(prefix.path, state):
                prefix.release()
                prefix = build(request.lock, allow_source=request.allow_source)
        prefix.release()
        changes = _changes(lock_hash, prefix.path)
        return PrefixReady(lock_hash, prefix.build_seconds, prefix.notes, changes)
    except NoPrefixError as error:
        # It was never built here, or was removed from the cache; report what was found in it before.
        return PrefixReady(lock_hash, changes=_changes(lock_hash, error.place))
    except Exception as error:  # noqa: BLE001 - as in `perform`
        return _build_failed(request, error, "") or PrefixReady(lock_hash)


def _changes(lock_hash: str, prefix: Path) -> tuple[ChangedEnvironment, ...]:
    return tuple(ChangedEnvironment(lock_hash, one.host, one.since, one.until) for one in changes_of(prefix))


def _build_failed(
    request: TrialRequest | PrefixRequest, error: Exception, trial_id: str
) -> BuildFailed | None:
    """Convert an error during a build to the message by which the command learns of it.

    Returns None if the error is a defect of our code.
    """
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
