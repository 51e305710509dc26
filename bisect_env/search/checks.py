"""What to check of an answer that stands: its last good side, and a look where nobody looked. Pure.

Regressions often come in two steps: a first release fails in a tenth of runs, the next one always. A search
that finds the second may have seen the first one pass once or twice. So the last good combinations are
tried until a failure rate is excluded: with y failures in n trials the rates above the end of the one-sided
interval

    Beta(y + 1, n − y) at the stated confidence   (Clopper and Pearson; y = 0: 1 − (1 − confidence)^(1/n))

The trial by which the search came to call it good does not count: had it failed, another combination would
stand here. Where a last good combination did fail, a control farther on the good side is tried as often: a
background shows there as well, a first step of the regression does not.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.rate_test import share, upper_bound
from bisect_env.search.untested_intervals import Tally
from bisect_env.search.untested_intervals import checks as interval_checks
from bisect_env.search.verdict import Answer, Cleared

_PATIENCE = 3
"""How many times the passes that would do without a failure are spent on a combination that failed."""


class Runnable(Protocol):
    """An array-like that tells which combinations can be run, in the shape of the lattice."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the lattice."""

    def __getitem__(self, index: Index, /) -> Any:
        """Return whether the combination can be run."""


@dataclass(frozen=True, slots=True)
class Check:
    """Additional trials of one combination that check a standing answer.

    Attributes:
        cell: The combination.
        wanted: How many more trials are wanted.
        why: `first bad`, `last good`, `control`, or `untested` for a combination without a trial.
    """

    cell: Index
    wanted: int
    why: str


def clean_passes(rate: float, confidence: float) -> int:
    """Return the number of passes in a row that exclude a rate, plus the pass that made it the last good."""
    return 1 + math.ceil(math.log(1.0 - sure_of(0, confidence)) / math.log1p(-rate) - 1e-9)


def sure_of(hits: int, confidence: float) -> float:
    """Return the confidence of the interval after `hits` failures.

    The errors over all numbers of failures add up to 1 − `confidence`.
    """
    return 1.0 - (1.0 - confidence) * share(hits)


def clean_checks(best: Answer, can_run: Runnable, tally: Tally, limits: SearchLimits) -> list[Check]:
    """Return the checks that the last good combinations and their controls still need.

    Args:
        best: The answer.
        can_run: Which combinations can be run, shape of the grid.
        tally: Hits and trials of a combination.
        limits: How sure the answer has to be.
    """
    return [
        Check(one.index, one.wanted, "last good")
        for one in cleared(best, can_run, tally, limits)
        if one.wanted
    ] + _controls(best, can_run, tally, limits)


def _controls(best: Answer, can_run: Runnable, tally: Tally, limits: SearchLimits) -> list[Check]:
    """Return a check of the control of each last good combination that failed.

    The control is the farthest good combination on the same line.
    """
    enough = clean_passes(limits.clean_rate, limits.confidence)
    found = []
    for boundary in best.boundaries:
        axis, good = boundary.axis, boundary.good
        if not tally(good)[0]:
            continue
        step = 1 if good[axis] > boundary.bad[axis] else -1
        control, place = good, good[axis] + step
        while 0 <= place < can_run.shape[axis]:
            cell = (*good[:axis], place, *good[axis + 1 :])
            if can_run[cell] and best.hypothesis.is_bad(cell):
                break
            control = cell if can_run[cell] else control
            place += step
        # As often as the other: few passes here would leave open whether good ones fail as well.
        lacking = max(enough, tally(good)[1]) - tally(control)[1]
        if control != good and lacking > 0:
            found.append(Check(control, lacking, "control"))
    return found


def apart_checks(best: Answer, tally: Tally, limits: SearchLimits, tried: int) -> list[Check]:
    """Return checks of first bad combinations that differ from the last good ones only in their failures.

    Where the last good combination failed as well, y failures in n trials of the first bad one must be
    unlikely at the last good one's rate r. The probability is multiplied by the number of combinations
    that were tried:

        P(at least y of n | r) · tried ≤ 1 − confidence

    Args:
        best: The answer: a pair that no rule over all combinations supports.
        tally: Hits and trials of a combination.
        limits: The confidence, and the rate that sets the maximum number of trials.
        tried: How many combinations were tried.
    """
    most = _PATIENCE * clean_passes(limits.clean_rate, limits.confidence)
    found = []
    for boundary in best.boundaries:
        (failed, of), (hits, trials) = tally(boundary.good), tally(boundary.bad)
        if not failed or trials >= most:
            continue
        if _at_least(hits, trials, (failed + 1) / (of + 2)) * tried > 1.0 - limits.confidence:
            found.append(Check(boundary.bad, min(max(trials, 1), most - trials), "first bad"))
    return found


def _at_least(hits: int, trials: int, rate: float) -> float:
    """Return the probability of at least `hits` failures in `trials` at a rate."""
    k = np.arange(hits, trials + 1)
    ways = math.lgamma(trials + 1) - np.array([math.lgamma(n + 1) + math.lgamma(trials - n + 1) for n in k])
    return float(np.exp(ways + k * math.log(rate) + (trials - k) * math.log1p(-rate)).sum())


