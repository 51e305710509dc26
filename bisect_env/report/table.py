"""The table of combinations, short enough for a terminal. Pure.

Neighbours along the culprit axis that say the same become one row. What the verdict rests on, the
combinations on either side of a boundary, always has a row of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bisect_env.report.model import CombinationReport, Report
from bisect_env.search.intervals import clopper_pearson

COLLAPSE = 4
"""Neighbours that say the same become one row from this many on."""
MANY_ROWS = 40
"""With more rows than this, neighbours that fail alike become one row too."""


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


def rows(report: Report) -> list[Row]:
    """The rows of the table, with the culprit axes moving fastest."""
    ordered = _ordered(report)
    kept = boundary_cells(report)
    short = _collapsed(ordered, kept, failing_too=False)
    return short if len(short) <= MANY_ROWS else _collapsed(ordered, kept, failing_too=True)


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


def _kind(one: CombinationReport, *, failing_too: bool) -> tuple[str, ...] | None:
    """What neighbours must share to become one row; None for a row of its own."""
    if not one.is_runnable:
        return (one.status,)
    if not one.counted and not one.other and not one.skip:
        return ("not tried", str(one.verdict))
    if one.bad == 0 and not one.other and one.verdict != "bad":
        return ("good", str(one.verdict))
    return ("failing", str(one.verdict)) if failing_too else None


def _collapsed(
    ordered: Sequence[CombinationReport], kept: Sequence[Mapping[str, str]], *, failing_too: bool
) -> list[Row]:
    result: list[Row] = []
    run: list[CombinationReport] = []
    kind: tuple[str, ...] | None = None
    for one in ordered:
        here = None if one.combination in kept else _kind(one, failing_too=failing_too)
        if run and (here is None or here != kind or _axes_moved(run[0], one) > 1):
            result += _rows_of(run)
            run = []
        run.append(one)
        kind = here
    return result + _rows_of(run)


def _axes_moved(a: CombinationReport, b: CombinationReport) -> int:
    return sum(a.combination[axis] != b.combination.get(axis) for axis in a.combination)


def _rows_of(run: Sequence[CombinationReport]) -> list[Row]:
    if len(run) < COLLAPSE:
        return [Row(one.combination, (one,)) for one in run]
    first, last = run[0].combination, run[-1].combination
    values = {
        axis: value if value == last[axis] else f"{value} … {last[axis]}" for axis, value in first.items()
    }
    return [Row(values, tuple(run))]
