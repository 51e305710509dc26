"""Run trials on a Dask cluster: each submitted trial gets exactly one answer, and can be cancelled.

Dask alone guarantees neither. It silently runs a task again if its worker dies or its result is lost with the
worker, and `Future.cancel` does not end a running task. Therefore, a worker announces each start of a trial
on a topic, through the same ordered streams that later carry the answer. If a trial was announced twice, it
was run again, and its answer is discarded. A running trial watches its task (`cluster/worker.py`), and ends
when Dask has dropped the task.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
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
# Which hosts build a prefix, and what follows from their answers. Pure.


def build_result(
    lock_hash: str, answers: Mapping[str, object], *, known: Collection[str] = ()
) -> PrefixReady | BuildFailed:
    """Combine the answers of all hosts that were asked to build one environment into one result.

    If at least one host has the environment, the result is a success, and trials run there. A failure on
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
        # A permanent failure says something about the environment, a transient one only about a host.
        return min(failed.values(), key=lambda failure: failure.transient)
    why = "; ".join(f"{type(one).__name__}: {one}" for one in answers.values()) or "there are none"
    return BuildFailed("", lock_hash, f"no worker could be asked to build: {why}", transient=True)


def one_of_each_host(offers: Iterable[WorkerOffer]) -> set[str]:
    """Choose one worker of each host, because all workers of a host share its environments.

    Returns the addresses of these workers.
    """
    chosen: dict[str, str] = {}
    for offer in offers:
        chosen[offer.host] = min(offer.address, chosen.get(offer.host, offer.address))
    return set(chosen.values())


@dataclass(slots=True)
class PrefixHosts:
    """A record of which hosts have built which environments, and which hosts still have to build some.

    Only locks passed to `note_request` are tracked; for any other lock every host is eligible. Requests to
    look at existing environments, and their answers, are ignored: a host without the environment builds
    nothing then, and answers as if all were well.
    """

    _requests: dict[str, PrefixRequest] = field(default_factory=dict)
    _hosts: dict[str, set[str]] = field(default_factory=dict)
    _builders: dict[str, set[str]] = field(default_factory=dict)
    _failures: Counter[tuple[str, str]] = field(default_factory=Counter)

    def note_request(self, request: PrefixRequest, offers: Sequence[WorkerOffer]) -> None:
        """Record that every host in `offers` has been asked to build an environment."""
        if request.look:
            return
        self._requests[request.lock.content_hash] = request
        self._builders.setdefault(request.lock.content_hash, set()).update(offer.host for offer in offers)

    def note_answers(self, request: PrefixRequest, answers: Mapping[str, object]) -> None:
        """Record which hosts have built an environment and which have failed.

        After a transient failure or a loss, a host may build the prefix again, at most `ATTEMPTS` times.
        """
        if request.look:
            return
        lock_hash = request.lock.content_hash
        for host, answer in answers.items():
            if isinstance(answer, PrefixReady):
                self._hosts.setdefault(lock_hash, set()).add(host)
                continue
            if isinstance(answer, BuildFailed):
                self._failures[lock_hash, host] += 1 if answer.transient else ATTEMPTS
            if self._failures[lock_hash, host] < ATTEMPTS:
                self._builders[lock_hash].discard(host)

    def builds_on_new_hosts(
        self, wanted: Iterable[str], offers: Sequence[WorkerOffer]
    ) -> list[tuple[PrefixRequest, list[WorkerOffer]]]:
        """Choose the builds that newly joined hosts must start, with one worker of each host.

        The builds are marked as started.

        Args:
            wanted: Content hashes of the environments in use.
            offers: Offers of the present workers.
        """
        found = []
        for lock_hash in wanted:
            if lock_hash in self._hosts:
                begun = self._builders[lock_hash]
                joined = [offer for offer in offers if offer.host not in begun | self._hosts[lock_hash]]
                chosen = one_of_each_host(joined)
                begun.update(offer.host for offer in joined)
                if chosen:
                    builders = [offer for offer in joined if offer.address in chosen]
                    found.append((self._requests[lock_hash], builders))
        return found

    def workers_with(self, lock_hash: str, offers: Sequence[WorkerOffer]) -> list[str] | None:
        """Return the addresses of the workers that may run a trial, because they have its environment.

        Returns None if any worker may run the trial, because all hosts have the environment or none is known
        to have it.
        """
        there = self._hosts.get(lock_hash, set())
        addresses = [offer.address for offer in offers if offer.host in there]
        return addresses if 0 < len(addresses) < len(offers) else None

    def offers_with_prefixes(self, offers: Sequence[WorkerOffer]) -> list[WorkerOffer]:
        """Return the workers on hosts that already have at least one environment.

        Returns all workers as long as no host has one.
        """
        hosts = set().union(*self._hosts.values())
        return [offer for offer in offers if offer.host in hosts] or list(offers)


