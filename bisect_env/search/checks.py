"""Choose trials that check an answer after it was found. Pure.

There are two kinds of check: more trials of the last good combinations, and one trial of untried combinations
far from the boundary.

Regressions often come in two steps: a first release fails in a tenth of runs, the next one always. A search
that finds the second may have seen the first pass once or twice. The last good combinations are therefore
tried until a failure rate (`clean_rate`) is excluded: with y failures in n trials, this is the upper bound of
the one-sided interval

    Beta(y + 1, n − y) at the stated confidence   (Clopper and Pearson; y = 0: 1 − (1 − confidence)^(1/n))

One pass is left out of n: the one by which the search came to call the combination good. If it had failed,
another combination would be the last good one. If a last good combination did fail, *controls* are tried as
often: combinations farther on the good side, and at other values of axes that the answer does not blame. A
background failure occurs there, too, but a first step of the regression does not, nor does a second cause.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.numeric import binomial_at_most, passes_to_exclude
from bisect_env.search.rate_test import share, upper_bound
from bisect_env.search.tallies import Tallies
from bisect_env.search.untested_intervals import checks as interval_checks
from bisect_env.search.untested_intervals import table_checks
from bisect_env.search.verdict import Answer, Cleared, further

_MOST_REPEATS = 3
"""Maximum number of trials of a last good combination that failed, as a multiple of the trials that suffice
without a failure."""


@dataclass(frozen=True, slots=True)
class Check:
    """A request for more trials of one combination, to confirm the answer of the search.

    Attributes:
        cell: The combination.
        wanted: Number of additional trials.
    """

    cell: Index
    wanted: int


def clean_passes(rate: float, confidence: float) -> int:
    """Return how many passes in a row show that a good combination fails less often than `rate`.

    This includes the one pass from which the search concluded that the combination is good.
    """
    return 1 + passes_to_exclude(rate, 1.0 - sure_of(0, confidence))


def sure_of(hits: int, confidence: float) -> float:
    """Return the confidence level to use for the upper bound of a failure rate after `hits` failures.

    The errors (1 − level) for 0, 1, 2, … failures add up to 1 − `confidence`.
    """
    return 1.0 - (1.0 - confidence) * share(hits)


def clean_checks(best: Answer, tallies: Tallies, limits: SearchLimits) -> list[Check]:
    """Return the trials still needed to confirm that the last good combinations are good.

    They run at the last good combinations. If one of these failed, *controls* are tried as well: combinations
    that should be good, too.

    Args:
        best: The answer.
        tallies: The counts, and which combinations can be run.
        limits: The failure rate to exclude (`clean_rate`), and the confidence.
    """
    return [Check(one.index, one.wanted) for one in cleared(best, tallies, limits) if one.wanted] + _controls(
        best, tallies, limits
    )


def _controls(best: Answer, tallies: Tallies, limits: SearchLimits) -> list[Check]:
    """Return trials of further combinations that should be good, for each last good one that failed.

    If those failures are a background, they also occur at these *controls*. There are two such controls: the
    good combination on the same line that is farthest from the boundary, and the last good combination moved
    as far as possible along all axes that the answer does not blame.
    """
    enough = clean_passes(limits.clean_rate, limits.confidence)
    found = []
    for boundary in best.boundaries:
        axis, good = boundary.axis, boundary.good
        if not tallies.counts(good)[0]:
            continue
        step = 1 if good[axis] > boundary.bad[axis] else -1
        beyond = filter(tallies.can_run, further(good, axis, step, len(best.hypothesis.sets[axis])))
        good_side = itertools.takewhile(lambda cell: not best.hypothesis.is_bad(cell), beyond)
        control = [good, *good_side][-1]
        # As many as the last good combination has: few passes would not show whether good ones fail, too.
        wanted = max(enough, tallies.counts(good)[1])
        controls = dict.fromkeys((control, _far_control(good, best, tallies)))
        found += [
            Check(cell, wanted - tallies.counts(cell)[1])
            for cell in controls
            if cell != good and tallies.counts(cell)[1] < wanted
        ]
    return found


def _far_control(good: Index, best: Answer, tallies: Tallies) -> Index:
    """Move a last good combination as far as possible along each axis that the answer does not blame.

    The result is a control: it can be run, and it is good according to the answer.
    """
    cell = good
    for axis, size in enumerate(map(len, best.hypothesis.sets)):
        if axis in best.hypothesis.culprits:
            continue
        for place in sorted(range(size), key=lambda one: -abs(one - good[axis])):
            moved = (*cell[:axis], place, *cell[axis + 1 :])
            if tallies.can_run(moved) and not best.hypothesis.is_bad(moved):
                cell = moved
                break
    return cell


def apart_checks(best: Answer, tallies: Tallies, limits: SearchLimits, tried: int) -> list[Check]:
    """Return trials to show that bad combinations fail more often than their good neighbours.

    Only boundaries whose good combination failed, too, are considered. The y failures in n trials of the bad
    combination must be improbable at the failure rate r of the good one. The probability is multiplied by the
    number of combinations that were tried:

        P(at least y of n | r) · tried ≤ 1 − confidence

    Args:
        best: The answer: a pair of neighbours, because no hypothesis describes all combinations.
        tallies: The counts.
        limits: The confidence, and the rate that determines the maximum number of trials.
        tried: Number of combinations that were tried.
    """
    most = _MOST_REPEATS * clean_passes(limits.clean_rate, limits.confidence)
    found = []
    for boundary in best.boundaries:
        (failed, of), (hits, trials) = tallies.counts(boundary.good), tallies.counts(boundary.bad)
        if not failed or trials >= most:
            continue
        rate = np.array((failed + 1) / (of + 2))
        if float(1.0 - binomial_at_most(hits - 1, trials, rate)) * tried > 1.0 - limits.confidence:
            found.append(Check(boundary.bad, min(max(trials, 1), most - trials)))
    return found


def cleared(best: Answer, tallies: Tallies, limits: SearchLimits) -> tuple[Cleared, ...]:
    """Return which failure rate the trials of each last good combination exclude, and how many are missing.

    Trials are missing until the failure rate `clean_rate` is excluded.

    Args:
        best: The answer.
        tallies: The counts, and which combinations can be run.
        limits: The failure rate to exclude, and the confidence.
    """
    enough = clean_passes(limits.clean_rate, limits.confidence)
    found = []
    for cell in last_good(best, tallies):
        hits, trials = tallies.counts(cell)
        below = upper_bound(hits, max(trials - 1, hits), sure_of(hits, limits.confidence))
        done = below <= limits.clean_rate + 1e-12 or trials >= _MOST_REPEATS * enough
        # After a failure, the maximum number is requested, because the needed number is unknown.
        left = (_MOST_REPEATS * enough if hits else enough) - trials
        found.append(Cleared(cell, hits, trials, below, 0 if done else max(1, left)))
    return tuple(found)


def last_good(best: Answer, tallies: Tallies) -> list[Index]:
    """Return the last good combinations of an answer: the good side of each boundary, without duplicates.

    A bad interval has two good sides; the second one is included only if it was tried.
    """
    found: dict[Index, None] = {}
    for boundary in best.boundaries:
        found[boundary.good] = None
        for step in (-1, 1):
            line = further(boundary.bad, boundary.axis, step, len(best.hypothesis.sets[boundary.axis]))
            good_ones = (c for c in line if tallies.is_known(c) and not best.hypothesis.is_bad(c))
            if (nearest := next(good_ones, None)) is not None and tallies.counts(nearest)[1]:
                found[nearest] = None
    return list(found)


def untested_checks(best: Answer, grid: Grid, tallies: Tallies) -> list[Check]:
    """Choose the next untried combination whose trial could contradict the answer.

    Args:
        best: The answer.
        grid: The lattice.
        tallies: The counts, and which combinations can be run.

    Returns:
        At most one check. On a single axis, the middle of its longest untested interval. On several axes, a
        combination at the far end of the lattice where another kind of answer (a corner instead of a
        frontier, for example) would give another label; then one at another value of an axis that the answer
        does not blame. Empty if nothing is left to check.
    """
    if sum(n > 1 for n in grid.shape) == 1:
        found = interval_checks(best, grid, tallies, 1.0)
        return [Check(cell, 1) for cell, _ in found[:1]]
    if best.hypothesis.kind in ("any", "frontier") and best.first_bad is not None:
        # Cells with the bad value on one culprit axis, or on none: a second frontier would change the label.
        far = _mixed_ends(best, best.first_bad)
    elif best.hypothesis.kind == "all" and best.first_bad is not None:
        far = _far_cells(best, grid)
    else:
        return []
    sides = {cell for b in best.boundaries for cell in (b.bad, b.good)}
    wanted = [*far, *_other_ends(best, grid), *table_checks(best, grid, tallies)]
    untried = [cell for cell in wanted if tallies.can_run(cell) and not tallies.counts(cell)[1]]
    return [Check(cell, 1) for cell in untried if cell not in sides][:1]


def _mixed_ends(best: Answer, first_bad: Index) -> list[Index]:
    """Return the corners that combine the lowest and highest values of all axes that the answer blames.

    All other axes have the value of `first_bad`.
    """
    ends = [
        (0, len(best.hypothesis.sets[axis]) - 1) if axis in best.hypothesis.culprits else (place,)
        for axis, place in enumerate(first_bad)
    ]
    return list(itertools.product(*ends))


def _other_ends(best: Answer, grid: Grid) -> list[Index]:
    """Return combinations that show whether an axis that the answer does not blame matters after all.

    They are the two combinations of each boundary, with one such axis moved to its first or last value. Only
    axes with the direction `EITHER` are moved.
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
    """Return combinations far from the boundary, at which another kind of answer would give another label.

    Bad according to the answer: the axes that it does not blame at their good ends; and all axes at their bad
    ends. Good according to it: for each culprit axis its last good value, with all other axes at their bad
    ends, or with the axes that it does not blame at their good ends. If one of these axes matters, whatever
    its direction, one of these labels is wrong.
    """
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
    cells = [tuple(good_end), tuple(bad_end)]
    for boundary, end in itertools.product(best.boundaries, (bad_end, good_end)):
        far = list(end)
        far[boundary.axis] = boundary.good[boundary.axis]
        cells.append(tuple(far))
    return cells
