"""Requests: the environment of each combination, in the form in which a solver gets it.

A request names the Python version, the pinned packages, the indexes and the date.
"""

from __future__ import annotations

import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from packaging.utils import canonicalize_name

from bisect_env.engine.specs import allowed_sources
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.environments.request import CommitRecipe, CommitSource, CondaRequest, EnvironmentRequest
from bisect_env.environments.validation import cuda_version, lock_warnings, virtual_packages
from bisect_env.matrix.grid import AxisKind, Combination, Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.schema import CommitAxis, DateAxis, EnvironmentAxis, PackageAxis, ValueAxis
from bisect_env.matrix.versions import Manager


def environment_request(
    matrix: Matrix, combination: Combination, images: Mapping[str, str] | None = None
) -> EnvironmentRequest:
    """Convert a combination to a request for the solver: Python version, pinned packages, indexes.

    Args:
        matrix: The matrix, which defines the axes.
        combination: A value for each axis.
        images: Known digests of container images, by image name.
    """
    file = matrix.file
    image = matrix.image(combination)
    image = (images or {}).get(image, image)
    if file.image_is_environment:
        return EnvironmentRequest(python="", platform=matrix.platform, image=image)
    # In a conda environment, Python is an ordinary package whose version the solver may choose.
    python = "" if file.uses_conda else f"{sys.version_info.major}.{sys.version_info.minor}"
    # Set a date only if the user asked for one, because some indexes state no upload times.
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
    return EnvironmentRequest(
        python=python,
        pins=pins[Manager.PYPI],
        packages=wheels,
        dependencies=file.solver.dependencies,
        overrides=tuple(_pinned(text, pins[Manager.PYPI]) for text in file.solver.overrides),
        allow_source=allowed_sources(matrix),
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
    """Return what must be built for one value of a commit axis: package, commit and build recipe."""
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
    """Complete a requirement override that is only the name of an axis's package with the axis's version.

    Other overrides are returned unchanged. For example, `numpy` becomes `numpy==1.26.4` in a combination with
    this version of numpy.
    """
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


def environment_warnings(request: EnvironmentRequest, lock: Lock) -> tuple[str, ...]:
    """Return warnings about an environment that the user should know before trusting its trials.

    Args:
        request: What was requested.
        lock: The result of the solver.
    """
    cuda = request.conda is not None and "__cuda" in request.conda.virtual_packages
    asked = (*request.pins, *(request.conda.pins if request.conda else ()))
    return lock_warnings(lock, asked=asked, cuda=cuda)


class Requests(ABC):
    """Base class of the rules that say which environment must be solved for each combination."""

    @abstractmethod
    def request(self, index: Index) -> EnvironmentRequest:
        """Return the request from which the solver computes the lock of a combination."""

    def anchors(self, _index: Index) -> list[Index]:
        """Return the combinations whose package versions the solver should prefer, the best first.

        The list is empty by default.
        """
        return []

    def alike(self, _index: Index) -> Iterable[Index]:
        """Return the other combinations that are known to need the same environment; by default none."""
        return ()

    def solve(self, index: Index, model: Lock | None, provider: EnvironmentProvider) -> LockResult:
        """Run the solver for a combination, and return its lock or error; may be called from any thread.

        The solver keeps the versions of the lock `model` where possible, unless `model` is None.
        """
        return provider.lock(self.request(index), model)


class MatrixRequests(Requests):
    """The solver requests for the combinations of a matrix.

    Args:
        matrix: The matrix.
        grid: The expanded matrix.
        images: Known digests of container images, by image name.
    """

    def __init__(self, matrix: Matrix, grid: Grid, images: Mapping[str, str] | None = None) -> None:
        self._matrix, self._grid, self._images = matrix, grid, images
        self._requests: dict[Index, EnvironmentRequest] = {}

    def request(self, index: Index) -> EnvironmentRequest:
        """Return the request from which the solver computes the lock of a combination.

        The result is cached.
        """
        if (found := self._requests.get(index)) is None:
            combination = self._grid.combination(index)
            found = environment_request(self._matrix, combination, self._images)
            self._requests[index] = found
        return found

    def anchors(self, index: Index) -> list[Index]:
        """Return the combinations whose package versions the solver should prefer, the best first.

        Such a combination is called an anchor. It is the same for all combinations: the one with the first
        value on every package axis, or else the one with the last values. Each environment therefore equals
        that of the anchor, except for the packages of the axes and whatever these need. Locks depend only on
        the grid, and not on the order in which combinations are locked. Date axes keep their value, because
        packages may differ from day to day; value axes keep theirs, because they do not change the
        environment.

        Returns:
            Combinations other than `index` that no rule excludes; none if the matrix asks for the newest
            version of every dependency.
        """
        if self._matrix.file.solver.dependencies == "newest":
            return []
        found = []
        for end in (0, -1):
            anchor = tuple(
                range(size)[end] if axis.kind is AxisKind.PACKAGE else own
                for axis, own, size in zip(self._grid.axes, index, self._grid.shape, strict=True)
            )
            if anchor == index:
                # An anchor has no anchor itself.
                break
            if anchor not in self._grid.excluded:
                found.append(anchor)
        return list(dict.fromkeys(found))

    def alike(self, index: Index) -> Iterable[Index]:
        """Return the other combinations with the same environment, which differ only in value axes.

        There are none if the matrix uses container images, because the image may depend on a value.
        """
        if self._matrix.file.executor is not None:
            return ()
        axes = zip(self._grid.axes, index, strict=True)
        places = [range(len(a.values)) if a.kind is AxisKind.VALUE else (at,) for a, at in axes]
        every = itertools.product(*places)
        return (one for one in every if one != index and one not in self._grid.excluded)
