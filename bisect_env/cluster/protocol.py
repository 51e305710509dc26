"""The interface of every executor, with its requests and answers.

An executor runs trials and reports what happened to each. It makes no decisions: the search chooses what to
run, the engine judges the results, and an executor never repeats a trial on its own.

**Delivery.** `wait` returns exactly one answer for every submitted trial, which must have an id of its own: a
record, a build failure, or a loss. It also returns one answer for every `prepare`, once all hosts have
answered. **Builds take no places.** Environments are built beside running trials, and take none of the slots
and GPUs of trials. **Isolation.** The user's script never runs inside the worker process. **Cancel.** After
`cancel`, every trial that was submitted before gets an answer: its record if that already existed, else a
loss. Its process group is ended soon after the answer at the latest; until then, its slot and GPUs stay
occupied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, Protocol

from bisect_env.environments.lock import Lock
from bisect_env.environments.progress import BuildStep
from bisect_env.trials.judge import ChangedEnvironment
from bisect_env.trials.records import Machine, TrialRecord, TrialSpec

# --------------------------------------------------------------------------------------------------
# Compute from the offers of workers how many trials can run, and whether one ever can. Pure.
#
# A worker states the number of GPUs that it lends as Dask's resource `GPU`. Dask lets a task that asks for
# more than any worker has wait for ever without a message; here such a trial is refused.

GPU = "GPU"
"""Name of the Dask resource that counts the GPUs of a worker."""
_GRAIN = 2**20


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """What one worker offers: how many trials it can run at the same time, and how many GPUs it has.

    Attributes:
        address: Dask's address of the worker.
        host: Name or address of its host.
        threads: Number of tasks that it runs at the same time.
        gpus: Number of GPUs that it lends to trials, without excluded ones.
    """

    address: str
    host: str
    threads: int
    gpus: int = 0

    @classmethod
    def of(cls, address: str, info: Mapping[str, Any]) -> WorkerOffer:
        """Read the host, number of threads and number of GPUs of a worker from Dask's description of it."""
        return cls(address, str(info["host"]), int(info["nthreads"]), int(info["resources"].get(GPU, 0)))


def trials_per_gpu(gpus: float) -> int:
    """Return how many trials can share one GPU if each needs `gpus` of it.

    The result is 1 if a trial needs whole GPUs or none.
    """
    return int(1.0 / gpus + 1e-6) if 0 < gpus < 1 else 1


def promised(gpus: float) -> float:
    """Return the number of GPUs (or the share of one) that Dask must reserve for a trial.

    Fractions are rounded to multiples of 1 / 2**20, so that adding and subtracting them is exact in floating
    point: with thirds, a trial that needs a whole GPU might wait for ever.
    """
    return floor(_GRAIN / trials_per_gpu(gpus)) / _GRAIN if gpus < 1 else gpus


