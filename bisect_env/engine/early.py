"""The place where trials run, started while environments are still being locked: both take seconds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from bisect_env.cluster.protocol import Executor


class EarlyExecutor:
    """Starts an executor in a thread, and closes it at the end, whether it was used or not.

    Args:
        make: Starts it.
        begin: Whether to start now; otherwise it is started when it is asked for.
    """

    def __init__(self, make: Callable[[], Executor], *, begin: bool) -> None:
        self._make = make
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="start")
        self._future = self._pool.submit(make) if begin else None

    def get(self) -> Executor:
        """The executor, as soon as it stands.

        Raises:
            BisectEnvError: It could not be started.
        """
        if self._future is None:
            self._future = self._pool.submit(self._make)
        return self._future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close what was started; a start that failed without being asked for says nothing to anybody."""
        self._pool.shutdown(wait=True)
        if self._future is not None and self._future.exception() is None:
            self._future.result().close()
