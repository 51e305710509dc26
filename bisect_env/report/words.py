"""Phrases and tables that several formats share. Pure.

Everything returned is plain text on one line, made harmless for a terminal; each format escapes it for
itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.chapters import CommitReport, NamedCommit
from bisect_env.answers.explanation import Explanation
from bisect_env.answers.origins import origins_text
from bisect_env.answers.phrases import and_more, duration, how_many, interval, percent, probability
from bisect_env.answers.sentence import do_not_matter
from bisect_env.answers.untrusted import clean, comma_separated, shortened
from bisect_env.environments.difference import PackageChange, PackageState
from bisect_env.matrix.history import SHORT, is_commit, readable
from bisect_env.matrix.signatures import SIGNATURE_VERSION, shown
from bisect_env.report.model import (
    CombinationReport,
    FailureReport,
    Report,
    labels,
)
from bisect_env.search.numeric import clopper_pearson

# --------------------------------------------------------------------------------------------------
# The table of combinations, short enough for a terminal. Pure.
#
# Neighbours along the culprit axis that say the same become one row; the more rows there would be, the less
# must be the same. What the verdict rests on, the combinations on either side of a boundary, always has a
# row of its own.

ROWS = 40
"""Rows that a table has at most, boundaries apart."""


class Detail(IntEnum):
    """A condition under which neighbouring combinations become one row."""

    ALL = 4
    """Four or more that were not tried, or four or more that only passed."""
    SIDE = 2
    """Two or more on the same side of the verdict, whether tried or not."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        values: Axis to its readable value, or to `first … last`.
        members: The combinations in this row.
    """

    values: Mapping[str, str]
    members: tuple[CombinationReport, ...]

    @property
    def counted(self) -> int:
        """Return the number of trials that are evidence; equal environments count once."""
        return sum(m.counted for m in self._measured())

    @property
    def bad(self) -> int:
        """Return the number of bad trials among the counted ones."""
        return sum(m.bad for m in self._measured())

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the rate."""
        return clopper_pearson(self.bad, self.counted)

    def _measured(self) -> list[CombinationReport]:
        own = [m for m in self.members if m.same_as is None]
        return own or [self.members[0]]


@dataclass(frozen=True, slots=True)
class Rows:
    """A table's rows.

    Attributes:
        shown: In order.
        hidden: Number of combinations that have no row.
    """

    shown: tuple[Row, ...]
    hidden: int = 0


def rows(report: Report) -> Rows:
    """Return the rows of the table, with the culprit axes moving fastest."""
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
"""Rows of the short answer."""


