"""Verdicts and answers as data: first bad and last good combination, culprit axes, probability."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index
from bisect_env.search.families import FloatArray
from bisect_env.search.goodness_of_fit import Unexplained
from bisect_env.search.space import Hypothesis

# Maximum number of bad cells that `nearest` compares with all good ones.
_PAIRED = 500


class Status(StrEnum):
    """How well the trials support a verdict: confirmed, likely, or less."""

    CONFIRMED = "confirmed"
    """The posterior of the answer reaches the stated confidence, both sides of the boundary were tried, and
    each last good combination passed so often that a failure rate of `clean_rate` is excluded there. Of a
    table: the label of each combination reaches the stated confidence."""
    LIKELY = "likely"
    """There is an answer, with more than half of the posterior or with no other that agrees with all trials,
    but one of these conditions is not met: checks were cut short (by time, by `--quick` or by the number of
    trials), or no two runnable combinations show which axis is the culprit."""
    NONE = "none"
    """There is no such answer; also if nothing or everything fails."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A bad combination and its good neighbour along one culprit axis.

    Attributes:
        axis: Position of the axis.
        bad: The bad cell.
        good: The good cell; it differs from `bad` only on `axis`.
    """

    axis: int
    bad: Index
    good: Index

    @property
    def between(self) -> tuple[Index, ...]:
        """Return the cells between the bad and the good cell; none of them could be run."""
        axis, low, high = self.axis, *sorted((self.bad[self.axis], self.good[self.axis]))
        return tuple((*self.bad[:axis], i, *self.bad[axis + 1 :]) for i in range(low + 1, high))


@dataclass(frozen=True, slots=True)
class Answer:
    """One possible answer of a study: a class of hypotheses that agree on all combinations that can be run.

    Attributes:
        hypothesis: The hypothesis that represents the class.
        boundaries: One boundary per culprit axis that has one among runnable cells; if the history changes
            more often than the axis's direction says, one per change.
        first_bad: The bad cell of the main boundary; None if nothing or everything is bad. Without any
            boundary among runnable cells, the nearest pair of a bad and a good cell is used.
        last_good: The good cell of the same boundary.
        probability: Posterior probability of the class.
    """

    hypothesis: Hypothesis
    boundaries: tuple[Boundary, ...]
    first_bad: Index | None
    last_good: Index | None
    probability: float

    @property
    def culprits(self) -> tuple[int, ...]:
        """Return the positions of the axes whose value at `first_bad` causes the failure.

        For *all of*, these are all axes that matter. For *any of*, each axis that matters makes combinations
        bad by itself; only the axis between `first_bad` and `last_good` is returned, and the others have
        boundaries of their own. Without any boundary, these are the axes on which `first_bad` and `last_good`
        differ: the trials cannot decide among them.
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
    """A range of combinations along one axis that an answer labels without enough trials.

    Attributes:
        axis: Position of the axis.
        first: The lowest combination.
        last: The highest combination; it differs from `first` only on `axis`.
        called_bad: Whether the answer calls the combinations bad.
        length: Number of combinations that can be run.
        trials: Number of counted trials there. If the combinations are called bad, none of these failed.
        chance: Probability that this many trials of bad combinations all pass.
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
    """A last good combination, with the lowest failure rate that its trials exclude.

    Attributes:
        index: The combination.
        hits: Number of trials that showed the target failure.
        trials: Number of counted trials.
        below: Upper bound of its failure rate, at the stated confidence.
        wanted: Number of trials still needed to exclude the requested rate, 0 if it is excluded.
    """

    index: Index
    hits: int
    trials: int
    below: float
    wanted: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The most probable answer after some trials, how sure it is, and further measures.

    Attributes:
        status: How sure the answer is.
        reason: The reason for the status, in words.
        best: The most probable answer.
        candidates: The most probable answers, which together have the stated confidence (at most ten).
        sharing: Posterior of `best` if all bad combinations share one failure rate.
        differing: Posterior of `best` if their rates differ.
        bad_rate: Posterior mean of the failure rate of bad combinations.
        background: Posterior mean of the failure rate of good combinations.
        ends_wrong: Names (`good`, `bad`) of the stated ends that are not as stated; normally empty.
        expected_left: Estimated number of trials still needed, 0 if none are.
        expected_environments: Estimated number of environments still to be built.
        against_nothing: Decimal logarithm of the Bayes factor of `best` against *never* and *always bad*;
            None if unknown.
        against_next: Decimal logarithm of the Bayes factor of `best` against the second answer; None if
            unknown.
        unexplained: Combinations whose trials contradict `best`.
        monotone: Whether `best` changes along ordered axes as their directions say.
        untested: For each ordered culprit axis, the longest interval that `best` labels with too few trials.
        cleared: The last good combinations of an answer that stands, with the failure rates that their trials
            exclude.
        certain: Whether every tried combination failed in every trial or passed in every trial.
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
    hits: NDArray[np.int64],
    trials: NDArray[np.int64],
    *,
    every_change: bool = False,
) -> Answer:
    """Build the answer that states a hypothesis and where it changes from good to bad combinations.

    One cell, the pivot, is shared by the boundaries of all culprit axes if possible. For *all of* it is the
    first bad cell, whose good neighbours show that every culprit axis is needed. For *any of* it is the last
    good cell, whose bad neighbours show that each axis alone suffices. Among several possible boundaries, the
    beginning of a window is preferred to its end, then tried cells to untried ones, then cells near the low
    end of every axis.

    Args:
        hypothesis: The hypothesis.
        probability: Posterior probability of its class.
        feasible: True for each cell that can be run, shape of the lattice.
        hits: Hits of each cell's whole group, shape of the lattice.
        trials: Counted trials of each cell's whole group, shape of the lattice.
        every_change: Whether to return a boundary for each change along an axis, instead of one per axis.
    """
    if not hypothesis.culprits:
        return Answer(hypothesis, (), None, None, probability)
    bad = hypothesis.bad_cells()
    pivot_side = 1 if hypothesis.kind == "any" else 0
    by_pivot: dict[Index, list[Boundary]] = {}
    for axis in hypothesis.culprits:
        for pair in boundary_pairs(bad, feasible, axis):
            by_pivot.setdefault(pair[pivot_side], []).append(Boundary(axis, *pair))
    if not by_pivot:
        first_bad, last_good = nearest(bad & feasible, ~bad & feasible) or (None, None)
        return Answer(hypothesis, (), first_bad, last_good, probability)

    def pair_rank(b: Boundary) -> tuple[bool, bool, Index, Index]:
        # The lower side first: the first bad version of a window is its beginning.
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
        # If there are several causes, use the one on the longest axis, which has the finest steps.
        return (pivot not in (b.bad, b.good), -len(hypothesis.sets[b.axis]), b.axis)

    first = min(boundaries, key=headline_rank)
    if every_change:
        boundaries = [
            Boundary(one.axis, *pair)
            for one in boundaries
            for pair in boundary_pairs(bad, feasible, one.axis)
            if _same_line(one.axis, pair[0], one.bad)
        ]
    return Answer(hypothesis, tuple(boundaries), first.bad, first.good, probability)


def nearest(bad: NDArray[np.bool_], good: NDArray[np.bool_]) -> tuple[Index, Index] | None:
    """Return the closest pair of a cell that is True in `bad` and one that is True in `good`.

    The closest cells differ on the fewest axes and, among these, by the fewest steps. Returns None if one of
    the arrays is False everywhere.
    """
    bad_cells, good_cells = np.argwhere(bad), np.argwhere(good)
    best: tuple[int, int, Index, Index] | None = None
    for cell in bad_cells[:_PAIRED] if len(good_cells) else ():
        apart = np.abs(good_cells - cell)
        differing, steps = np.count_nonzero(apart, axis=1), apart.sum(axis=1)
        near = int(np.lexsort((steps, differing))[0])
        pair = tuple(map(int, cell)), tuple(map(int, good_cells[near]))
        rank = (int(differing[near]), int(steps[near]), *pair)
        best = rank if best is None else min(best, rank)
    return None if best is None else best[2:]


def _same_line(axis: int, one: Index, other: Index) -> bool:
    return one[:axis] == other[:axis] and one[axis + 1 :] == other[axis + 1 :]


def capacity(p0: float, p1: float) -> float:
    """Return the maximum information of one trial, in bits, if both failure rates are known.

    This is the capacity of the binary channel with crossover rates p0 and 1 − p1:
    `C = (p0·h(p1) − p1·h(p0)) / (p1 − p0) + log2(1 + 2^−s)`, `s = (h(p1) − h(p0)) / (p1 − p0)`.

    Args:
        p0: Failure rate of good combinations.
        p1: Failure rate of bad combinations.
    """
    if p1 - p0 < 1e-9:
        return 0.0

    def h(p: float) -> float:
        return 0.0 if p <= 0 or p >= 1 else float(-p * np.log2(p) - (1 - p) * np.log2(1 - p))

    s = (h(p1) - h(p0)) / (p1 - p0)
    return float((p0 * h(p1) - p1 * h(p0)) / (p1 - p0) + np.log2(1 + 2.0 ** (-s)))


def entropy_bits(masses: Sequence[float] | FloatArray) -> float:
    """Return the entropy, in bits, of a distribution given by its probabilities."""
    p = np.asarray(masses, dtype=np.float64)
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum())


def further(cell: Index, axis: int, step: int, size: int) -> Iterator[Index]:
    """Yield the cells that follow `cell` along an axis, towards higher or lower positions.

    Args:
        cell: The cell.
        axis: The axis.
        step: 1 to go towards higher positions, -1 towards lower ones.
        size: Number of values of the axis.
    """
    for place in range(cell[axis] + step, size if step > 0 else -1, step):
        yield (*cell[:axis], place, *cell[axis + 1 :])


def boundary_pairs(
    bad: NDArray[np.bool_], feasible: NDArray[np.bool_], axis: int
) -> list[tuple[Index, Index]]:
    """Return pairs (bad cell, good cell) that are neighbours along one axis and can be run.

    Args:
        bad: True for the cells that a hypothesis calls bad, shape of the lattice.
        feasible: True for the cells that can be run, shape of the lattice.
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
