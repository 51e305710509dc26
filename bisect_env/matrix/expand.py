"""Expands a matrix file into a grid of concrete combinations. Pure, except for calls of the catalogue.

The *catalogue* looks up the releases of packages and the commits of repositories.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from bisect_env.matrix.contradictions import end_contradictions, end_index, rule_contradictions
from bisect_env.matrix.grid import AxisKind, Direction, Exclusion, Grid, GridAxis, Index
from bisect_env.matrix.history import History
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.problems import Path, Problem, dotted, matrix_error
from bisect_env.matrix.rules import RuleSet
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.schema import Axis, CommitAxis, PackageAxis
from bisect_env.matrix.versions import (
    Manager,
    Release,
    VersionCatalogue,
    between,
    may_build,
    newest_of_each,
    order_key,
    parse_range,
)

MAX_COMBINATIONS = 250_000
"""Maximum number of combinations of a matrix, because each of them is locked, stored and reported."""
MAX_VALUES = 4_000
"""Maximum number of values of an axis. The search stores one hypothesis over all values for each value."""
_NAMED = 3
"""Maximum number of rules that a message names if they exclude everything."""
WITHDRAWN = "withdrawn (yanked)"
"""Reason shown for a release that is left out because its index has withdrawn it."""
MAX_EITHER = 400
"""Maximum number of values of an axis with `direction: either`. The search stores one hypothesis for each
interval of values."""


def expand(
    matrix: Matrix,
    catalogue: VersionCatalogue,
    as_of: datetime | None = None,
    settled: Mapping[str, tuple[str, str]] | None = None,
    known: Mapping[str, Collection[str]] | None = None,
) -> Grid:
    """Build the grid of a matrix: the values of all axes, and the combinations that rules exclude.

    Args:
        matrix: Matrix, as loaded from its file.
        catalogue: Source of releases and commits; used only for axes that do not list their values.
        as_of: If the matrix has no `exclude_newer`, releases uploaded at or after this time are left out, so
            that a study that is resumed later keeps the same axes. None for no limit.
        settled: Name of a commit axis to the hashes of its first and last commit, if a study has fixed them
            already. Otherwise they are looked up, and a branch may have moved.
        known: Name of a range axis to the releases that a resumed study has found. Others without an upload
            date are left out, since they may be newer than the study.

    Returns:
        The grid. Values are in ascending order on axes of packages and dates, and in the order of the file on
        axes of values.

    Raises:
        MatrixError: A range contains no version; a rule names a value that is not on its axis; `good` or
            `bad` is not on the axes or is excluded; every combination is excluded; or a limit on the size is
            exceeded.
        IndexUnavailableError: The catalogue could not reach a package index.
    """
    axes = _axes(matrix, catalogue, as_of, settled or {}, known or {})
    # Interpreters differ among the hosts that share a matrix, so a rule may name one that is missing here.
    ranges = {name for name, axis in matrix.file.axes.items() if axis.listed is None and not _is_python(axis)}
    conflicts = rule_contradictions(matrix.file, {axis.name: axis for axis in axes if axis.name in ranges})
    if wrong := [Problem(text, matrix.line(*path)) for path, text in conflicts]:
        raise matrix_error(matrix.shown, wrong)
    size = math.prod(len(axis.values) for axis in axes)
    if size > MAX_COMBINATIONS:
        text = f"the axes make {size} combinations, more than {MAX_COMBINATIONS}; shorten an axis"
        raise matrix_error(matrix.shown, [Problem(text, matrix.line("axes"))])
    excluded = _excluded(matrix, Grid(axes))
    if len(excluded) == size:
        keys = list(dict.fromkeys(exclusion.key for exclusion in excluded.values()))
        named = ", ".join(dotted(key) for key in keys[:_NAMED]) + (", ..." if keys[_NAMED:] else "")
        text = f"the rules exclude all {size} combinations ({named}); correct one of them"
        raise matrix_error(matrix.shown, [Problem(text, matrix.line(*keys[0]))])
    found = {axis.name: axis.values for axis in axes}
    problems = [
        Problem(_no_such_release(matrix, path, catalogue) or text, matrix.line(*path))
        for path, text in end_contradictions(matrix.file, found)
    ]
    good, bad = (end_index(matrix.file, end, found) for end in (matrix.file.good, matrix.file.bad))
    for end, index in (("good", good), ("bad", bad)):
        if index is not None and index in excluded:
            text = f"the {end} end is excluded ({excluded[index].why}); correct `{end}` or the rule"
            problems.append(Problem(text, matrix.line(end)))
    if problems:
        raise matrix_error(matrix.shown, problems)
    return Grid(axes, excluded, good, bad)


def _axes(
    matrix: Matrix,
    catalogue: VersionCatalogue,
    as_of: datetime | None,
    settled: Mapping[str, tuple[str, str]],
    known: Mapping[str, Collection[str]],
) -> tuple[GridAxis, ...]:
    """Determine the values of all axes of a matrix, and return the axes.

    For the arguments, see `expand`.

    Raises:
        MatrixError: An axis has no values, or too many.
    """
    problems: list[Problem] = []
    expanded: dict[str, GridAxis] = {}
    limit = cutoff(matrix.file.exclude_newer) if matrix.file.exclude_newer else as_of
    pythons: tuple[str, ...] | None = None
    # Expand the axis of Python first: releases without a build for any of its versions are left out.
    for name, axis in sorted(matrix.file.axes.items(), key=lambda item: not _is_python(item[1])):
        if isinstance(axis, CommitAxis):
            ends = settled.get(name, (axis.from_, axis.to))
            history = catalogue.commits(matrix.repository(axis), *ends, every=axis.history == "all")
            found = commit_axis(name, axis.direction, history, history.chosen())
        elif isinstance(axis, PackageAxis) and axis.listed is None:
            releases = _releases(matrix, axis, catalogue)
            needs_wheel = not axis.is_python and not may_build(
                matrix.file.solver.allow_source, axis.canonical_package
            )
            found = select_releases(
                name,
                axis,
                releases,
                limit,
                needs_wheel=needs_wheel,
                pythons=pythons,
                # Interpreters have no upload date, and hosts that share a study have different ones.
                known=None if axis.is_python else known.get(name),
            )
            if not found.values:
                text = _nothing_left(axis, releases, found, matrix.file.index)
                text += _unknown_to(matrix, axis, catalogue)
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
    """Return the releases that an axis left out because of its `step`, between a good and a bad version.

    After they are added to the axis, the study can find two neighbouring releases between which the failure
    begins.

    Args:
        matrix: Matrix that defines the axis.
        axis: Axis to refine.
        good: Last good value of the axis.
        bad: First bad value of the axis.

    Returns:
        The releases in ascending order; empty if there are none, or if the axis has `refine: false`.
    """
    source = matrix.file.axes[axis.name]
    if not isinstance(source, PackageAxis) or not source.refine:
        return ()
    return between(axis.passed_over, good, bad)


def refined(matrix: Matrix, grid: Grid, added: Mapping[str, Sequence[str]]) -> Grid:
    """Add values to some axes of a grid, and return the changed copy.

    The rules of the matrix are applied to the new combinations; the good and bad end stay the same.

    Args:
        matrix: Matrix from which the grid was expanded.
        grid: Grid, perhaps refined before.
        added: Name of an axis to the releases to add (see `to_refine`). For a commit axis, all of its new
            values in order.
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
    """Build an axis of a grid whose values are commits of a repository.

    Args:
        name: Name of the axis.
        direction: Direction of the axis.
        history: All commits between the first and the last one.
        values: Commits that become values of the axis, in order.
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
    """Look up all releases of the package that an axis names.

    They come from conda channels, from the Python interpreters of this host or from a package index.
    """
    if axis.uses_conda or (axis.is_python and matrix.file.uses_conda):
        return catalogue.conda_versions(
            axis.canonical_package, channels=matrix.channels, platform=matrix.platform, build=axis.build
        )
    if axis.is_python:
        return [Release(version) for version in catalogue.python_versions()]
    return catalogue.versions(axis.canonical_package, index=matrix.index_of(axis))


def select_releases(
    name: str,
    axis: PackageAxis,
    releases: Iterable[Release],
    limit: datetime | None,
    *,
    needs_wheel: bool,
    pythons: Sequence[str] | None = None,
    known: Collection[str] | None = None,
) -> GridAxis:
    """Choose the usable releases in the version range of an axis, as the values of a new axis.

    The axis has no values if no release can be used. Releases that were left out are recorded in the axis
    with the reason.

    Args:
        name: Name of the axis.
        axis: Axis of the matrix file, with a range as its `versions`.
        releases: All releases of the package; duplicates count once.
        limit: Releases uploaded at or after this time are left out; None for no limit.
        needs_wheel: Whether releases without a wheel are left out.
        pythons: Versions of Python; releases that fit none of them are left out. None for no condition.
        known: Only these releases may be without an upload date; None for no condition.
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
        # Only the key `prereleases` decides about pre-releases. The rule of `packaging` would admit them if
        # there were no other releases.
        if not specifier.contains(version, prereleases=True):
            continue
        reason = _why_dropped(axis, release, version, limit, needs_wheel) or _fits_no_python(
            release, pythons, needs_wheel
        )
        if known is not None and release.uploaded is None and release.version not in known:
            reason = "the study does not know it, and the index gives no upload date"
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