def neighbours(report: Report) -> Rows:
    """Return the combinations next to the boundary, nearest first chosen, shown in the table's order.

    Combinations that were not tried have no row, boundaries apart. Without a verdict those that failed most
    are chosen.
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
    """Return in how many axes two combinations differ."""
    return sum(other.combination.get(axis) != value for axis, value in one.combination.items())


def boundary_cells(report: Report) -> list[Mapping[str, str]]:
    """Return the combinations on which the verdict rests."""
    verdict = report.verdict
    if not report.has_verdict:
        return []
    cells = [verdict.first_bad, verdict.last_good]
    for boundary in verdict.boundaries:
        cells += [boundary.bad, boundary.good]
    return [cell for cell in cells if cell]


def columns(report: Report) -> list[str]:
    """Return the axes to show as columns: those with several values, or all if none has."""
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
    """Return what neighbours must share to become one row; None for a row of its own."""
    if not one.is_runnable:
        return (one.status,)
    untried = not one.counted and not one.other and not one.skip
    if detail is Detail.SIDE:
        # Without a verdict there are no sides, and what failed is told from what passed.
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
    """Return whether exactly one axis varies within a run, so that `a … b` is unambiguous."""
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
# What several formats say in the same words. Pure.

_COMPARISON = re.compile(r" \(v\d+\)$")
REASON_WIDTH = 160
SIGNATURE_WIDTH = 500
"""A signature that was cut could not be copied into a matrix."""
SHORT_ID = 8
_REASONS = 3
"""Reasons of one kind that a short format quotes."""
_STATUS_WORDS = {
    "open": "not ended",
    "finished": "ended",
    "interrupted": "interrupted",
    "failed": "stopped by an error",
}


def named(cell: Mapping[str, str]) -> str:
    """Return a combination as text: `python=3.11 orjson=3.9.11`."""
    return clean(readable(" ".join(f"{axis}={value}" for axis, value in cell.items())))


def summary(report: Report) -> str:
    """Return a line with the study, the number of trials, and the number of environments."""
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
    """Return a sentence on the trials that were reused, "" if there are none."""
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
    """Return target, first bad, last good and the rest of the verdict, each with its title."""
    # The version of the comparison is of use where a signature is copied from: at the failures.
    target = _COMPARISON.sub("", report.target)
    found = [("target", shortened(clean(target), SIGNATURE_WIDTH))] if target else []
    if not report.has_verdict:
        return found
    verdict = report.verdict
    for cell, title in zip((verdict.first_bad, verdict.last_good), report.side_names, strict=True):
        if cell:
            found.append((title, named(cell)))
    for other in verdict.others or ():
        culprits = clean(", ".join(other.culprit_axes))
        found.append(("also bad from", f"{named(other.first_bad or {})} on (culprit {culprits})"))
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
    """Return the versions that the verdict judges with few or no trials; "" if there are none."""
    texts = []
    for one in report.verdict.untested:
        axis, trials = one.axis, one.trials
        first, last = (end.get(axis, "?") for end in (one.first, one.last))
        called = "bad" if one.called_bad else "good"
        what = f"{axis} {first if first == last else f'{first}–{last}'} called {called}"
        chance = "unknown" if one.chance is None else probability(one.chance)
        seen = f"{how_many(trials, 'trial')}, no failure; {chance} chance of missing it"
        texts.append(f"{what} ({seen if trials else 'no trial'})")
    return clean(readable("; ".join(texts)))


def commit(found: CommitReport) -> list[tuple[str, str]]:
    """Return facts about the first bad commit, each with its title."""
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
    """Return the files that a commit changes, one line each, at most `limit` of them."""
    lines = []
    for path, added, removed in found.files:
        size = "binary" if added is None or removed is None else f"+{added} −{removed}"
        lines.append(f"{shortened(clean(path), REASON_WIDTH)}  {size}")
    rest = found.changed - min(limit, len(lines))
    return [*lines[:limit], *([f"… and {rest} more"] if rest > 0 else [])]


def _short(one: NamedCommit) -> str:
    return f"{one.commit[:SHORT]} ({one.subject})" if one.subject else one.commit[:SHORT]


def between(found: Explanation) -> list[tuple[str, str, str]]:
    """Return the environments between last good and first bad: moved packages, bad trials, and interval."""
    lines = []
    for one in sorted(found.intermediates, key=lambda one: (len(one.moved), one.moved)):
        names = clean(", ".join(found.changes[i].name for i in one.moved if i < len(found.changes)))
        moved = "everything" if len(one.moved) == len(found.changes) else names or "nothing"
        lines.append((moved, f"{one.bad} of {one.trials}", interval(*one.interval)))
    return lines


def alternatives(report: Report) -> list[tuple[str, str]]:
    """Return other possible answers with their probabilities; empty for a confirmed verdict."""
    found = []
    for candidate in report.verdict.candidates[1:4] if report.verdict.status != "confirmed" else ():
        chance, bad = candidate.probability, candidate.first_bad
        if not chance or chance < 0.01:
            continue
        what = f"{report.side_names[0]} {named(bad)}" if bad else candidate.kind or "another answer"
        culprits = ", ".join(candidate.culprit_axes)
        text = what + (f" (culprit {clean(culprits)})" if culprits else "")
        found.append((probability(chance), text))
    return found


def rate(row: Row) -> str:
    """Return the rate of a row's counted trials, with the interval; "" if it has none."""
    if not row.counted:
        return ""
    return f"{percent(row.bad / row.counted)} ({interval(*row.interval)})"


def note(row: Row, report: Report) -> str:
    """Return further remarks on a row: its label by the verdict and the combinations in it."""
    first = row.members[0]
    parts = []
    if not first.is_runnable:
        parts.append(first.status)
    else:
        untried = "not tried" if not any(m.other or m.skip for m in row.members) else "nothing counted"
        told = "" if row.counted else untried
        parts.append(f"{first.verdict} ({told})" if first.verdict and told else first.verdict or told)
    if other := sum(m.other for m in row.members if m.same_as is None):
        parts.append(f"{other} failed otherwise")
    if len(row.members) > 1:
        parts.append(f"{len(row.members)} combinations")
    elif first.same_as:
        differing = {a: v for a, v in first.same_as.items() if first.combination.get(a) != v}
        parts.append(f"same environment as {named(differing)}")
    if tag := side_of(first, report):
        parts.append(f"← {tag}")
    return ", ".join(part for part in parts if part)


