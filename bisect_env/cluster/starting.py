"""Starts the executor in a thread of its own, so that the command need not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bisect_env.cluster.protocol import Executor
from bisect_env.errors import StudyInterruptedError

_LOOK = 0.05
"""Seconds between two looks at whether somebody wants to stop."""


class Starting:
    """An executor that is started when it is first wanted.

    A cluster may take a minute to start or to be found out of reach. Whoever waits for it can be interrupted
    at every instant; what then comes to stand later is closed by the thread that started it, which does not
    keep the process alive.

    Args:
        make: Starts it, or finds it.
        stopped: Whether the user wants to stop.
    """

    def __init__(self, make: Callable[[], Executor], stopped: Callable[[], bool] = lambda: False) -> None:
        self._make = make
        self._stopped = stopped
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._executor: Executor | None = None
        self._error: BaseException | None = None
        self._begun = False
        self._closed = False

    def begin(self) -> None:
        """Start it, if that has not begun."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
        threading.Thread(target=self._start, name="start", daemon=True).start()

    def _start(self) -> None:
        try:
            executor = self._make()
        except BaseException as error:  # noqa: BLE001 -- raised where somebody waits
            self._error = error
        else:
            with self._lock:
                self._executor = executor
                closed = self._closed
            if closed:
                executor.close()
        self._done.set()

    def get(self) -> Executor:
        """The executor, as soon as it stands.

        Raises:
            BisectEnvError: It could not be started.
            StudyInterruptedError: The user does not want to wait for it.
        """
        self.begin()
        is_ready = False
        while not is_ready and not self._stopped():
            is_ready = self._done.wait(_LOOK)
        # What ends us may have ended the workers, too: then that is why they did not start.
        if not is_ready or (self._error is not None and self._stopped()):
            raise StudyInterruptedError(
                "stopped before the place where trials run was ready; every trial that ended is stored",
                remedy="start the same command again; it goes on where it stopped",
            )
        if self._error is not None:
            raise self._error
        assert self._executor is not None
        return self._executor

    def close(self) -> None:
        """Close what stands; a start that failed without being asked for says nothing to anybody.

        One that is under way is waited for, unless the user wants to stop: then it is left to its thread.
        """
        while self._begun and not self._done.wait(_LOOK) and not self._stopped():
            pass
        with self._lock:
            self._closed = True
            executor = self._executor
        if executor is not None:
            executor.close()