def cleared(best: Answer, can_run: Runnable, tally: Tally, limits: SearchLimits) -> tuple[Cleared, ...]:
    """Return for each last good combination its counts, the upper bound of its rate and the trials it lacks.

    Args:
        best: The answer.
        can_run: Which combinations can be run, shape of the lattice.
        tally: Hits and trials of a combination.
        limits: The rate to be excluded, and the confidence.
    """
    enough = clean_passes(limits.clean_rate, limits.confidence)
    found = []
    for cell in last_good(best, can_run, tally):
        hits, trials = tally(cell)
        below = upper_bound(hits, max(trials - 1, hits), sure_of(hits, limits.confidence))
        done = below <= limits.clean_rate + 1e-12 or trials >= _PATIENCE * enough
        # Without a failure the number is known; with one, as many again as would do without.
        left = 0 if done else enough - trials if not hits else max(1, _PATIENCE * enough - trials)
        found.append(Cleared(cell, hits, trials, below, max(left, 0 if done else 1)))
    return tuple(found)


def last_good(best: Answer, can_run: Runnable, tally: Tally) -> list[Index]:
    """Return the good side of each boundary, each once; for a bad interval also its other side, if tried."""
    found: dict[Index, None] = {}
    for boundary in best.boundaries:
        found[boundary.good] = None
        axis, pivot = boundary.axis, boundary.bad
        for step in (-1, 1):
            place = pivot[axis] + step
            while 0 <= place < can_run.shape[axis]:
                cell = (*pivot[:axis], place, *pivot[axis + 1 :])
                if can_run[cell] and not best.hypothesis.is_bad(cell):
                    if tally(cell)[1]:
                        found[cell] = None
                    break
                place += step
    return list(found)


def untested_checks(best: Answer, grid: Grid, can_run: NDArray[np.bool_], tally: Tally) -> list[Check]:
    """Return the next look where the answer says most without a trial, if it says much.

    On a single axis that is the middle of its longest untested interval. On several it is, for each culprit
    axis in turn, its last good value at the far end of the others: a corner is good there, a frontier is
    bad beyond one of them. Of an axis that may change either way it is at both ends.

    Args:
        best: The answer.
        grid: The lattice.
        can_run: Which combinations can be run, shape of the grid.
        tally: Hits and trials of a combination.
    """
    if sum(n > 1 for n in grid.shape) == 1:
        found = interval_checks(best, grid, can_run, tally, 1.0)
        return [Check(cell, 1, "untested") for cell, _ in found[:1]]
    if best.hypothesis.kind in ("any", "frontier") and best.first_bad is not None:
        # Where one axis alone should suffice, and where none does: beyond a second frontier it is otherwise.
        ends = [*_mixed_ends(best, best.first_bad), *_other_ends(best, grid)]
        untried = [cell for cell in ends if can_run[cell] and not tally(cell)[1]]
        return [Check(cell, 1, "untested") for cell in untried[:1]]
    if best.hypothesis.kind != "all" or best.first_bad is None:
        return []
    far = [cell for cell in [*_far_cells(best, grid), *_other_ends(best, grid)] if can_run[cell]]
    sides = {cell for b in best.boundaries for cell in (b.bad, b.good)}
    untried = [cell for cell in far if cell not in sides and not tally(cell)[1]]
    return [Check(cell, 1, "untested") for cell in untried[:1]]


def _mixed_ends(best: Answer, first_bad: Index) -> list[Index]:
    """Return all combinations of the two ends of the culprit axes, other axes as at the first bad one."""
    ends = [
        (0, len(best.hypothesis.sets[axis]) - 1) if axis in best.hypothesis.culprits else (place,)
        for axis, place in enumerate(first_bad)
    ]
    return list(itertools.product(*ends))


def _other_ends(best: Answer, grid: Grid) -> list[Index]:
    """Return both sides of each boundary, moved to both ends of every two-way axis called irrelevant.

    If such an axis matters after all, one of its ends is bad and the other good: a change that nobody saw.
    """
    found: dict[Index, None] = {}
    for boundary in best.boundaries:
        for axis, size in enumerate(grid.shape):
            if axis in best.hypothesis.culprits or grid.axes[axis].direction is not Direction.EITHER:
                continue
            for cell, end in itertools.product((boundary.good, boundary.bad), (0, size - 1)):
                found[(*cell[:axis], end, *cell[axis + 1 :])] = None
    return list(found)


def _far_cells(best: Answer, grid: Grid) -> list[Index]:
    """Return, per culprit axis, its last good value with all other axes at their bad ends, and vice versa."""
    assert best.first_bad is not None
    hypothesis = best.hypothesis
    ordered = [i for i, axis in enumerate(grid.axes) if axis.direction is not Direction.UNORDERED]
    bad_end, good_end = list(best.first_bad), list(best.first_bad)
    for axis in ordered:
        inside = np.flatnonzero(hypothesis.sets[axis])
        upward = grid.axes[axis].direction is not Direction.FIXED
        if grid.axes[axis].direction is Direction.EITHER and axis in hypothesis.culprits:
            upward = bool(hypothesis.sets[axis][-1])
        bad_end[axis] = int(inside[-1] if upward else inside[0])
        if axis not in hypothesis.culprits:
            good_end[axis] = int(inside[0] if upward else inside[-1])
    cells = [tuple(good_end)]
    for boundary in best.boundaries:
        far = list(bad_end)
        far[boundary.axis] = boundary.good[boundary.axis]
        cells.append(tuple(far))
    return cells