def slots(offers: Iterable[WorkerOffer], gpus: float) -> int:
    """Return how many trials can run at the same time on the given workers.

    Args:
        offers: What the workers offer.
        gpus: Number of GPUs, or share of one, that each trial needs.
    """

    def of(offer: WorkerOffer) -> int:
        places = offer.gpus * trials_per_gpu(gpus) if gpus < 1 else int(offer.gpus // gpus)
        return min(offer.threads, places)

    return sum(offer.threads if gpus == 0 else of(offer) for offer in offers)


def why_never(offers: Sequence[WorkerOffer], gpus: float) -> str | None:
    """Return why no worker can ever run a trial that needs this number of GPUs, or None if one can.

    The reason is a text. Returns None as well if there are no workers, because workers may be about to join.
    """
    if gpus == 0 or not offers or slots(offers, gpus):
        return None
    most = max(offer.gpus for offer in offers)
    have = "none has any" if most == 0 else f"the best has {most}"
    workers = "the only worker is there" if len(offers) == 1 else f"{len(offers)} workers are there"
    return (
        f"a trial asks for {gpus:g} GPU{'s' * (gpus > 1)}, and no worker hands them out ({workers}, {have})"
    )


# --------------------------------------------------------------------------------------------------
# The interface of executors.


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A request to run one trial, with the lock from which a worker builds its environment.

    Attributes:
        spec: The specification of the trial.
        lock: The complete lock, because workers share no file system with the command.
        allow_source: Whether installing may build source distributions: all, none, or those of named
            packages.
    """

    spec: TrialSpec
    lock: Lock
    allow_source: bool | frozenset[str] = False


@dataclass(frozen=True, slots=True)
class PrefixRequest:
    """A request to build an environment before trials need it, or to check an existing one.

    Attributes:
        lock: The complete lock.
        allow_source: Whether installing may build source distributions: all, none, or those of named
            packages.
        look: If True, only check an existing prefix, and rebuild it if it has changed; build nothing if there
            is none.
    """

    lock: Lock
    allow_source: bool | frozenset[str] = False
    look: bool = False


@dataclass(frozen=True, slots=True)
class PrefixProgress:
    """A message that a running build of an environment has reached a new step.

    A host sends it while building; the answer to the request follows later.

    Attributes:
        lock_hash: Lock of the environment.
        step: The current step.
    """

    lock_hash: str
    step: BuildStep


@dataclass(frozen=True, slots=True)
class PrefixReady:
    """An executor's answer that an environment was built on at least one host, so that trials can run there.

    It answers a `PrefixRequest`. If this was only to check an environment, the environment may not exist.

    Attributes:
        lock_hash: Lock of the environment.
        build_seconds: Build time on the slowest host; 0 if all had it.
        notes: Remarks for the user on how it was built.
        changes: Changes that were ever found in this prefix, by the clocks of the hosts that found them.
    """

    lock_hash: str
    build_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    changes: tuple[ChangedEnvironment, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialCompleted:
    """An executor's answer that a trial has run, with the record of the trial.

    Attributes:
        record: The record of the trial.
        changes: Changes that were ever found in its prefix, by the clocks of the hosts that found them.
    """

    record: TrialRecord
    changes: tuple[ChangedEnvironment, ...] = ()


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """An executor's answer that an environment could not be built.

    If the build was for a requested trial, this trial did not run.

    Attributes:
        trial_id: Id of the requested trial, "" if the prefix was prepared for later trials.
        lock_hash: Lock of the environment.
        message: The builder's own words.
        transient: Whether the cause may be temporary, such as a network or checksum error; the environment is
            then not to blame.
    """

    trial_id: str
    lock_hash: str
    message: str
    transient: bool


@dataclass(frozen=True, slots=True)
class TrialLost:
    """An executor's answer that a trial has no result, because it was cancelled or its worker was lost.

    Such a trial is no evidence.

    Attributes:
        trial_id: Id of the requested trial.
        reason: What is known about the loss.
        host: Host where it ran, "" if it is not known to have started.
        crowded: Whether another trial on the same GPU may be the cause.
        under_trial: Whether the host went away while the trial ran, so that the trial may be the cause.
    """

    trial_id: str
    reason: str
    host: str = ""
    crowded: bool = False
    under_trial: bool = True


Completion = TrialCompleted | PrefixReady | PrefixProgress | BuildFailed | TrialLost


class Executor(Protocol):
    """Interface of the objects that run trials and build environments, here or on a cluster."""

    @property
    def slots(self) -> int:
        """Return how many trials can run at the same time with the present workers."""
        ...

    def machines(self) -> frozenset[Machine]:
        """Return the kinds of machines (CPU, GPU model, driver) on which trials will run.

        Only the machines of present workers that answer are included; workers may join later.
        """
        ...

    def submit(self, request: TrialRequest) -> None:
        """Start a trial, or queue it if no worker is free; returns without waiting.

        `wait` returns the answer.

        Raises:
            InfrastructureError: No worker could ever run the trial (too few GPUs, or the cluster is gone).
        """
        ...

    def prepare(self, request: PrefixRequest) -> None:
        """Start to build an environment on every present host; returns without waiting.

        Hosts that join later build the environments in use, and get trials once these are built. `cancel`
        does not end builds.
        """
        ...

    def wait(self, timeout: float | None = None) -> list[Completion]:
        """Wait until a trial or build has a result or makes progress, or `timeout` seconds have passed.

        Returns:
            The answers since the last call, and progress of running builds; empty on timeout.

        Raises:
            InfrastructureError: The cluster as a whole is lost.
        """
        ...

    def wake(self) -> None:
        """Make the current or next call of `wait` return at once; may be called from any thread."""
        ...

    def cancel(self) -> None:
        """Cancel all running and queued trials, and return without waiting.

        Trials that are submitted later are not affected.
        """
        ...

    def close(self) -> None:
        """Cancel all trials and release all resources; may be called twice."""
        ...
