"""The contract that every executor fulfils, and the requests and answers that it takes and gives.

An executor runs trials and reports what became of each. It decides nothing: what to run comes from the
search, what a result means is judged by the engine, and nothing is retried here in silence.

**Delivery.** Every submitted trial is answered exactly once by `wait`, be it by a record, a build failure
or a loss; so is every `prepare`, once all hosts have answered. **Builds hold nothing.** What is prepared is
built beside trials, and takes none of the places (slots, GPUs) where trials run. **Isolation.** The user's
script never runs inside the worker process. **Cancel.** After `cancel` every trial that was submitted before
is answered by its record if that was there already, else as lost. Its process group is ended, soon after the
answer at the latest, and until then its place stays taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, Protocol

from bisect_env.environments.lock import Lock
from bisect_env.environments.progress import BuildStep
from bisect_env.trials.judge import ChangedEnvironment
from bisect_env.trials.records import TrialRecord, TrialSpec

# --------------------------------------------------------------------------------------------------
# What workers offer, and whether a trial could ever run there. Pure.
#
# A worker says how many GPUs it hands out by Dask's resource `GPU`. Dask itself lets a task that asks for
# more than any worker has wait for ever, in silence; here it is refused.

GPU = "GPU"
"""Dask's resource that counts the GPUs of a worker."""
_GRAIN = 2**20


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """The trials and GPUs that one worker offers.

    Attributes:
        address: Dask's address of the worker.
        host: Name or address of its host.
        threads: Number of tasks at the same time.
        gpus: Number of GPUs that it hands out, without excluded ones.
    """

    address: str
    host: str
    threads: int
    gpus: int = 0

    @classmethod
    def of(cls, address: str, info: Mapping[str, Any]) -> WorkerOffer:
        """Build an offer from the scheduler's description of a worker."""
        return cls(address, str(info["host"]), int(info["nthreads"]), int(info["resources"].get(GPU, 0)))


def trials_per_gpu(gpus: float) -> int:
    """Return how many trials with this share of a GPU can run on one GPU at the same time."""
    return int(1.0 / gpus + 1e-6) if 0 < gpus < 1 else 1


def promised(gpus: float) -> float:
    """Return the amount of Dask's GPU resource that a trial takes.

    Shares are multiples of a power of two, so that taking and returning them is exact in floating point:
    with thirds, a trial that needs a whole GPU might wait for ever.
    """
    return floor(_GRAIN / trials_per_gpu(gpus)) / _GRAIN if gpus < 1 else gpus


def slots(offers: Iterable[WorkerOffer], gpus: float) -> int:
    """Return how many trials with that many GPUs, or such a share of one, can run at the same time."""

    def of(offer: WorkerOffer) -> int:
        places = offer.gpus * trials_per_gpu(gpus) if gpus < 1 else int(offer.gpus // gpus)
        return min(offer.threads, places)

    return sum(offer.threads if gpus == 0 else of(offer) for offer in offers)


def why_never(offers: Sequence[WorkerOffer], gpus: float) -> str | None:
    """Return why no worker could run a trial with that many GPUs, or None if one could.

    Without any worker the answer is None: workers may be about to join.
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
# The contract behind which every place that runs trials stands.


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """One trial with the lock from which a worker builds its prefix.

    Attributes:
        spec: What to run.
        lock: The complete lock, since workers share no file system with the command.
        allow_source: Whether installing may build source distributions.
    """

    spec: TrialSpec
    lock: Lock
    allow_source: bool | frozenset[str] = False


@dataclass(frozen=True, slots=True)
class PrefixRequest:
    """A request to build an environment before a trial needs it, or to look at it.

    Attributes:
        lock: The complete lock.
        allow_source: Whether installing may build source distributions.
        look: Check that the prefix is unchanged if there is one, and build it only if it is not.
    """

    lock: Lock
    allow_source: bool | frozenset[str] = False
    look: bool = False


@dataclass(frozen=True, slots=True)
class PrefixProgress:
    """A progress report of a host that builds a prefix; the answer follows later.

    Attributes:
        lock_hash: Lock of the environment.
        step: The current step.
    """

    lock_hash: str
    step: BuildStep


@dataclass(frozen=True, slots=True)
class PrefixReady:
    """The answer to a `PrefixRequest`: at least one host has built the prefix, and trials can run there.

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
    """The answer about a trial that ran and was classified.

    Attributes:
        record: Its record.
        build_seconds: Time spent on building the prefix; 0 if it existed.
        notes: Remarks for the user on how the prefix was built.
        changes: Changes that were ever found in its prefix, by the clocks of the hosts that found them.
    """

    record: TrialRecord
    build_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    changes: tuple[ChangedEnvironment, ...] = ()


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """The answer about a prefix that could not be built; its trial, if any, did not run.

    Attributes:
        trial_id: Id of the requested trial, "" if the prefix was prepared for later trials.
        lock_hash: Lock of the environment.
        message: The builder's own words.
        transient: Whether network or checksum errors (void) are the cause, not the environment.
    """

    trial_id: str
    lock_hash: str
    message: str
    transient: bool


@dataclass(frozen=True, slots=True)
class TrialLost:
    """The answer about a trial that was cancelled or whose worker went away; it is no evidence.

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
    """A place that runs trials."""

    @property
    def slots(self) -> int:
        """Return how many trials can run at the same time, at present."""
        ...

    def submit(self, request: TrialRequest) -> None:
        """Accept a trial; returns at once.

        Raises:
            InfrastructureError: No worker could ever run it (resources nobody has, cluster gone).
        """
        ...

    def prepare(self, request: PrefixRequest) -> None:
        """Start to build a prefix on every present host; returns at once.

        Hosts that join later build the environments in use, and get trials once these are built. `cancel`
        does not end builds.
        """
        ...

    def wait(self, timeout: float | None = None) -> list[Completion]:
        """Block until there is at least one answer, or the timeout (seconds) is over.

        Returns:
            The answers since the last call, and progress of running builds; empty on timeout.

        Raises:
            InfrastructureError: The cluster as a whole is lost.
        """
        ...

    def wake(self) -> None:
        """Make the current `wait`, or the next one, return at once; may be called from any thread."""
        ...

    def cancel(self) -> None:
        """End all submitted trials, running or waiting, and return at once; later ones are not affected."""
        ...

    def close(self) -> None:
        """Cancel trials, then release all resources; may be called twice."""
        ...
