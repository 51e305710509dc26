"""Phrases and tables that several formats share. Pure.

Every function returns plain text on one line that is safe for a terminal; each format escapes it further.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from bisect_env.answers.axes import AxesByName, AxisInfo
from bisect_env.answers.chapters import CommitReport, NamedCommit
from bisect_env.answers.explanation import Explanation
from bisect_env.answers.origins import origins_text
from bisect_env.answers.phrases import aligned, and_more, duration, how_many, interval, percent, probability
from bisect_env.answers.sentence import bad_values_in_words, do_not_matter
from bisect_env.answers.untrusted import clean, comma_separated, shortened
from bisect_env.answers.verdict_document import UntestedValues
from bisect_env.environments.difference import PackageChange
from bisect_env.environments.lock import LockedPackage
from bisect_env.matrix.history import SHORT, is_commit, readable
from bisect_env.matrix.signatures import SIGNATURE_VERSION, shown
from bisect_env.report.model import (
    CombinationReport,
    FailureReport,
    Report,
    TrialCounts,
    labels,
)
from bisect_env.search.numeric import clopper_pearson

# --------------------------------------------------------------------------------------------------
# The table of combinations, short enough for a terminal. Pure.
#
# Neighbours along the culprit axis with equal results share one row; in large tables, results need only be on
# the same side of the verdict. Combinations next to a boundary always have their own row.

ROWS = 40
"""Maximum number of rows of a table, without those next to a boundary."""


class Detail(IntEnum):
    """The level of detail of a table.

    The value is the smallest number of similar neighbouring combinations that share a row.
    """

    ALL = 4
    """Four or more untried combinations share a row, and so do four or more that only passed."""
    SIDE = 2
    """Two or more combinations on the same side of the verdict share a row, tried or not."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table of combinations, which shows one combination or several similar ones.

    Attributes:
        values: Axis to its readable value, or to `first … last`.
        members: The combinations in this row.
    """

    values: Mapping[str, str]
    members: tuple[CombinationReport, ...]

    @property
    def counted(self) -> int:
        """Return how many trials of the row were good or bad.

        A trial that several combinations share counts once.
        """
        return sum(m.counted for m in self._measured())

    @property
    def bad(self) -> int:
        """Return how many trials of the row were bad.

        A trial that several combinations share counts once.
        """
        return sum(m.bad for m in self._measured())

    def numbers(self) -> tuple[str, str, str]:
        """Return the number of bad trials, the number of counted trials and the failure rate, as texts.

        A text is "" if the row has no such number.
        """
        if not self.members[0].is_runnable:
            return "", "", ""
        bad, counted = self.bad, self.counted
        ends = clopper_pearson(bad, counted)
        # One trial says nothing about a rate, and its interval would read as a doubt.
        rate = f"{percent(bad / counted)}{f' ({interval(*ends)})' if counted > 1 else ''}" if counted else ""
        return str(bad), str(counted), rate

    def _measured(self) -> list[CombinationReport]:
        own = [m for m in self.members if m.same_as is None]
        known = [m.combination for m in own]
        for one in self.members:
            # The combination whose trials these are may stand in another row.
            if one.same_as is not None and one.same_as not in known:
                known.append(one.same_as)
                own.append(one)
        return own


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of the table of combinations, and how many combinations were left out.

    Attributes:
        shown: The rows, in order.
        hidden: Number of combinations that have no row.
    """

    shown: tuple[Row, ...]
    hidden: int = 0

    @property
    def more(self) -> str:
        """Return a line that counts the combinations without a row, or "" if there are none."""
        return f"… and {how_many(self.hidden, 'more combination')}" if self.hidden else ""


