"""Locks the combinations of a matrix, and finds those that are the same measurement."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

from bisect_env.environments.lock import Lock, LockResult, UnsolvableError
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.environments.request import CommitRecipe, CommitSource, CondaRequest, EnvironmentRequest
from bisect_env.environments.uv_tool import giving_way
from bisect_env.environments.validation import cuda_version, lock_warnings, virtual_packages
from bisect_env.matrix.grid import AxisKind, Combination, Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.schema import CommitAxis, DateAxis, EnvironmentAxis, PackageAxis, ValueAxis
from bisect_env.matrix.versions import Manager
from bisect_env.storage.entries import CombinationState, CombinationStatus


@dataclass(frozen=True, slots=True)
class Prepared:
    """The locks, groups and errors of a study's combinations, known before anything runs.

    Attributes:
        grid: The expanded matrix.
        locks: Lock of each requested combination that has one.
        unsolvable: Error of each requested combination that has none.
        groups: For each combination that may be runnable, the first one with the same lock and the same
            values of value axes: trials of one are trials of all.
        warnings: Warnings about the environment of a combination, if there are any.
    """

    grid: Grid
    locks: Mapping[Index, Lock]
    unsolvable: Mapping[Index, UnsolvableError]
    groups: Mapping[Index, Index]
    warnings: Mapping[Index, tuple[str, ...]] = field(default_factory=dict)

    @property
    def environments(self) -> int:
        """Return the number of distinct locks."""
        return len({lock.content_hash for lock in self.locks.values()})

    def state(self, index: Index) -> CombinationState:
        """Return the state of a combination as it is stored."""
        combination = self.grid.combination(index)
        if index in self.grid.excluded:
            return CombinationState(combination, CombinationStatus.EXCLUDED, self.grid.excluded[index])
        if index in self.unsolvable:
            error = self.unsolvable[index]
            status = CombinationStatus.UNBUILDABLE if error.building else CombinationStatus.UNSOLVABLE
            return CombinationState(combination, status, error.message)
        if index not in self.locks:
            return CombinationState(combination, CombinationStatus.UNLOCKED)
        warnings = "; ".join(self.warnings.get(index, ()))
        lock_hash = self.locks[index].content_hash
        return CombinationState(combination, CombinationStatus.SOLVABLE, warnings, lock_hash)


def environment_request(
    matrix: Matrix, combination: Combination, images: Mapping[str, str] | None = None
) -> EnvironmentRequest:
    """Return the environment that a combination asks for. Pure.

    Args:
        matrix: Where the axes are explained.
        combination: Values for them.
        images: What names of images stand for, as far as that is settled.
    """
    file = matrix.file
    image = matrix.image(combination)
    image = (images or {}).get(image, image)
    if file.image_is_environment:
        return EnvironmentRequest(python="", platform=matrix.platform, image=image)
    # In a conda environment Python is a package among others, which the solver may choose.
    python = "" if file.uses_conda else f"{sys.version_info.major}.{sys.version_info.minor}"
    # Without a date that somebody asked for there is none: an index may state no times of upload.
    limit = cutoff(file.exclude_newer) if file.exclude_newer else None
    pins: dict[Manager, dict[str, str]] = {manager: {} for manager in Manager}
    builds: dict[str, str] = {}
    commits: list[CommitSource] = []
    wheels, conda = tuple(file.packages.pypi), tuple(file.packages.conda)
    for name, axis in file.axes.items():
        value = combination[name]
        match axis:
            case PackageAxis() if axis.is_python:
                python = value
            case PackageAxis():
                package = axis.package if axis.manager is Manager.PYPI else axis.canonical_package
                pins[axis.manager][package] = value
                if axis.build is not None:
                    builds[package] = axis.build
            case DateAxis():
                limit = cutoff(value)
            case EnvironmentAxis():
                whole = axis.environments[value]
                python = whole.python or python
                wheels, conda = (*wheels, *whole.pypi), (*conda, *whole.conda)
            case CommitAxis():
                commits.append(commit_source(matrix, axis, value))
            case ValueAxis():
                pass
    allow = file.solver.allow_source
    return EnvironmentRequest(
        python=python,
        pins=pins[Manager.PYPI],
        packages=wheels,
        dependencies=file.solver.dependencies,
        overrides=tuple(_pinned(text, pins[Manager.PYPI]) for text in file.solver.overrides),
        allow_source=allow if isinstance(allow, bool) else frozenset(allow),
        index=file.index,
        indexes=file.package_indexes,
        sources={
            axis.canonical_package: axis.index
            for axis in file.axes.values()
            if isinstance(axis, PackageAxis) and axis.index is not None
        },
        find_links=matrix.find_links,
        platform=matrix.platform,
        exclude_newer=limit,
        conda=_conda_request(matrix, pins[Manager.CONDA], builds, conda) if file.uses_conda else None,
        image=image,
        commits=tuple(commits),
    )


def commit_source(matrix: Matrix, axis: CommitAxis, commit: str) -> CommitSource:
    """Return the package to build from the commit of an axis. Pure."""
    build = axis.build
    newest = cutoff(build.exclude_newer).strftime("%Y-%m-%dT%H:%M:%SZ") if build.exclude_newer else ""
    return CommitSource(
        axis.package,
        matrix.repository(axis),
        commit,
        CommitRecipe(
            subdirectory=axis.subdirectory,
            env=tuple(sorted(build.env.items())),
            requires=build.requires,
            exclude_newer=newest,
            time_limit=build.time_limit,
            memory=build.memory or 0,
            partial=build.partial,
            index=matrix.file.index or "",
        ),
    )


def _pinned(override: str, pins: Mapping[str, str]) -> str:
    """Return an override; the bare name of an axis is pinned to the axis's value."""
    versions = {str(canonicalize_name(name)): version for name, version in pins.items()}
    version = versions.get(str(canonicalize_name(override)))
    return override if version is None else f"{override}=={version}"


