"""Find versions that an answer labels although they had few trials or none. Pure.

An answer about an ordered axis rests on trials at its boundary. Far from the boundary, whole intervals of
versions are called good or bad only because failures seldom come and go along an axis. Values of an axis
without order say nothing about each other: each of them is an interval of its own there. Axes that the answer
does not blame are called unimportant at all their values. On the lines through the boundary, this module
returns:

* *checks*: combinations to try. These are combinations whose few trials contradict the answer, and one
  combination of each interval that is longer than a quarter of the axis (on an axis without order: of each)
  and contains no combination with enough trials: the end of the axis if the interval reaches it, else the
  middle. If failures are so rare
  that a check takes more than `_MOST_TRIALS`, only ends are tried, that often. If the middle cannot be run,
  the interval is divided into the parts beside it, at most `_GAPS` times. On axes that the answer does not
  blame, only certain failures are checked, because each value costs an environment.
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
        counts: (failures, trials) of each combination. Along an axis that the answer does not blame, the
            trials of all combinations count that have the same value on it, and those of `cells` on the axes
            that it blames.
    """

    axis: int
    cells: tuple[Index, ...]
    called_bad: bool
    ends: tuple[Index, Index]
    counts: tuple[tuple[int, int], ...]


def passes(bad_rate: float) -> int | None:
    """Return after how many passes a combination counts as good; None if failures are too rare.

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


def table_checks(best: Answer, grid: Grid, tallies: Tallies) -> list[Index]:
    """Return the combinations of a lattice to try, one trial each, before an answer about certain failures.

    They lie on the lines through the boundary, in intervals without a trial that are longer than a quarter of
    their axis. The axes that the answer does not blame are moved all at once, so that the number of trials
    does not grow with the number of axes.

    Args:
        best: The answer.
        grid: The lattice.
        tallies: The counts, and which combinations can be run.
    """
    on_lines = [_middle(run, grid) for run in _runs(best, grid, tallies)]
    found = [cell for cell in on_lines if cell is not None]
    for side, runs in _runs_beside(best, grid, tallies):
        moved = {run.axis: cell for run in runs if (cell := _middle(run, grid)) is not None}
        together = tuple(moved.get(axis, side)[axis] for axis in range(len(side)))
        found += [together] if tallies.can_run(together) else moved.values()
    return found


def _middle(run: _Run, grid: Grid) -> Index | None:
    """Return the middle of the longest interval of a run without a trial, or None if that is short."""
    most = 0 if _is_unordered(grid, run.axis) else _LONG * grid.shape[run.axis]
    pairs = zip(run.cells, run.counts, strict=True)
    parts = itertools.groupby(pairs, lambda pair: pair[1][1] > 0)
    untried = [[cell for cell, _ in part] for is_tried, part in parts if not is_tried]
    longest = max(untried, key=len, default=[])
    return longest[len(longest) // 2] if len(longest) > most else None


def untested_intervals(
    best: Answer, grid: Grid, tallies: Tallies, bad_rate: float
) -> tuple[UntestedInterval, ...]:
    """Return, for each axis that the answer blames, the longest interval that was tried too little.

    The answer labels the combinations of an interval, but their few trials do not show that the label is
    right. Of an axis without order, each such value is returned. Of an axis that the answer does not blame,
    all such intervals on both sides of the boundary are returned.

    Args:
        best: The answer.
        grid: The lattice.
        tallies: The counts, and which combinations can be run.
        bad_rate: Failure rate of bad combinations.
    """
    if best.hypothesis.kind == "pair":
        # Only the two combinations of the boundary are called good or bad.
        return ()
    found: dict[tuple[int, ...], UntestedInterval] = {}
    for run in _runs(best, grid, tallies):
        key = (run.axis, *run.cells[0]) if _is_unordered(grid, run.axis) else (run.axis,)
        for one in _hardly_tried(run, bad_rate):
            before = found.get(key)
            if before is None or (one.length, -one.trials) > (before.length, -before.trials):
                found[key] = one
    for run in itertools.chain.from_iterable(runs for _, runs in _runs_beside(best, grid, tallies)):
        end = -1
        for one in _hardly_tried(run, bad_rate):
            if one.first[run.axis] > end:
                end = one.last[run.axis]
                found[run.axis, *one.first] = one
    return tuple(found[key] for key in sorted(found))


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
        line = [cell for cell in line if tallies.is_known(cell)]
        for is_bad, cells in itertools.groupby(line, best.hypothesis.is_bad):
            yield from _divided(axis, [(cell, tallies.counts(cell)) for cell in cells], is_bad, line, grid)


def _runs_beside(best: Answer, grid: Grid, tallies: Tallies) -> Iterator[tuple[Index, list[_Run]]]:
    """Yield each side of each boundary, with its runs along the axes that the answer does not blame."""
    culprits = sorted(best.hypothesis.culprits)
    others = [axis for axis, size in enumerate(grid.shape) if size > 1 and axis not in culprits]
    sides = {b.good: False for b in best.boundaries} | {b.bad: True for b in best.boundaries}
    for side, is_bad in sides.items():
        sums: dict[tuple[int, int], tuple[int, int]] = {}
        for cell, (hits, trials) in tallies.per_group.items():
            if all(cell[axis] == side[axis] for axis in culprits):
                for axis in others:
                    before = sums.get((axis, cell[axis]), (0, 0))
                    sums[axis, cell[axis]] = (before[0] + hits, before[1] + trials)
        runs: list[_Run] = []
        for axis in others:
            line = [(*side[:axis], i, *side[axis + 1 :]) for i in range(grid.shape[axis])]
            line = [cell for cell in line if tallies.is_known(cell)]
            counted = [(cell, sums.get((axis, cell[axis]), (0, 0))) for cell in line]
            runs += _divided(axis, counted, is_bad, line, grid)
        yield side, runs


def _divided(
    axis: int,
    counted: Sequence[tuple[Index, tuple[int, int]]],
    is_bad: bool,
    line: Sequence[Index],
    grid: Grid,
) -> Iterator[_Run]:
    """Yield combinations with equal labels as one run, or on an axis without order each as its own run.

    Args:
        axis: Axis along which the line runs.
        counted: The combinations with their counts, at least one.
        is_bad: Their label.
        line: All combinations of the line that can be run.
        grid: The lattice.
    """
    if _is_unordered(grid, axis):
        yield from (_Run(axis, (cell,), is_bad, (cell, cell), (counts,)) for cell, counts in counted)
    else:
        cells, counts = zip(*counted, strict=True)
        yield _Run(axis, cells, is_bad, (line[0], line[-1]), counts)


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


def _hardly_tried(run: _Run, bad_rate: float) -> Iterator[UntestedInterval]:
    """Yield intervals of `run` with too few trials to show whether their combinations fail.

    For each start, this is the longest interval whose trials would all pass with a probability above `MISS`
    if its combinations failed at `bad_rate`.
    """
    end = total = 0
    for start in range(len(run.cells)):
        if end < start:
            end, total = start, 0
        while end < len(run.cells):
            hits, trials = run.counts[end]
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
            total -= run.counts[start][1]