def rows(report: Report) -> Rows:
    """Return the rows of a table of combinations, in which neighbours with similar results share a row.

    The table is sorted so that the values of the culprit axes change from row to row.
    """
    ordered = _ordered(report)
    kept = boundary_cells(report)
    known = labels(report.axes)
    result = _collapsed(ordered, kept, Detail.ALL, known)
    if len(result) > ROWS:
        result = _collapsed(ordered, kept, Detail.SIDE, known)
    if len(result) <= ROWS:
        return Rows(tuple(result))

    def worth(row: Row) -> tuple[bool, int, int]:
        return (row.members[0].combination in kept, row.bad, row.counted)

    chosen = {id(row) for row in sorted(result, key=worth, reverse=True)[:ROWS]}
    hidden = sum(len(row.members) for row in result if id(row) not in chosen)
    return Rows(tuple(row for row in result if id(row) in chosen), hidden)


NEIGHBOURS = 8
"""Maximum number of rows of the short answer."""


def neighbours(report: Report) -> Rows:
    """Return the table rows of the combinations nearest to the boundary between good and bad.

    Untried combinations are included only at a boundary. Without a verdict, the combinations with the most
    bad trials are chosen.
    """
    ordered = _ordered(report)
    kept = boundary_cells(report)
    places = [i for i, one in enumerate(ordered) if one.combination in kept]

    def worth(place: int) -> tuple[bool, float, int]:
        one = ordered[place]
        far = (_distance(one, ordered[end]) + abs(place - end) / len(ordered) for end in places)
        return (one.combination not in kept, min(far, default=0.0), -one.bad)

    said = [
        i
        for i, one in enumerate(ordered)
        if one.outcomes
        or i in places
        or (not one.is_runnable and any(_distance(one, ordered[end]) == 1 for end in places))
    ]
    chosen = sorted(sorted(said, key=worth)[:NEIGHBOURS])
    known = labels(report.axes)
    shown = [row for place in chosen for row in _rows_of([ordered[place]], Detail.ALL, known)]
    return Rows(tuple(shown), len(ordered) - len(shown))


def _distance(one: CombinationReport, other: CombinationReport) -> int:
    """Return the number of axes on which two combinations differ."""
    return sum(other.combination.get(axis) != value for axis, value in one.combination.items())


def boundary_cells(report: Report) -> list[Mapping[str, str]]:
    """Return the combinations on both sides of each boundary between good and bad."""
    verdict = report.verdict
    if not report.has_verdict:
        return []
    cells = [verdict.first_bad, verdict.last_good]
    for boundary in verdict.boundaries:
        cells += [boundary.bad, boundary.good]
    return [cell for cell in cells if cell]


def columns(report: Report) -> list[str]:
    """Return the names of the axes with several values, or of all axes if none has several.

    These axes are the columns of the table of combinations.
    """
    names = [axis.name for axis in report.axes if len(axis.values) > 1]
    return names or [axis.name for axis in report.axes]


def _ordered(report: Report) -> list[CombinationReport]:
    culprits = set(report.verdict.culprit_axes)
    position = {axis.name: {value: i for i, value in enumerate(axis.values)} for axis in report.axes}
    slow = [axis.name for axis in report.axes if axis.name not in culprits]
    fast = [axis.name for axis in report.axes if axis.name in culprits]

    def key(one: CombinationReport) -> list[int]:
        return [position[axis].get(one.combination.get(axis, ""), -1) for axis in (*slow, *fast)]

    return sorted(report.combinations, key=key)


def _kind(one: CombinationReport, detail: Detail) -> tuple[str, ...] | None:
    """Return a key for the table row of a combination, or None if the combination needs its own row.

    Neighbouring combinations with equal keys may share a row.
    """
    if not one.is_runnable:
        return (one.status,)
    untried = not one.counted and not one.other and not one.skip
    if detail is Detail.SIDE:
        # Without a verdict, group by whether a trial failed.
        return ("side", one.verdict or ("untried" if untried else "failing" if one.bad else "passing"))
    if untried:
        return ("untried", str(one.verdict))
    if one.bad == 0 and not one.other and one.verdict != "bad":
        return ("passing", str(one.verdict))
    return None


