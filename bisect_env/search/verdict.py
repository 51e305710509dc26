"""The answer as data, made from a class of hypotheses: first bad, last good, culprit axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index
from bisect_env.search.families import FloatArray
from bisect_env.search.goodness_of_fit import Unexplained
from bisect_env.search.space import Hypothesis

# Bad cells that are compared with all good ones where no boundary can be run.
_PAIRED = 500


class Status(StrEnum):
    """A level of certainty of an answer."""

    CONFIRMED = "confirmed"
    """The stated confidence is reached, whether bad combinations share a rate or not, and both sides of
    the boundary were tried."""
    LIKELY = "likely"
    """One answer holds more than half of the posterior, but one of the conditions above is missing, or no
    two combinations that can be run show which axis is to blame."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A bad cell and its good neighbour along one culprit axis.

    Attributes:
        axis: Position of the axis.
        bad: The bad cell.
        good: The good cell; the two differ on `axis` alone.
        between: Cells between them that could not be tried.
    """

    axis: int
    bad: Index
    good: Index
    between: tuple[Index, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one class of hypotheses.

    Attributes:
        hypothesis: The hypothesis that represents the class.
        boundaries: One per culprit axis that has a feasible boundary; if a history changes more often than
            the axis's direction allows, one per change.
        first_bad: The bad cell of the boundary, None when nothing or everything is bad. Where no boundary can
            be run, the bad and the good cell that are nearest to each other.
        last_good: Its good neighbour.
        probability: Posterior of the class.
    """

    hypothesis: Hypothesis
    boundaries: tuple[Boundary, ...]
    first_bad: Index | None
    last_good: Index | None
    probability: float

    @property
    def culprits(self) -> tuple[int, ...]:
        """Return the axes whose value at `first_bad` causes the failure.

        For *all of*, these are all axes that matter. For *any of*, each axis that matters makes
        combinations bad by itself; only the axis between `first_bad` and `last_good` is returned, and the
        others have boundaries of their own. Without any boundary, these are the axes among which the
        trials cannot decide.
        """
        if (
            (self.hypothesis.kind in ("all", "frontier", "table") and self.boundaries)
            or self.first_bad is None
            or self.last_good is None
        ):
            return self.hypothesis.culprits
        pairs = enumerate(zip(self.first_bad, self.last_good, strict=True))
        return tuple(axis for axis, (bad, good) in pairs if bad != good)


@dataclass(frozen=True, slots=True)
class UntestedInterval:
    """An interval of combinations along one axis that an answer labels with too few trials to show it.

    Attributes:
        axis: Position of the axis.
        first: The lowest combination.
        last: The highest combination; the two differ on `axis` alone.
        called_bad: Whether the answer calls the combinations bad.
        length: Number of combinations, without those that cannot be run.
        trials: Counted trials there, none of which failed if they are called bad.
        chance: Probability that so many trials all pass although the combinations are bad.
    """

    axis: int
    first: Index
    last: Index
    called_bad: bool
    length: int
    trials: int
    chance: float