_PRE_RELEASE = "pre-release"


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
        return _PRE_RELEASE
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
    # A version such as 3.11 means its newest patch release.
    newest = [python if python.count(".") > 1 else f"{python}.99" for python in pythons]
    if not any(asked.contains(python, prereleases=True) for python in newest):
        return f"asks for Python {release.requires_python}, not for {shown}"
    minors = {".".join(python.split(".")[:2]) for python in pythons}
    if needs_wheel and release.pythons is not None and not release.pythons & minors:
        return f"no build for Python {shown}"
    return None


def _nothing_left(axis: PackageAxis, releases: Sequence[Release], found: GridAxis, index: str | None) -> str:
    """Explain why an axis has no values, and what the user can do; return this error message.

    Args:
        axis: Axis of the matrix file.
        releases: All releases of the package.
        found: The axis without values.
        index: Address of the package index that the matrix names.
    """
    what = f"axes.{found.name}: no version of {axis.package!r} is in the range {axis.versions!r}"
    if found.dropped:
        version, reason = list(found.dropped.items())[-1]
        more = f" and {len(found.dropped) - 1} more" if len(found.dropped) > 1 else ""
        also = "set `prereleases` (`--pre`), " if _PRE_RELEASE in found.dropped.values() else ""
        advice = f"{also}widen the range, or name versions in a list"
        return f"{what} (left out: {version}, {reason}{more}); {advice}"
    # All versions are valid here: invalid ones would be in `dropped`.
    known = sorted({Version(release.version) for release in releases})
    if not known:
        where = f" {index}" if index and axis.manager is not Manager.CONDA else ""
        source = (
            "no interpreter was found" if axis.is_python else f"the index{where} does not know the package"
        )
        return f"{what}, for {source}; correct the name or the index"
    shown = str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]} ({len(known)} versions)"
    place = "this machine" if axis.is_python else "the index"
    return f"{what}, and {place} has {shown}; widen the range, or name versions in a list"