def _conda_request(
    matrix: Matrix, pins: Mapping[str, str], builds: Mapping[str, str], packages: tuple[str, ...]
) -> CondaRequest:
    file = matrix.file
    cuda = cuda_version(pins, packages)
    return CondaRequest(
        channels=matrix.channels,
        pins=pins,
        builds=builds,
        packages=packages,
        virtual_packages=virtual_packages(matrix.platform, cuda, file.virtual_packages),
        engine=file.solver.engine,
    )


def anchors(matrix: Matrix, grid: Grid, index: Index) -> list[Index]:
    """Return combinations whose locks a solver should stay close to, the best first. Pure.

    All combinations lean on the same one: the first on every axis of packages, else the last on every such
    axis. So each environment is that one with the axes moved, and with whatever these need. It depends on
    the grid alone, so that locks depend neither on who is solved when nor on which combinations are asked
    for. No step is taken along dates, for what the day before had is just what a day may not hold on to,
    nor along values, which are one environment.

    Args:
        matrix: As loaded; it may ask for the newest of everything instead.
        grid: As expanded.
        index: The combination to lock.

    Returns:
        Combinations other than `index`, none that a rule takes out.
    """
    if matrix.file.solver.dependencies == "newest":
        return []
    found = []
    for end in (0, -1):
        anchor = tuple(
            range(size)[end] if axis.kind is AxisKind.PACKAGE else own
            for axis, own, size in zip(grid.axes, index, grid.shape, strict=True)
        )
        if anchor == index:
            # What others lean on leans on nothing.
            break
        if anchor not in grid.excluded:
            found.append(anchor)
    return list(dict.fromkeys(found))


def unfit(matrix: Matrix, grid: Grid) -> dict[Index, UnsolvableError]:
    """Return combinations for which the index has no package for that Python, with the error. Pure."""
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
"""Solvers of wheels at the same time, at least."""


class Requests(ABC):
    """The environments that combinations ask for; by default each asks for one of its own."""

    @abstractmethod
    def request(self, index: Index) -> EnvironmentRequest:
        """Return the environment that a combination asks for."""

    def anchors(self, _index: Index) -> list[Index]:
        """Return the combinations whose locks should be kept to, the best first; see `anchors`."""
        return []

    def alike(self, _index: Index) -> Iterable[Index]:
        """Return combinations, other than this one, that ask for the same environment."""
        return ()

    def solve(self, index: Index, model: Lock | None, provider: EnvironmentProvider) -> LockResult:
        """Lock a combination, close to a model if there is one; called from any thread."""
        return provider.lock(self.request(index), model)


class MatrixRequests(Requests):
    """The environments that the combinations of a matrix ask for.

    Args:
        matrix: As loaded.
        grid: As expanded.
        images: See `environment_request`.
    """

    def __init__(self, matrix: Matrix, grid: Grid, images: Mapping[str, str] | None = None) -> None:
        self._matrix, self._grid, self._images = matrix, grid, images
        self._requests: dict[Index, EnvironmentRequest] = {}

    def request(self, index: Index) -> EnvironmentRequest:
        """Return the environment that a combination asks for."""
        if (found := self._requests.get(index)) is None:
            combination = self._grid.combination(index)
            found = environment_request(self._matrix, combination, self._images)
            self._requests[index] = found
        return found

    def anchors(self, index: Index) -> list[Index]:
        """See `anchors`."""
        return anchors(self._matrix, self._grid, index)

    def alike(self, index: Index) -> Iterable[Index]:
        """Return combinations that differ in values alone: one environment, unless its image names values."""
        if self._matrix.file.executor is not None:
            return ()
        axes = zip(self._grid.axes, index, strict=True)
        places = [range(len(a.values)) if a.kind is AxisKind.VALUE else (at,) for a, at in axes]
        every = itertools.product(*places)
        return (one for one in every if one != index and one not in self._grid.excluded)