def _collapsed(
    ordered: Sequence[CombinationReport],
    kept: Sequence[Mapping[str, str]],
    detail: Detail,
    known: Mapping[str, str],
) -> list[Row]:
    result: list[Row] = []
    run: list[CombinationReport] = []
    kind: tuple[str, ...] | None = None
    for one in ordered:
        here = None if one.combination in kept else _kind(one, detail)
        if run and (here is None or here != kind or not _is_line([*run, one])):
            result += _rows_of(run, detail, known)
            run = []
        run.append(one)
        kind = here
    return result + _rows_of(run, detail, known)


def _is_line(run: Sequence[CombinationReport]) -> bool:
    """Return whether neighbouring combinations differ on exactly one axis.

    Only then a row with `a … b` describes them without doubt.
    """
    first, second = run[0].combination, run[1].combination
    moved = {axis for axis, value in first.items() if second.get(axis) != value}
    last = run[-1].combination
    return len(moved) == 1 and all(
        last.get(axis) == value for axis, value in first.items() if axis not in moved
    )


def _rows_of(run: Sequence[CombinationReport], detail: Detail, known: Mapping[str, str]) -> list[Row]:
    if len(run) < detail:
        return [
            Row({axis: readable(value, known) for axis, value in one.combination.items()}, (one,))
            for one in run
        ]
    first, last = run[0].combination, run[-1].combination
    values = {
        axis: readable(value, known) if value == last[axis] else readable(f"{value} … {last[axis]}")
        for axis, value in first.items()
    }
    return [Row(values, tuple(run))]


# --------------------------------------------------------------------------------------------------
# Phrases that several formats share. Pure.

_COMPARISON = re.compile(r" \(v\d+\)$")
REASON_WIDTH = 160
SIGNATURE_WIDTH = 500
"""Maximum number of characters of a signature; long, because a cut signature is useless in a matrix."""
SHORT_ID = 8
_REASONS = 3
"""Maximum number of reasons that are quoted for each status."""
_UNTESTED = 4
"""Maximum number of intervals without enough trials that are named with the same label and evidence."""
_STATUS_WORDS = {
    "open": "not ended",
    "finished": "ended",
    "interrupted": "interrupted",
    "failed": "stopped by an error",
}


def named(cell: Mapping[str, str]) -> str:
    """Return a combination as text such as `python=3.11 orjson=3.9.11`."""
    return clean(readable(" ".join(f"{axis}={value}" for axis, value in cell.items())))


def summary(report: Report) -> str:
    """Return one line with the study's name and how many trials and environments it has."""
    study, counts = report.study, report.trial_counts
    uncounted = [
        f"{number} {name}"
        for name, number in (("other", counts.other), ("void", counts.void), ("skipped", counts.skip))
        if number
    ]
    status = _STATUS_WORDS.get(study.status, clean(study.status))
    beside = f"; not counted: {', '.join(uncounted)}" if uncounted else ""
    return (
        f"{clean(study.name)} (study {study.id[:SHORT_ID]}, {status}): {how_many(report.trials, 'trial')} "
        f"({counts.bad} bad, {counts.good} good{beside}), {how_many(report.environments, 'environment')}"
    )


def reused(report: Report) -> str:
    """Return a sentence that says how many trials come from earlier studies, or "" if none do."""
    if not report.reused:
        return ""
    number = sum(origin.trials for origin in report.reused)
    counts = {report.study.user: report.trials - number}
    for origin in report.reused:
        counts[origin.user] = counts.get(origin.user, 0) + origin.trials
    counts = {user: trials for user, trials in counts.items() if trials}
    largest = sorted(counts, key=lambda user: -counts[user])
    users = ", ".join(f"{user or 'somebody'} {counts[user]}" for user in largest)
    resting = f"; it rests on trials of {len(counts)} users: {users}" if len(counts) > 1 else ""
    return f"{number} of these were measured before: {clean(origins_text(report.reused) + resting)}"


