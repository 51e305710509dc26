"""Label every combination of a table good or bad, by its own trials or by a description of the table. Pure.

A combination that was tried has a *label*: after one trial if no combination both failed and passed, else
once its probability to be bad or good, judged by its own trials (`independent.py`), is high enough. The other
combinations get their label from a *description*, a rule that agrees with all labels. The simplest one is
used:

* a frontier, a band, or a frontier and a band (`staircase.py`): the same one at all values of the unordered
  axes, or, if that contradicts the labels, a separate one at each;
* no description: then every combination is tried.

A description that agrees with the labels need not be true. Singling out one of 2^b descriptions takes b
labels, which agree with some description by chance; the n labels beyond these are its *proofs*. A table
without any order agrees with n proofs with probability 2^−n. Suppose that the description holds without
exception with probability π, and that otherwise each combination is an exception with an unknown probability
ε (Jeffreys' prior, Beta(½, ½)). Then the next combination is an exception with probability

    P = (1 − π) E[ε (1 − ε)^n] / (π + (1 − π) E[(1 − ε)^n])

Combinations far from all tried ones are tried until P is below one minus the confidence. In addition, each
value of an axis that is called good somewhere must have passed at least once, because a release that is
broken everywhere is the most common exception. π is ½ for the first description, and is halved for each
description that was contradicted before it.

X in array shapes is the number of groups of combinations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.belief import CellCounts, believe
from bisect_env.search.families import FloatArray
from bisect_env.search.hypotheses import HypothesisRows
from bisect_env.search.independent import independent, own_labels
from bisect_env.search.space import constant, described
from bisect_env.search.staircase import Staircase, beyond, ordered_axes, staircases
from bisect_env.search.stopping import NOTHING_RUNS, clean_trials, usual_trials
from bisect_env.search.verdict import Answer, Status, Verdict, answer
from bisect_env.search.view import LatticeView

MOST_CALLED = 20_000
"""Maximum number of combinations of a table; each is labelled again after every trial."""
_CHANGES = 3
"""Maximum number of changes, on a way from the low to the high end, of a description."""
_FAILURES, _REPEATED = 3, 6
"""Bad combinations are assumed to fail in every trial only after one has failed `_FAILURES` times, and
`_REPEATED` failures were repeated in total. A failure in half of all runs is unlikely to pass this test."""
_AGAIN, _MOST_AGAIN = 3, 10
"""Number of trials of a combination that alone contradicts a description; and, if no combination both failed
and passed, the maximum number of trials in addition to the first one of each combination."""
_ALONE = 2
"""Maximum number of labels that are doubted if they contradict a description; if more do, the description is
wrong."""
_CORNERS = 4
"""Maximum number of ordered axes for which every corner of the lattice is tried first."""
_HOLDS = 0.5
"""π of the first description (see the module)."""
_NO_ORDER = 0.125
"""Share of the allowed error for tables without any order, some of which agree with a description by
chance."""


@dataclass(frozen=True, eq=False)
class _Described:
    """A rule about which combinations are bad that agrees with all labels known so far.

    Attributes:
        bad: True for the cells that it calls bad; valid where `decided` is True.
        decided: True for the cells whose label it determines.
        holds: Prior probability that it holds without exception (π of the module).
        stairs: The staircase in use, followed by others that agree with the labels.
        alike: Unordered axes along which the description is constant.
    """

    bad: NDArray[np.bool_]
    decided: NDArray[np.bool_]
    holds: float
    stairs: tuple[Staircase, ...]
    alike: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Called:
    """The label (good or bad) of one combination of the table, with its probability.

    Attributes:
        bad: Whether it is called bad.
        tried: Whether the label comes from the combination's own trials.
        probability: Probability that the label is right.
    """

    bad: bool
    tried: bool
    probability: float


@dataclass(frozen=True, eq=False)
class Table:
    """The good or bad label of every combination, and the trials that are still needed.

    Everything is calculated from the counts.

    Attributes:
        view: The lattice; may contain a stated good and bad end.
        counts: Failures and trials by position in the view.
        can_run: True for the groups that can still be tried, shape (X,).
        limits: When to stop.
    """

    view: LatticeView
    counts: CellCounts
    can_run: NDArray[np.bool_]
    limits: SearchLimits

    @property
    def grid(self) -> Grid:
        """Return the grid of all combinations that the table labels."""
        return self.view.grid

    @cached_property
    def ordered(self) -> tuple[int, ...]:
        """Return the positions of the axes that have an order and more than one value."""
        return tuple(ordered_axes(self.grid))

    @cached_property
    def visible(self) -> NDArray[np.bool_]:
        """Return a boolean array over the lattice: True at one cell of each group that may be tried."""
        return self.view.standing(self.can_run)

    @cached_property
    def feasible(self) -> NDArray[np.bool_]:
        """Return which combinations can be or were tried, as a boolean array in the shape of the lattice."""
        return self.view.spread(self.can_run | (self.counts.trials > 0))

    def is_open(self, cell: Index) -> bool:
        """Return whether a combination can still be tried."""
        group = self.view.group[cell]
        return bool(group >= 0 and self.can_run[group])

    def trials(self, cell: Index) -> int:
        """Return the number of trials of the group that the combination `cell` represents."""
        return int(self.counts.trials[self.view.position[cell]])

    # -- labels ------------------------------------------------------------------------------------------

    @cached_property
    def chances(self) -> FloatArray:
        """Return the probability that each group is bad, judged by its own trials; shape (X,).

        It is 0.5 for groups without trials. As long as nothing failed, there is no rate to judge passes by:
        then the ends and corners of the lattice must pass often instead (`suspects`).
        """
        if not self.counts.hits.any():
            return np.where(self.counts.trials > 0, 0.0, 0.5)
        return independent(self.counts)[1]

    @cached_property
    def usual_trials(self) -> int:
        """Return the approximate number of trials that a combination needs to get a label."""
        if self.counts.unanimous:
            return 1
        bad, hits, trials = self.chances >= 0.5, self.counts.hits, self.counts.trials
        rate = float(hits[bad].sum()) / max(float(trials[bad].sum()), 1.0)
        rate = min(max(rate, self.limits.min_crash_rate), 1.0)
        background = float(hits[~bad].sum()) / max(float(trials[~bad].sum()), 1.0)
        return usual_trials(rate, background)

    @cached_property
    def _labels(self) -> NDArray[np.int8]:
        """Return the label of each group by its own trials: 1 bad, 0 good, -1 unknown; shape (X,)."""
        return own_labels(self.counts, self.chances, self.limits)

    @cached_property
    def labelled(self) -> NDArray[np.int8]:
        """Return the labels of all combinations by their own trials: 1 bad, 0 good, -1 unknown.

        The array has the shape of the lattice. A label applies to all combinations of a group.
        """
        return self.view.spread(self._labels, -1)

    @cached_property
    def cells_with_label(self) -> list[Index]:
        """Return the representatives of the groups that have a label, in row-major order."""
        return [self.view.cells[place] for place in np.flatnonzero(self._labels >= 0)]

    @property
    def _alone(self) -> list[int]:
        """Return the positions of the few groups whose labels do not fit the border between good and bad.

        Such a border between good and bad combinations (a frontier) never turns back. The list is empty if
        all labels fit one, or if more than `_ALONE` labels contradict it.
        """
        table = self.labelled
        axes = self.ordered
        if not axes or staircases(table, self.grid, 1, self.visible):
            return []
        fewest: list[int] = []
        for turned in product((False, True), repeat=len(axes)):
            back = [axis for axis, is_back in zip(axes, turned, strict=True) if is_back]
            forth = [axis for axis in axes if axis not in back]
            for odd in (
                (table == 0) & beyond(table == 1, axes, back),
                (table == 1) & beyond(table == 0, axes, forth),
            ):
                places = np.flatnonzero(odd.ravel()[self.view.flat]).tolist()
                if not fewest or len(places) < len(fewest):
                    fewest = places
        return fewest if len(fewest) <= _ALONE else []

    @cached_property
    def again(self) -> list[tuple[Index, int]]:
        """Return the combinations that need more trials before labels are trusted, and how many.

        The number includes trials that were already made.
        """
        trials, wanted = self.counts.trials, dict[int, int]()
        if self.counts.unanimous:
            bad = self._failing
            if len(bad):
                wanted[int(bad[trials[bad].argmax()])] = _FAILURES
            if self.repeats_left:
                wanted |= dict.fromkeys(bad[trials[bad] < 2].tolist(), 2)
            room = _MOST_AGAIN - int((trials - (trials > 0)).sum()) - self.repeats_left
            for place in [one for one in self._alone if self.can_run[one]]:
                lacking = max(0, _AGAIN - int(trials[place]))
                if lacking <= room:
                    wanted[place] = _AGAIN
                    room -= lacking
        else:
            chunk = max(1, self.usual_trials // 2)
            unsure = (trials > 0) & (self._labels < 0) & self.can_run
            wanted = {place: int(trials[place]) + chunk for place in np.flatnonzero(unsure).tolist()}
        return [
            (self.view.cells[place], number) for place, number in wanted.items() if trials[place] < number
        ]

    @cached_property
    def _failing(self) -> NDArray[np.intp]:
        """Return the positions of the groups that failed in every trial and can still be tried.

        The array is empty if any group both failed and passed.
        """
        return np.flatnonzero((self.counts.hits > 0) & self.can_run & self.counts.unanimous)

    @property
    def least_repeated(self) -> Index:
        """Return the combination with the fewest trials among those that failed in every trial."""
        failing = self._failing
        return self.view.cells[failing[self.counts.trials[failing].argmin()]]

    @property
    def repeats_left(self) -> int:
        """Return how many repetitions are missing before bad combinations are assumed to fail always.

        It is 0 if nothing failed, or if a combination both failed and passed.
        """
        failing = self._failing
        repeated = int((self.counts.trials[failing] - 1).sum())
        return max(0, _REPEATED - repeated) if len(failing) else 0

    # -- descriptions ------------------------------------------------------------------------------------

    @cached_property
    def description(self) -> _Described | None:
        """Return the simplest rule that agrees with all labels, or None if no rule does.

        The possible rules (descriptions) are listed in the module.
        """
        holds = _HOLDS
        unordered = tuple(i for i, n in enumerate(self.grid.shape) if n > 1 and i not in self.ordered)
        for alike in dict.fromkeys((unordered, ())):
            table = _joined(self.labelled, alike)
            if table is None:
                continue
            visible = along(self.visible, alike)
            for changes in range(1, _CHANGES + 1):
                found = staircases(table, self.grid, changes, visible)
                if found:
                    found.sort(key=lambda one: one.bits)
                    return self._described(found, holds, alike)
                holds /= 2
        return None

    def _described(self, found: list[Staircase], holds: float, alike: tuple[int, ...]) -> _Described:
        best, *rest = found
        # A label is decided only where all likely orientations of the frontier agree.
        limit = best.bits - math.log2(1.0 - self.limits.confidence)
        others = tuple(one for one in rest if one.bits < limit and best.changes == 1)
        decided = best.decided
        for other in others:
            decided = decided & other.decided & (other.lowest == best.lowest)
        shape = self.grid.shape
        bad, everywhere = (np.broadcast_to(one, shape) for one in (best.lowest, decided))
        return _Described(bad, everywhere, holds, (best, *others), alike)

    @cached_property
    def checks(self) -> tuple[list[Index], float]:
        """Return the combinations that should be tried to test the description, the most useful first.

        Also returns the probability that the next combination is an exception (P of the module), which is 0
        without a description. The description already determines the labels of the combinations.
        """
        description = self.description
        open_ = cells_of(self.visible & (self.labelled < 0))
        if description is None or not open_:
            return [], 0.0
        # Labels that confirm the description, without those needed to choose it.
        proofs = max(0.0, len(self.cells_with_label) - description.stairs[0].bits)
        chance = exception(description.holds, proofs)
        error, wanted = 1.0 - self.limits.confidence, 0
        while (
            exception(description.holds, proofs + wanted) > error
            or 2.0 ** -(proofs + wanted) > error * _NO_ORDER
        ):
            wanted += 1
        passed = self.visible & (self.labelled == 0)
        several = sum(n > 1 for n in self.grid.shape) > 1
        axes = [axis for axis in range(len(self.grid.shape)) if several]
        lacking = [self._lacking(description, axis, passed) for axis in axes]
        # Distance of each from the nearest tried combination, as a share of the axes.
        scale = np.maximum(np.array(self.grid.shape, dtype=np.float64) - 1.0, 1.0)
        places = np.array(open_, dtype=np.float64) / scale
        apart = np.full(len(open_), np.inf)
        for cell in self.cells_with_label:
            apart = np.minimum(apart, np.abs(places - np.array(cell) / scale).sum(axis=1))
        chosen: list[Index] = []
        while len(chosen) < len(open_):
            new = [
                0
                if description.bad[cell]
                else sum(place in some for place, some in zip(cell, lacking, strict=False))
                for cell in open_
            ]
            if not any(new) and len(chosen) >= wanted:
                break
            place = int((len(scale) * np.array(new) + apart).argmax())
            chosen.append(open_[place])
            for value, some in zip(open_[place], lacking, strict=False):
                some.discard(value)
            apart = np.minimum(apart, np.abs(places - places[place]).sum(axis=1))
            apart[place] = -np.inf
        return chosen, chance

    def _lacking(self, description: _Described, axis: int, passed: NDArray[np.bool_]) -> set[int]:
        """Return the axis values called good for some combination although no combination with them passed.

        Args:
            description: The rule that calls combinations good or bad.
            axis: The axis.
            passed: True for the combinations that passed, shape of the lattice.

        Returns:
            Positions of the values on the axis.
        """
        across = tuple(other for other in range(len(self.grid.shape)) if other != axis)
        called_good = np.asarray((self.visible & ~description.bad).any(axis=across))
        good = called_good & ~np.asarray(passed.any(axis=across))
        return {int(value) for value in np.flatnonzero(good)}

    # -- what comes first --------------------------------------------------------------------------------

    @cached_property
    def first(self) -> list[Index]:
        """Return the combinations to try first: the stated ends and the corners of the lattice."""
        axes, last = self.ordered, [n - 1 for n in self.grid.shape]
        if len(axes) <= _CORNERS:
            corners = list(product(*({0, n} if i in axes else {0} for i, n in enumerate(last))))
        else:
            corners = [(0,) * len(last), tuple(last)]
        stated = [end for end in (self.grid.good, self.grid.bad) if end is not None]
        ends = [self.view.cells[self.view.group[end]] for end in stated if self.is_open(end)]
        places = np.argwhere(self.visible)
        if not len(places):
            return ends
        near = [
            tuple(places[np.abs(places - np.array(one)).sum(axis=1).argmin()].tolist()) for one in corners
        ]
        return list(dict.fromkeys([*ends, *near]))

    @cached_property
    def suspects(self) -> list[Index]:
        """Return the combinations that passed too seldom to show that nothing in the table fails.

        These are the stated ends and the corners of the lattice, and one combination for each value of an
        unordered axis: passes of one such value say nothing about another. The combination of a value is the
        one with the most trials. The list is empty once a trial failed.
        """
        if self.counts.hits.any():
            return []
        suspects, visible = self.first[::-1], cells_of(self.visible)
        for axis in set(range(len(self.grid.shape))) - set(self.ordered):
            for value in sorted({cell[axis] for cell in visible}):
                if all(cell[axis] != value for cell in suspects):
                    suspects.append(max((cell for cell in visible if cell[axis] == value), key=self.trials))
        return [cell for cell in suspects if self.trials(cell) < self.enough_passes]

    @property
    def enough_passes(self) -> int:
        """Return how many passes show that an end or corner of the lattice is good, if nothing failed."""
        rate = min(self.limits.crash_rate or 1.0, 1.0)
        return clean_trials(max(min(rate, self.limits.clean_rate), self.limits.min_crash_rate))

    # -- answering ---------------------------------------------------------------------------------------

    @cached_property
    def is_complete(self) -> bool:
        """Return whether every combination that can be run has a label at the stated confidence."""
        if (
            self.again
            or self.suspects
            or self.repeats_left
            or any(self.labelled[cell] < 0 for cell in self.first)
        ):
            return False
        unknown = self.visible & (self.labelled < 0)
        description = self.description
        if not unknown.any():
            return True
        if description is None or (unknown & ~description.decided).any():
            return False
        return not self.checks[0]

    @cached_property
    def calls(self) -> NDArray[np.int8]:
        """Return the label of each combination, from its own trials or from the description of the table.

        The labels are 1 bad, 0 good, and -1 if there is none or the combination cannot be run. The array has
        the shape of the lattice.
        """
        calls = np.where(self.feasible, self.labelled, np.int8(-1))
        if self.description is not None:
            bad, decided = (
                self.view.spread(of.ravel()[self.view.flat])
                for of in (self.description.bad, self.description.decided)
            )
            calls = np.where(self.feasible & (calls < 0) & decided, bad, calls)
        return calls.astype(np.int8)

    @cached_property
    def called(self) -> dict[Index, Called]:
        """Return the label of each combination that has one so far, with its origin and probability.

        A label that follows from the description is no surer than the labels from which it follows.
        """
        bad = self.calls == 1
        chances = self.view.spread(self.chances)
        sure = np.where(bad, chances, 1.0 - chances)
        tried = self.labelled >= 0
        described = 1.0 - (self.checks[1] if self.is_complete else 0.5)
        sure[~tried] = described * float(sure[tried].min(initial=1.0))
        return {
            index: Called(bool(bad[index]), bool(tried[index]), float(sure[index]))
            for index in cells_of(self.calls >= 0)
        }

    def probability_bad(self) -> FloatArray:
        """Return the probability that each combination is bad, in the shape of the grid.

        It is 0.5 for combinations without a label.
        """
        bad = np.full(self.grid.shape, 0.5)
        for cell, one in self.called.items():
            bad[cell] = one.probability if one.bad else 1.0 - one.probability
        return bad

    @cached_property
    def verdict(self) -> Verdict:
        """Return the verdict about all combinations as a whole: which are bad, and how sure that is."""
        complete = self.is_complete
        best = self._answer(self.calls == 1)
        says = best.hypothesis.bad_cells().ravel()[self.view.flat]
        alone = HypothesisRows(says[None], np.ones(1), np.zeros(1, dtype=np.int8))
        bad_rate, background = believe(alone, self.counts).typical_rates
        sure = min((one.probability for one in self.called.values()), default=0.0)
        best = replace(best, probability=sure if complete else 0.0)
        unknown = int(np.count_nonzero(self.feasible & (self.calls < 0)))
        status, reason = Status.NONE, f"combinations that are not called good or bad yet: {unknown}"
        if not self.called and complete:
            reason = NOTHING_RUNS
        elif complete and sure >= self.limits.confidence:
            status = Status.CONFIRMED
            reason = f"each combination alone is what it is called, probability {sure:.3f} or more"
        elif complete:
            status = Status.LIKELY
            reason = (
                f"the most doubtful combination is what it is called with a probability of {sure:.3f}, below "
                f"the {self.limits.confidence:.3g} asked for"
            )
        return Verdict(
            status=status,
            reason=reason,
            best=best,
            candidates=(best,),
            sharing=best.probability,
            differing=best.probability,
            bad_rate=bad_rate,
            background=background,
            expected_left=0.0 if complete else float(math.isqrt(unknown) + 1),
            expected_environments=0 if complete else math.isqrt(unknown) + 1,
            certain=self.counts.unanimous,
        )

    def _answer(self, bad: NDArray[np.bool_]) -> Answer:
        """Turn a table that is True at bad combinations into an `Answer` with boundaries."""
        kind = "never" if not bad.any() else "always" if bad[self.feasible].all() else "table"
        hypothesis = described(kind, bad) if kind == "table" else constant(kind, bad.shape)
        hits, trials = self.view.spread(self.counts.hits), self.view.spread(self.counts.trials)
        return answer(hypothesis, 1.0, self.feasible, hits, trials)


def along(cells: NDArray[np.bool_], axes: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return whether any cell along the given axes is True. These axes remain, with length 1."""
    return np.asarray(cells.any(axis=axes, keepdims=True))