def side_of(one: CombinationReport, report: Report) -> str:
    """Return `first bad` or `last good` (of a fix `last bad` or `first good`) if it is one, else ""."""
    if not report.has_verdict:
        return ""
    sides = (report.verdict.first_bad, report.verdict.last_good)
    tags = zip(report.side_names, sides, strict=True)
    return next((name for name, cell in tags if cell == one.combination), "")


def left_out(report: Report) -> list[tuple[str, str, str]]:
    """Return combinations that could not be tried: some per status with reasons, then how many more."""
    groups: dict[tuple[str, str], list[CombinationReport]] = {}
    for one in report.combinations:
        if not one.is_runnable:
            # What is the same of one commit as of another is one reason.
            said = one.reason
            for value in one.combination.values():
                said = said.replace(value[:SHORT], "") if is_commit(value) else said
            groups.setdefault((one.status, said), []).append(one)
    shown: dict[str, int] = {}
    lines = []
    for (status, _), members in groups.items():
        reason = shortened(clean(members[0].reason), REASON_WIDTH)
        shown[status] = shown.get(status, 0) + 1
        if shown[status] <= _REASONS:
            where = and_more([named(one.combination) for one in members], 1)
            lines.append((status, where, reason or "no reason given"))
    for status, number in shown.items():
        if number > _REASONS:
            lines.append((status, "", how_many(number - _REASONS, "more reason")))
    return lines


def described(failure: FailureReport) -> str:
    """Return a failure's signature as a matrix names it, or its outcome."""
    text = shown(failure.signature).removesuffix(f" (v{SIGNATURE_VERSION})")
    return shortened(clean(text or failure.outcome), SIGNATURE_WIDTH)


def change(one: PackageChange) -> tuple[str, str, str, str]:
    """Return name, old and new version of a changed package, and changes that versions do not show."""
    old, new = one.before, one.after
    told = []
    if old is not None and new is not None:
        if old.manager != new.manager:
            told.append(f"{old.manager or 'interpreter'} → {new.manager or 'interpreter'}")
        if old.source != new.source:
            told.append(f"{old.source} → {new.source}")
        elif one.kind == "rebuilt" and new.url.startswith("git+"):
            told.append("built from another commit")
        elif one.kind == "rebuilt":
            told.append(f"same version, another archive ({old.sha256[:12]} → {new.sha256[:12]})")
    elif (only := new or old) is not None:
        told.append(" ".join(word for word in (one.kind, only.source and f"({only.source})") if word))
    return clean(one.name), _version(old), _version(new), clean(", ".join(told))


def _version(state: PackageState | None) -> str:
    return "—" if state is None else clean(state.label)


def trace(report: Report) -> str:
    """Return the answer's probability after some numbers of trials; "" if no trial was counted."""
    points = report.posterior.points
    if not points or not report.posterior.answers:
        return ""
    chosen = [points[i] for i in sorted({round(k * (len(points) - 1) / 5) for k in range(6)})]
    told = ", ".join(f"{probability(p.probabilities[0])} after {p.trials}" for p in chosen)
    return f"{clean(report.posterior.answers[0].label)}: probability {told} trials"


def timing(report: Report) -> str:
    """Return how long trials and builds took, and where; "" if nothing ran."""
    line = report.timeline
    if not line.trials and not line.builds:
        return ""
    end = max([t.start + t.seconds for t in line.trials] + [b.start + b.seconds for b in line.builds])
    hosts = {t.host for t in line.trials if t.host}
    workers = {(t.host, t.worker) for t in line.trials if t.worker}
    parts = [f"within {duration(end)}"]
    if workers:
        parts[0] += f", by {how_many(len(workers), 'worker')} on {how_many(len(hosts), 'host')}"
    if line.builds:
        # One that failed was tried again.
        made = [b.lock for b in line.builds if not b.failed]
        failed = len({b.lock for b in line.builds}.difference(made))
        built = f"{how_many(len(made), 'environment')} built in "
        built += duration(sum(b.seconds for b in line.builds))
        parts.append(built + (f", {failed} could not be built" if failed else ""))
    return "; ".join(parts)


def machines(report: Report) -> list[str]:
    """Return the classes of machines on which trials ran."""
    return [
        clean(" ".join(part for part in (m.cpu, m.gpu_model, m.driver and f"driver {m.driver}") if part))
        for m in report.machines
    ]


# --------------------------------------------------------------------------------------------------
# The compatibility table, for a page, a bug report or a spreadsheet. Pure.
#
# Heat maps and compatibility tables share one grid: rows and columns are the two axes that matter most, and
# each combination of the others has a table of its own. A combination that was not tried itself stands in
# brackets.

