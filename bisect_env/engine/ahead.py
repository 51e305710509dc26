"""Begins a study before its database is open: locks both ends, makes their environments, starts their trials.

To import what opens the database takes longer than a quick trial. Nothing is recorded here and nothing is
told: what was begun is taken over by the study, which claims it as its own, or it is ended unseen. That is
decided by what the database knows, never by what a trial did.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

from bisect_env.cluster.protocol import Executor, TrialRequest
from bisect_env.engine.evidence import allowed_sources, trial_files, trial_spec
from bisect_env.engine.locking import Locking
from bisect_env.environments.lock import Lock
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis
from bisect_env.matrix.signatures import FROM_BAD_END

_log = logging.getLogger(__name__)

_LOOK = 0.05
"""Seconds between two looks at whether somebody wants to stop."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What there is of a study before it is open.

    Attributes:
        locks: By combination.
        trials: Ids of the trials that were submitted, by combination.
    """

    locks: Mapping[Index, Lock] = field(default_factory=dict)
    trials: Mapping[Index, str] = field(default_factory=dict)


class Ahead:
    """Begins with both ends of a study, in a thread of its own.

    Only wheels on this host: a solver of conda packages takes a core from what it would help, and to lock a
    commit may be to build it.

    Args:
        matrix: As loaded.
        provider: Of this host.
        as_of: The moment of the study, should it be a new one.
        executor: Gives the place where trials run.
        may_try: Whether the trials of an end may be started, asked for each lock; None starts none.
        quick: Whether the good end is left to the search, which may do without.
    """

    def __init__(
        self,
        matrix: Matrix,
        provider: EnvironmentProvider,
        as_of: datetime,
        *,
        executor: Callable[[], Executor],
        may_try: Callable[[Lock], bool] | None = None,
        quick: bool = False,
    ) -> None:
        self.as_of = as_of
        self._matrix = matrix
        self._provider = provider
        self._executor = executor
        self._may_try = may_try if _is_tried_at_both_ends(matrix) else None
        self._only_bad = quick or matrix.file.trial.bad.signature == FROM_BAD_END
        self._grid: Grid | None = None
        self._locks: dict[Index, Lock] = {}
        self._trials: dict[Index, str] = {}
        self._known = threading.Event()
        self._dropped = threading.Event()

    def begin(self) -> threading.Thread:
        """Start the thread, which ends when the environments are made; what cannot be had is said later."""
        thread = threading.Thread(target=self._run, name="ends", daemon=True)
        thread.start()
        return thread

    def take(self, grid: Grid, stopped: Callable[[], bool] = lambda: False) -> Begun:
        """What was begun, after waiting for the locks; nothing where the study turns out to be another one.

        Args:
            grid: Of the study.
            stopped: Whether the user wants to stop, and to wait for nothing.
        """
        while not self._known.wait(_LOOK) and not stopped():
            pass
        if not self._known.is_set() or self._grid is None or not _is_same(self._grid, grid):
            self.drop()
            return Begun()
        return Begun(self._locks, self._trials)

    def drop(self) -> None:
        """End the trials: the study does not want them."""
        self._dropped.set()
        if self._trials:
            self._executor().cancel()

    def _run(self) -> None:
        with ThreadPoolExecutor(2, thread_name_prefix="ahead") as pool:
            try:
                self._begin(pool)
            except Exception as error:  # noqa: BLE001 - the study asks again, and says what it meets
                _log.info("begun before the study, and given up: %r", error)
            finally:
                self._known.set()

    def _begin(self, pool: ThreadPoolExecutor) -> None:
        matrix = self._matrix
        if any(isinstance(axis, CommitAxis) for axis in matrix.file.axes.values()):
            return
        grid = expand(matrix, self._provider.catalogue, self.as_of)
        first, last = (tuple(range(size)[end] for size in grid.shape) for end in (0, -1))
        good, bad = grid.good or first, grid.bad or last
        if matrix.file.uses_conda or matrix.image(grid.combination(good)) or grid.excluded:
            return
        self._grid = grid
        locking = Locking(matrix, grid, self._provider, self.as_of)
        try:
            for index in dict.fromkeys((good, bad)):
                lock = locking.lock_now(index)
                self._locks |= locking.prepared.locks
                if not isinstance(lock, Lock) or any(one.is_source for one in lock.packages):
                    continue
                if not self._try(grid, index, lock, is_bad=index == bad):
                    pool.submit(self._make, lock)
        finally:
            locking.close()

    def _try(self, grid: Grid, index: Index, lock: Lock, *, is_bad: bool) -> bool:
        """Start the trial of an end, which makes its environment, if it may be started."""
        if self._may_try is None or (self._only_bad and not is_bad) or self._dropped.is_set():
            return False
        if not self._may_try(lock):
            self._may_try = None
            return False
        trial_id = uuid.uuid4().hex
        files = trial_files(self._matrix)
        spec = trial_spec(self._matrix, grid.combination(index), lock, trial_id, files)
        executor = self._executor()
        executor.submit(TrialRequest(spec, lock, allowed_sources(self._matrix)))
        self._trials[index] = trial_id
        if self._dropped.is_set():
            executor.cancel()
        return True

    def _make(self, lock: Lock) -> None:
        self._provider.ensure_prefix(lock, allow_source=allowed_sources(self._matrix)).release()


def _is_tried_at_both_ends(matrix: Matrix) -> bool:
    """Whether a study begins with a trial at each end, on the cores of this host and as they are."""
    trial, search = matrix.file.trial, matrix.file.search
    moved = [getattr(axis, "direction", None) for axis in matrix.file.axes.values()]
    return (
        not trial.gpus
        and matrix.file.executor is None
        and not search.amplify
        and search.max_trials > 2
        and all(direction in (None, Direction.REGRESSION, Direction.FIXED) for direction in moved)
    )


def _is_same(one: Grid, other: Grid) -> bool:
    values = [(axis.name, axis.values) for axis in one.axes] == [
        (axis.name, axis.values) for axis in other.axes
    ]
    return values and (one.good, one.bad) == (other.good, other.bad)
