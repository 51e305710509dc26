"""Find versions that an answer labels although they had few trials or none. Pure.

An answer about an ordered axis rests on trials at its boundary. Far from the boundary, whole intervals of
versions are called good or bad only because failures seldom come and go along an axis. Values of an axis
without order say nothing about each other: each of them is an interval of its own there. For each culprit
axis, on the line through the boundary, this module returns:

* *checks*: combinations to try. These are combinations whose few trials contradict the answer, and one
  combination of each interval that is longer than a quarter of the axis (on an axis without order: of each)
  and contains no combination with enough trials: the end of the axis if the interval reaches it, else the
  middle. If failures are so rare
  that a check takes more than `_MOST_TRIALS`, only ends are tried, that often. If the middle cannot be run,
  the interval is divided into the parts beside it, at most `_GAPS` times.
* *untested intervals*, to be reported: the longest interval whose trials would all have passed with a
  probability `(1 − r)^n` above `MISS` if its combinations failed as often as bad ones do (rate r, n trials).
  An interval called good may contain a window that fails; one called bad, without a failure, may contain a
  window that passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.search.stopping import MISS, clean_trials
from bisect_env.search.tallies import Tallies
from bisect_env.search.verdict import Answer, UntestedInterval

_MOST_TRIALS = 6
"""Maximum number of trials of a check. If failures are so rare that more are needed, only ends are tried."""
_LONG = 0.25
"""Maximum length of an interval that is not checked, as a share of its axis."""
_LEAST = 2
"""Maximum number of combinations of an interval that is not checked, on short axes."""
_GAPS = 2
"""If an interval is interrupted by more gaps (combinations that cannot be run) than this, its short parts are
left unchecked."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring combinations on one line that an answer calls all good or all bad.

    Without an order, no two values are neighbours.

    Combinations that cannot be run are left out.

    Attributes:
        axis: Axis along which the line runs.
        cells: The combinations, in order.
        called_bad: The label.
        ends: First and last combination of the whole line that can be run.
    """

    axis: int
    cells: tuple[Index, ...]
    called_bad: bool
    ends: tuple[Index, Index]


def passes(bad_rate: float) -> int | None:
    """Return how many passes of a combination complete its check, or None if failures are too rare to check.

    Args:
        bad_rate: Typical failure rate of bad combinations.
    """
    enough = clean_trials(bad_rate)
    return enough if enough <= _MOST_TRIALS else None


def checks(best: Answer, grid: Grid, tallies: Tallies, bad_rate: float) -> list[tuple[Index, int]]:
    """Return combinations to try before an answer is confirmed, with the number of trials each must reach.

    Args:
        best: The answer.
        grid: The lattice.
        tallies: The counts, and which combinations can be run.
        bad_rate: Typical failure rate of bad combinations.

    Returns:
        First the combinations whose trials contradict the answer, then one combination of each long untested
        interval, the longest interval first: the end of the line if the interval reaches it, else the middle.
        Only ends if failures are rare. Each check of a middle halves its interval, so that an axis needs at
        most five.
    """
    enough = passes(bad_rate)
    runs = list(_runs(best, grid, tallies))
    strange = [
        (cell, needed)
        for run in runs
        for cell in run.cells
        if enough is not None
        and tallies.counts(cell)[1] < (needed := _if_strange(tallies.counts(cell), run.called_bad, enough))
    ]
    looks = _MOST_TRIALS if enough is None else enough
    found = []
    for run in runs:
        most = 0 if _is_unordered(grid, run.axis) else max(_LEAST, _LONG * grid.shape[run.axis])
        for is_known, cells in itertools.groupby(
            run.cells, partial(_is_known, tallies, looks, bad=run.called_bad)
        ):
            if is_known:
                continue
            interval = [*cells]
            parts = _without_gaps(interval, run.axis)
            longest = max(parts, key=len)
            if len(longest) > most or (len(interval) > most and len(parts) <= _GAPS + 1):
                ends = [cell for cell in (interval[0], interval[-1]) if cell in run.ends]
                if ends or enough is not None:
                    found.append((len(interval), ends[0] if ends else longest[len(longest) // 2]))
    longest_first = sorted(found, key=lambda one: (-one[0], one[1]))
    return list(dict.fromkeys([*strange, *((cell, looks) for _, cell in longest_first)]))


def untested_intervals(
    best: Answer, grid: Grid, tallies: Tallies, bad_rate: float
) -> tuple[UntestedInterval, ...]:
    """Return, for each axis that the answer blames, the longest interval that was tried too little.

    The answer labels the combinations of an interval, but their few trials do not show that the label is
    right. Of an axis without order, each such value is returned.

    Args:
        best: The answer.
        grid: The lattice.
        tallies: The counts, and which combinations can be run.
        bad_rate: Failure rate of bad combinations.
    """
    longest: dict[tuple[int, ...], UntestedInterval] = {}
    for run in _runs(best, grid, tallies):
        key = (run.axis, *run.cells[0]) if _is_unordered(grid, run.axis) else (run.axis,)
        for one in _hardly_tried(run, tallies, bad_rate):
            before = longest.get(key)
            if before is None or (one.length, -one.trials) > (before.length, -before.trials):
                longest[key] = one
    return tuple(longest[key] for key in sorted(longest))


def _is_unordered(grid: Grid, axis: int) -> bool:
    return grid.axes[axis].direction is Direction.UNORDERED


def _runs(best: Answer, grid: Grid, tallies: Tallies) -> Iterator[_Run]:
    seen = set()
    for boundary in best.boundaries:
        axis = boundary.axis
        if axis in seen:
            continue
        seen.add(axis)
        pivot = boundary.bad
        line = [(*pivot[:axis], i, *pivot[axis + 1 :]) for i in range(grid.shape[axis])]
        line = [cell for cell in line if tallies.can_run(cell)]
        if _is_unordered(grid, axis):
            yield from (_Run(axis, (cell,), best.hypothesis.is_bad(cell), (cell, cell)) for cell in line)
            continue
        for is_bad, cells in itertools.groupby(line, best.hypothesis.is_bad):
            yield _Run(axis, tuple(cells), is_bad, (line[0], line[-1]))


def _if_strange(counts: tuple[int, int], bad: bool, enough: int) -> int:
    """Return how many trials a combination needs because its results contradict the answer, or 0.

    Args:
        counts: Failures and trials of the combination.
        bad: Whether the answer calls it bad.
        enough: Number of passes that complete a check.
    """
    hits, trials = counts
    if bad:
        return enough if trials and not hits else 0
    return 3 * enough if hits else 0


def _is_known(tallies: Tallies, enough: int, cell: Index, *, bad: bool) -> bool:
    hits, trials = tallies.counts(cell)
    return (bad and hits > 0) or trials >= enough


def _without_gaps(interval: Sequence[Index], axis: int) -> list[list[Index]]:
    """Split an interval at combinations that cannot be run, and return the parts."""
    parts = [[interval[0]]]
    for before, cell in itertools.pairwise(interval):
        if cell[axis] != before[axis] + 1:
            parts.append([])
        parts[-1].append(cell)
    return parts


def _hardly_tried(run: _Run, tallies: Tallies, bad_rate: float) -> Iterator[UntestedInterval]:
    """Yield intervals of `run` with too few trials to show whether their combinations fail.

    For each start, this is the longest interval whose trials would all pass with a probability above `MISS`
    if its combinations failed at `bad_rate`.
    """
    counts = [tallies.counts(cell) for cell in run.cells]
    end = total = 0
    for start in range(len(run.cells)):
        if end < start:
            end, total = start, 0
        while end < len(run.cells):
            hits, trials = counts[end]
            if (hits and run.called_bad) or (1.0 - bad_rate) ** (total + trials) <= MISS:
                break
            total += trials
            end += 1
        if end > start:
            yield UntestedInterval(
                axis=run.axis,
                first=run.cells[start],
                last=run.cells[end - 1],
                called_bad=run.called_bad,
                length=end - start,
                trials=total,
                chance=float((1.0 - bad_rate) ** total),
            )
            total -= counts[start][1]