WORDS = {"good": "works", "bad": "fails", "": "?", "out": "-"}
MARKS = {"good": "✓", "bad": "✗", "": "?", "out": "–"}
MOST_SLICES = 30
"""Tables that a report shows."""


@dataclass(frozen=True, slots=True)
class GridSlice:
    """The matrix at one combination of the further axes.

    Attributes:
        fixed: Further axes and their values.
        rows: For each value of the row axis the combination at each value of the column axis, or None.
    """

    fixed: Mapping[str, str]
    rows: tuple[tuple[CombinationReport | None, ...], ...]

    @property
    def members(self) -> list[CombinationReport]:
        """Return the combinations of the slice."""
        return [one for row in self.rows for one in row if one is not None]


@dataclass(frozen=True, slots=True)
class MatrixGrid:
    """The matrix as tables of two axes.

    Attributes:
        across: Axis of the columns.
        down: Axis of the rows; None if there is only one axis.
        further: The other axes.
        slices: One table for each combination of their values.
    """

    across: AxisInfo
    down: AxisInfo | None
    further: tuple[AxisInfo, ...]
    slices: tuple[GridSlice, ...]


def matrix_grid(report: Report) -> MatrixGrid | None:
    """Return the matrix as tables; culprits come first as rows and columns, then the longest axes."""
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
    """Return the compatibility table; None unless the study was to complete one."""
    return None if report.verdict.table is None else matrix_grid(report)


def called(one: CombinationReport | None) -> str:
    """Return what a table calls a combination: `good`, `bad`, `out` (cannot be tried), or "" (not known)."""
    return "out" if one is None or not one.is_runnable else one.verdict or ""


def cell_text(one: CombinationReport | None, marks: Mapping[str, str]) -> str:
    """Return the text of a combination in a compatibility table: `✓`, `(✗)`, `✗ 3/10`."""
    said = called(one)
    if one is None or said not in ("good", "bad"):
        return marks[said]
    if not one.counted:
        return f"({marks[said]})"
    return marks[said] + (f" {one.bad}/{one.counted}" if 0 < one.bad < one.counted else "")


def table_rows(grid: MatrixGrid, one: GridSlice, marks: Mapping[str, str]) -> list[list[str]]:
    """Return a compatibility table as rows of texts, the first one with the names of the columns."""
    across = [clean(value) for value in grid.across.values]
    cells = [[cell_text(cell, marks) for cell in row] for row in one.rows]
    if grid.down is None:
        # One axis alone is read from top to bottom.
        return [[clean(grid.across.name), ""], *map(list, zip(across, cells[0], strict=True))]
    head = f"{clean(grid.down.name)} \\ {clean(grid.across.name)}"
    body = [[clean(value), *row] for value, row in zip(grid.down.values, cells, strict=True)]
    return [[head, *across], *body]


def table_title(grid: MatrixGrid, one: GridSlice) -> str:
    """Return the values at which a table is seen; "" if it is the only one."""
    several = {axis.name for axis in grid.further if len(axis.values) > 1}
    return named({axis: value for axis, value in one.fixed.items() if axis in several})


def table_lines(report: Report) -> Iterator[str]:
    """Yield the tables in plain text."""
    grid = table_grid(report)
    if grid is None:
        return
    for one in grid.slices[:MOST_SLICES]:
        if title := table_title(grid, one):
            yield title
        rows = table_rows(grid, one, WORDS)
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        yield ""
    if len(grid.slices) > MOST_SLICES:
        yield f"… and {len(grid.slices) - MOST_SLICES} more tables"
    yield "(works), (fails): not tried itself, known from others; -: cannot be tried"


def constraints(report: Report) -> list[tuple[str, list[str]]]:
    """Return requirements to paste into a package's metadata, each with the values it applies to."""
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
    """Return lines for the `exclude` of a matrix file that leave out failing combinations."""
    rules = () if report.verdict.compatibility is None else report.verdict.compatibility.exclude
    found = ["exclude:"] if rules else []
    for rule in rules:
        conditions = ", ".join(f"{clean(axis)}: {_quoted(what)}" for axis, what in rule.when.items())
        found.append(f"  - {{when: {{{conditions}}}, why: found failing by bisect-env}}")
    return found


def _quoted(what: str | Sequence[str]) -> str:
    if isinstance(what, str):
        return "'" + clean(what).replace("'", "''") + "'"
    return f"[{', '.join(_quoted(one) for one in what)}]"


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
