"""Runs trials on a Dask cluster; each submitted trial is answered exactly once, and can be cancelled.

Dask promises neither. It runs a task again when its worker dies or when a result is lost with its worker,
without a word to the caller, and `Future.cancel` leaves what runs running. So the worker that begins an
attempt at a trial announces it, on a topic of ours, through the same ordered streams that later bring the
answer: an attempt that is announced twice was run again, and its answer is not believed. A trial that runs
watches its task (`cluster/worker.py`), and ends when Dask has let go of it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

import distributed

from bisect_env import __version__
from bisect_env.cluster.perform import CANCELLED, PrefixBuilder
from bisect_env.cluster.pool import take
from bisect_env.cluster.protocol import (
    GPU,
    BuildFailed,
    Completion,
    PrefixProgress,
    PrefixReady,
    PrefixRequest,
    TrialLost,
    TrialRequest,
    WorkerOffer,
    promised,
    slots,
    why_never,
)
from bisect_env.cluster.worker import (
    WorkerSettings,
    machines_of_worker,
    perform_on_worker,
    prepare_on_worker,
)
from bisect_env.environments.progress import BuildStep
from bisect_env.errors import InfrastructureError
from bisect_env.trials.records import Machine

# --------------------------------------------------------------------------------------------------
# Where a prefix is made, and what the answers of the hosts come to. Pure.


def outcome(
    lock_hash: str, answers: Mapping[str, object], *, known: Collection[str] = ()
) -> PrefixReady | BuildFailed:
    """Return the result of building a prefix on several hosts.

    If at least one host has it, the environment can be built, and its trials run there. A failure on
    another host (which may lack a compiler, or have a full disk) is a problem of that host.

    Args:
        lock_hash: Lock of the environment.
        answers: Answer of each host; a value of another type means that the host was lost.
        known: Hosts that were already reported as unable to build environments.
    """
    failed = {host: answer for host, answer in answers.items() if isinstance(answer, BuildFailed)}
    ready = [answer for answer in answers.values() if isinstance(answer, PrefixReady)]
    if ready:
        notes = [note for answer in ready for note in answer.notes]
        notes += [
            f"on {host} an environment cannot be made: {answer.message.splitlines()[0].rstrip(':')}; its "
            "trials run elsewhere, as will those of others that cannot be made there"
            for host, answer in failed.items()
            if host not in known
        ]
        changes = tuple(change for answer in ready for change in answer.changes)
        return PrefixReady(lock_hash, max(answer.build_seconds for answer in ready), tuple(notes), changes)
    if failed:
        # What says something about the environment matters more than what says something of a host.
        return min(failed.values(), key=lambda failure: failure.transient)
    why = "; ".join(f"{type(one).__name__}: {one}" for one in answers.values()) or "there are none"
    return BuildFailed("", lock_hash, f"no worker could be asked to build: {why}", transient=True)


def one_of_each_host(offers: Iterable[WorkerOffer]) -> set[str]:
    """Return the address of one worker per host, since all workers of a host share its prefixes."""
    chosen: dict[str, str] = {}
    for offer in offers:
        chosen[offer.host] = min(offer.address, chosen.get(offer.host, offer.address))
    return set(chosen.values())


@dataclass(slots=True)
class Whereabouts:
    """A record of which hosts have which prefixes, and which hosts still have to build one.

    Only locks passed to `asked` are tracked; for any other lock every host is eligible.
    """

    _requests: dict[str, PrefixRequest] = field(default_factory=dict)
    _there: dict[str, set[str]] = field(default_factory=dict)
    _begun: dict[str, set[str]] = field(default_factory=dict)
    _failures: Counter[tuple[str, str]] = field(default_factory=Counter)

    def asked(self, request: PrefixRequest, offers: Sequence[WorkerOffer]) -> None:
        """Record that a prefix is being built on every present host."""
        self._requests[request.lock.content_hash] = request
        self._begun.setdefault(request.lock.content_hash, set()).update(offer.host for offer in offers)

    def answered(self, lock_hash: str, answers: Mapping[str, object]) -> None:
        """Record the answers of hosts.

        After a transient failure or a loss, a host may build the prefix again.
        """
        for host, answer in answers.items():
            if isinstance(answer, PrefixReady):
                self._there.setdefault(lock_hash, set()).add(host)
                continue
            if isinstance(answer, BuildFailed):
                self._failures[lock_hash, host] += 1 if answer.transient else ATTEMPTS
            if self._failures[lock_hash, host] < ATTEMPTS:
                self._begun[lock_hash].discard(host)

    def late(
        self, wanted: Iterable[str], offers: Sequence[WorkerOffer]
    ) -> list[tuple[PrefixRequest, list[WorkerOffer]]]:
        """Return the builds that hosts which joined later have to start, and record them as started.

        Args:
            wanted: Content hashes of the environments in use.
            offers: Offers of the present workers.
        """
        found = []
        for lock_hash in wanted:
            if lock_hash in self._there:
                begun = self._begun[lock_hash]
                joined = [offer for offer in offers if offer.host not in begun | self._there[lock_hash]]
                chosen = one_of_each_host(joined)
                begun.update(offer.host for offer in joined)
                if chosen:
                    builders = [offer for offer in joined if offer.address in chosen]
                    found.append((self._requests[lock_hash], builders))
        return found

    def fit(self, lock_hash: str, offers: Sequence[WorkerOffer]) -> list[str] | None:
        """Return the addresses of workers on hosts that have a prefix; None if every worker is eligible."""
        there = self._there.get(lock_hash, set())
        addresses = [offer.address for offer in offers if offer.host in there]
        return addresses if 0 < len(addresses) < len(offers) else None

    def at_work(self, offers: Sequence[WorkerOffer]) -> list[WorkerOffer]:
        """Return the offers of hosts that have any prefix; all offers as long as none has."""
        hosts = set().union(*self._there.values())
        return [offer for offer in offers if offer.host in hosts] or list(offers)


# --------------------------------------------------------------------------------------------------
# What all executors on Dask share: each submitted trial is answered exactly once, and cancelling ends it.

NO_WORKERS_GRACE = 60.0
"""Seconds without any worker after which the cluster counts as lost; a killed worker is back in about two."""
ATTEMPTS = 3
"""How often a host makes a prefix that others have, where what went wrong may pass."""
LOOK = 1.0
"""Seconds between two looks at the cluster's health while waiting."""
OFFERS_AGE = 0.5
"""Seconds for which what the workers offer is believed."""
CLOSE_GRACE = 3.0
"""Seconds that cancelled trials get to end before their workers are closed."""
CLOSE_LIMIT = 5.0
"""Seconds for all of closing; then what this executor started is killed, and what is elsewhere is left."""
RECONNECT_GRACE = 35.0
"""Seconds that a lost connection to the scheduler may take to come back; Dask itself tries for thirty."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempt:
    """One submission of a trial.

    Attributes:
        trial_id: Id of the requested trial.
        lock_hash: Lock of its environment.
        fit: Addresses of the only workers that may run it; None if all may.
        future: Dask's future.
        is_stranded: Whether it was given up because these workers are gone.
        begun: Worker and host of every announced start; more than one if Dask ran it again.
    """

    trial_id: str
    lock_hash: str
    fit: list[str] | None = None
    future: Any = None
    is_stranded: bool = False
    begun: list[tuple[str, str]] = field(default_factory=list)


class DaskExecutor:
    """An `Executor` on a Dask cluster.

    Subclasses start or find the cluster, call `_connect` with a client, and end in `_give_back` what
    they started.

    Args:
        build: Builds prefixes; must be picklable.
        cpus: CPUs that trials may use; empty means those of each worker.
        gpus_per_trial: GPUs, or the share of one, that future trials will ask for; `slots` depends on it.
    """

    def __init__(
        self, build: PrefixBuilder, *, cpus: tuple[int, ...] = (), gpus_per_trial: float = 0
    ) -> None:
        # News about lost connections would come between our own lines; ours say the same. Dask gives each of
        # its loggers a level, so that the common parent's says nothing.
        for name in (
            "distributed",
            "distributed.client",
            "distributed.core",
            "asyncio",
            "tornado.application",
        ):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self._build = build
        self._reconnect_grace = RECONNECT_GRACE
        self._cpus = cpus
        self._gpus_per_trial = gpus_per_trial
        self._topic = f"bisect-env-{uuid.uuid4().hex}"
        self._version = __version__
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._woken = threading.Event()
        self._prepared: queue.SimpleQueue[tuple[str, dict[str, object], bool]] = queue.SimpleQueue()
        self._unable: set[str] = set()
        self._progress: queue.SimpleQueue[PrefixProgress] = queue.SimpleQueue()
        self._whereabouts = Whereabouts()
        self.attempts: dict[str, _Attempt] = {}
        self._count = 0
        self._preparing = 0
        self._aside: dict[str, str] = {}
        self._closed = False
        self._workerless_since: float | None = None
        self._unconnected_since: float | None = None
        self._offers: list[WorkerOffer] = []
        self._offers_at = float("-inf")
        # `Any`: distributed marks itself as typed, and is so in parts only.
        self.client: Any = None
        self._subscribed_on: Any = None

    def _connect(self, client: Any) -> None:
        self.client = client
        self._subscribe()

    def _give_back(self) -> None:
        """End what this executor started; the client is already closed."""

    def _kill(self) -> None:
        """Kill what this executor started, because it did not end in time."""

    def _release(self) -> None:
        """Remove files from the disk after everything has ended."""

    # -- what the cluster offers ---------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Return how many trials can run at the same time.

        The number is at least one: a trial submitted while the cluster has no workers waits for them, and
        `wait` raises an error if none comes. A host that joins counts once it has an environment.
        """
        return max(1, slots(self._whereabouts.at_work(self.look()), self._gpus_per_trial))

    def look(self, max_age: float = OFFERS_AGE) -> list[WorkerOffer]:
        """Return the workers, from a cache that is at most `max_age` seconds old."""
        now = time.monotonic()
        if now > self._offers_at + max_age and self.client.status == "running":
            with _despite_lost_connection():
                info = self.client.scheduler_info(n_workers=-1)
                self._offers = [WorkerOffer.of(address, one) for address, one in info["workers"].items()]
                self._offers_at = now
        return self._offers

    def machines(self) -> frozenset[Machine]:
        """Return the classes of machines of the present workers, without workers that do not answer."""
        found: set[Machine] = set()
        with _despite_lost_connection():
            answers = self.client.run(
                machines_of_worker, self._topic, self._gpus_per_trial, on_error="return"
            )
            found.update(one for answer in answers.values() if isinstance(answer, set) for one in answer)
        return frozenset(found)

    # -- trials --------------------------------------------------------------------------------------------

    def submit(self, request: TrialRequest) -> None:
        """Accept a trial; see `Executor.submit`.

        While the client reconnects, Dask keeps what is submitted and sends it when it is connected again.
        """
        if self._closed:
            raise InfrastructureError("the cluster is closed")
        self._check_client()
        gpus = request.spec.gpus
        if why_never(self.look(), gpus):
            self._refuse_missing_gpus(gpus)
        self._subscribe()
        self._count += 1
        attempt = f"{request.spec.trial_id}-{self._count}"
        settings = WorkerSettings(self._build, self._topic, self._cpus, self._version)
        lock_hash = request.lock.content_hash
        fit = self._whereabouts.fit(lock_hash, self.look())
        known = self.attempts[attempt] = _Attempt(request.spec.trial_id, lock_hash, fit)
        # The key is unique and the function declared impure, or equal submits would be run once. The common
        # first part makes the trials one group, to which alone the worker saturation applies.
        known.future = self.client.submit(
            perform_on_worker,
            request,
            attempt,
            settings,
            key=("trial", attempt),
            pure=False,
            retries=0,
            resources={GPU: promised(gpus)} if gpus else None,
            workers=fit,
        )
        known.future.add_done_callback(lambda _future: self._answers.put(attempt))
        self._welcome([lock_hash])

    def prepare(self, request: PrefixRequest) -> None:
        """Start to build a prefix on every host; see `Executor.prepare`.

        Dask tasks are not used: they would wait for, and then occupy, a worker's thread that trials need.
        """
        if self._closed:
            raise InfrastructureError("the cluster is closed")
        self._check_client()
        self._begin(request)

    def _begin(self, request: PrefixRequest, late: Sequence[WorkerOffer] = ()) -> None:
        """Start a thread that has a prefix built.

        Args:
            request: The prefix.
            late: Workers of hosts that joined later; if empty, one worker of every host builds it.
        """
        self._preparing += 1
        threading.Thread(target=self._prepare, args=(request, late), daemon=True).start()

    def _prepare(self, request: PrefixRequest, late: Sequence[WorkerOffer]) -> None:
        lock_hash = request.lock.content_hash
        builders, message = late, {}
        # The answer of the call itself, and no event: nothing orders an event after our subscription to it.
        try:
            self._await_connection()
            builders = late or self._on_every_host(request)
            workers = sorted(offer.address for offer in builders)
            message = self.client.run(
                prepare_on_worker, request, self._build, self._topic, workers=workers, on_error="return"
            )
        except Exception as error:  # noqa: BLE001 - a thread's outermost frame: without an answer the study
            # would wait for ever. What is lost here is the scheduler, or everybody.
            _log.debug("a build was not answered", exc_info=error)
            message = {offer.address: error for offer in builders}
        answers = {offer.host: message.get(offer.address) for offer in builders}
        self._prepared.put((lock_hash, answers, bool(late)))
        self._answers.put("")  # wakes `wait`

    def _await_connection(self) -> None:
        deadline = time.monotonic() + self._reconnect_grace
        while self.client.status == "connecting" and time.monotonic() < deadline and not self._closed:
            time.sleep(0.1)

    def _on_every_host(self, request: PrefixRequest) -> list[WorkerOffer]:
        """Return one worker of each host, after waiting for the first worker."""
        deadline = time.monotonic() + NO_WORKERS_GRACE
        while not (offers := self.look()) and time.monotonic() < deadline and not self._closed:
            time.sleep(0.1)
        self._whereabouts.asked(request, offers)
        chosen = one_of_each_host(offers)
        return [offer for offer in offers if offer.address in chosen]

    def _welcome(self, wanted: Iterable[str]) -> None:
        """Have newly joined hosts build the environments in use; they get no trials before that."""
        for request, builders in self._whereabouts.late(wanted, self.look()):
            self._begin(request, builders)

    def _subscribe(self) -> None:
        # A client that lost its scheduler and found it again has lost its subscriptions.
        comm = self.client.scheduler_comm
        if comm is not self._subscribed_on:
            self.client.subscribe_topic(self._topic, self._on_event)
            self._subscribed_on = comm

    def _on_event(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Process an event of a worker.

        Runs in the client's event loop, before the answer that follows it.
        """
        _, message = event
        if "begun" in message:
            attempt = self.attempts.get(message["begun"])
            if attempt is not None:
                attempt.begun.append((message["worker"], message["host"]))
                if len(attempt.begun) == 2:
                    # A worker that runs a cancelled key sees it and ends the trial. From another thread: in
                    # this one, which carries the messages, cancelling would wait for itself.
                    threading.Thread(target=attempt.future.cancel, daemon=True).start()
        elif "building" in message:
            self._progress.put(PrefixProgress(message["building"], BuildStep(**message["step"])))
            self._answers.put("")  # wakes `wait`
        elif "aside" in message:
            self._aside[f"{message['host']}/{message['aside']}"] = message["why"]

    def wait(self, timeout: float | None = None) -> list[Completion]:
        """Return the answers since the last call; see `Executor.wait`. Empty at once if none is expected."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.attempts or self._preparing:
            left = LOOK if deadline is None else min(LOOK, deadline - time.monotonic())
            done = take(self._answers, max(0.0, left))
            answers = [self._answer(attempt) for attempt in done if attempt]
            prepared = take(self._prepared, 0.0)
            self._preparing -= len(prepared)
            ends = [self._come_to(*one) for one in prepared]
            progress = take(self._progress, 0.0)
            if answers or ends or progress or self._woken.is_set():
                self._woken.clear()
                return [*progress, *answers, *ends]
            self._check_health()
            if deadline is not None and time.monotonic() >= deadline:
                break
        return []

    def _come_to(self, lock_hash: str, answers: Mapping[str, object], late: bool) -> Completion:
        self._whereabouts.answered(lock_hash, answers)
        # Late ones are made where somebody else has it.
        known = {"": PrefixReady(lock_hash)} if late else {}
        end = outcome(lock_hash, {**known, **answers}, known=self._unable)
        if isinstance(end, PrefixReady):
            # One of a host is enough: the next commit will lack the same.
            self._unable |= {host for host, answer in answers.items() if isinstance(answer, BuildFailed)}
        return end

    def wake(self) -> None:
        """Make `wait` return; see `Executor.wake`."""
        self._woken.set()
        self._answers.put("")

    def _answer(self, name: str) -> Completion:
        attempt = self.attempts[name]
        host = attempt.begun[-1][1] if attempt.begun else ""
        try:
            completion: Completion = attempt.future.result()
        except distributed.scheduler.KilledWorker:
            completion = TrialLost(attempt.trial_id, "the worker died while the trial ran", host)
        except Exception as error:  # noqa: BLE001 - `perform` raises nothing, so this is Dask's: a task that
            # was cancelled, a message that could not be read. Whatever it is, it says nothing of the script.
            why = "every worker that has its environment is gone" if attempt.is_stranded else str(error)
            is_ours = isinstance(error, CancelledError) and not attempt.is_stranded
            reason = CANCELLED if is_ours else f"{type(error).__name__}: {why}"
            completion = TrialLost(attempt.trial_id, reason, host, under_trial=attempt.is_stranded)
        finally:
            attempt.future.release()
            # Not before: while the result was fetched, a lost worker may have made a second run of it.
            del self.attempts[name]
        if len(attempt.begun) > 1:
            worker, host = attempt.begun[0]
            reason = f"the worker {worker} was lost before its answer was fetched"
            return TrialLost(attempt.trial_id, reason, host)
        return completion

    def _refuse_missing_gpus(self, gpus: float) -> None:
        if (why := why_never(self.look(0.0), gpus)) is not None:
            raise self._no_gpus(why)

    # -- health --------------------------------------------------------------------------------------------

    def _check_client(self) -> None:
        """Check that the client is connected, or has not been reconnecting for too long; never wait."""
        status, now = self.client.status, time.monotonic()
        if status != "connecting":
            self._unconnected_since = None
        elif self._unconnected_since is None:
            self._unconnected_since = now
        if status == "connecting" and now < (self._unconnected_since or now) + self._reconnect_grace:
            return
        if status != "running":
            raise InfrastructureError(
                f"the Dask cluster is lost (its client is {status})",
                remedy="start the same command again; it goes on where it stopped",
            )

    def _check_health(self) -> None:
        self._check_client()
        offers = self.look()
        if offers:
            self._workerless_since = None
            self._welcome({attempt.lock_hash for attempt in self.attempts.values()})
            self._give_up_stranded(offers)
            if self._aside and why_never(offers, self._gpus_per_trial):
                self._refuse_missing_gpus(self._gpus_per_trial)
            return
        now = time.monotonic()
        self._workerless_since = self._workerless_since or now
        if now > self._workerless_since + NO_WORKERS_GRACE:
            raise InfrastructureError(
                f"every worker is gone, and none came back in {NO_WORKERS_GRACE:.0f} s",
                remedy="see whether this host is out of memory, then start the same command again",
            )

    def _give_up_stranded(self, offers: Sequence[WorkerOffer]) -> None:
        """Cancel attempts whose eligible workers are all gone; Dask would wait for them for ever."""
        there = {offer.address for offer in offers}
        for attempt in self.attempts.values():
            if attempt.fit is not None and there.isdisjoint(attempt.fit):
                attempt.is_stranded = True
                attempt.future.cancel()

    def _no_gpus(self, why: str) -> InfrastructureError:
        aside = "; ".join(f"{gpu}: {reason}" for gpu, reason in sorted(self._aside.items()))
        return InfrastructureError(
            why,
            tried=f"GPUs put aside: {aside}" if aside else None,
            remedy="see `nvidia-smi` on those hosts, then start the same command again"
            if aside
            else "lower `trial.gpus` in the matrix, or start workers with `--resources GPU=N`",
        )

    # -- ending --------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End all trials; see `Executor.cancel`."""
        running = [one.future for one in self.attempts.values() if not one.future.done()]
        # A client that has lost its scheduler closes by itself; its workers then end what they run.
        if self.client.status == "running":
            with _despite_lost_connection():
                self.client.cancel(running)

    def close(self) -> None:
        """Cancel trials, wait a short time for them to end, then end the workers and everything on them.

        The time is bounded even if the cluster does not respond: Dask's own closing waits for a worker
        that is being restarted, and for a scheduler that does not answer.
        """
        if self._closed:
            return
        self._closed = True
        orderly = threading.Thread(target=self._close_in_order, name="close", daemon=True)
        orderly.start()
        try:
            orderly.join(CLOSE_LIMIT)
        finally:
            if orderly.is_alive():
                self._kill()
            self._release()

    def _close_in_order(self) -> None:
        deadline = time.monotonic() + CLOSE_GRACE
        with _despite_lost_connection():
            if self.attempts:
                self.cancel()
            while self.attempts and time.monotonic() < deadline:
                self.wait(deadline - time.monotonic())
        self.attempts.clear()
        self._preparing = 0
        with _despite_lost_connection():
            self.client.close()
        self._give_back()


@contextlib.contextmanager
def _despite_lost_connection() -> Iterator[None]:
    """Suppress and log the errors of a step that must continue although the cluster is gone."""
    try:
        yield
    except (InfrastructureError, OSError, TimeoutError, RuntimeError) as error:
        # RuntimeError: the client's event loop ended between our look at its status and the call.
        _log.debug("the cluster does not answer: %s", error)
