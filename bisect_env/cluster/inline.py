"""Trials in threads of this process: for tests, and wherever a cluster would be too much."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bisect_env.cluster.perform import PrefixBuilder, perform, prepare, refuse_gpus
from bisect_env.cluster.protocol import Completion, PrefixRequest, TrialRequest
from bisect_env.errors import InfrastructureError

_T = TypeVar("_T")


class InlineExecutor:
    """An `Executor` without workers: the trials are processes of this host, as everywhere.

    Args:
        build: Makes prefixes.
        slots: Trials at the same time.
    """

    def __init__(self, build: PrefixBuilder, slots: int = 1) -> None:
        self._build = build
        self._slots = slots
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="trial")
        self._builders = ThreadPoolExecutor(max(1, slots // 4), thread_name_prefix="build")
        self._answers: queue.SimpleQueue[Completion] = queue.SimpleQueue()
        self._outstanding = 0
        self._cancelled = threading.Event()
        self._closed = False

    @property
    def slots(self) -> int:
        """How many trials can run at the same time."""
        return self._slots

    def submit(self, request: TrialRequest) -> None:
        """Accept a trial; see `Executor.submit`."""
        if self._closed:
            raise InfrastructureError("the executor is closed")
        refuse_gpus(request)
        self._outstanding += 1
        self._pool.submit(self._perform, request, self._cancelled)

    def _perform(self, request: TrialRequest, cancelled: threading.Event) -> None:
        self._answers.put(perform(request, build=self._build, cancelled=cancelled.is_set, worker="inline"))

    def prepare(self, request: PrefixRequest) -> None:
        """Make a prefix in a thread of its own; see `Executor.prepare`."""
        if self._closed:
            raise InfrastructureError("the executor is closed")
        self._outstanding += 1
        self._builders.submit(lambda: self._answers.put(prepare(request, self._build)))

    def wait(self, timeout: float | None = None) -> list[Completion]:
        """Answers since the last call; see `Executor.wait`. Empty at once when none is due."""
        answers = take(self._answers, timeout) if self._outstanding else []
        self._outstanding -= len(answers)
        return answers

    def cancel(self) -> None:
        """End what runs and what waits; trials submitted later are not touched."""
        self._cancelled.set()
        self._cancelled = threading.Event()

    def close(self) -> None:
        """Cancel, and wait for the threads."""
        self._closed = True
        self.cancel()
        self._builders.shutdown(wait=True, cancel_futures=True)
        self._pool.shutdown(wait=True)


def take(source: queue.SimpleQueue[_T], timeout: float | None) -> list[_T]:
    """Everything in a queue, after waiting for the first."""
    items: list[_T] = []
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            items.append(source.get_nowait() if items else source.get(timeout=left))
    except queue.Empty:
        return items
