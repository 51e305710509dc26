"""Begin to lock the ends of a question while the rest of the program is still being imported."""

from __future__ import annotations

import logging
import os
import threading
from datetime import UTC, datetime

from bisect_env.engine.locking import Locking
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Grid
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis, DateAxis
from bisect_env.running import end_running

_log = logging.getLogger(__name__)


class EarlyLocks:
    """A thread that lists the versions of a matrix and has solvers lock both ends of its grid.

    Importing the program takes about as long as listing and locking, so a new question is answered sooner if
    both happen at the same time. A study that exists already does not use the result.

    Args:
        matrix: The matrix.
        provider: Lists versions and runs the solver.
    """

    def __init__(self, matrix: Matrix, provider: EnvironmentProvider) -> None:
        self.matrix, self.provider = matrix, provider
        self._grid: Grid | None = None
        self._locking: Locking | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._begin, name="early", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        # Listing commits locks their repository, so that both would wait. With dates, all combinations are
        # locked.
        if any(isinstance(axis, CommitAxis | DateAxis) for axis in self.matrix.file.axes.values()):
            return
        try:
            now = datetime.now(UTC).replace(microsecond=0)
            grid = expand(self.matrix, self.provider.catalogue, self.provider.as_of or now)
            ends = grid.ends or (tuple(0 for _ in grid.shape), tuple(size - 1 for size in grid.shape))
            with self._lock:
                if not self._closed:
                    cores = len(os.sched_getaffinity(0))
                    self._grid, self._locking = grid, Locking(self.matrix, grid, self.provider, workers=cores)
                    self._locking.want(end for end in ends if end not in grid.excluded)
        except Exception as error:  # noqa: BLE001 - the study does the same again, and shows the error
            _log.info("the ends could not be locked early: %s", error)

    def take(self, grid: Grid) -> Locking | None:
        """Hand over the solvers that lock the ends of a grid; return None if there are none for this grid.

        They are returned only once; the caller closes them.
        """
        self._thread.join()
        if grid != self._grid:
            return None
        locking, self._locking = self._locking, None
        return locking

    def drop(self) -> None:
        """Stop beginning locks, unless a study has taken over the solvers."""
        with self._lock:
            self._closed = True
            if self._locking is not None:
                self._locking.close()

    def close(self) -> None:
        """Stop beginning locks, and end all tools that still run when the command ends."""
        self.drop()
        end_running([self._thread])
