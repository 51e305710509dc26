"""Finds versions that an answer covers and that were hardly tried, to check or to admit them. Pure.

An answer about an ordered axis rests on trials at its boundary. Far from it, whole intervals of versions are
called good or bad because histories seldom turn back. Along each culprit axis, on the line through the
boundary:

* *checks*: combinations whose few trials say otherwise, and the middle of each interval longer than a quarter
  of the axis without one combination that was tried enough, as long as that is cheap. Where nothing can be
  learnt in the middle, its neighbours are seldom better: the middle of what is left on one side comes next,
  `_GAPS` times at most;
* *untested*: the longest interval whose trials would all have passed with a probability above
  `MISS` if its combinations failed as often as bad ones do, `(1 − r)^n`. Called good, it may hide a window
  that fails; called bad and without a failure, it may hide one that does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.search.stopping import MISS, clean_trials
from bisect_env.search.verdict import Answer, UntestedInterval

_MOST_TRIALS = 6
"""Passes that a check may ask for; rarer failures make it too dear."""
_LONG = 0.25
"""Share of an axis that is left unchecked."""
_LEAST = 2
"""On short axes so many combinations are."""
_GAPS = 2
"""Places in an interval of which nothing can be learnt, beyond which none of its short parts is looked at."""

Tally = Callable[[Index], tuple[int, int]]
"""Hits and trials of a combination, those of its whole group."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of neighbouring runnable combinations on one line that an answer labels alike."""

    axis: int
    cells: tuple[Index, ...]
    called_bad: bool


def passes(bad_rate: float) -> int | None:
    """Return after how many passes a check is complete; None if failures are too rare for checks.

    Args:
        bad_rate: Typical target rate of bad combinations.
    """
    enough = clean_trials(bad_rate)
    return enough if enough <= _MOST_TRIALS else None


def checks(
    best: Answer, grid: Grid, can_run: NDArray[np.bool_], tally: Tally, bad_rate: float
) -> list[tuple[Index, int]]:
    """Return combinations to try before an answer is confirmed, with the number of trials of each.

    Args:
        best: The answer.
        grid: The lattice.
        can_run: Which combinations can be run, shape of the lattice.
        tally: Hits and trials of a combination.
        bad_rate: Typical target rate of bad combinations.

    Returns:
        First combinations whose trials contradict the answer, then those of the longest untested intervals;
        empty where failures are rare. Each check halves its interval, so that an axis needs three at most.
    """
    enough = passes(bad_rate)
    if enough is None:
        return []
    runs = list(_runs(best, grid, can_run))
    strange = [
        (cell, needed)
        for run in runs
        for cell in run.cells
        if tally(cell)[1] < (needed := _if_strange(tally(cell), run.called_bad, enough))
    ]
    found = []
    for run in runs:
        most = max(_LEAST, _LONG * grid.shape[run.axis])
        for interval in _untested(run, lambda cell, bad: _is_known(tally(cell), bad, enough)):
            parts = _without_gaps(interval, run.axis)
            longest = max(parts, key=len)
            if len(longest) > most or (len(interval) > most and len(parts) <= _GAPS + 1):
                found.append((len(interval), longest[len(longest) // 2]))
    longest_first = sorted(found, key=lambda one: (-one[0], one[1]))
    return list(dict.fromkeys([*strange, *((cell, enough) for _, cell in longest_first)]))


def untested_intervals(
    best: Answer, grid: Grid, can_run: NDArray[np.bool_], tally: Tally, bad_rate: float
) -> tuple[UntestedInterval, ...]:
    """Return, for each ordered culprit axis, the longest interval that an answer labels without trials.

    Args:
        best: The answer.
        grid: The lattice.
        can_run: Which combinations can be run, shape of the grid.
        tally: Hits and trials of a combination.
        bad_rate: How often bad combinations fail.
    """
    longest: dict[int, UntestedInterval] = {}
    for run in _runs(best, grid, can_run):
        for one in _hardly_tried(run, tally, bad_rate):
            before = longest.get(run.axis)
            if before is None or (one.length, -one.trials) > (before.length, -before.trials):
                longest[run.axis] = one
    return tuple(longest[axis] for axis in sorted(longest))


def _runs(best: Answer, grid: Grid, can_run: NDArray[np.bool_]) -> Iterator[_Run]:
    seen = set()
    for boundary in best.boundaries:
        axis = boundary.axis
        if axis in seen or grid.axes[axis].direction is Direction.UNORDERED:
            continue
        seen.add(axis)
        pivot = boundary.bad
        line = [(*pivot[:axis], i, *pivot[axis + 1 :]) for i in range(grid.shape[axis])]
        cells: list[Index] = []
        was = False
        for cell in (cell for cell in line if can_run[cell]):
            is_bad = best.hypothesis.is_bad(cell)
            if cells and is_bad != was:
                yield _Run(axis, tuple(cells), was)
                cells = []
            cells.append(cell)
            was = is_bad
        yield _Run(axis, tuple(cells), was)


def _if_strange(counts: tuple[int, int], bad: bool, enough: int) -> int:
    """Return how many trials a combination needs if its trials so far contradict the answer, else 0."""
    hits, trials = counts
    if bad:
        return enough if trials and not hits else 0
    return 2 * enough if hits else 0


def _is_known(counts: tuple[int, int], bad: bool, enough: int) -> bool:
    hits, trials = counts
    return (bad and hits > 0) or trials >= enough


def _untested(run: _Run, is_known: Callable[[Index, bool], bool]) -> Iterator[tuple[Index, ...]]:
    """Yield the longest parts of a run that contain no known combination."""
    start = 0
    for place, cell in enumerate(run.cells):
        if is_known(cell, run.called_bad):
            if place > start:
                yield run.cells[start:place]
            start = place + 1
    if start < len(run.cells):
        yield run.cells[start:]


def _without_gaps(interval: Sequence[Index], axis: int) -> list[list[Index]]:
    """Return the parts of an interval between combinations that cannot be run."""
    parts = [[interval[0]]]
    for before, cell in itertools.pairwise(interval):
        if cell[axis] != before[axis] + 1:
            parts.append([])
        parts[-1].append(cell)
    return parts


def _hardly_tried(run: _Run, tally: Tally, bad_rate: float) -> Iterator[UntestedInterval]:
    """Yield, for each start, the longest interval whose trials could all have passed by chance."""
    counts = [tally(cell) for cell in run.cells]
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
