"""Performs one request on a worker: makes the prefix, runs the trial and answers."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from packaging.utils import canonicalize_name

from bisect_env.cluster.protocol import (
    BuildFailed,
    Completion,
    PrefixChange,
    PrefixProgress,
    PrefixReady,
    PrefixRequest,
    TrialCompleted,
    TrialLost,
    TrialRequest,
)
from bisect_env.environments.lock import Lock, UnbuildableError
from bisect_env.environments.prefix import Prefix, count_use, lacks_bytecode, look, state_of
from bisect_env.environments.progress import Seldom, told_to
from bisect_env.environments.validation import cuda_majors, provided_to_pypi
from bisect_env.errors import BisectEnvError, InfrastructureError, InterpreterNotFoundError
from bisect_env.trials.harness_marks import LockedDistribution
from bisect_env.trials.records import Outcome, TrialRecord, TrialSpec
from bisect_env.trials.run import GpuWatch, TrialCancelledError, harness_error_record, run_trial

# --------------------------------------------------------------------------------------------------
# What a lock says of the packages that a script can import. Pure.


def importable(lock: Lock) -> tuple[LockedDistribution, ...]:
    """Distributions by the names that their metadata have, and the interpreter, sorted.

    None where a container image is the whole environment: what it holds is not in the lock.
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

_log = logging.getLogger(__name__)

CANCELLED = "the trial was cancelled"
CHANGED = "files of its environment were changed or removed while it ran"


_QUIET = 1.0
"""Seconds without a trial in another environment, after which those that saw one trial are compiled, too."""
_LAST, _BESIDE = 19, 5
"""Niceness of compiling what saw one trial in this process, and what saw more and will see others."""


class BytecodeQueue:
    """Counts uses of small environments and has their modules compiled, in a thread of its own.

    No trial waits for that: an environment that is looked at once is not worth it while the answer is
    searched. The thread is a daemon, and what it has begun when the command ends is begun again by the next.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Prefix] = queue.SimpleQueue()
        self._waiting: list[Prefix] = []
        self._uses: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._new_at = 0.0

    def used(self, prefix: Prefix) -> bool:
        """A trial has used a prefix; whether its lease is ours now."""
        if not lacks_bytecode(prefix):
            return False
        with self._lock:
            name = prefix.path.name
            self._uses[name] += 1
            if self._uses[name] == 1:
                self._new_at = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="bytecode", daemon=True)
                self._thread.start()
            self._queue.put(prefix)
        return True

    def give_up(self) -> None:
        """Begin nothing more of what waits."""
        with self._lock:
            # The thread takes from it as well, and without the lock: nothing is waited for here.
            with contextlib.suppress(queue.Empty):
                while True:
                    self._queue.get_nowait().release()
            for prefix in self._waiting:
                prefix.release()
            self._waiting.clear()

    def _serve(self) -> None:
        while True:
            prefix = self._next()
            try:
                again = self._uses[prefix.path.name] > 1
                done = count_use(prefix, nice=_BESIDE if again else _LAST)
                for note in done.notes[len(prefix.notes) :]:
                    _log.info("%s", note)
            except Exception as error:  # noqa: BLE001 - trials are merely slower without
                _log.info("bytecode of %s: %r", prefix.path.name, error)
            finally:
                prefix.release()

    def _next(self) -> Prefix:
        """Return what to look at next: what was used again at once, other things when it is quiet."""
        while True:
            try:
                prefix = self._queue.get(timeout=_QUIET if self._waiting else None)
            except queue.Empty:
                with self._lock:
                    if self._waiting and time.monotonic() > self._new_at + _QUIET:
                        return self._waiting.pop(0)
                continue
            with self._lock:
                if self._uses[prefix.path.name] > 1:
                    return prefix
                self._waiting.append(prefix)


BYTECODE = BytecodeQueue()
"""That of this process."""


class PrefixBuilder(Protocol):
    """Makes the prefix of a lock on this host, or finds it; `ensure_prefix` is one.

    For a Dask cluster it must be possible to pickle it.
    """

    def __call__(self, lock: Lock, *, allow_source: bool | frozenset[str]) -> Prefix:
        """Build.

        Raises:
            UnbuildableError: It cannot be built.
            InfrastructureError: This host cannot build anything.
        """
        ...


class GpuUnavailableError(Exception):
    """A GPU cannot be used; the trial did not run, or what it did says nothing.

    Args:
        reason: For people.
        crowded: Whether another trial on the same GPU may be to blame.
    """

    def __init__(self, reason: str, *, crowded: bool = False) -> None:
        super().__init__(reason)
        self.crowded = crowded


GpuTrial = Callable[[Sequence[str], GpuWatch | None], TrialRecord]
"""Runs a trial on these GPUs, which something may be watching."""


class GpuLender(Protocol):
    """Lends this host's GPUs to trials and watches over their health."""

    def run(self, spec: TrialSpec, trial: GpuTrial) -> TrialRecord:
        """Call `trial` with the UUIDs of as many GPUs as the spec asks for, and with what watches them.

        A share of a GPU is one GPU that others of our trials may use at the same time.

        Raises:
            GpuUnavailableError: There are not as many that work.
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
    """Answer one request; every error becomes an answer.

    Args:
        request: What to run.
        build: Makes the prefix.
        cancelled: Looked at before each step and ten times a second during the trial. A build under way is
            finished: others may be waiting for it.
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
        # Wherever it failed: a trial beside it may have changed what this one imported.
        changed = look(prefix.path, state) if state and record.outcome is not Outcome.PASS else None
        if changed is not None:
            change = PrefixChange(spec.lock_hash, socket.gethostname(), changed.since)
            return TrialLost(spec.trial_id, CHANGED, change.host, under_trial=False, change=change)
    except TrialCancelledError:
        return TrialLost(spec.trial_id, CANCELLED)
    except GpuUnavailableError as error:
        return TrialLost(spec.trial_id, str(error), socket.gethostname(), error.crowded, under_trial=False)
    finally:
        if not BYTECODE.used(prefix):
            prefix.release()
    return TrialCompleted(record, prefix.build_seconds, prefix.notes)


