"""From a matrix to what can be run: requests, locks, and which combinations are one measurement."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from bisect_env.environments.lock import Lock, UnsolvableError
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.environments.validation import cuda_version, lock_warnings, virtual_packages
from bisect_env.matrix.grid import AxisKind, Combination, Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.schema import DateAxis, EnvironmentAxis, PackageAxis, ValueAxis
from bisect_env.matrix.versions import Manager

_MANY = 10_000


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that is known about a study's combinations before anything runs.

    Attributes:
        grid: The expanded matrix.
        locks: Lock of each combination that has one.
        unsolvable: Why the others have none.
        groups: For each lockable combination the first one with the same lock and the same values of value
            axes: trials of one are trials of all.
        warnings: What should be known of the environment of a combination, where there is something.
    """

    grid: Grid
    locks: Mapping[Index, Lock]
    unsolvable: Mapping[Index, UnsolvableError]
    groups: Mapping[Index, Index]
    warnings: Mapping[Index, tuple[str, ...]] = field(default_factory=dict)

    @property
    def environments(self) -> int:
        """Number of distinct locks."""
        return len({lock.content_hash for lock in self.locks.values()})


def environment_request(
    matrix: Matrix, combination: Combination, as_of: datetime, images: Mapping[str, str] | None = None
) -> EnvironmentRequest:
    """What a combination asks of its environment. Pure.

    Args:
        matrix: Where the axes are explained.
        combination: Values for them.
        as_of: The day of the study: what was uploaded later does not exist, unless the matrix or a date
            axis names another day.
        images: What names of images stand for, as far as that is settled.
    """
    file = matrix.file
    image = matrix.image(combination)
    image = (images or {}).get(image, image)
    if file.image_is_environment:
        return EnvironmentRequest(python="", platform=matrix.platform, image=image)
    # In a conda environment Python is a package among others, which the solver may choose.
    python = "" if file.uses_conda else f"{sys.version_info.major}.{sys.version_info.minor}"
    limit = cutoff(file.exclude_newer) if file.exclude_newer else as_of
    pins: dict[Manager, dict[str, str]] = {manager: {} for manager in Manager}
    builds: dict[str, str] = {}
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
            case ValueAxis():
                pass
    allow = file.solver.allow_source
    return EnvironmentRequest(
        python=python,
        pins=pins[Manager.PYPI],
        packages=wheels,
        dependencies=file.solver.dependencies,
        overrides=tuple(file.solver.overrides),
        allow_source=allow if isinstance(allow, bool) else frozenset(allow),
        index=file.index,
        platform=matrix.platform,
        exclude_newer=limit,
        conda=_conda_request(matrix, pins[Manager.CONDA], builds, conda) if file.uses_conda else None,
        image=image,
    )


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


def preferences(matrix: Matrix, grid: Grid, wanted: Sequence[Index]) -> list[list[int]]:
    """Whose lock each combination is to be like: a neighbour's, so that little else changes. Pure.

    These are the combinations before it that differ on one axis alone, the nearest first, and of equally
    near ones that on the last axis; the first of them that has a lock is taken. The order depends on the
    grid alone, so that locks do not depend on who is solved when. No step is taken along dates, for what the
    day before had is just what a day may not hold on to, nor along values, which are one environment.

    Args:
        matrix: As loaded; it may ask for the newest of everything instead.
        grid: As expanded.
        wanted: The combinations to lock, in the grid's order.

    Returns:
        For each of them positions in `wanted`, all before its own, most welcome first.
    """
    if matrix.file.solver.dependencies == "newest":
        return [[] for _ in wanted]
    positions = {index: position for position, index in enumerate(wanted)}
    axes = [i for i, axis in enumerate(grid.axes) if axis.kind is AxisKind.PACKAGE]

    def before(index: Index) -> Iterator[Index]:
        for step in range(1, max((index[i] for i in axes), default=0) + 1):
            for i in reversed(axes):
                if step <= index[i]:
                    yield (*index[:i], index[i] - step, *index[i + 1 :])

    return [[positions[near] for near in before(index) if near in positions] for index in wanted]


def lock_all(
    matrix: Matrix,
    grid: Grid,
    provider: EnvironmentProvider,
    as_of: datetime,
    *,
    workers: int = 2,
    on_progress: Callable[[int, int], None] | None = None,
    images: Mapping[str, str] | None = None,
) -> Prepared:
    """Lock every combination that no rule takes out.

    Args:
        matrix: As loaded.
        grid: As expanded.
        provider: Solves.
        as_of: See `environment_request`.
        workers: Solvers at the same time.
        on_progress: Called with (answered, all) as solutions come in.
        images: See `environment_request`.

    Raises:
        InfrastructureError: The index cannot be reached, or an interpreter is missing.
    """
    # Combinations that differ in values alone ask for one environment (an image may name values): many need
    # not ask one by one.
    once = matrix.file.executor is None and math.prod(grid.shape) > _MANY
    values = [i for i, axis in enumerate(grid.axes) if once and axis.kind is AxisKind.VALUE]
    asked: dict[Index, list[Index]] = {}
    for index in grid.indices():
        if index not in grid.excluded:
            first = tuple(0 if axis in values else i for axis, i in enumerate(index)) if values else index
            asked.setdefault(first, []).append(index)
    wanted = list(asked)
    requests = [environment_request(matrix, grid.combination(index), as_of, images) for index in wanted]
    answered = 0

    def count(_position: int, _result: object) -> None:
        nonlocal answered
        answered += 1
        if on_progress is not None:
            on_progress(answered, len(requests))

    models = preferences(matrix, grid, wanted)
    results = provider.lock_many(requests, workers=workers, on_done=count, prefer=models)
    locks: dict[Index, Lock] = {}
    unsolvable: dict[Index, UnsolvableError] = {}
    warnings: dict[Index, tuple[str, ...]] = {}
    for first, request, result in zip(wanted, requests, results, strict=True):
        if isinstance(result, UnsolvableError):
            unsolvable |= dict.fromkeys(asked[first], result)
            continue
        locks |= dict.fromkeys(asked[first], result)
        if found := environment_warnings(request, result):
            warnings |= dict.fromkeys(asked[first], found)
    return Prepared(grid, locks, unsolvable, group(grid, locks), warnings)


def environment_warnings(request: EnvironmentRequest, lock: Lock) -> tuple[str, ...]:
    """What should be known of an environment before trials in it are believed. Pure."""
    cuda = request.conda is not None and "__cuda" in request.conda.virtual_packages
    asked = (*request.pins, *(request.conda.pins if request.conda else ()))
    return lock_warnings(lock, asked=asked, cuda=cuda)


def group(grid: Grid, locks: Mapping[Index, Lock]) -> dict[Index, Index]:
    """Which combinations are one measurement: equal locks and equal values on the value axes. Pure."""
    values = [i for i, axis in enumerate(grid.axes) if axis.kind is AxisKind.VALUE]
    # No value stands twice on an axis, so that positions will do.
    first: dict[tuple[str, Index], Index] = {}
    groups: dict[Index, Index] = {}
    for index in sorted(locks):
        same = (locks[index].content_hash, tuple(index[i] for i in values))
        groups[index] = first.setdefault(same, index)
    return groups