def _unknown_to(matrix: Matrix, axis: PackageAxis, catalogue: VersionCatalogue) -> str:
    """Return a hint that names the further indexes without the package; "" if there are none.

    The address of such an index may be wrong: an index that lacks a package is passed over without a message.
    """
    if axis.is_python or axis.uses_conda or matrix.index_of(axis) is not None:
        return ""
    unknown = catalogue.indexes_without_pages()
    if not unknown:
        return ""
    return f"; {', '.join(unknown)} has no page of it with archives: is the address right?"


def _excluded(matrix: Matrix, grid: Grid) -> dict[Index, Exclusion]:
    file = matrix.file
    if not file.exclude and not file.include and not any(axis.skip for axis in file.axes.values()):
        return {}
    values = {axis.name: axis.values for axis in grid.axes}
    rules = RuleSet(file.axes, values, file.exclude, file.include)
    found = ((index, rules.excluding(grid.combination(index))) for index in grid.indices())
    return {index: exclusion for index, exclusion in found if exclusion is not None}


def _no_such_release(matrix: Matrix, path: Path, catalogue: VersionCatalogue) -> str | None:
    """Return an error message if the version stated at a path of the file was never released, else None.

    For the good end of a regression, the next older release is suggested, and for its bad end the next newer
    one, so that the change still lies between the two ends.

    Return None as well if the path names no version, if the axis lists its versions, or if nothing can be
    suggested.

    Args:
        matrix: Matrix, as loaded from its file.
        path: Path of a mistake in `good` or `bad`, such as `("good", "torch")`.
        catalogue: Source of releases.
    """
    end, name = path[0], str(path[-1])
    axis = matrix.file.axes.get(name)
    value = ((matrix.file.good if end == "good" else matrix.file.bad) or {}).get(name)
    if not isinstance(axis, PackageAxis) or isinstance(axis.versions, tuple) or value is None:
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