def prepare(
    request: PrefixRequest, build: PrefixBuilder, tell: Callable[[PrefixProgress], None] = lambda _step: None
) -> PrefixReady | BuildFailed:
    """Make a prefix for later trials; every error becomes an answer.

    A defect in building is left for the first trial to meet, which has a record to keep it in.

    Args:
        request: What to make.
        build: Makes it.
        tell: Hears where it is.
    """
    lock_hash = request.lock.content_hash
    try:
        with told_to(Seldom(lambda step: tell(PrefixProgress(lock_hash, step)))):
            prefix = build(request.lock, allow_source=request.allow_source)
            changes: tuple[PrefixChange, ...] = ()
            state = state_of(prefix.path)
            if request.look and state and (changed := look(prefix.path, state)) is not None:
                changes = (PrefixChange(lock_hash, socket.gethostname(), changed.since),)
                prefix.release()
                prefix = build(request.lock, allow_source=request.allow_source)
    except Exception as error:  # noqa: BLE001 - as in `perform`
        return _build_failed(request, error, "") or PrefixReady(lock_hash)
    prefix.release()
    return PrefixReady(lock_hash, prefix.build_seconds, prefix.notes, changes)


def _build_failed(
    request: TrialRequest | PrefixRequest, error: Exception, trial_id: str
) -> BuildFailed | None:
    """Return what a failure says about the environment; None for what is no failure but a defect."""
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
    """For executors that have no GPUs to give.

    Raises:
        InfrastructureError: The trial asks for one; it would wait for ever.
    """
    if request.spec.gpus:
        raise InfrastructureError(
            f"a trial asks for {request.spec.gpus:g} GPU(s), and these workers hand out none",
            remedy="set `gpus: 0` in the matrix, or use workers that have GPUs",
        )