def ends(report: Report) -> list[tuple[str, str]]:
    """Return the main facts of the verdict, such as first bad and last good, as pairs of title and text."""
    # Omit the version of the comparison here; it is shown at the failures, where signatures are copied.
    target = _COMPARISON.sub("", report.target)
    found = [("target", shortened(clean(target), SIGNATURE_WIDTH))] if target else []
    if not report.has_verdict:
        return found
    verdict = report.verdict
    for cell, title in zip((verdict.first_bad, verdict.last_good), report.side_names, strict=True):
        if cell:
            found.append((title, named(cell)))
    kinds = AxesByName.of(report.axes)
    for other in verdict.others or ():
        values = clean(readable(bad_values_in_words("all", other.bad_values, kinds)))
        culprits = clean(", ".join(other.culprit_axes))
        found.append(("also bad", f"{values}, such as {named(other.first_bad or {})} (culprit {culprits})"))
    if verdict.no_other is not None:
        found.append(("nothing else fails", f"probability {probability(verdict.no_other)}"))
    if unimportant := do_not_matter(verdict, report.axes):
        found.append(("does not matter", clean(", ".join(unimportant))))
    if claims := untested(report):
        found.append(("thinly tested", claims))
    if report.explanation is not None:
        found.append(("explained", clean(report.explanation.sentence)))
    if report.traced is not None and report.traced.study:
        releases = f"{clean(report.traced.releases)} (study {report.traced.study[:SHORT_ID]})"
        found.append(("its releases", releases))
    return found


def untested(report: Report) -> str:
    """Return a text about versions called good or bad after few or no trials, or "" if there are none."""
    verdict = report.verdict
    by_evidence: dict[tuple[str, str], list[str]] = {}
    for one in verdict.untested:
        first, last = (end.get(one.axis, "?") for end in (one.first, one.last))
        which = f"{one.axis} {first if first == last else f'{first}–{last}'}"
        if one.axis not in verdict.culprit_axes:
            # The label does not depend on this axis, but on those to blame.
            which += f" at {' '.join(f'{axis} {one.first.get(axis)}' for axis in verdict.culprit_axes)}"
        chance = "unknown" if one.chance is None else probability(one.chance)
        seen = f"{how_many(one.trials, 'trial')}, no failure; {chance} chance of that if all are bad"
        beside = sum_of(c for c in report.combinations if _is_within(c, one, report.axes))
        none = beside.other + beside.skip + beside.void
        unseen = f"{how_many(none, 'trial')}, none counted" if none else "no trial"
        key = "bad" if one.called_bad else "good", seen if one.trials else unseen
        by_evidence.setdefault(key, []).append(which)
    texts = [
        f"{and_more(names, _UNTESTED)} called {called} ({seen})"
        for (called, seen), names in by_evidence.items()
    ]
    return clean(readable("; ".join(texts)))


def _is_within(one: CombinationReport, interval: UntestedValues, axes: Sequence[AxisInfo]) -> bool:
    """Return whether a combination lies in an interval of values of one axis, on the line of its ends."""
    name, first, last = interval.axis, interval.first, interval.last
    order = next((axis.values for axis in axes if axis.name == name), ())
    if not {first.get(name), last.get(name), one.combination.get(name)} <= {*order}:
        return False
    low, high, place = (order.index(cell[name]) for cell in (first, last, one.combination))
    return low <= place <= high and {**first, name: ""} == {**one.combination, name: ""}


def commit(found: CommitReport) -> list[tuple[str, str]]:
    """Return the details of the first bad commit, such as author and date, as pairs of title and text."""
    lines = [
        ("commit", f"{clean(found.commit)}{' (a merge)' if found.is_merge else ''}"),
        ("subject", shortened(clean(found.subject), REASON_WIDTH)),
        ("author", clean(f"{found.author}, {found.authored:%Y-%m-%d %H:%M} {found.authored:%z}")),
        ("changes", f"{how_many(found.changed, 'file')}, +{found.added} −{found.removed} lines"),
    ]
    if found.pull_request is not None:
        lines.append(("pull request", f"#{found.pull_request}"))
    if found.untried:
        lines.append(("or one of", clean(", ".join(_short(one) for one in found.untried))))
    lines.append(("last good", clean(_short(found.last_good))))
    if found.compare:
        lines.append(("compare", clean(found.compare)))
    if found.study:
        lines.append(("found by", f"study {clean(found.study)[:SHORT_ID]}"))
    return lines


