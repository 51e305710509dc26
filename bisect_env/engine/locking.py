"""Lock the combinations of a matrix, and find out which of them are the same measurement.

To *lock* a combination is to let a solver choose the exact versions of all packages of its environment.
Combinations with equal locks (and equal values of value axes) are the same measurement and form a *group*.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from bisect_env.engine.requests import MatrixRequests, Requests, environment_warnings
from bisect_env.environments.lock import Lock, LockResult, UnsolvableError
from bisect_env.environments.once import OncePerKey
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.grid import AxisKind, Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.storage.entries import CombinationState, CombinationStatus


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known so far about a study's combinations: their locks, solver errors and groups.

    Attributes:
        grid: The expanded matrix.
        locks: The lock of each combination that was locked.
        unsolvable: The error of each combination that cannot be locked.
        groups: For each combination that may be runnable, the first combination with the same lock and the
            same values of value axes. It is the representative: trials of one are trials of all.
        warnings: Warnings about the environment of a combination, if there are any.
    """

    grid: Grid
    locks: Mapping[Index, Lock]
    unsolvable: Mapping[Index, UnsolvableError]
    groups: Mapping[Index, Index]
    warnings: Mapping[Index, tuple[str, ...]] = field(default_factory=dict)

    @property
    def environments(self) -> int:
        """Return the number of different locks, and therefore of environments."""
        return len({lock.content_hash for lock in self.locks.values()})

    def state(self, index: Index) -> CombinationState:
        """Return the state of a combination (solvable, excluded, …), in the form in which it is stored."""
        combination = self.grid.combination(index)
        if index in self.grid.excluded:
            return CombinationState(combination, CombinationStatus.EXCLUDED, self.grid.excluded[index].why)
        if index in self.unsolvable:
            error = self.unsolvable[index]
            status = CombinationStatus.UNBUILDABLE if error.building else CombinationStatus.UNSOLVABLE
            return CombinationState(combination, status, error.message)
        if index not in self.locks:
            return CombinationState(combination, CombinationStatus.UNLOCKED)
        warnings = "; ".join(self.warnings.get(index, ()))
        lock_hash = self.locks[index].content_hash
        return CombinationState(combination, CombinationStatus.SOLVABLE, warnings, lock_hash)


def unfit(matrix: Matrix, grid: Grid) -> dict[Index, UnsolvableError]:
    """Find combinations in which a package has no release for their Python; return an error for each."""
    pythons = [k for k, axis in enumerate(matrix.file.axes.values()) if getattr(axis, "is_python", False)]
    found: dict[Index, UnsolvableError] = {}
    for position, axis in enumerate(grid.axes):
        for version, reasons in axis.unfit.items():
            if version not in axis.values:
                continue
            for python, reason in reasons.items():
                fixed = {position: version, pythons[0]: python}
                places = (
                    (one.values.index(fixed[k]),) if k in fixed else range(len(one.values))
                    for k, one in enumerate(grid.axes)
                )
                error = UnsolvableError(f"{axis.name} {version}: {reason}")
                found |= dict.fromkeys(itertools.product(*places), error)
    return {index: error for index, error in found.items() if index not in grid.excluded}


_log = logging.getLogger(__name__)

SOLVERS = 4
"""Minimum number of wheel solvers that may run at the same time."""