# --------------------------------------------------------------------------------------------------
# The common part of all executors on Dask: every trial gets exactly one answer, and can be cancelled.

NO_WORKERS_GRACE = 60.0
"""Seconds without any worker after which the cluster counts as lost; a killed worker is back in about two."""
ATTEMPTS = 3
"""Maximum number of times that a host tries to build a prefix, if its failures are transient."""
CHECK_EVERY = 1.0
"""Seconds between two checks of the cluster's health while waiting."""
OFFERS_AGE = 0.5
"""Maximum age, in seconds, of the cached list of workers."""
CLOSE_GRACE = 3.0
"""Maximum seconds to wait for cancelled trials to end before their workers are closed."""
CLOSE_LIMIT = 5.0
"""Maximum seconds for closing everything; after that, processes that this executor started are killed."""
RECONNECT_GRACE = 35.0
"""Maximum seconds for a lost connection to the scheduler to be restored; Dask itself tries for thirty."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempt:
    """One submission of a trial to Dask, with what is known about its progress.

    Attributes:
        lock_hash: Lock of its environment.
        fit: Addresses of the only workers that may run it; None if all may.
        future: Dask's future.
        is_stranded: Whether it was cancelled because these workers are gone.
        begun: Worker and host of every announced start. There are several if Dask ran the trial again.
    """

    lock_hash: str
    fit: list[str] | None = None
    future: Any = None
    is_stranded: bool = False
    begun: list[tuple[str, str]] = field(default_factory=list)


class DaskExecutor:
    """An executor (it runs trials and builds environments) that uses a Dask cluster.

    This class implements `Executor`. A subclass starts or finds the cluster, and calls `_connect` with a
    client. The method `_give_back` of the subclass ends what the subclass started.

    Args:
        build: Builds prefixes; must be picklable.
        cpus: CPUs that trials may use; empty means those of each worker.
        gpus_per_trial: GPUs, or the share of one, that future trials will ask for; `slots` depends on it.
    """

    def __init__(
        self, build: PrefixBuilder, *, cpus: tuple[int, ...] = (), gpus_per_trial: float = 0
    ) -> None:
        # Dask's messages about lost connections would repeat ours. Dask gives each of its loggers a level of
        # its own, so that the level of their common parent has no effect.
        for name in (
            "distributed",
            "distributed.client",
            "distributed.core",
            "asyncio",
            "tornado.application",
        ):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self._build = build
        self._cpus = cpus
        self._gpus_per_trial = gpus_per_trial
        self._topic = f"bisect-env-{uuid.uuid4().hex}"
        # Each item makes the answer in the thread that calls `wait`; None only wakes it.
        self._news: queue.SimpleQueue[Callable[[], Completion] | None] = queue.SimpleQueue()
        self._unable: set[str] = set()
        self._prefix_hosts = PrefixHosts()
        self.attempts: dict[str, _Attempt] = {}
        self._preparing = 0
        self._aside: dict[str, str] = {}
        self._closed = False
        self._workerless_since: float | None = None
        self._unconnected_since: float | None = None
        self._offers: list[WorkerOffer] = []
        self._offers_at = float("-inf")
        # `Any`, because distributed is only partly typed although it is marked as typed.
        self.client: Any = None
        self._subscribed_on: Any = None

    def _connect(self, client: Any) -> None:
        self.client = client
        self._subscribe()

    def _give_back(self) -> None:
        """End the processes and connections that this executor started; subclasses override this method.

        The client is already closed.
        """

    def _kill(self) -> None:
        """Kill the processes of this executor if they do not end in time; subclasses override this method."""

    def _release(self) -> None:
        """Remove temporary files once all processes have ended; subclasses override this method."""

    # -- what the cluster offers ---------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Return how many trials can run at the same time.

        The number is at least one: a trial submitted while the cluster has no workers waits for them, and
        `wait` raises an error if none comes. A host that joins counts once it has an environment.
        """
        return max(1, slots(self._prefix_hosts.offers_with_prefixes(self.look()), self._gpus_per_trial))

    def look(self, max_age: float = OFFERS_AGE) -> list[WorkerOffer]:
        """Return the present workers of the cluster, from a list that is at most `max_age` seconds old."""
        now = time.monotonic()
        if now > self._offers_at + max_age and self.client.status == "running":
            self._offers_at = now
            with _despite_lost_connection():
                # `Client.scheduler_info` returns an attribute that the client's own regular update, which
                # asks for no workers, can replace in between: a cluster would seem to have none.
                info = self.client.sync(self.client.scheduler.identity, n_workers=-1)
                self._offers = [WorkerOffer.of(address, one) for address, one in info["workers"].items()]
        return self._offers

    def machines(self) -> frozenset[Machine]:
        """Return the kinds of machines (CPU, GPU model, driver) on which trials will run.

        See `Executor.machines`.
        """
        found: set[Machine] = set()
        with _despite_lost_connection():
            answers = self.client.run(
                machines_of_worker, self._topic, self._gpus_per_trial, on_error="return"
            )
            found.update(one for answer in answers.values() if isinstance(answer, set) for one in answer)
        return frozenset(found)

    # -- trials --------------------------------------------------------------------------------------------

    def submit(self, request: TrialRequest) -> None:
        """Send a trial to the cluster; `wait` returns its result later.

        See `Executor.submit`. While the client reconnects, Dask keeps the trial, and sends it once the
        connection is restored.
        """
        if self._closed:
            raise InfrastructureError("the cluster is closed")
        self._check_client()
        gpus = request.spec.gpus
        if why_never(self.look(), gpus):
            self._refuse_missing_gpus(gpus)
        self._subscribe()
        settings = WorkerSettings(self._build, self._topic, self._cpus, __version__)
        trial_id, lock_hash = request.spec.trial_id, request.lock.content_hash
        fit = self._prefix_hosts.workers_with(lock_hash, self.look())
        attempt = self.attempts[trial_id] = _Attempt(lock_hash, fit)
        # Worker saturation applies only to groups of tasks; the common first part of the keys makes a group.
        attempt.future = self.client.submit(
            perform_on_worker,
            request,
            settings,
            key=("trial", trial_id),
            retries=0,
            resources={GPU: promised(gpus)} if gpus else None,
            workers=fit,
        )
        attempt.future.add_done_callback(
            lambda _future: self._news.put(partial(self._trial_answer, trial_id))
        )
        self._build_on_new_hosts([lock_hash])

    def prepare(self, request: PrefixRequest) -> None:
        """Start to build an environment on every host; `wait` returns the result later.

        See `Executor.prepare`. Builds are not Dask tasks, because these would occupy worker threads that
        trials need.
        """
        if self._closed:
            raise InfrastructureError("the cluster is closed")
        self._check_client()
        self._begin(request)

    def _begin(self, request: PrefixRequest, late: Sequence[WorkerOffer] = ()) -> None:
        """Start a thread that asks hosts to build an environment and awaits their answers.

        Args:
            request: The environment.
            late: Workers of hosts that joined later; if empty, one worker of every host builds the
                environment.
        """
        self._preparing += 1
        threading.Thread(target=self._prepare, args=(request, late), daemon=True).start()

    def _prepare(self, request: PrefixRequest, late: Sequence[WorkerOffer]) -> None:
        builders, message = late, {}
        # Use the return value of the call instead of an event: an event could arrive before our subscription.
        try:
            self._await_connection()
            builders = late or self._on_every_host(request)
            workers = sorted(offer.address for offer in builders)
            message = self.client.run(
                prepare_on_worker, request, self._build, self._topic, workers=workers, on_error="return"
            )
        except Exception as error:  # noqa: BLE001 - a thread's outermost frame: without an answer the study
            # would wait for ever. An exception here means that the scheduler or all workers are lost.
            _log.debug("a build was not answered", exc_info=error)
            message = {offer.address: error for offer in builders}
        answers = {offer.host: message.get(offer.address) for offer in builders}
        self._news.put(partial(self._build_answer, request, answers, late=bool(late)))

    def _await_connection(self) -> None:
        deadline = time.monotonic() + RECONNECT_GRACE
        while self.client.status == "connecting" and time.monotonic() < deadline and not self._closed:
            time.sleep(0.1)

    def _on_every_host(self, request: PrefixRequest) -> list[WorkerOffer]:
        """Choose one worker of each host for a build; if there are no workers yet, wait for the first one.

        Also notes that these hosts are building the requested environment.
        """
        deadline = time.monotonic() + NO_WORKERS_GRACE
        while not (offers := self.look()) and time.monotonic() < deadline and not self._closed:
            time.sleep(0.1)
        self._prefix_hosts.note_request(request, offers)
        chosen = one_of_each_host(offers)
        return [offer for offer in offers if offer.address in chosen]

    def _build_on_new_hosts(self, wanted: Iterable[str]) -> None:
        """Let hosts that have newly joined build the environments in use, before they get trials."""
        for request, builders in self._prefix_hosts.builds_on_new_hosts(wanted, self.look()):
            self._begin(request, builders)

    def _subscribe(self) -> None:
        # A client that reconnects to its scheduler has lost its subscriptions.
        comm = self.client.scheduler_comm
        if comm is not self._subscribed_on:
            self.client.subscribe_topic(self._topic, self._on_event)
            self._subscribed_on = comm

    def _on_event(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Handle a message of a worker: a started trial, a build step, or an excluded GPU.

        This method runs in the client's event loop, before the answer about the same trial arrives.
        """
        _, message = event
        if "begun" in message:
            attempt = self.attempts.get(message["begun"])
            if attempt is not None:
                attempt.begun.append((message["worker"], message["host"]))
                if len(attempt.begun) == 2:
                    # A worker ends a trial whose key was cancelled. Cancel in another thread: this one
                    # carries the messages for which cancelling waits.
                    threading.Thread(target=attempt.future.cancel, daemon=True).start()
        elif "building" in message:
            self._news.put(partial(PrefixProgress, message["building"], BuildStep(**message["step"])))
        elif "aside" in message:
            self._aside[f"{message['host']}/{message['aside']}"] = message["why"]

    def wait(self, timeout: float | None = None) -> list[Completion]:
        """Wait for results of trials and builds, and return those that have arrived since the last call.

        See `Executor.wait`. Returns at once if no trial or build is in progress.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.attempts or self._preparing:
            left = CHECK_EVERY if deadline is None else min(CHECK_EVERY, deadline - time.monotonic())
            if news := take(self._news, max(0.0, left)):
                return [answer() for answer in news if answer is not None]
            self._check_health()
            if deadline is not None and time.monotonic() >= deadline:
                break
        return []

    def _build_answer(
        self, request: PrefixRequest, answers: Mapping[str, object], *, late: bool
    ) -> Completion:
        self._preparing -= 1
        lock_hash = request.lock.content_hash
        self._prefix_hosts.note_answers(request, answers)
        # Hosts that joined later are only asked to build prefixes that another host has.
        known = {"": PrefixReady(lock_hash)} if late else {}
        end = build_result(lock_hash, {**known, **answers}, known=self._unable)
        if isinstance(end, PrefixReady):
            # Report a host once: its next builds will fail for the same reason.
            self._unable |= {host for host, answer in answers.items() if isinstance(answer, BuildFailed)}
        return end

    def wake(self) -> None:
        """Make the current or next call of `wait` return at once; see `Executor.wake`."""
        self._news.put(None)

    def _trial_answer(self, trial_id: str) -> Completion:
        attempt = self.attempts[trial_id]
        host = attempt.begun[-1][1] if attempt.begun else ""
        try:
            completion: Completion = attempt.future.result()
        except distributed.scheduler.KilledWorker:
            completion = TrialLost(trial_id, "the worker died while the trial ran", host)
        except Exception as error:  # noqa: BLE001 - `perform` raises nothing, so this is Dask's: a task that
            # was cancelled, or a message that could not be read. It says nothing about the script.
            why = "every worker that has its environment is gone" if attempt.is_stranded else str(error)
            is_ours = isinstance(error, CancelledError) and not attempt.is_stranded
            reason = CANCELLED if is_ours else f"{type(error).__name__}: {why}"
            completion = TrialLost(trial_id, reason, host, under_trial=attempt.is_stranded)
        finally:
            attempt.future.release()
            # Delete it last: while the result is fetched, Dask may run the trial again for a lost worker.
            del self.attempts[trial_id]
        if len(attempt.begun) > 1:
            worker, host = attempt.begun[0]
            reason = f"the worker {worker} was lost before its answer was fetched"
            return TrialLost(trial_id, reason, host)
        return completion

    def _refuse_missing_gpus(self, gpus: float) -> None:
        if (why := why_never(self.look(0.0), gpus)) is None:
            return
        aside = "; ".join(f"{gpu}: {reason}" for gpu, reason in sorted(self._aside.items()))
        raise InfrastructureError(
            why,
            tried=f"GPUs put aside: {aside}" if aside else None,
            remedy="see `nvidia-smi` on those hosts, then start the same command again"
            if aside
            else "lower `trial.gpus` in the matrix, or start workers with `--resources GPU=N`",
        )

    # -- health --------------------------------------------------------------------------------------------

    def _check_client(self) -> None:
        """Raise an error if the connection to the cluster is lost for good; does not wait.

        A broken connection is given time to be restored.
        """
        status, now = self.client.status, time.monotonic()
        if status != "connecting":
            self._unconnected_since = None
        elif self._unconnected_since is None:
            self._unconnected_since = now
        if status == "connecting" and now < (self._unconnected_since or now) + RECONNECT_GRACE:
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
            self._build_on_new_hosts({attempt.lock_hash for attempt in self.attempts.values()})
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
        """Cancel trials whose environment exists only on workers that are gone.

        Dask would wait for these workers for ever.
        """
        there = {offer.address for offer in offers}
        for attempt in self.attempts.values():
            if attempt.fit is not None and there.isdisjoint(attempt.fit):
                attempt.is_stranded = True
                attempt.future.cancel()

    # -- ending --------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Cancel all running and queued trials; see `Executor.cancel`."""
        running = [one.future for one in self.attempts.values() if not one.future.done()]
        # If the client has lost its scheduler, it closes by itself, and the workers then end their trials.
        if self.client.status == "running":
            with _despite_lost_connection():
                self.client.cancel(running)

    def close(self) -> None:
        """Cancel all trials, and end the workers after a short time for trials to end.

        Closing takes a limited time even if the cluster does not respond, whereas Dask would wait for a
        worker that is being restarted, and for a scheduler that does not answer.
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
    """Suppress and log errors of the enclosed block that occur because the cluster cannot be reached."""
    try:
        yield
    except (InfrastructureError, OSError, TimeoutError, RuntimeError) as error:
        # RuntimeError: the client's event loop ended after its status was checked.
        _log.debug("the cluster does not answer: %s", error)