def diffstat(found: CommitReport, limit: int) -> list[str]:
    """Return one line for each file that a commit changes, up to `limit` files.

    A last line counts the other files.
    """
    lines = []
    for path, added, removed in found.files:
        size = "binary" if added is None or removed is None else f"+{added} −{removed}"
        lines.append(f"{shortened(clean(path), REASON_WIDTH)}  {size}")
    rest = found.changed - min(limit, len(lines))
    return [*lines[:limit], *([f"… and {rest} more"] if rest > 0 else [])]


def _short(one: NamedCommit) -> str:
    return f"{one.commit[:SHORT]} ({one.subject})" if one.subject else one.commit[:SHORT]


def between(found: Explanation) -> list[tuple[str, str, str]]:
    """Return a table row for each environment that was tried between last good and first bad.

    The texts of a row are the packages that are as in the bad environment, the number of bad trials, and the
    interval of the failure rate.
    """
    lines = []
    for one in sorted(found.intermediates, key=lambda one: (len(one.moved), one.moved)):
        names = clean(", ".join(found.changes[i].name for i in one.moved if i < len(found.changes)))
        moved = "everything" if len(one.moved) == len(found.changes) else names or "nothing"
        lines.append((moved, f"{one.bad} of {one.trials}", interval(*one.interval)))
    return lines


_OTHERS = 3
"""Maximum number of other answers that are named."""


def alternatives(report: Report) -> list[tuple[str, str]]:
    """Return other possible answers as pairs of probability and text, or [] if the verdict is confirmed.

    Answers with the same boundary, which differ in what lies beyond it, are named once.
    """
    found: dict[str, float] = {}
    for candidate in report.verdict.candidates if report.verdict.status != "confirmed" else ():
        bad = candidate.first_bad
        what = f"{report.side_names[0]} {named(bad)}" if bad else candidate.kind or "another answer"
        culprits = ", ".join(candidate.culprit_axes)
        text = what + (f" (culprit {clean(culprits)})" if culprits else "")
        found.setdefault(text, candidate.probability or 0.0)
    # The first one is the verdict's own answer.
    others = list(found.items())[1:]
    return [(probability(chance), text) for text, chance in others if chance >= 0.01][:_OTHERS]


def sum_of(members: Iterable[CombinationReport]) -> TrialCounts:
    """Return the counts of several combinations together."""
    found = list(members)
    names = ("good", "bad", "other", "void", "skip")
    return TrialCounts(**{name: sum(getattr(one, name) for one in found) for name in names})


def uncounted(counts: TrialCounts) -> list[str]:
    """Return how many trials are not evidence, and why, such as `2 failed otherwise` and `1 skipped`."""
    ways = ((counts.other, "failed otherwise"), (counts.void, "void"), (counts.skip, "skipped"))
    return [f"{number} {way}" for number, way in ways if number]


def note(row: Row, report: Report) -> str:
    """Return the remarks on a table row, such as whether the verdict calls its combinations good or bad."""
    first = row.members[0]
    parts = []
    if not first.is_runnable:
        parts.append(first.status)
    else:
        remark = "" if row.counted or any(map(uncounted, row.members)) else "not tried"
        parts.append(f"{first.verdict} ({remark})" if first.verdict and remark else first.verdict or remark)
    counts = sum_of(m for m in row.members if m.same_as is None)
    # A warning counts void trials that lie beside others.
    parts += uncounted(counts.model_copy(update={"void": 0}) if row.counted else counts)
    if len(row.members) > 1:
        parts.append(f"{len(row.members)} combinations")
    elif first.same_as:
        differing = {a: v for a, v in first.same_as.items() if first.combination.get(a) != v}
        parts.append(f"same environment as {named(differing)}")
    if tag := side_of(first, report):
        parts.append(f"← {tag}")
    return ", ".join(part for part in parts if part)


def side_of(one: CombinationReport, report: Report) -> str:
    """Return `first bad` or `last good` if a combination is one of these, or "" for all others.

    The titles may differ with the direction of the axes (see `Report.side_names`).
    """
    if not report.has_verdict:
        return ""
    sides = (report.verdict.first_bad, report.verdict.last_good)
    tags = zip(report.side_names, sides, strict=True)
    return next((name for name, cell in tags if cell == one.combination), "")


