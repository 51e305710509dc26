"""Begins a study before its database is open: locks what comes first, makes environments, starts trials.

What comes first are both ends, what the search asks for while nobody knows what they show, and then what it
asks for because of that. To import what opens the database takes longer than a quick trial. Nothing is
recorded here and nothing is told: what was begun is taken over by the study, with what it did, or all of it
is ended unseen. That is decided by what the database knows, never by what a trial did.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from bisect_env.cluster.protocol import (
    Completion,
    Executor,
    PrefixProgress,
    TrialCompleted,
    TrialRequest,
)
from bisect_env.engine.evidence import allowed_sources, judge, target_of, trial_files, trial_spec
from bisect_env.engine.locking import Locking
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.environments.uv_tool import is_any_running
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis
from bisect_env.matrix.signatures import FROM_BAD_END
from bisect_env.trials.records import Evidence

if TYPE_CHECKING:
    from bisect_env.search.searcher import StudySearch

_log = logging.getLogger(__name__)

_LOOK = 0.05
"""Seconds between two looks at whether somebody wants to stop."""
_PATIENCE = 0.2
"""Seconds that a study which has both ends waits for the locks of what comes after them."""
_SMALL = 4096
"""Combinations up to which the search is asked what comes after both ends."""
_MOST = 8
"""How many of these are begun, and how many trials by what others did."""
_TURN = 0.002
"""Seconds between two looks at whether a solver runs."""
_LISTEN = 0.01
"""Seconds between two looks at what trials did."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What there is of a study before it is open.

    Attributes:
        locks: By combination.
        trials: Ids of the trials that were submitted, by combination.
        answers: What the executor has said of them by then.
        locking: Who has the locks and goes on with what it has begun, where it can be taken over.
    """

    locks: Mapping[Index, Lock] = field(default_factory=dict)
    trials: Mapping[Index, str] = field(default_factory=dict)
    answers: Sequence[Completion] = ()
    locking: Locking | None = None


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
        quick: Whether the study makes no checks: then the good end is left to the search.
        workers: Solvers at the same time.
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
        workers: int = 2,
    ) -> None:
        self.as_of = as_of
        self._workers = workers
        self._matrix = matrix
        self._provider = provider
        self._executor = executor
        self._may_try = may_try if _is_tried_at_both_ends(matrix) else None
        self._quick = quick
        self._only_bad = matrix.file.trial.bad.signature == FROM_BAD_END
        self._asks = may_try is not None and not self._only_bad
        self._grid: Grid | None = None
        self._ends: tuple[Index, ...] = ()
        self._lock = threading.Lock()
        self._is_over = False
        self._locks: dict[Index, Lock] = {}
        self._locking: Locking | None = None
        self._left = threading.Event()
        self._trials: dict[Index, str] = {}
        self._answers: list[Completion] = []
        self._said: dict[Index, bool] = {}
        self._ends_known = threading.Event()
        self._known = threading.Event()

    def begin(self) -> threading.Thread:
        """Start the thread, which ends when the environments are made; what cannot be had is said later."""
        thread = threading.Thread(target=self._run, name="ends", daemon=True)
        thread.start()
        return thread

    def wait_for_solver(self, limit: float) -> None:
        """Wait until the first solver runs, or what it would say is known already.

        What the caller imports takes turns from the thread that starts it, and nothing from the solver.

        Args:
            limit: Seconds.
        """
        until = time.monotonic() + limit
        while not (is_any_running() or self._ends_known.is_set()) and time.monotonic() < until:
            time.sleep(_TURN)

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
        # Locks belong to one thread; where it waits for a solver the study does without what it has begun.
        if self._left.wait(_LOOK):
            return Begun(self._locks, self._trials, self._answers, self._locking)
        self._close()
        return Begun(self._locks, self._trials, self._answers)

    def drop(self) -> None:
        """End the trials: the study does not want them."""
        with self._lock:
            self._is_over = True
        if self._trials:
            self._executor().cancel()
        self._close()

    def _close(self) -> None:
        if self._locking is not None:
            self._locking.close()
            self._locking = None

    def _run(self) -> None:
        with ThreadPoolExecutor(2, thread_name_prefix="ahead") as pool:
            try:
                self._begin(pool)
            except Exception as error:  # noqa: BLE001 - the study asks again, and says what it meets
                _log.info("begun before the study, and given up: %r", error)
            finally:
                self._left.set()
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
        self._grid, self._ends = grid, (good, bad)
        locking = self._locking = Locking(matrix, grid, self._provider, self.as_of, workers=self._workers)
        asks = self._asks and good != bad and math.prod(grid.shape) <= _SMALL
        after = None
        begun = (bad,) if self._quick else tuple(dict.fromkeys((good, bad)))
        for index in begun:
            lock = self._locked(locking, index)
            if lock is not None and not self._try(grid, index, lock, is_bad=index == bad):
                pool.submit(self._make, lock)
            if asks and after is None:
                # Not before: to import the search takes from the first solver what that needs to start.
                after = pool.submit(self._after, grid, locking.prepared.groups, begun)
        self._ends_known.set()
        if after is not None:
            self._go_on(locking, grid, *after.result())

    def _after(
        self, grid: Grid, groups: Mapping[Index, Index], begun: Sequence[Index]
    ) -> tuple[StudySearch, list[Index]]:
        """The search, and what it asks for while these ends are tried."""
        # Imported here, for it takes a while, and while a solver is waited for.
        from bisect_env.search.goals import Goal, search_towards, settings_of

        refining = any(axis.passed_over for axis in grid.axes)
        search = search_towards(
            Goal.FIRST_BAD, grid, groups, settings_of(self._matrix.file.search, quick=self._quick or refining)
        )
        pending = dict.fromkeys(begun, 1)
        if any(end not in groups for end in pending):
            return search, []
        slots = self._executor().slots if self._may_try is not None else 2
        # Without checks few trials are wanted rather than an early answer: no more than can run.
        room = slots - len(pending) if self._quick else max(slots, 2)
        room = min(room, _MOST, self._matrix.file.search.max_trials - len(pending))
        costs = self._costs(groups, pending)
        chosen = search.ask(room, pending=pending, build_cost=costs) if room > 0 else []
        return search, [index for index in dict.fromkeys(chosen) if index not in pending]

    def _costs(self, groups: Iterable[Index], begun: Collection[Index]) -> dict[Index, float]:
        from bisect_env.engine.state import build_cost

        return {index: build_cost(None, None) for index in groups if index not in begun}

    def _go_on(self, locking: Locking, grid: Grid, search: StudySearch, chosen: Sequence[Index]) -> None:
        """Lock and try what comes after both ends, then what follows from them, until the study opens."""
        locking.want(chosen)
        for index in chosen:
            if self._is_over:
                return
            if (lock := self._locked(locking, index)) is not None and not self._is_over:
                self._try(grid, index, lock, is_bad=False)
        self._known.set()
        if not self._trials:
            return
        most, slots = len(self._trials) + _MOST, self._executor().slots
        is_new = True
        refused: set[Index] = set()
        while not self._is_over:
            if (heard := self._hear(search)) is None:
                return
            answered = locking.take()
            self._keep(locking)
            for index in locking.prepared.unsolvable.keys() - refused:
                refused.add(index)
                if index in locking.prepared.groups:
                    search.set_aside(index)
            if is_new or heard or answered:
                running = dict.fromkeys(self._trials.keys() - self._said.keys(), 1)
                costs = self._costs(locking.prepared.groups, self._trials)
                room = min(slots, most - len(self._said)) - len(running)
                asked = search.ask(room, pending=running, build_cost=costs) if room > 0 else []
                wanted = [index for index in dict.fromkeys(asked) if index not in self._trials]
                locking.want(wanted)
                locking.want_ahead(search.foresee({**running, **dict.fromkeys(wanted, 1)}, costs))
                for index in wanted:
                    if (lock := _of_wheels(locking.prepared.locks.get(index))) is not None:
                        self._try(grid, index, lock, is_bad=False)
                is_new = False
            if locking.under_way:
                locking.wait(_LISTEN)
            else:
                time.sleep(_LISTEN)

    def _hear(self, search: StudySearch) -> int | None:
        """Tell the search what trials did, and how many; None where the study has to see to it."""
        with self._lock:
            if self._is_over:
                return None
            answers = self._executor().wait(0.0)
            self._answers += answers
        of = {trial_id: index for index, trial_id in self._trials.items()}
        target = target_of(self._matrix)
        told = 0
        for answer in answers:
            if isinstance(answer, PrefixProgress):
                continue
            if not isinstance(answer, TrialCompleted):
                return None
            said = judge(answer.record, target)
            if said not in (Evidence.GOOD, Evidence.BAD):
                return None
            index = of[answer.record.trial_id]
            self._said[index] = said is Evidence.BAD
            search.tell(index, hit=self._said[index])
            told += 1
        ends = [self._said.get(end) for end in self._ends]
        return None if None not in ends and len({*ends}) < len(ends) else told

    def _locked(self, locking: Locking, index: Index) -> Lock | None:
        """The lock of a combination of which everything comes as wheels."""
        lock = locking.lock_now(index)
        self._keep(locking)
        return _of_wheels(lock)

    def _keep(self, locking: Locking) -> None:
        with self._lock:
            if not self._is_over:
                self._locks |= locking.prepared.locks

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


def _of_wheels(lock: LockResult | None) -> Lock | None:
    """A lock of which everything comes as wheels."""
    return lock if isinstance(lock, Lock) and not any(one.is_source for one in lock.packages) else None


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
