"""Run trials on the cores of this host: each thread of the command waits for one trial at a time."""

from __future__ import annotations

import os
import platform
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from bisect_env.cluster.perform import CANCELLED, PrefixBuilder, perform, prepare
from bisect_env.cluster.protocol import (
    Completion,
    PrefixProgress,
    PrefixRequest,
    TrialLost,
    TrialRequest,
)
from bisect_env.errors import InfrastructureError
from bisect_env.running import end_running
from bisect_env.trials.forks import SERVER
from bisect_env.trials.records import Machine

_T = TypeVar("_T")

END_GRACE = 5.0
"""Maximum seconds to wait for cancelled trials to end. Their supervisors end the rest."""


def default_workers() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(slots=True, eq=False)
class _Attempt:
    """A submitted trial for which no answer has been returned yet.

    Attributes:
        request: The trial.
        begun: Whether a thread has started it.
        cancelled: Whether it was cancelled.
    """

    request: TrialRequest
    begun: bool = False
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class _Requests:
    """The waiting requests of one kind (builds, or checks of environments), with the threads for them.

    Attributes:
        name: Name of the threads.
        waiting: Requests that no thread has begun.
        threads: Threads that run; each ends when no request is waiting.
    """

    name: str
    waiting: deque[PrefixRequest] = field(default_factory=deque)
    threads: set[threading.Thread] = field(default_factory=set)


class PoolExecutor:
    """An executor that runs trials on this host without a cluster.

    It implements `Executor`, opens no ports, and starts no processes other than builds and the server of
    trials (see `trials/forks.py`). Each trial is a fresh process under a supervisor; a thread only waits for
    the record. Threads are daemons: builds in progress are abandoned when the command ends, and the next
    build removes their remains.

    Args:
        build: Builds prefixes.
        slots: Number of trials at the same time; by default one per CPU that may be used.
    """

    def __init__(self, build: PrefixBuilder, slots: int | None = None) -> None:
        self._build = build
        self._slots = default_workers() if slots is None else slots
        self._trials: queue.SimpleQueue[_Attempt | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Completion | None] = queue.SimpleQueue()
        self._outstanding = 0
        self._attempts: set[_Attempt] = set()
        self._lock = threading.Lock()
        self._closed = False
        # A build mostly runs one tool that uses one core, so allow about one build per core.
        self._builders_each = min(self._slots, default_workers(), 8)
        # Looks at environments do not wait for builds: a verdict waits for them, and a build may be long.
        self._builds = _Requests("build")
        self._looks = _Requests("look")
        self._workers = [
            threading.Thread(target=self._serve, name=f"trial-{n}", daemon=True) for n in range(self._slots)
        ]
        for thread in self._workers:
            thread.start()
        SERVER.prepare()

    @property
    def slots(self) -> int:
        """Return how many trials can run at the same time."""
        return self._slots

    def machines(self) -> frozenset[Machine]:
        """Return the kind of this machine; see `Executor.machines`."""
        return frozenset({Machine(platform.machine())})

    def submit(self, request: TrialRequest) -> None:
        """Queue a trial, which starts as soon as a thread is free; `wait` returns its result later.

        See `Executor.submit`.
        """
        if self._closed:
            raise InfrastructureError("the executor is closed")
        if request.spec.gpus:
            raise InfrastructureError(
                f"a trial asks for {request.spec.gpus:g} GPU(s), and these workers hand out none",
                remedy="set `gpus: 0` in the matrix, or use workers that have GPUs",
            )
        self._outstanding += 1
        attempt = _Attempt(request)
        with self._lock:
            self._attempts.add(attempt)
        self._trials.put(attempt)

    def _serve(self) -> None:
        while (attempt := self._trials.get()) is not None:
            self._perform(attempt)

    def _perform(self, attempt: _Attempt) -> None:
        with self._lock:
            if attempt not in self._attempts:
                return  # cancelled while it waited, and answered
            attempt.begun = True
        worker = threading.current_thread().name
        answer = perform(
            attempt.request, build=self._build, cancelled=lambda: attempt.cancelled, worker=worker
        )
        with self._lock:
            self._attempts.remove(attempt)
        self._answers.put(answer)

    def prepare(self, request: PrefixRequest) -> None:
        """Start to build an environment in the background; `wait` returns the result later.

        See `Executor.prepare`.
        """
        if self._closed:
            raise InfrastructureError("the executor is closed")
        self._outstanding += 1
        requests = self._looks if request.look else self._builds
        with self._lock:
            requests.waiting.append(request)
            if len(requests.threads) < self._builders_each:
                thread = threading.Thread(
                    target=self._prepare_all, args=(requests,), name=requests.name, daemon=True
                )
                requests.threads.add(thread)
                thread.start()

    def _prepare_all(self, requests: _Requests) -> None:
        """Carry out builds or checks until no request is waiting; this is the work of one thread."""
        while True:
            with self._lock:
                # A closed executor starts no processes, because nobody would end them.
                if self._closed or not requests.waiting:
                    requests.threads.remove(threading.current_thread())
                    return
                request = requests.waiting.popleft()
            self._answers.put(prepare(request, self._build, self._answers.put))

    def wait(self, timeout: float | None = None) -> list[Completion]:
        """Wait for results of trials and builds, and return those that have arrived since the last call.

        See `Executor.wait`. Returns at once if no trial or build is in progress.
        """
        found = take(self._answers, timeout) if self._outstanding else []
        answers = [answer for answer in found if answer is not None]
        self._outstanding -= sum(not isinstance(answer, PrefixProgress) for answer in answers)
        return answers

    def wake(self) -> None:
        """Make the current or next call of `wait` return at once; see `Executor.wake`."""
        self._answers.put(None)

    def cancel(self) -> None:
        """Cancel all running and queued trials; see `Executor.cancel`.

        Trials that have not started are answered at once.
        """
        with self._lock:
            for attempt in [*self._attempts]:
                attempt.cancelled = True
                if not attempt.begun:
                    self._attempts.remove(attempt)
                    self._answers.put(TrialLost(attempt.request.spec.trial_id, CANCELLED))

    def close(self) -> None:
        """Cancel all trials, abandon builds, and wait a short time for the trials to end."""
        if self._closed:
            return
        self._closed = True
        self.cancel()
        with self._lock:
            builders = [*self._builds.threads, *self._looks.threads]
        end_running(builders)
        for _ in self._workers:
            self._trials.put(None)
        deadline = time.monotonic() + END_GRACE
        for thread in self._workers:
            thread.join(max(0.0, deadline - time.monotonic()))


def take(source: queue.SimpleQueue[_T], timeout: float | None) -> list[_T]:
    """Wait for an item of a queue, then return all items that the queue contains by then.

    Args:
        source: The queue.
        timeout: Maximum seconds to wait; None for no limit.
    """
    items: list[_T] = []
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            items.append(source.get_nowait() if items else source.get(timeout=left))
    except queue.Empty:
        return items