def left_out(report: Report) -> list[tuple[str, str, str]]:
    """Return the combinations that could not be tried, as tuples of status, combinations and reason.

    At most `_REASONS` reasons are listed for each status. A further tuple counts the others.
    """
    groups: dict[str, dict[str, list[CombinationReport]]] = {}
    for one in report.combinations:
        if not one.is_runnable:
            # Remove the commit's hash, so that equal reasons of several commits are grouped.
            said = one.reason
            for value in one.combination.values():
                said = said.replace(value[:SHORT], "") if is_commit(value) else said
            groups.setdefault(one.status, {}).setdefault(said, []).append(one)
    lines = []
    for status, reasons in groups.items():
        for members in list(reasons.values())[:_REASONS]:
            where = and_more([named(one.combination) for one in members], 1)
            reason = shortened(clean(members[0].reason), REASON_WIDTH)
            lines.append((status, where, reason or "no reason given"))
        if len(reasons) > _REASONS:
            lines.append((status, "", how_many(len(reasons) - _REASONS, "more reason")))
    return lines


def described(failure: FailureReport) -> str:
    """Return the signature of a failure, in the form that a matrix file accepts, or else the outcome."""
    text = shown(failure.signature).removesuffix(f" (v{SIGNATURE_VERSION})")
    return shortened(clean(text or failure.outcome), SIGNATURE_WIDTH)


def change(one: PackageChange) -> tuple[str, str, str, str]:
    """Return the name, old version and new version of a changed package, and a note on other changes."""
    old, new = one.before, one.after
    parts = []
    if old is not None and new is not None:
        if old.manager != new.manager:
            parts.append(f"{old.manager or 'interpreter'} → {new.manager or 'interpreter'}")
        if old.source != new.source:
            parts.append(f"{old.source} → {new.source}")
        elif one.kind == "rebuilt" and new.url.startswith("git+"):
            parts.append("built from another commit")
        elif one.kind == "rebuilt":
            parts.append(f"same version, another archive ({old.sha256[:12]} → {new.sha256[:12]})")
    elif (only := new or old) is not None:
        parts.append(" ".join(word for word in (one.kind, only.source and f"({only.source})") if word))
    return clean(one.name), _version(old), _version(new), clean(", ".join(parts))


def _version(state: LockedPackage | None) -> str:
    return "—" if state is None else clean(state.label)


def timing(report: Report) -> str:
    """Return a line that says how long trials and builds took and how many workers ran.

    Return "" if nothing ran.
    """
    work = report.work
    if work.began is None:
        return ""
    parts = [f"within {duration(work.seconds)}"]
    if work.workers:
        parts[0] += f", by {how_many(work.workers, 'worker')} on {how_many(work.hosts, 'host')}"
    if work.built or work.unbuilt:
        built = f"{how_many(work.built, 'environment')} built in {duration(work.build_seconds)}"
        parts.append(built + (f", {work.unbuilt} could not be built" if work.unbuilt else ""))
    return "; ".join(parts)


def machines(report: Report) -> list[str]:
    """Return a description (CPU, GPU and driver) of each kind of machine on which trials ran."""
    return [
        clean(" ".join(part for part in (m.cpu, m.gpu_model, m.driver and f"driver {m.driver}") if part))
        for m in report.machines
    ]


# --------------------------------------------------------------------------------------------------
# The compatibility table, for a page, a bug report or a spreadsheet. Pure.
#
# Heat maps and compatibility tables share one grid: its rows and columns are the two most important axes, and
# there is one table for each combination of the other axes. Untried combinations are in brackets.

WORDS = {"good": "works", "bad": "fails", "": "?", "out": "-"}
MARKS = {"good": "✓", "bad": "✗", "": "?", "out": "–"}
MOST_SLICES = 30
"""Maximum number of tables in a report."""


