"""Expands a matrix file into concrete combinations. Pure, except for what the catalogue does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from bisect_env.matrix.contradictions import end_value_problem
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index
from bisect_env.matrix.history import History
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.problems import Problem, matrix_error
from bisect_env.matrix.rules import RuleSet, named_value
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.schema import Axis, CommitAxis, PackageAxis
from bisect_env.matrix.versions import (
    Release,
    VersionCatalogue,
    between,
    newest_of_each,
    order_key,
    parse_range,
)

MAX_COMBINATIONS = 250_000
"""Limit of a matrix: each combination is locked, stored and reported."""
MAX_VALUES = 4_000
"""Limit of one axis: the search keeps a list of all values for each place where it may turn bad."""
WITHDRAWN = "withdrawn (yanked)"
"""Why a range leaves a release out that its index has withdrawn."""
MAX_EITHER = 400
"""Limit of one axis that may turn bad and good again: the search keeps every interval of values."""


def expand(
    matrix: Matrix,
    catalogue: VersionCatalogue,
    as_of: datetime | None = None,
    settled: Mapping[str, tuple[str, str]] | None = None,
) -> Grid:
    """Expand a matrix: the values of every axis, the excluded combinations, and the stated ends.

    Args:
        matrix: As loaded.
        catalogue: Queried for ranges only.
        as_of: For a matrix without `exclude_newer`, releases of a range from this instant on are ignored, so
            that a study that is resumed next week does not grow.
        settled: For axes of commits, the hashes of both ends that a study has already fixed; branches move.

    Returns:
        Values ascending on package and date axes, as written on value axes.

    Raises:
        MatrixError: A range holds no version, an end is not on the axes or is excluded, every combination
            is excluded, or there are more than `MAX_COMBINATIONS`.
        IndexUnavailableError: From the catalogue.
    """
    axes = _axes(matrix, catalogue, as_of, settled or {})
    size = math.prod(len(axis.values) for axis in axes)
    if size > MAX_COMBINATIONS:
        text = f"the axes make {size} combinations, more than {MAX_COMBINATIONS}; shorten an axis"
        raise matrix_error(matrix.shown, [Problem(text, matrix.line("axes"))])
    excluded = _excluded(matrix, Grid(axes))
    if len(excluded) == size:
        key = "exclude" if matrix.file.exclude else "include"
        text = f"the rules exclude all {size} combinations; correct `exclude` or `include`"
        raise matrix_error(matrix.shown, [Problem(text, matrix.line(key))])
    problems: list[Problem] = []
    good = _end(matrix, "good", axes, excluded, problems, catalogue)
    bad = _end(matrix, "bad", axes, excluded, problems, catalogue)
    if problems:
        raise matrix_error(matrix.shown, problems)
    return Grid(axes, excluded, good, bad)


def _axes(
    matrix: Matrix,
    catalogue: VersionCatalogue,
    as_of: datetime | None,
    settled: Mapping[str, tuple[str, str]],
) -> tuple[GridAxis, ...]:
    """Return the axes with their values.

    Raises:
        MatrixError: An axis has no value, or too many.
    """
    problems: list[Problem] = []
    expanded: dict[str, GridAxis] = {}
    limit = cutoff(matrix.file.exclude_newer) if matrix.file.exclude_newer else as_of
    pythons: tuple[str, ...] | None = None
    # Python first: of the other packages, what has no build for any of these is no value.
    for name, axis in sorted(matrix.file.axes.items(), key=lambda item: not _is_python(item[1])):
        if isinstance(axis, CommitAxis):
            ends = settled.get(name, (axis.from_, axis.to))
            history = catalogue.commits(matrix.repository(axis), *ends, every=axis.history == "all")
            found = commit_axis(name, axis.direction, history, history.chosen())
        elif isinstance(axis, PackageAxis) and axis.listed is None:
            releases = _releases(matrix, axis, catalogue)
            needs_wheel = not axis.is_python and not matrix.file.solver.allows_source(axis.canonical_package)
            found = select_releases(name, axis, releases, limit, needs_wheel=needs_wheel, pythons=pythons)
            if not found.values:
                text = _nothing_left(axis, releases, found)
                problems.append(Problem(text, matrix.line("axes", name, "versions")))
        else:
            found = GridAxis(name, axis.kind, axis.listed or (), axis.direction)
        if text := _too_long(found):
            problems.append(Problem(text, matrix.line("axes", name)))
        expanded[name] = found
        pythons = found.values if _is_python(axis) else pythons
    if problems:
        raise matrix_error(matrix.shown, problems)
    return tuple(expanded[name] for name in matrix.file.axes)


def to_refine(matrix: Matrix, axis: GridAxis, good: str, bad: str) -> tuple[str, ...]:
    """Return the releases to add to an axis so that a boundary lies between two neighbouring releases.

    Args:
        matrix: The matrix; it may say `refine: false`.
        axis: The axis, with the releases that `step` passed over.
        good: Its value on the good side of the boundary.
        bad: Its value on the bad side.

    Returns:
        The releases between the two, ascending; empty if none was passed over.
    """
    source = matrix.file.axes[axis.name]
    if not isinstance(source, PackageAxis) or not source.refine:
        return ()
    return between(axis.passed_over, good, bad)


def refined(matrix: Matrix, grid: Grid, added: Mapping[str, Sequence[str]]) -> Grid:
    """Return a grid with more values on some axes; rules and stated ends are kept.

    Args:
        matrix: The matrix from which the grid was expanded.
        grid: The grid, possibly refined before.
        added: Axis to releases from `to_refine`; for an axis of commits, all its values in their order.
    """
    axes = []
    for axis in grid.axes:
        if axis.history is not None:
            ordered = added.get(axis.name, axis.values)
            axes.append(commit_axis(axis.name, axis.direction, axis.history, ordered))
            continue
        more = set(added.get(axis.name, ()))
        values = tuple(sorted({*axis.values, *more}, key=Version)) if more else axis.values
        left = tuple(version for version in axis.passed_over if version not in more)
        axes.append(replace(axis, values=values, passed_over=left))
    other = Grid(tuple(axes))

    def moved(index: Index | None) -> Index | None:
        return None if index is None else other.index(grid.combination(index))

    return replace(other, excluded=_excluded(matrix, other), good=moved(grid.good), bad=moved(grid.bad))


def commit_axis(name: str, direction: Direction, history: History, values: Iterable[str]) -> GridAxis:
    """Return an axis with some commits of a history as its values.

    Args:
        name: Name of the axis.
        direction: How the failure changes along it.
        history: All commits between its ends.
        values: The commits to look at, in their order.
    """
    chosen = tuple(values)
    known = set(chosen)
    left = tuple(commit for commit in history.place if commit not in known)
    return GridAxis(name, AxisKind.COMMIT, chosen, direction, passed_over=left, history=history)


def _too_long(axis: GridAxis) -> str:
    is_either = axis.direction is Direction.EITHER
    limit = MAX_EITHER if is_either else MAX_VALUES
    if len(axis.values) <= limit:
        return ""
    kind = " of `direction: either`" if is_either else ""
    return (
        f"the axis {axis.name!r} has {len(axis.values)} values, more than the {limit} that an axis{kind} may "
        "have; name fewer, such as every tenth, and look again around the answer"
    )


def _is_python(axis: Axis) -> bool:
    return isinstance(axis, PackageAxis) and axis.is_python


def _releases(matrix: Matrix, axis: PackageAxis, catalogue: VersionCatalogue) -> list[Release]:
    """Return all releases of the package of an axis."""
    if axis.uses_conda or (axis.is_python and matrix.file.uses_conda):
        return catalogue.conda_versions(
            axis.canonical_package, channels=matrix.channels, platform=matrix.platform, build=axis.build
        )
    if axis.is_python:
        return [Release(version) for version in catalogue.python_versions()]
    return catalogue.versions(axis.canonical_package, manager=axis.manager, index=matrix.index_of(axis))


def select_releases(
    name: str,
    axis: PackageAxis,
    releases: Iterable[Release],
    limit: datetime | None,
    *,
    needs_wheel: bool,
    pythons: Sequence[str] | None = None,
) -> GridAxis:
    """Return an axis with the releases of a range, from which it may have chosen none.

    Args:
        name: Name of the axis.
        axis: Axis with a range as its `versions`.
        releases: All releases on the index; duplicates count once.
        limit: First instant that is too new, or None.
        needs_wheel: Whether to leave out releases without a built archive.
        pythons: Leave out releases that fit none of these versions of Python; None to keep them all.
    """
    assert isinstance(axis.versions, str)
    specifier = parse_range(axis.versions)
    kept: dict[Version, str] = {}
    dropped: dict[str, str] = {}
    unfit: dict[str, dict[str, str]] = {}
    for release in releases:
        try:
            version = Version(release.version)
        except InvalidVersion:
            dropped[release.version] = "not a PEP 440 version; a list can name it"
            continue
        # The flag alone decides about pre-releases; packaging's own rule depends on what else there is.
        if not specifier.contains(version, prereleases=True):
            continue
        reason = _why_dropped(axis, release, version, limit, needs_wheel) or _fits_no_python(
            release, pythons, needs_wheel
        )
        if reason is None:
            kept.setdefault(version, release.version)
            for python in pythons or ():
                if (why := _fits_no_python(release, (python,), needs_wheel)) is not None:
                    unfit.setdefault(release.version, {})[python] = why
        else:
            dropped[release.version] = reason
    values = newest_of_each(kept.values(), axis.step)
    passed_over = tuple(text for _, text in sorted(kept.items()) if text not in set(values))
    return GridAxis(name, axis.kind, values, axis.direction, dropped, passed_over, unfit=unfit)


def _why_dropped(
    axis: PackageAxis, release: Release, version: Version, limit: datetime | None, needs_wheel: bool
) -> str | None:
    if release.lacks:
        return release.lacks
    if limit is not None and release.uploaded is not None and release.uploaded >= limit:
        return f"uploaded on {release.uploaded:%Y-%m-%d}, after exclude_newer"
    if release.yanked and not axis.yanked:
        return WITHDRAWN
    if version.is_prerelease and not axis.prereleases:
        return "pre-release"
    if needs_wheel and not release.has_wheel:
        return "no wheel, and solver.allow_source does not allow to build it"
    return None


def _fits_no_python(release: Release, pythons: Sequence[str] | None, needs_wheel: bool) -> str | None:
    if not pythons:
        return None
    shown = pythons[0] if len(pythons) == 1 else f"{', '.join(pythons[:-1])} or {pythons[-1]}"
    try:
        asked = SpecifierSet(release.requires_python or "")
    except InvalidSpecifier:
        asked = SpecifierSet()
    # 3.11 stands for its newest patch release.
    newest = [python if python.count(".") > 1 else f"{python}.99" for python in pythons]
    if not any(asked.contains(python, prereleases=True) for python in newest):
        return f"asks for Python {release.requires_python}, not for {shown}"
    minors = {".".join(python.split(".")[:2]) for python in pythons}
    if needs_wheel and release.pythons is not None and not release.pythons & minors:
        return f"no build for Python {shown}"
    return None


def _nothing_left(axis: PackageAxis, releases: Sequence[Release], found: GridAxis) -> str:
    what = f"axes.{found.name}: no version of {axis.package!r} is in the range {axis.versions!r}"
    if found.dropped:
        version, reason = list(found.dropped.items())[-1]
        more = f" and {len(found.dropped) - 1} more" if len(found.dropped) > 1 else ""
        return f"{what} (left out: {version}, {reason}{more}); widen the range, or name versions in a list"
    # Whatever is no PEP 440 version would have been left out.
    known = sorted({Version(release.version) for release in releases})
    if not known:
        source = "no interpreter was found" if axis.is_python else "the index does not know the package"
        return f"{what}, for {source}; correct the name or the index"
    shown = str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]} ({len(known)} versions)"
    return f"{what}; {'this machine' if axis.is_python else 'the index'} has {shown}"


def _excluded(matrix: Matrix, grid: Grid) -> dict[Index, str]:
    file = matrix.file
    if not file.exclude and not file.include and not any(axis.skip for axis in file.axes.values()):
        return {}
    values = {axis.name: axis.values for axis in grid.axes}
    rules = RuleSet(file.axes, values, file.exclude, file.include)
    found = ((index, rules.excluding(grid.combination(index))) for index in grid.indices())
    return {index: exclusion.why for index, exclusion in found if exclusion is not None}


def _no_such_release(
    matrix: Matrix, end: str, axis: PackageAxis, value: str, catalogue: VersionCatalogue
) -> str | None:
    """Return the problem with a stated end that is no release, with the release that was probably meant.

    That is the nearest one away from the other end, where nobody expects the change: the older one for the
    good end of a regression. None if the axis lists its versions, or the text is no version.
    """
    if isinstance(axis.versions, tuple):
        return None
    releases = _releases(matrix, axis, catalogue)
    if any(release.version == value for release in releases):
        return None  # it was left out, and the axis says why
    versions = [release.version for release in releases if not release.yanked]
    try:
        wanted = order_key(value, axis.manager)
        known = sorted((order_key(version, axis.manager), version) for version in versions)
    except ValueError:
        return None
    older = [version for key, version in known if key < wanted][-1:]
    newer = [version for key, version in known if key > wanted][:1]
    if axis.direction is Direction.EITHER:
        near = [*older, *newer]
    else:
        first = older if (end == "good") == (axis.direction is not Direction.FIXED) else newer
        near = first or older or newer
    if not near:
        return None
    return f"{end} is {axis.package} {value}, which is no release; did you mean {' or '.join(near)}?"


def _end(
    matrix: Matrix,
    end: str,
    axes: Sequence[GridAxis],
    excluded: Mapping[Index, str],
    problems: list[Problem],
    catalogue: VersionCatalogue,
) -> Index | None:
    stated = matrix.file.good if end == "good" else matrix.file.bad
    if stated is None:
        return None
    index: list[int] = []
    for axis in axes:
        source: Axis = matrix.file.axes[axis.name]
        value = stated.get(axis.name)
        problem = end_value_problem(end, axis.name, axis.values, source, value)
        if problem and value is not None and isinstance(source, PackageAxis):
            problem = _no_such_release(matrix, end, source, value, catalogue) or problem
        if problem:
            problems.append(Problem(problem, matrix.line(end, axis.name)))
            continue
        named = axis.values[0] if value is None else named_value(source, axis.values, value)
        assert named is not None
        index.append(axis.values.index(named))
    if len(index) < len(axes):
        return None
    if tuple(index) in excluded:
        text = f"the {end} end is excluded ({excluded[tuple(index)]}); correct `{end}` or the rule"
        problems.append(Problem(text, matrix.line(end)))
    return tuple(index)