@dataclass(frozen=True, slots=True)
class Cleared:
    """The failure rate that the trials of a last good combination exclude.

    Attributes:
        index: The combination.
        hits: Trials that showed the target.
        trials: Counted trials.
        below: Upper bound of its failure rate, at the stated confidence.
        wanted: Trials still needed to exclude the requested rate, 0 when done.
    """

    index: Index
    hits: int
    trials: int
    below: float
    wanted: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of the answer after some trials.

    Attributes:
        status: How sure it is.
        reason: One sentence: why this status.
        best: The most probable answer.
        candidates: Answers in order of probability that together hold the stated confidence (at most ten).
        sharing: Posterior of `best` if all bad combinations have one rate.
        differing: Posterior of `best` if their rates differ.
        bad_rate: Posterior mean of the target rate of bad combinations.
        background: Posterior mean of the target rate of good ones.
        ends_wrong: Stated ends that turned out otherwise ("good" and "bad"), empty normally.
        expected_left: Estimate of trials still needed, 0 when done.
        expected_environments: Estimate of environments that are still to be built, 0 when done.
        against_nothing: Decimal logarithm of the Bayes factor of `best` against *never* and *always bad*.
        against_next: The same against the second answer.
        unexplained: Combinations whose trials `best` does not explain.
        monotone: Whether ordered axes change as their directions say under `best`.
        untested: Per ordered culprit axis the longest interval that `best` takes for granted, if any.
        cleared: Of a confirmed answer the last good combinations, with what their trials exclude.
        certain: Whether every bad combination failed and every good one passed, each time.
    """

    status: Status
    reason: str
    best: Answer
    candidates: tuple[Answer, ...]
    sharing: float
    differing: float
    bad_rate: float
    background: float
    ends_wrong: tuple[str, ...] = ()
    expected_left: float = 0.0
    expected_environments: int = 0
    against_nothing: float | None = None
    against_next: float | None = None
    unexplained: tuple[Unexplained, ...] = ()
    monotone: bool = True
    untested: tuple[UntestedInterval, ...] = ()
    cleared: tuple[Cleared, ...] = ()
    certain: bool = False


def answer(
    hypothesis: Hypothesis,
    probability: float,
    feasible: NDArray[np.bool_],
    hits: FloatArray,
    trials: FloatArray,
    *,
    every_change: bool = False,
) -> Answer:
    """Find where a hypothesis's boundary runs through combinations that can be run.

    One cell is the pivot, the same for all culprit axes if possible: for *all of* the first bad cell,
    whose good neighbours show that every culprit axis is needed; for *any of* the last good cell, whose
    bad neighbours show that each alone suffices. The beginning of a window comes before its end, tried
    pairs before untried ones, then the pair nearest to the low end of every axis.

    Args:
        hypothesis: The hypothesis.
        probability: Probability of its class.
        feasible: Which cells can be run, shape of the lattice.
        hits: Target outcomes of each cell's whole group, same shape.
        trials: Counted trials of each cell's whole group, same shape.
        every_change: Whether each place at which an axis changes is a boundary, instead of one per axis.
    """
    if not hypothesis.culprits:
        return Answer(hypothesis, (), None, None, probability)
    bad = hypothesis.bad_cells()
    pivot_side = 1 if hypothesis.kind == "any" else 0
    by_pivot: dict[Index, list[Boundary]] = {}
    for axis in hypothesis.culprits:
        for pair in boundary_pairs(bad, feasible, axis):
            found = Boundary(axis, *pair, between(axis, *pair))
            by_pivot.setdefault(pair[pivot_side], []).append(found)
    if not by_pivot:
        return Answer(hypothesis, (), *_nearest(bad, feasible), probability)

    def pair_rank(b: Boundary) -> tuple[bool, bool, Index, Index]:
        # Below before above: of a window, its beginning is the first bad version.
        return (b.good > b.bad, trials[b.good] == 0, b.good, b.bad)

    def chosen(pivot: Index) -> list[Boundary]:
        per_axis = {
            axis: min(options, key=pair_rank)
            for axis in hypothesis.culprits
            if (options := [b for b in by_pivot[pivot] if b.axis == axis])
        }
        return list(per_axis.values())

    def pivot_rank(pivot: Index) -> tuple[float, ...]:
        boundaries = chosen(pivot)
        tried = sum(hits[b.bad] > 0 and trials[b.good] > 0 for b in boundaries)
        upward = sum(b.good > b.bad for b in boundaries)
        return (-len(boundaries), upward, -tried, -float(trials[pivot] > 0), sum(pivot), *pivot)

    pivot = min(by_pivot, key=pivot_rank)
    boundaries = chosen(pivot)
    covered = {b.axis for b in boundaries}
    # A culprit axis whose neighbour at the pivot cannot be run shows its boundary elsewhere.
    for axis in hypothesis.culprits:
        others = [b for group in by_pivot.values() for b in group if b.axis == axis]
        if axis not in covered and others:
            boundaries.append(min(others, key=pair_rank))
    boundaries.sort(key=lambda b: b.axis)

    def headline_rank(b: Boundary) -> tuple[bool, int, int]:
        # Of several causes, the one that the longest axis tells most exactly.
        return (pivot not in (b.bad, b.good), -len(hypothesis.sets[b.axis]), b.axis)

    first = min(boundaries, key=headline_rank)
    if every_change:
        boundaries = [
            Boundary(one.axis, *pair, between(one.axis, *pair))
            for one in boundaries
            for pair in boundary_pairs(bad, feasible, one.axis)
            if _same_line(one.axis, pair[0], one.bad)
        ]
    return Answer(hypothesis, tuple(boundaries), first.bad, first.good, probability)


def _nearest(bad: NDArray[np.bool_], feasible: NDArray[np.bool_]) -> tuple[Index | None, Index | None]:
    """Return a bad and a good cell that differ on as few axes as possible, then by as few steps."""
    bad_cells, good_cells = np.argwhere(bad & feasible), np.argwhere(~bad & feasible)
    if not len(bad_cells) or not len(good_cells):
        return None, None
    best: tuple[int, int, Index, Index] | None = None
    for cell in bad_cells[:_PAIRED]:
        apart = np.abs(good_cells - cell)
        differing, steps = np.count_nonzero(apart, axis=1), apart.sum(axis=1)
        nearest = int(np.lexsort((steps, differing))[0])
        pair = tuple(map(int, cell)), tuple(map(int, good_cells[nearest]))
        rank = (int(differing[nearest]), int(steps[nearest]), *pair)
        best = rank if best is None else min(best, rank)
    assert best is not None
    return best[2], best[3]


def _same_line(axis: int, one: Index, other: Index) -> bool:
    return one[:axis] == other[:axis] and one[axis + 1 :] == other[axis + 1 :]


def between(axis: int, bad: Index, good: Index) -> tuple[Index, ...]:
    """Return the cells strictly between two cells that differ on one axis alone."""
    low, high = sorted((bad[axis], good[axis]))
    return tuple((*bad[:axis], i, *bad[axis + 1 :]) for i in range(low + 1, high))


def capacity(p0: float, p1: float) -> float:
    """Return the bits of information of one ideally placed trial when both rates are known.

    The capacity of the binary channel with crossover rates p0 and 1 − p1:
    `C = (p0·h(p1) − p1·h(p0)) / (p1 − p0) + log2(1 + 2^−s)`, `s = (h(p1) − h(p0)) / (p1 − p0)`.
    """
    if p1 - p0 < 1e-9:
        return 0.0

    def h(p: float) -> float:
        return 0.0 if p <= 0 or p >= 1 else float(-p * np.log2(p) - (1 - p) * np.log2(1 - p))

    s = (h(p1) - h(p0)) / (p1 - p0)
    return float((p0 * h(p1) - p1 * h(p0)) / (p1 - p0) + np.log2(1 + 2.0 ** (-s)))


def entropy_bits(masses: Sequence[float] | FloatArray) -> float:
    """Return the entropy of a distribution in bits."""
    p = np.asarray(masses, dtype=np.float64)
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum())


def boundary_pairs(
    bad: NDArray[np.bool_], feasible: NDArray[np.bool_], axis: int
) -> list[tuple[Index, Index]]:
    """Return pairs (bad, good) of feasible cells that are neighbours along one axis.

    Args:
        bad: Which cells a hypothesis calls bad, shape of the lattice.
        feasible: Which cells can be run, shape of the lattice.
        axis: The axis along which the two differ.

    Returns:
        Pairs with nothing but infeasible cells in between, in row-major order of the line they lie on.
    """
    values, can_run = np.moveaxis(bad, axis, -1), np.moveaxis(feasible, axis, -1)
    reached = np.maximum.accumulate(np.where(can_run, np.arange(can_run.shape[-1]), -1), axis=-1)
    # Where each cell's nearest feasible neighbour below lies; -1 if there is none.
    below = np.concatenate([np.full_like(reached[..., :1], -1), reached[..., :-1]], axis=-1)
    differs = values != np.take_along_axis(values, np.maximum(below, 0), axis=-1)
    pairs: list[tuple[Index, Index]] = []
    for place in np.argwhere(can_run & (below >= 0) & differs):
        *rest, high = (int(i) for i in place)
        low = int(below[tuple(place)])
        here, there = ((*rest[:axis], position, *rest[axis:]) for position in (low, high))
        pairs.append((there, here) if bad[there] else (here, there))
    return pairs
