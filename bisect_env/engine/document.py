"""Describe the axes of a study, and the commit that its answer names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.chapters import CommitReport, NamedCommit
from bisect_env.answers.sentence import side_names
from bisect_env.answers.verdict_document import (
    VerdictDocument,
)
from bisect_env.matrix.expand import WITHDRAWN
from bisect_env.matrix.grid import Grid, GridAxis
from bisect_env.matrix.history import CommitDetails
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis, PackageAxis


def axis_infos(matrix: Matrix, grid: Grid) -> tuple[AxisInfo, ...]:
    """Convert the axes of a grid to the form in which the database stores them.

    This includes the package of each axis ("" if it has none), and the releases and commits that it skips.

    Args:
        matrix: The matrix.
        grid: The expanded matrix.
    """
    packages = {
        name: axis.canonical_package if isinstance(axis, PackageAxis | CommitAxis) else ""
        for name, axis in matrix.file.axes.items()
    }
    return tuple(
        AxisInfo(
            name=axis.name,
            kind=axis.kind,
            direction=axis.direction,
            values=axis.values,
            package=packages[axis.name],
            **_left_out(axis),
        )
        for axis in grid.axes
    )


def _left_out(axis: GridAxis) -> dict[str, Any]:
    """Return the releases or commits that an axis skips, as fields of `AxisInfo`."""
    if axis.history is None:
        withdrawn = tuple(version for version, why in axis.dropped.items() if why == WITHDRAWN)
        return {"passed_over": axis.passed_over, "withdrawn": withdrawn}
    return {
        "labels": {value: axis.history.label(value) for value in axis.values},
        "left_out": axis.history.left_out(axis.values),
    }


# --------------------------------------------------------------------------------------------------
# Describe the commit that an answer names: its author, its changes and links. Pure.

FILES = 50
"""Maximum number of changed files of a commit that are listed."""
MOST_UNTRIED = 20
"""Maximum number of untried commits between last good and first bad that are described."""
_PULL_REQUEST = re.compile(
    r"\(#(\d{1,9})\)\s*$|^Merge pull request #(\d{1,9})\b|\((?:\w[\w./-]*)?!(\d{1,9})\)\s*$"
)


def named_commits(
    verdict: VerdictDocument, axes: Sequence[AxisInfo], axis: str
) -> tuple[str, str, list[str]] | None:
    """Return the first bad commit, the last good commit, and the untried commits between the two.

    Args:
        verdict: The verdict of the study.
        axes: The axes of the study.
        axis: Name of an axis of commits.

    Returns:
        None if this axis is not the only culprit of the verdict, or if the verdict names the last bad commit.
    """
    first, last = verdict.first_bad, verdict.last_good
    if not verdict.is_decided or verdict.culprit_axes != (axis,) or not first or not last:
        return None
    if side_names(verdict, axes)[0] != "first bad":
        return None
    return first[axis], last[axis], verdict.untried_before_first_bad(axis)


def chapter(
    axis: str,
    package: str,
    bad: CommitDetails,
    good: CommitDetails,
    between: Sequence[CommitDetails],
    forge: str,
) -> CommitReport:
    """Describe the first bad commit for the report: its author, files and links.

    Args:
        axis: Name of the axis.
        package: The package that is built from the commit.
        bad: The first bad commit.
        good: The last good commit.
        between: Commits between the two that could not be tried.
        forge: Web address of the repository, "" if unknown.
    """
    return CommitReport(
        axis=axis,
        package=package,
        repository=forge,
        commit=bad.commit,
        subject=bad.subject,
        author=bad.author,
        authored=bad.authored,
        committed=bad.committed,
        is_merge=len(bad.parents) > 1,
        pull_request=pull_request(bad.subject),
        files=tuple(bad.files[:FILES]),
        changed=len(bad.files),
        added=sum(added or 0 for _, added, _ in bad.files),
        removed=sum(removed or 0 for _, _, removed in bad.files),
        compare=comparison(forge, good.commit, bad.commit),
        last_good=NamedCommit(commit=good.commit, subject=good.subject),
        untried=tuple(NamedCommit(commit=one.commit, subject=one.subject) for one in between),
    )


def pull_request(subject: str) -> int | None:
    """Return the number of the pull request in the subject of a commit, such as `Fix it (#123)`.

    Returns None if the subject names no pull request.
    """
    found = _PULL_REQUEST.search(subject)
    return int(next(group for group in found.groups() if group)) if found else None


def comparison(forge: str, good: str, bad: str) -> str:
    """Return the web address at which a forge (GitHub, GitLab, …) shows the changes between two commits.

    Returns "" if the repository has no such address.

    Args:
        forge: Address of the repository, as git has it.
        good: Hash of the good commit.
        bad: Hash of the bad commit.
    """
    if "://" not in forge and (found := re.fullmatch(r"(?:[\w.-]+@)?([\w.-]+):(?!/)([\w./~+-]+)", forge)):
        forge = f"ssh://{found[1]}/{found[2]}"
    parts = urlsplit(forge)
    path = parts.path.strip("/").removesuffix(".git")
    if parts.scheme not in ("http", "https", "ssh", "git") or not parts.hostname or path.count("/") < 1:
        return ""
    # Drop a port of an ssh address, because the web server listens on another one.
    host = parts.netloc.rpartition("@")[2] if parts.scheme in ("http", "https") else parts.hostname
    inner = "/-/compare/" if "gitlab" in parts.hostname else "/compare/"
    return f"https://{host}/{quote(path)}{inner}{good}...{bad}"


def bisect_log(
    tried: Sequence[tuple[str, str, str]], first_bad: str, labels: Mapping[str, str], *, is_sure: bool
) -> list[str]:
    """Convert the results of a search among commits to a log that `git bisect replay` can read.

    The result is a list of lines.

    Args:
        tried: For each commit, oldest first: its hash, `bad`, `good` or `skip`, and a remark.
        first_bad: Hash of the first bad commit.
        labels: For each hash, the subject of the commit.
        is_sure: Whether no untried commit lies between the last good and the first bad one.
    """
    lines = ["git bisect start"]
    # git uses the last bad commit of the log, so the first bad commit is written last. git refuses good
    # commits that are newer, so these are left out, and with them the bad commits that are older.
    place = next((place for place, one in enumerate(tried) if one[0] == first_bad), 0)
    bad = [one for one in reversed(tried[place:]) if one[1] == "bad"]
    good = [one for one in tried[:place] if one[1] == "good"]
    ordered = [*bad, *good, *(one for one in tried if one[1] == "skip")]
    for commit, said, words in ordered:
        lines += [
            f"# {said}: [{commit}] {labels.get(commit, '')} {words}".rstrip(),
            f"git bisect {said} {commit}",
        ]
    if is_sure and good:
        lines.append(f"# first bad commit: [{first_bad}] {labels.get(first_bad, '')}".rstrip())
    return lines
