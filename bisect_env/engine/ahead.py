"""Begins a study before its database is open: locks what comes first, makes environments, starts trials.

What comes first are both ends, and what the search asks for while nobody knows what they show. To import what
opens the database takes longer than a quick trial. Nothing is recorded here and nothing is told: what was
begun is taken over by the study, which claims it as its own, or it is ended unseen. That is decided by what
the database knows, never by what a trial did.
"""

from __future__ import annotations

import logging
import math
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_PATIENCE = 0.2
"""Seconds that a study which has both ends waits for the locks of what comes after them."""
_SMALL = 4096
"""Combinations up to which the search is asked what comes after both ends."""
_MOST = 8
"""How many of these are begun."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What there is of a study before it is open.

    Attributes:
        locks: By combination.
        trials: Ids of the trials that were submitted, by combination.
        locking: Seconds that solvers have taken, all together.
    """

    locks: Mapping[Index, Lock] = field(default_factory=dict)
    trials: Mapping[Index, str] = field(default_factory=dict)
    locking: float = 0.0


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
        self._asks = may_try is not None and not self._only_bad
        self._grid: Grid | None = None
        self._lock = threading.Lock()
        self._is_over = False
        self._locks: dict[Index, Lock] = {}
        self._spent = 0.0
        self._trials: dict[Index, str] = {}
        self._ends_known = threading.Event()
        self._known = threading.Event()

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
        while not self._ends_known.wait(_LOOK) and not stopped():
            pass
        if self._ends_known.is_set():
            self._known.wait(_PATIENCE)
        with self._lock:
            self._is_over = True
        if not self._ends_known.is_set() or self._grid is None or not _is_same(self._grid, grid):
            self.drop()
            return Begun()
        return Begun(self._locks, self._trials, self._spent)

    def drop(self) -> None:
        """End the trials: the study does not want them."""
        with self._lock:
            self._is_over = True
        if self._trials:
            self._executor().cancel()

    def _run(self) -> None:
        with ThreadPoolExecutor(2, thread_name_prefix="ahead") as pool:
            try:
                self._begin(pool)
            except Exception as error:  # noqa: BLE001 - the study asks again, and says what it meets
                _log.info("begun before the study, and given up: %r", error)
            finally:
                self._ends_known.set()
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
            asks = self._asks and good != bad and math.prod(grid.shape) <= _SMALL
            after = None
            for index in dict.fromkeys((good, bad)):
                lock = self._locked(locking, index)
                if lock is not None and not self._try(grid, index, lock, is_bad=index == bad):
                    pool.submit(self._make, lock)
                if asks and after is None:
                    # Not before: to import the search takes from the first solver what that needs to start.
                    after = pool.submit(self._after, grid, locking.prepared.groups, (good, bad))
            self._ends_known.set()
            if after is not None:
                self._go_on(locking, grid, *after.result())
        finally:
            locking.close()

    def _after(
        self, grid: Grid, groups: Mapping[Index, Index], ends: Sequence[Index]
    ) -> tuple[list[Index], Iterator[Index]]:
        """What the search asks for while both ends are tried, and what it may ask for after that."""
        # Imported here, for it takes a while, and while a solver is waited for.
        from bisect_env.engine.state import build_cost
        from bisect_env.search.goals import Goal, search_towards, settings_of

        refining = any(axis.passed_over for axis in grid.axes)
        search = search_towards(
            Goal.FIRST_BAD, grid, groups, settings_of(self._matrix.file.search, quick=refining)
        )
        pending = dict.fromkeys(ends, 1)
        if len(pending) < 2 or any(end not in groups for end in pending):
            return [], iter(())
        slots = self._executor().slots if self._may_try is not None else 2
        room = min(max(slots, 2), _MOST, self._matrix.file.search.max_trials - len(pending))
        costs = {index: build_cost(None, None) for index in groups if index not in pending}
        chosen = search.ask(room, pending=pending, build_cost=costs) if room > 0 else []
        chosen = [index for index in dict.fromkeys(chosen) if index not in pending]
        return chosen, (i for i in search.foresee({**pending, **dict.fromkeys(chosen, 1)}, costs))

    def _go_on(self, locking: Locking, grid: Grid, chosen: Sequence[Index], then: Iterator[Index]) -> None:
        """Lock and try what comes after both ends, then lock what may follow, until the study opens."""
        locking.want(chosen)
        for index in chosen:
            if self._is_over:
                return
            if (lock := self._locked(locking, index)) is not None and not self._is_over:
                self._try(grid, index, lock, is_bad=False)
        self._known.set()
        for index in then:
            if self._is_over:
                return
            self._locked(locking, index)

    def _locked(self, locking: Locking, index: Index) -> Lock | None:
        """The lock of a combination of which everything comes as wheels."""
        lock = locking.lock_now(index)
        with self._lock:
            if not self._is_over:
                self._locks |= locking.prepared.locks
                self._spent = locking.spent
        if not isinstance(lock, Lock) or any(one.is_source for one in lock.packages):
            return None
        return lock

    def _try(self, grid: Grid, index: Index, lock: Lock, *, is_bad: bool) -> bool:
        """Start a trial, which makes its environment, if it may be started."""
        if self._may_try is None or (self._only_bad and not is_bad):
            return False
        if not self._may_try(lock):
            self._may_try = None
            return False
        trial_id = uuid.uuid4().hex
        files = trial_files(self._matrix)
        spec = trial_spec(self._matrix, grid.combination(index), lock, trial_id, files)
        executor = self._executor()
        with self._lock:
            if not self._is_over:
                executor.submit(TrialRequest(spec, lock, allowed_sources(self._matrix)))
                self._trials[index] = trial_id
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