@dataclass(frozen=True, slots=True)
class GridSlice:
    """One table of a grid: the combinations that differ only on the row axis and the column axis.

    Attributes:
        fixed: Further axes and their values.
        rows: For each value of the row axis the combination at each value of the column axis, or None.
    """

    fixed: Mapping[str, str]
    rows: tuple[tuple[CombinationReport | None, ...], ...]

    @property
    def members(self) -> list[CombinationReport]:
        """Return all combinations in this table."""
        return [one for row in self.rows for one in row if one is not None]


@dataclass(frozen=True, slots=True)
class MatrixGrid:
    """All combinations of a matrix, arranged in tables with two axes each.

    Attributes:
        across: Axis of the columns.
        down: Axis of the rows; None if there is only one axis.
        further: The other axes.
        slices: One table for each combination of their values.
        left_out: Number of tables that were left out.
    """

    across: AxisInfo
    down: AxisInfo | None
    further: tuple[AxisInfo, ...]
    slices: tuple[GridSlice, ...]
    left_out: int = 0

    @property
    def controls(self) -> list[AxisInfo]:
        """Return the axes, other than those of rows and columns, that have several values to choose from."""
        return [axis for axis in self.further if len(axis.values) > 1]

    @property
    def more(self) -> str:
        """Return a line that counts the tables that were left out, or "" if there are none."""
        return f"… and {how_many(self.left_out, 'more table')}" if self.left_out else ""

    def with_slices(self, slices: Sequence[GridSlice]) -> MatrixGrid:
        """Return a copy of the grid that contains only the given tables."""
        return replace(self, slices=tuple(slices), left_out=len(self.slices) - len(slices))


def matrix_grid(report: Report) -> MatrixGrid | None:
    """Arrange all combinations in tables with two axes each, or return None if there are none.

    Rows and columns are the culprit axes if possible, then the axes with the most values.
    """
    if not report.axes or not report.combinations:
        return None
    culprits = set(report.verdict.culprit_axes)
    order = sorted(report.axes, key=lambda axis: (axis.name not in culprits, -len(axis.values)))
    chosen = [axis for axis in order if len(axis.values) > 1][:2] or order[:1]
    across, *rest = sorted(chosen, key=lambda axis: -len(axis.values))
    down = rest[0] if rest else None
    further = tuple(axis for axis in report.axes if axis not in chosen)
    groups: dict[tuple[str, ...], dict[tuple[str, str], CombinationReport]] = {}
    for one in report.combinations:
        key = tuple(one.combination.get(axis.name, "") for axis in further)
        row = one.combination.get(down.name, "") if down else ""
        groups.setdefault(key, {})[one.combination.get(across.name, ""), row] = one
    slices = tuple(
        GridSlice(
            {axis.name: value for axis, value in zip(further, key, strict=True)},
            tuple(
                tuple(members.get((value, row)) for value in across.values)
                for row in (down.values if down else ("",))
            ),
        )
        for key, members in groups.items()
    )
    return MatrixGrid(across, down, further, slices)


def table_grid(report: Report) -> MatrixGrid | None:
    """Return up to `MOST_SLICES` compatibility tables, or None if `bisect-env map` did not run the study."""
    grid = None if report.verdict.table is None else matrix_grid(report)
    return None if grid is None else grid.with_slices(grid.slices[:MOST_SLICES])


def called(one: CombinationReport | None) -> str:
    """Return `good`, `bad`, `out` (cannot be tried) or "" (unknown) for a combination in a table."""
    return "out" if one is None or not one.is_runnable else one.verdict or ""


def cell_text(one: CombinationReport | None, marks: Mapping[str, str]) -> str:
    """Format a combination for a compatibility table, as in `✓`, `(✗)` or `✗ 3/10`.

    Args:
        one: The combination; None if the matrix has none at this place.
        marks: Sign for each result of `called`.
    """
    said = called(one)
    if one is None or said not in ("good", "bad"):
        return marks[said]
    if not one.counted:
        return f"({marks[said]})"
    return marks[said] + (f" {one.bad}/{one.counted}" if 0 < one.bad < one.counted else "")


