"""Convert a search's verdict to the model that is stored, and describe the commit that it names. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote, urlsplit

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.chapters import CommitReport, NamedCommit
from bisect_env.answers.requirements import requirements_in_words
from bisect_env.answers.sentence import side_names
from bisect_env.answers.verdict_document import (
    BayesFactors,
    CalledCombination,
    CandidateAnswer,
    ClearedCombination,
    Compatibility,
    CompatibilityTable,
    FurtherFailure,
    MeasuredRate,
    NeighbourPair,
    RateModels,
    UnexplainedCombination,
    UntestedValues,
    UntriedCombination,
    VerdictDocument,
)
from bisect_env.matrix.expand import WITHDRAWN
from bisect_env.matrix.grid import Direction, Grid, GridAxis, Index
from bisect_env.matrix.history import CommitDetails
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis, PackageAxis
from bisect_env.search.corners import CornerSearch
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.study_search import StudySearch
from bisect_env.search.table_search import TableSearch
from bisect_env.search.verdict import Answer, Boundary, Verdict


def verdict_document(
    grid: Grid, search: StudySearch, missing: Mapping[Index, tuple[str, str]]
) -> VerdictDocument:
    """Convert the verdict of a search to a `VerdictDocument`, the form in which it is stored.

    Args:
        grid: The grid of the study.
        search: The search, after any number of trials.
        missing: Status and reason of each combination that cannot be run.
    """
    verdict = search.verdict
    best = verdict.best
    return VerdictDocument(
        status=str(verdict.status),
        reason=verdict.reason,
        **_answer(grid, best),
        bad_values=_bad_values(grid, best),
        directions={axis.name: axis.direction for axis in grid.axes},
        models=RateModels(sharing=verdict.sharing, differing=verdict.differing),
        boundaries=tuple(
            _boundary(grid, boundary, missing)
            for one in best.boundaries
            for boundary in (one, *_other_end(grid, search, best, one, missing))
        ),
        bad_rate=_rate(search, best.first_bad),
        good_rate=_rate(search, best.last_good),
        candidates=tuple(CandidateAnswer(**_answer(grid, candidate)) for candidate in verdict.candidates),
        typical_bad_rate=verdict.bad_rate,
        background_rate=verdict.background,
        ends_wrong=verdict.ends_wrong,
        trials=search.trials,
        expected_left=verdict.expected_left,
        expected_environments_left=verdict.expected_environments,
        bayes_factors=BayesFactors(
            log10_against_no_difference=verdict.against_nothing,
            log10_against_runner_up=verdict.against_next,
        ),
        chance_of_luck=_chance_of_luck(search, best),
        monotone=verdict.monotone,
        unexplained=tuple(
            UnexplainedCombination(combination=_at(grid, one.index), **asdict(one))
            for one in verdict.unexplained
        ),
        untested=tuple(
            UntestedValues(
                **asdict(one)
                | {
                    "axis": grid.axes[one.axis].name,
                    "first": _at(grid, one.first),
                    "last": _at(grid, one.last),
                }
            )
            for one in verdict.untested
        ),
        certain=verdict.certain,
        cleared=tuple(
            ClearedCombination(combination=_at(grid, one.index), **asdict(one)) for one in verdict.cleared
        ),
        compatibility=_compatibility(grid, best),
        table=_table(grid, search)
        if isinstance(search, TableSearch) and not isinstance(search, CornerSearch)
        else None,
        others=tuple(_other(grid, search, one) for one in search.others)
        if isinstance(search, CornerSearch)
        else None,
        no_other=search.no_other if isinstance(search, CornerSearch) else None,
    )


def _compatibility(grid: Grid, best: Answer) -> Compatibility | None:
    if best.hypothesis.kind not in ("frontier", "table") or best.first_bad is None:
        return None
    hypothesis = best.hypothesis
    return requirements_in_words(grid, hypothesis.bad_cells(), hypothesis.culprits, best.first_bad)


def _boundary(grid: Grid, boundary: Boundary, missing: Mapping[Index, tuple[str, str]]) -> NeighbourPair:
    return NeighbourPair(
        axis=grid.axes[boundary.axis].name,
        bad=_named(grid, boundary.bad),
        good=_named(grid, boundary.good),
        between=tuple(
            UntriedCombination(
                combination=_named(grid, cell), status=missing[cell][0], reason=missing[cell][1]
            )
            for cell in boundary.between
            if cell in missing
        ),
    )


def _other_end(
    grid: Grid, search: StudySearch, best: Answer, boundary: Boundary, missing: Mapping[Index, object]
) -> list[Boundary]:
    """Return the second change on an axis where the failure both begins and ends, as a list of boundaries.

    Only an axis with the direction `EITHER` can have one. Both combinations of the boundary were tried, so
    that no fix is claimed for an untried version. The list is empty if `boundary` is the only change.
    """
    axis = boundary.axis
    if grid.axes[axis].direction is not Direction.EITHER or best.hypothesis.kind not in ("all", "any"):
        return []
    tried = [
        cell
        for place in range(grid.shape[axis])
        if (cell := (*boundary.bad[:axis], place, *boundary.bad[axis + 1 :])) not in missing
        and search.counts(cell)[1]
    ]
    found = []
    for low, high in itertools.pairwise(tried):
        if best.hypothesis.is_bad(low) != best.hypothesis.is_bad(high):
            bad, good = (low, high) if best.hypothesis.is_bad(low) else (high, low)
            found.append(Boundary(axis, bad, good))
    upward = boundary.good > boundary.bad
    return [one for one in found if (one.good > one.bad) is not upward and one not in best.boundaries]


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


def _table(grid: Grid, search: TableSearch) -> CompatibilityTable:
    """Label each combination of a search good or bad, and count both labels."""
    called = search.table.called
    return CompatibilityTable(
        good=sum(not one.bad for one in called.values()),
        bad=sum(one.bad for one in called.values()),
        tried=sum(one.tried for one in called.values()),
        complete=search.answered,
        calls=tuple(
            CalledCombination(
                combination=_at(grid, index),
                verdict="bad" if one.bad else "good",
                tried=one.tried,
                probability=one.probability,
            )
            for index, one in sorted(called.items())
        ),
    )


def _other(grid: Grid, search: StudySearch, verdict: Verdict) -> FurtherFailure:
    best = verdict.best
    return FurtherFailure(
        status=str(verdict.status),
        **_answer(grid, best),
        bad_rate=_rate(search, best.first_bad),
        bad_values=_bad_values(grid, best),
    )


def _bad_values(grid: Grid, answer: Answer) -> dict[str, tuple[str, ...]]:
    """Return the bad values of each axis that causes the failure, by the name of the axis."""
    return {
        grid.axes[i].name: tuple(
            value for value, bad in zip(grid.axes[i].values, answer.hypothesis.sets[i], strict=True) if bad
        )
        for i in answer.hypothesis.culprits
    }


def _chance_of_luck(search: StudySearch, best: Answer) -> float | None:
    """Return the probability that the last good combination is in fact bad and passed only by luck.

    Returns None if it failed in some trial, or if the first bad or the last good combination is not known.
    The probability is `(1 − p1_low)^n`: that all its n trials pass although it fails at `p1_low`, the lower
    bound of the first bad combination's failure rate.
    """
    if best.first_bad is None or best.last_good is None:
        return None
    low, _ = clopper_pearson(*search.counts(best.first_bad))
    hits, trials = search.counts(best.last_good)
    return None if hits else float((1.0 - low) ** trials)


def _named(grid: Grid, index: Index | None) -> dict[str, str] | None:
    return None if index is None else _at(grid, index)


def _at(grid: Grid, index: Index) -> dict[str, str]:
    return grid.combination(index).as_dict()


def _answer(grid: Grid, answer: Answer) -> dict[str, Any]:
    """Convert an answer to the fields of a `CandidateAnswer`, such as the first bad combination."""
    # Of *any of*, `answer.culprits` has only the axis between first bad and last good.
    culprits = answer.hypothesis.culprits if answer.boundaries else answer.culprits
    return {
        "kind": answer.hypothesis.kind,
        "first_bad": _named(grid, answer.first_bad),
        "last_good": _named(grid, answer.last_good),
        "culprit_axes": tuple(grid.axes[i].name for i in culprits),
        "probability": answer.probability,
    }


def _rate(search: StudySearch, index: Index | None) -> MeasuredRate | None:
    if index is None:
        return None
    hits, trials = search.counts(index)
    low, high = clopper_pearson(hits, trials)
    return MeasuredRate(hits=hits, trials=trials, rate=hits / trials if trials else 0.0, low=low, high=high)


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