class Locking:
    """The locks of a study's combinations, made when they are wanted.

    Solvers run in threads; `on_done` is called from them. Everything else belongs to one thread.

    Args:
        matrix: As loaded.
        grid: As expanded.
        provider: Solves.
        workers: Solvers at the same time.
        images: See `environment_request`.
        known: Locks that the study has already.
        unsolvable: Combinations that are known to have none.
        among: The only combinations that can be wanted, each a measurement of its own; all of the grid if
            None. Others are added when they are wanted.
        requests: The environments asked for; those of the matrix if None.

    Attributes:
        prepared: What is known by now; its mappings grow.
        on_done: Called, by a solver's thread, whenever `take` has something to give.
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
        among: Collection[Index] | None = None,
        requests: Requests | None = None,
    ) -> None:
        self._grid, self._provider = grid, provider
        self._requests = requests or MatrixRequests(matrix, grid, images)
        # What may not be wanted gets no more than a core each, which builds and trials want, too.
        self._most_ahead = max(1, workers)
        # A solver of wheels mostly waits for the index; one of conda packages has a core's worth to do.
        self._most = max(1, workers if matrix.file.channels else max(SOLVERS, workers))
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="lock")
        self.on_done: Callable[[], None] = lambda: None
        self._locks: dict[Index, Lock] = dict(known or {})
        self._unsolvable = dict(unsolvable or {}) if requests or among else unfit(matrix, grid)
        self._warnings: dict[Index, tuple[str, ...]] = {}
        self._running: dict[Index, Future[LockResult]] = {}
        self._waiting: dict[Index, None] = {}
        self._ahead: tuple[Index, ...] = ()
        # Combinations that are needed; and those that met an error while they were locked ahead, which are
        # locked again when they are needed.
        self._asked: set[Index] = set()
        self._failed_ahead: set[Index] = set()
        self._done: queue.SimpleQueue[Index] = queue.SimpleQueue()
        # Without days on an axis no two combinations can turn out to be the same environment with the same
        # values: each names other versions, or is asked for as such.
        groups = unlocked(grid).groups if among is None else {index: index for index in among}
        self._groups = {index: first for index, first in groups.items() if index not in self._unsolvable}
        self.prepared = Prepared(grid, self._locks, self._unsolvable, self._groups, self._warnings)

    @property
    def under_way(self) -> int:
        """Return the number of requested combinations that are not locked yet."""
        return len(self._running) + len(self._waiting)

    def want(self, indices: Iterable[Index]) -> None:
        """Start to lock combinations, except those that are known or in progress."""
        asked = tuple(indices)
        self._asked.update(asked)
        for index in asked:
            if index not in self._unsolvable and index not in self._grid.excluded:
                self._groups.setdefault(index, index)
        self._waiting |= {index: None for index in asked if self._is_open(index)}
        self._start()

    def want_ahead(self, indices: Iterable[Index]) -> None:
        """Lock combinations that may be needed later, the likeliest first, while solvers are free.

        It takes the place of what was given before and is not begun: by now other things are likely.
        """
        self._ahead = tuple(indices)
        self._start()

    def _is_open(self, index: Index) -> bool:
        return not (index in self._locks or index in self._unsolvable or index in self._running)

    def take(self) -> list[Index]:
        """Return the combinations that were answered since the last call; `prepared` has the answers.

        An error counts only where the lock is needed: it may be one that nobody will ever ask for.

        Raises:
            InfrastructureError: The index cannot be reached, or an interpreter is missing.
        """
        answered: list[Index] = []
        while True:
            try:
                index = self._done.get_nowait()
            except queue.Empty:
                break
            future = self._running.pop(index)
            if isinstance(error := future.exception(), Exception) and index not in self._asked:
                _log.warning("%s could not be locked ahead: %s", self._grid.combination(index), error)
                self._failed_ahead.add(index)
                continue
            answered += self._note(index, future.result())
        self._start()
        return answered

    def wait(self, timeout: float | None) -> None:
        """Wait until a solver has answered, or the time (seconds) is over; None means no limit."""
        wait(self._running.values(), timeout, return_when=FIRST_COMPLETED)

    def lock_now(self, index: Index) -> LockResult:
        """Lock one combination, after those that it depends on, and wait for it.

        Raises:
            InfrastructureError: As for `take`.
        """
        self.lock_every([index])
        return self._locks.get(index) or self._unsolvable[index]

    def lock_every(
        self, indices: Collection[Index], on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Lock combinations, after those that they depend on, and wait for all of them.

        Args:
            indices: Which.
            on_progress: Called with (answered, all) as solutions come in.

        Raises:
            InfrastructureError: As for `take`.
        """
        self.want(indices)
        open_ones = {index for index in indices if self._is_unknown(index)}
        while open_ones:
            self.wait(None)
            self.take()
            open_ones = {index for index in open_ones if self._is_unknown(index)}
            if on_progress is not None:
                on_progress(len(indices) - len(open_ones), len(indices))

    def _is_unknown(self, index: Index) -> bool:
        return index not in self._locks and index not in self._unsolvable

    def lock_all(self, on_progress: Callable[[int, int], None] | None = None) -> Prepared:
        """Lock every combination that no rule takes out, wait for it, and find which are one measurement.

        Args:
            on_progress: As for `lock_every`.

        Raises:
            InfrastructureError: As for `take`.
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
        """Drop requests that have not started; running solvers are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        for index in tuple(self._waiting):
            if len(self._running) >= self._most:
                return
            self._begin(index, self._most)
        for index in self._ahead:
            if index not in self._failed_ahead:
                self._begin(index, self._most_ahead)

    def _begin(self, index: Index, most: int) -> None:
        """Start to lock a combination, or one that it depends on, if fewer than `most` solvers run."""
        solving = {self._requests.request(one).key for one in self._running}
        if len(self._running) >= most or not self._is_open(index):
            return
        if self._requests.request(index).key in solving:
            return
        missing, model = self._model(index)
        if missing is None:
            is_wanted = index in self._waiting
            self._waiting.pop(index, None)
            self._failed_ahead.discard(index)
            self._submit(index, model, is_wanted=is_wanted)
            return
        if index in self._asked:
            self._asked.add(missing)
        elif missing in self._failed_ahead:
            return
        if missing not in self._running:
            self._waiting[missing] = None
            self._begin(missing, self._most)

    def _model(self, index: Index) -> tuple[Index | None, Lock | None]:
        """Return the combination to lock first, or None, and the lock to stay close to, or None."""
        for anchor in self._requests.anchors(index):
            if anchor in self._locks:
                return None, self._locks[anchor]
            if anchor not in self._unsolvable:
                return anchor, None
        return None, None

    def _submit(self, index: Index, model: Lock | None, *, is_wanted: bool) -> None:
        future = self._pool.submit(self._solve, index, model, is_wanted)
        self._running[index] = future

        def done(_future: Future[LockResult]) -> None:
            self._done.put(index)
            self.on_done()

        future.add_done_callback(done)

    def _solve(self, index: Index, model: Lock | None, is_wanted: bool) -> LockResult:
        with contextlib.nullcontext() if is_wanted else giving_way():
            return self._requests.solve(index, model, self._provider)

    def _note(self, index: Index, result: LockResult) -> list[Index]:
        """Take an answer in, for all combinations that ask for the same environment; return these."""
        answered = [index, *self._requests.alike(index)]
        found = None
        if isinstance(result, Lock):
            found = environment_warnings(self._requests.request(index), result)
        for one in answered:
            self._waiting.pop(one, None)
            if isinstance(result, UnsolvableError):
                self._unsolvable[one] = result
                continue
            self._locks[one] = result
            if found:
                self._warnings[one] = found
        return answered