def table_rows(grid: MatrixGrid, one: GridSlice, marks: Mapping[str, str]) -> list[list[str]]:
    """Return a compatibility table as rows of texts. The first row holds the titles of the columns."""
    across = [clean(value) for value in grid.across.values]
    cells = [[cell_text(cell, marks) for cell in row] for row in one.rows]
    if grid.down is None:
        # A single axis is shown as a column.
        return [[clean(grid.across.name), ""], *map(list, zip(across, cells[0], strict=True))]
    head = f"{clean(grid.down.name)} \\ {clean(grid.across.name)}"
    body = [[clean(value), *row] for value, row in zip(grid.down.values, cells, strict=True)]
    return [[head, *across], *body]


def table_title(grid: MatrixGrid, one: GridSlice) -> str:
    """Return the axis values that distinguish a table from the other tables, or "" if there is only one."""
    return named({axis.name: one.fixed[axis.name] for axis in grid.controls})


def table_lines(report: Report) -> Iterator[str]:
    """Yield the lines of all compatibility tables in plain text."""
    grid = table_grid(report)
    if grid is None:
        return
    for one in grid.slices:
        if title := table_title(grid, one):
            yield title
        yield from aligned(table_rows(grid, one, WORDS))
        yield ""
    if grid.more:
        yield grid.more
    shown = [cell for one in grid.slices for row in one.rows for cell in row]
    notes = []
    if any(cell is not None and called(cell) in ("good", "bad") and not cell.counted for cell in shown):
        notes.append("(works), (fails): not tried itself, known from others")
    if any(called(cell) == "out" for cell in shown):
        notes.append("-: cannot be tried")
    if notes:
        yield "; ".join(notes)


def constraints(report: Report) -> list[tuple[str, list[str]]]:
    """Return version requirements for a package's metadata, each with the versions for which it is needed.

    Each pair is a condition, such as `python >=3.8`, and the requirements of a package that supports these
    versions.
    """
    if report.verdict.compatibility is None:
        return []
    found = []
    for one in report.verdict.compatibility.constraints:
        when = " and ".join(f"{clean(axis)} {clean(span)}" for axis, span in one.when.items())
        needs = [f"{clean(name)}{_specifier(span)}" for name, span in one.needs.items()]
        found.append((when, needs))
    return found


def _specifier(span: str) -> str:
    span = clean(span)
    return "" if span == "*" else span if span[:1] in "<>=!~" else f"=={span}"


def exclude_rules(report: Report) -> list[str]:
    """Return the lines of an `exclude` section that removes the failing combinations from a matrix file."""
    rules = () if report.verdict.compatibility is None else report.verdict.compatibility.exclude
    found = ["exclude:"] if rules else []
    for rule in rules:
        conditions = ", ".join(f"{clean(axis)}: {quoted(what)}" for axis, what in rule.when.items())
        found.append(f"  - {{when: {{{conditions}}}, why: found failing by bisect-env}}")
    return found


def quoted(what: str | Sequence[str]) -> str:
    """Return a text, or a list of texts, as it is written in YAML between braces."""
    if isinstance(what, str):
        return "'" + clean(what).replace("'", "''") + "'"
    return f"[{', '.join(quoted(one) for one in what)}]"


def csv_text(report: Report) -> str:
    """Return the report as CSV, one line per combination."""
    table = report.verdict.table
    chances = {frozenset(one.combination.items()): one.probability for one in (table.calls if table else ())}
    names = [axis.name for axis in report.axes]
    rows: list[list[object]] = []
    for one in report.combinations:
        chance = chances.get(frozenset(one.combination.items()))
        rows.append(
            [
                *(one.combination.get(name, "") for name in names),
                one.status,
                one.verdict or "",
                "yes" if one.counted else "no",
                "" if chance is None else f"{chance:.4f}",
                one.bad,
                one.counted,
                *(f"{end:.4f}" for end in one.interval),
            ]
        )
    columns = ("status", "verdict", "tried", "probability", "bad", "trials", "low", "high")
    return comma_separated([*names, *columns], rows)