class Locking:
    """A pool of solver threads that computes and stores the locks of combinations when they are requested.

    Solvers run in threads, and call `on_done` from these. All methods must be called from one thread.

    Args:
        matrix: The matrix.
        grid: The expanded matrix.
        provider: Runs the solver.
        workers: Number of solvers that may run at the same time.
        images: Known digests of container images, by image name.
        known: Locks that the study already has.
        unsolvable: Combinations that are known to have no lock, with their errors.
        is_whole: Whether all combinations of the grid may be runnable. If False, only those in `known` and
            those that are requested later are; each is a measurement of its own.
        requests: The environments that combinations ask for; None for those of the matrix.

    Attributes:
        prepared: What is known so far; its mappings grow.
        on_done: Called from a solver's thread whenever `take` has new results.
    """

    def __init__(
        self,
        matrix: Matrix,
        grid: Grid,
        provider: EnvironmentProvider,
        *,
        workers: int = 2,
        images: Mapping[str, str] | None = None,
        known: Mapping[Index, Lock] | None = None,
        unsolvable: Mapping[Index, UnsolvableError] | None = None,
        is_whole: bool = True,
        requests: Requests | None = None,
    ) -> None:
        self._grid, self._provider = grid, provider
        self._requests = requests or MatrixRequests(matrix, grid, images)
        # Run at most one solver per core ahead of need, because builds and trials use the cores, too.
        self._most_ahead = max(1, workers)
        # A solver of wheels mostly waits for the index; one of conda packages uses a whole core.
        most = max(1, workers if matrix.file.channels else max(SOLVERS, workers))
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="lock")
        self.on_done: Callable[[], None] = lambda: None
        self._locks: dict[Index, Lock] = dict(known or {})
        self._unsolvable = unfit(matrix, grid) if is_whole else dict(unsolvable or {})
        self._warnings: dict[Index, tuple[str, ...]] = {}
        # Combinations with equal requests share a result.
        self._results: OncePerKey[str, LockResult] = OncePerKey()
        self._solving: dict[str, Future[LockResult]] = {}
        self._open: dict[Index, Future[LockResult]] = {}
        self._finished: deque[Index] = deque()
        self._news = threading.Event()
        self._asked: set[Index] = set()  # the needed combinations
        self._may_begin_ahead = True
        self._is_closed = False
        # Without date axes, no two combinations have the same environment and values, because each names
        # other versions.
        groups = unlocked(grid).groups if is_whole else {index: index for index in self._locks}
        self._groups = {index: first for index, first in groups.items() if index not in self._unsolvable}
        self.prepared = Prepared(grid, self._locks, self._unsolvable, self._groups, self._warnings)

    @property
    def under_way(self) -> int:
        """Return the number of requested combinations that are neither locked nor failed yet."""
        return len(self._open)

    def want(self, indices: Iterable[Index]) -> None:
        """Request the locks of combinations, which solvers then compute in the background.

        Combinations that are already locked, failed or in progress are skipped.
        """
        for index in indices:
            self._asked.add(index)
            if index not in self._unsolvable and index not in self._grid.excluded:
                self._groups.setdefault(index, index)
            self._begin(index)

    def want_ahead(self, indices: Iterable[Index]) -> None:
        """Let idle solvers lock combinations that may be needed later; the most likely ones come first."""
        for index in indices:
            if len(self._open) >= self._most_ahead or not self._may_begin_ahead:
                return
            self._begin(index)

    def take(self) -> list[Index]:
        """Return the combinations that solvers have finished since the last call, with or without success.

        `prepared` contains their locks and errors. A failure of a combination that was locked only in advance
        (`want_ahead`) is logged and otherwise ignored.

        Raises:
            InfrastructureError: The index cannot be reached, or an interpreter is missing.
        """
        answered: list[Index] = []
        self._news.clear()
        while self._finished:
            index = self._finished.popleft()
            if (future := self._open.pop(index, None)) is None:
                continue
            if isinstance(error := future.exception(), Exception):
                self._solving.pop(self._requests.request(index).key, None)
                if index not in self._asked:
                    _log.warning("%s could not be locked ahead: %s", self._grid.combination(index), error)
                    self._may_begin_ahead = False  # the next one would fail as well
                    continue
            answered += self._note(index, future.result())
        return answered

    def wait(self, timeout: float | None) -> None:
        """Wait until `take` has a result, or `timeout` seconds have passed (None: no limit)."""
        self._news.wait(timeout)

    def lock_now(self, index: Index) -> LockResult:
        """Lock one combination, wait for the solver, and return the lock or error.

        Raises:
            InfrastructureError: The index cannot be reached, or an interpreter is missing.
        """
        self.lock_every([index])
        return self._locks.get(index) or self._unsolvable[index]

    def lock_every(
        self, indices: Collection[Index], on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Lock some combinations, and wait until the solver has finished all of them.

        Args:
            indices: The combinations.
            on_progress: Called with (number of finished combinations, number of all) after each result.

        Raises:
            InfrastructureError: The index cannot be reached, or an interpreter is missing.
        """
        self.want(indices)
        left = self._open.keys() & {*indices}
        while left:
            self.wait(None)
            left -= {*self.take()}
            if on_progress is not None:
                on_progress(len(indices) - len(left), len(indices))

    def lock_all(self, on_progress: Callable[[int, int], None] | None = None) -> Prepared:
        """Lock all combinations that no rule excludes, and group those with the same environment and values.

        Args:
            on_progress: As for `lock_every`.

        Raises:
            InfrastructureError: The index cannot be reached, or an interpreter is missing.
        """
        try:
            self.lock_every(
                [one for one in self._grid.indices() if one not in self._grid.excluded], on_progress
            )
        finally:
            self.close()
        self._groups.clear()
        self._groups.update(group(self._grid, self._locks))
        return self.prepared

    def close(self) -> None:
        """Cancel the requested locks with which no solver has begun.

        Running solvers are not waited for, and start no others.
        """
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, index: Index) -> None:
        """Let a solver lock a combination, unless it is locked, has failed or is in progress."""
        if index in self._locks or index in self._unsolvable or index in self._open:
            return
        # Its anchor is solved in any case. Ask for it, so that it is stored and a resumed study leans on it.
        for anchor in self._requests.anchors(index)[:1]:
            if index in self._asked:
                self._asked.add(anchor)
            self._begin(anchor)
        key = self._requests.request(index).key
        if key not in self._solving:
            self._solving[key] = self._pool.submit(self._result, index)
        self._open[index] = self._solving[key]
        self._open[index].add_done_callback(lambda _future: self._finish(index))

    def _finish(self, index: Index) -> None:
        self._finished.append(index)
        self._news.set()
        self.on_done()

    def _result(self, index: Index) -> LockResult:
        """Solve a combination and return its lock or error; solve its anchors first.

        The anchors are the combinations whose versions it should keep. May be called from any thread.
        """
        if (known := self._locks.get(index) or self._unsolvable.get(index)) is not None:
            return known

        def solve() -> LockResult:
            models = (self._result(anchor) for anchor in self._requests.anchors(index))
            model = next((found for found in models if isinstance(found, Lock)), None)
            # Solvers that wait for the same anchor would solve it one after the other if it fails.
            if self._is_closed:
                raise InfrastructureError("the command has ended")
            return self._requests.solve(index, model, self._provider)

        return self._results.get(self._requests.request(index).key, solve)

    def _note(self, index: Index, result: LockResult) -> list[Index]:
        """Store a solver's result for all combinations with this environment, and return these."""
        answered = [index, *self._requests.alike(index)]
        found = None
        if isinstance(result, Lock):
            found = environment_warnings(self._requests.request(index), result)
        for one in answered:
            self._open.pop(one, None)
            if isinstance(result, UnsolvableError):
                self._unsolvable[one] = result
                continue
            self._locks[one] = result
            if found:
                self._warnings[one] = found
        return answered


def of_commits(grid: Grid) -> bool:
    """Return whether the grid has an axis of commits, so that a solver may have to build a commit."""
    return any(axis.kind is AxisKind.COMMIT for axis in grid.axes)


def unlocked(grid: Grid) -> Prepared:
    """Return the initial state of a study's locking (`Prepared`), in which nothing is locked yet."""
    return Prepared(grid, {}, {}, {index: index for index in grid.indices() if index not in grid.excluded})


def is_lazy(grid: Grid) -> bool:
    """Return whether combinations can be locked one by one, only when they are needed.

    This is False if there is a date axis: many dates may have the same environment, which is known only
    after all of them are locked.
    """
    return all(axis.kind is not AxisKind.DATE for axis in grid.axes)


def group(grid: Grid, locks: Mapping[Index, Lock]) -> dict[Index, Index]:
    """Map each locked combination to the first combination with the same environment and values.

    Combinations with equal locks and equal values on the value axes form a group; the first of them
    represents the group.
    """
    values = [i for i, axis in enumerate(grid.axes) if axis.kind is AxisKind.VALUE]
    # The values of an axis are distinct, so positions can be compared instead.
    first: dict[tuple[str, Index], Index] = {}
    groups: dict[Index, Index] = {}
    for index in sorted(locks):
        same = (locks[index].content_hash, tuple(index[i] for i in values))
        groups[index] = first.setdefault(same, index)
    return groups
