"""The table of combinations, short enough for a terminal. Pure.

Neighbours along the culprit axis that say the same become one row; the more rows there would be, the less
must be the same. What the verdict rests on, the combinations on either side of a boundary, always has a row
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from bisect_env.report.model import CombinationReport, Report
from bisect_env.search.intervals import clopper_pearson

ROWS = 40
"""Rows that a table has at most, boundaries apart."""


class Detail(IntEnum):
    """How much neighbours must have in common to become one row."""

    ALL = 4
    """Four or more that were not tried, or four or more that only passed."""
    SIDE = 2
    """Two or more on the same side of the verdict, whether tried or not."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        values: Axis to its value, or to `first … last`.
        members: The combinations that it stands for.
    """

    values: Mapping[str, str]
    members: tuple[CombinationReport, ...]

    @property
    def counted(self) -> int:
        """Trials that are evidence; those of equal environments once."""
        return sum(m.counted for m in self._measured())

    @property
    def bad(self) -> int:
        """Of those, bad ones."""
        return sum(m.bad for m in self._measured())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the rate."""
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
    """The rows of the table, with the culprit axes moving fastest."""
    ordered = _ordered(report)
    kept = boundary_cells(report)
    result = _collapsed(ordered, kept, Detail.ALL)
    if len(result) > ROWS:
        result = _collapsed(ordered, kept, Detail.SIDE)
    if len(result) <= ROWS:
        return Rows(tuple(result))

    def worth(row: Row) -> tuple[bool, int, int]:
        return (row.members[0].combination in kept, row.bad, row.counted)

    chosen = {id(row) for row in sorted(result, key=worth, reverse=True)[:ROWS]}
    hidden = sum(len(row.members) for row in result if id(row) not in chosen)
    return Rows(tuple(row for row in result if id(row) in chosen), hidden)


def boundary_cells(report: Report) -> list[Mapping[str, str]]:
    """The combinations on which the verdict rests."""
    verdict = report.verdict
    if not report.has_verdict:
        return []
    cells = [verdict.get("first_bad"), verdict.get("last_good")]
    for boundary in verdict.get("boundaries") or ():
        cells += [boundary.get("bad"), boundary.get("good")]
    return [cell for cell in cells if cell]


def columns(report: Report) -> list[str]:
    """Axes that have something to tell: those with several values."""
    names = [axis.name for axis in report.axes if len(axis.values) > 1]
    return names or [axis.name for axis in report.axes]


def _ordered(report: Report) -> list[CombinationReport]:
    culprits = set(report.verdict.get("culprit_axes") or ())
    position = {axis.name: {value: i for i, value in enumerate(axis.values)} for axis in report.axes}
    slow = [axis.name for axis in report.axes if axis.name not in culprits]
    fast = [axis.name for axis in report.axes if axis.name in culprits]

    def key(one: CombinationReport) -> list[int]:
        return [position[axis].get(one.combination.get(axis, ""), -1) for axis in (*slow, *fast)]

    return sorted(report.combinations, key=key)


def _kind(one: CombinationReport, detail: Detail) -> tuple[str, ...] | None:
    """What neighbours must share to become one row; None for a row of its own."""
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
    ordered: Sequence[CombinationReport], kept: Sequence[Mapping[str, str]], detail: Detail
) -> list[Row]:
    result: list[Row] = []
    run: list[CombinationReport] = []
    kind: tuple[str, ...] | None = None
    for one in ordered:
        here = None if one.combination in kept else _kind(one, detail)
        if run and (here is None or here != kind or not _is_line([*run, one])):
            result += _rows_of(run, detail)
            run = []
        run.append(one)
        kind = here
    return result + _rows_of(run, detail)


def _is_line(run: Sequence[CombinationReport]) -> bool:
    """Whether one axis alone moves: `a … b` would else stand for combinations that nobody reads in it."""
    first, second = run[0].combination, run[1].combination
    moved = {axis for axis, value in first.items() if second.get(axis) != value}
    last = run[-1].combination
    return len(moved) == 1 and all(
        last.get(axis) == value for axis, value in first.items() if axis not in moved
    )


def _rows_of(run: Sequence[CombinationReport], detail: Detail) -> list[Row]:
    if len(run) < detail:
        return [Row(one.combination, (one,)) for one in run]
    first, last = run[0].combination, run[-1].combination
    values = {
        axis: value if value == last[axis] else f"{value} … {last[axis]}" for axis, value in first.items()
    }
    return [Row(values, tuple(run))]
