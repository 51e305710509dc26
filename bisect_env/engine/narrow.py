"""Prepare the search for the first bad commit between two releases: tags, and a matrix over commits. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.errors import UsageError
from bisect_env.matrix import yaml_source
from bisect_env.matrix.ask import BAD, GOOD, data_of
from bisect_env.matrix.grid import AxisKind
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis, DateAxis, EnvironmentAxis, PackageAxis
from bisect_env.matrix.versions import Manager
from bisect_env.storage.entries import Study

_TAIL = re.compile(r"(?:^|[@/_-]|(?<=[a-z]))[vV]?[_-]?(\d+(?:[._]\w+)*(?:[-+]\w+)?)$")


@dataclass(frozen=True, slots=True)
class Releases:
    """The last good and the first bad release that a study found.

    Attributes:
        axis: Name of the axis whose values are releases.
        package: Name of the package.
        good: The last good release.
        bad: The first bad release.
        others: Values of all other axes, which are equal on both sides.
    """

    axis: str
    package: str
    good: str
    bad: str
    others: Mapping[str, str]


def is_of_commits(study: Study) -> bool:
    """Return whether a study has an axis whose values are commits of a repository."""
    return any(axis.kind is AxisKind.COMMIT for axis in study.definition.grid)


def releases_of(matrix: Matrix, verdict: VerdictDocument) -> Releases:
    """Return the last good and the first bad release from the verdict of a study.

    Args:
        matrix: The matrix of the study.
        verdict: Its verdict.

    Raises:
        UsageError: There is no verdict, or it is not about a single package from PyPI.
    """
    first, last = verdict.first_bad, verdict.last_good
    if not verdict.is_decided or not first or not last:
        raise UsageError(
            "the study has no first bad release yet", remedy="`bisect-env run MATRIX` finds it first"
        )
    moved = [axis for axis in first if first[axis] != last.get(axis)]
    if len(moved) != 1:
        raise UsageError(
            f"last good and first bad differ in {' and '.join(moved)}: no commit of one explains that",
            remedy="keep all but one as they are, and run the matrix again",
        )
    (axis,) = moved
    found = matrix.file.axes.get(axis)
    if isinstance(found, CommitAxis):
        raise UsageError(f"{axis} is an axis of commits already", remedy="read `bisect-env report`")
    if not isinstance(found, PackageAxis) or found.is_python or found.manager is not Manager.PYPI:
        raise UsageError(
            f"the answer is about {axis}, which is no package from PyPI that commits could be built of",
            remedy="ask for the commit by itself: bisect-env run --git PATH --from v1 --to v2 -- COMMAND",
        )
    if matrix.file.uses_conda:
        raise UsageError(
            "the environments of this study are conda's, and commits are built for other Pythons",
            remedy="ask for the commit by itself: bisect-env run --git PATH --from v1 --to v2 -- COMMAND",
        )
    others = {name: value for name, value in first.items() if name != axis}
    return Releases(axis, found.canonical_package, last[axis], first[axis], others)


def tag_of(version: str, package: str, tags: Sequence[str]) -> str | None:
    """Return the git tag of a release (v1.2.3, 1.2.3, name-1.2.3, release/1.2.3 and so on), or None.

    Args:
        version: Version of the release.
        package: Normalised name of the package.
        tags: All tags of the repository.
    """
    names = {package, package.replace("-", "_"), package.replace("-", "")}
    wanted = Version(version)
    alike = [tag for tag in tags if (read := _version_in(tag, names)) is not None and read == wanted]
    return min(alike, key=lambda tag: (not tag.endswith(version), len(tag), tag), default=None)


def _version_in(tag: str, names: set[str]) -> Version | None:
    # A name may end in a digit, which is no part of the version: lib2-1.0.
    for name in sorted(names, key=len, reverse=True):
        if tag.lower().startswith(name) and tag[len(name) :][:1] in "-_/@vV":
            tag = tag[len(name) :]
            break
    found = _TAIL.search(tag)
    if found is None:
        return None
    head = tag[: found.start(1)].strip("@/_-vV").lower()
    # In a repository of several packages, ignore the tags of the other packages.
    if head and str(canonicalize_name(head)) not in {*names, "release", "rel", "releases", "version", "ver"}:
        return None
    for text in (found[1], found[1].replace("_", ".")):
        try:
            return Version(text)
        except InvalidVersion:
            continue
    return None


def commits_data(matrix: Matrix, releases: Releases, commits: CommitAxis) -> dict[str, Any]:
    """Return a matrix that bisects the commits between two releases, as plain data (as if parsed from YAML).

    All other keys are taken from the matrix of the study of releases.

    Args:
        matrix: The matrix of that study.
        releases: The last good and first bad release that it found.
        commits: The axis of commits between the two releases.
    """
    data: dict[str, Any] = dict(yaml_source.parse(matrix.text).data)
    axes: dict[str, Any] = {}
    for name, axis in matrix.file.axes.items():
        if name == releases.axis:
            axes[name] = data_of(commits)
            continue
        value = releases.others[name]
        own = dict(data["axes"][name])
        for key in ("skip", "direction", "step", "refine", "prereleases", "yanked"):
            own.pop(key, None)
        match axis:
            case PackageAxis():
                own["versions"] = [value]
            case DateAxis():
                own["dates"] = [value]
            case EnvironmentAxis():
                own["environments"] = {value: own["environments"][value]}
            case _:
                own["values"] = [value]
        axes[name] = own
    for key in ("exclude", "include", "description", GOOD, BAD):
        data.pop(key, None)
    data["name"] = f"{matrix.file.name[:90]}-commits"
    data["axes"] = axes
    data[GOOD], data[BAD] = {releases.axis: commits.from_}, {releases.axis: commits.to}
    return data