def of_commits(grid: Grid) -> bool:
    """Return whether combinations name commits: to lock one may mean to build it. Pure."""
    return any(axis.kind is AxisKind.COMMIT for axis in grid.axes)


def unlocked(grid: Grid) -> Prepared:
    """Return the states of all combinations before any is locked. Pure."""
    return Prepared(grid, {}, {}, {index: index for index in grid.indices() if index not in grid.excluded})


def is_lazy(grid: Grid) -> bool:
    """Return whether combinations can be locked one at a time, when the search asks for them. Pure.

    Days may name the same environment under many names, which is known only once all of them are locked.
    """
    return all(axis.kind is not AxisKind.DATE for axis in grid.axes)


def environment_warnings(request: EnvironmentRequest, lock: Lock) -> tuple[str, ...]:
    """Return warnings about an environment that should be read before its trials are trusted. Pure."""
    cuda = request.conda is not None and "__cuda" in request.conda.virtual_packages
    asked = (*request.pins, *(request.conda.pins if request.conda else ()))
    return lock_warnings(lock, asked=asked, cuda=cuda)


def group(grid: Grid, locks: Mapping[Index, Lock]) -> dict[Index, Index]:
    """Return which combinations are one measurement: equal locks and equal values on the value axes. Pure."""
    values = [i for i, axis in enumerate(grid.axes) if axis.kind is AxisKind.VALUE]
    # No value stands twice on an axis, so that positions will do.
    first: dict[tuple[str, Index], Index] = {}
    groups: dict[Index, Index] = {}
    for index in sorted(locks):
        same = (locks[index].content_hash, tuple(index[i] for i in values))
        groups[index] = first.setdefault(same, index)
    return groups