def cells_of(mask: NDArray[np.bool_]) -> list[Index]:
    """Return the positions at which a boolean array is True, in row-major order."""
    return list(map(tuple, np.argwhere(mask).tolist()))


def _joined(table: NDArray[np.int8], axes: tuple[int, ...]) -> NDArray[np.int8] | None:
    """Merge the labels along the given axes: a line of combinations gets the label that its cells share.

    The axes remain, with length 1. Returns None if labels of one line contradict each other.
    """
    bad, good = (along(table == label, axes) for label in (1, 0))
    if (bad & good).any():
        return None
    return np.asarray(np.where(bad, 1, np.where(good, 0, -1)), dtype=np.int8)


def exception(holds: float, proofs: float) -> float:
    """Return the probability that the next combination does not fit the rule of the table so far.

    This is P of the module.

    Args:
        holds: π, the prior probability that the description has no exception.
        proofs: n, the number of proofs so far.
    """

    def mean(exceptions: float) -> float:
        """Return the expected value of ε^exceptions · (1 − ε)^proofs if ε has the prior Beta(½, ½)."""
        a, b = 0.5 + exceptions, 0.5 + proofs
        return math.exp(math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)) / math.pi

    return (1.0 - holds) * mean(1.0) / (holds + (1.0 - holds) * mean(0.0))
