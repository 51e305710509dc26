"""What to check of an answer that stands: its last good side, and a look where nobody looked. Pure.

Regressions often come in two steps: a first release fails in a tenth of runs, the next one always. Whoever
finds the second has seen the first one pass, once or twice. So the last good combinations are tried until
a failure rate is excluded: with y failures in n trials the rates above the end of the one-sided interval

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
    """Which combinations can be run: an array of the shape of the lattice, or what is looked up like one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the lattice."""

    def __getitem__(self, index: Index, /) -> Any:
        """Whether the combination can be run."""


@dataclass(frozen=True, slots=True)
class Check:
    """Trials that are wanted of one combination although the answer stands.

    Attributes:
        cell: The combination.
        wanted: How many trials, from now on.
        why: `first bad`, `last good`, `control`, or `untested` for a look where nobody looked.
    """

    cell: Index
    wanted: int
    why: str


def clean_passes(rate: float, confidence: float) -> int:
    """Passes in a row that exclude a rate, with the one that made the combination the last good."""
    return 1 + math.ceil(math.log(1.0 - sure_of(0, confidence)) / math.log1p(-rate) - 1e-9)


def sure_of(hits: int, confidence: float) -> float:
    """Confidence of the interval after so many failures: the errors of all numbers add up to the stated."""
    return 1.0 - (1.0 - confidence) * share(hits)


def clean_checks(best: Answer, can_run: Runnable, tally: Tally, limits: SearchLimits) -> list[Check]:
    """Trials that the last good combinations still need.

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
    """Of each last good combination that failed the farthest good one on the same line."""
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
    """Trials that the first bad combinations need where nothing but their own failures tells them apart.

    Where the last good combination failed as well, y failures of n at the first bad one have to be no luck at
    its rate r, whichever of all combinations that were tried had that luck:

        P(at least y of n | r) · tried ≤ 1 − confidence

    Args:
        best: The answer, a pair that no rule of all combinations speaks for.
        tally: What was seen.
        limits: The confidence, and how far to go.
        tried: How many combinations were.
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
    """Probability of so many failures or more."""
    k = np.arange(hits, trials + 1)
    ways = math.lgamma(trials + 1) - np.array([math.lgamma(n + 1) + math.lgamma(trials - n + 1) for n in k])
    return float(np.exp(ways + k * math.log(rate) + (trials - k) * math.log1p(-rate)).sum())


def cleared(best: Answer, can_run: Runnable, tally: Tally, limits: SearchLimits) -> tuple[Cleared, ...]:
    """Return what is known of each last good combination.

    Args:
        best: The answer.
        can_run: Which combinations can be run, shape of the lattice.
        tally: What was seen.
        limits: The rate that is to be excluded, and the confidence.
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
    """Return the good side of each boundary, of an island both sides if both were tried; each once."""
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
    """Both ends of every culprit axis, each with each, at the first bad combination on the others."""
    ends = [
        (0, len(best.hypothesis.sets[axis]) - 1) if axis in best.hypothesis.culprits else (place,)
        for axis, place in enumerate(first_bad)
    ]
    return list(itertools.product(*ends))


def _other_ends(best: Answer, grid: Grid) -> list[Index]:
    """Both sides of boundaries at both ends of axes that may change either way and are said not to matter.

    Where such an axis matters, there is a turn that nobody saw: bad at one of its ends, good at the other.
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
    """Per culprit axis its last good value with all others at their bad ends; and the other way round."""
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
