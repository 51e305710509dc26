"""What a study has been told, and what follows from it.

Pure: counts, the posterior over hypotheses and rates, and which hypotheses can be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid, Index
from bisect_env.search.classes import Classes
from bisect_env.search.explain import not_monotone, unexplained, wider_space
from bisect_env.search.families import Family, FloatArray
from bisect_env.search.posterior import Belief, Counts, update
from bisect_env.search.rates import RateGrid
from bisect_env.search.space import Hypothesis, HypothesisSpace

# Odds that a stated end is not as stated: people state what they saw, on another machine perhaps.
_STATED_END_DOUBT = 0.1
# When to look whether the history is monotone at all: at every fifth trial, later at every twentieth.
_LOOK_EARLY, _LOOK_LATE, _EARLY = 5, 20, 200


class Knowledge:
    """Counts and belief of one question.

    Args:
        grid: The lattice of combinations, with stated ends if there are any.
        groups: For each cell the cell that stands for it (combinations with one measurement share a group),
            missing for cells that cannot be run.
        min_rate: Smallest crash rate that is looked for.
        nothing: Prior of *never bad*; None leaves what the space gives it.
        any_of: Whether one answer may name several causes that suffice each.
        stray: As for `Counts`.
        families: As for `HypothesisSpace`; with them the space stays as it is.
    """

    def __init__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        *,
        min_rate: float,
        nothing: float | None,
        any_of: bool,
        stray: float,
        families: Sequence[Family] | None = None,
    ) -> None:
        self._grid = grid
        self._directions = [axis.direction for axis in grid.axes]
        self._nothing, self._any_of = nothing, any_of
        space = HypothesisSpace(grid.shape, self._directions, any_of=any_of, families=families)
        self._space = self._believing(space, groups)
        self._widened, self._may_widen = False, families is None
        self.rates = RateGrid.default(min_rate)
        self._counts = Counts(grid.shape, self.rates, stray=stray)
        self._group = np.full(grid.shape, -1, dtype=np.intp)
        for index, stands_for in groups.items():
            self._group[index] = np.ravel_multi_index(stands_for, grid.shape)
        # Trials that were under way when their combination was set aside are told all the same, and what was
        # counted there stays on record.
        self._stands_for = dict(groups)
        self._forget()

    def _believing(self, space: HypothesisSpace, groups: Mapping[Index, Index]) -> HypothesisSpace:
        """The space with what is said of the ends in its prior."""
        for end, is_bad in ((self._grid.good, False), (self._grid.bad, True)):
            if end is not None and end in groups:
                space.expect(groups[end], bad=is_bad, doubt=_STATED_END_DOUBT)
        if self._nothing is not None:
            space.expect_nothing(self._nothing)
        return space

    # -- telling -----------------------------------------------------------------------------------------

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial of a combination: good or bad. Other outcomes and void trials are never told."""
        self._counts.add(self._standing_for(index), int(hit), 1)
        self._forget(classes=False)
        if self.trials % (_LOOK_EARLY if self.trials <= _EARLY else _LOOK_LATE) == 0:
            self._widen_if_needed()

    def tell_counts(self, index: Index, hits: int, trials: int) -> None:
        """Count several trials of a combination at once."""
        self._counts.add(self._standing_for(index), hits, trials)
        self._forget(classes=False)

    def can_be_told(self, index: Index) -> bool:
        """Whether the combination was one that can be run when the search began."""
        return index in self._stands_for

    def _widen_if_needed(self) -> None:
        """Give up the assumption that an axis changes once, where the counts contradict it.

        Looked for at fixed numbers of trials, so that a study that is resumed does the same.
        """
        if self._widened or not self._may_widen or not self._counts.hits.any():
            return
        leading = self._space.hypothesis(int(self._belief.hypotheses.argmax()))
        if not unexplained(leading, self._counts):
            return
        wide = wider_space(self._grid.shape, self._directions, any_of=self._any_of)
        if wide is None:
            return
        wide = self._believing(wide, self._stands_for)
        if not_monotone(self._belief, leading, self._counts, wide):
            self._space, self._widened = wide, True
            self._forget()

    def set_aside(self, index: Index) -> None:
        """Nothing more can be learnt at this combination (unbuildable, skipped, always failing another way).

        Its whole group is asked no more; trials of it that were told, or still will be, keep counting.
        """
        if self._group[index] >= 0:
            self._group[self._group == self._group[index]] = -1
            self._forget()

    def _forget(self, *, classes: bool = True) -> None:
        for name in (
            "_belief",
            "_masses",
            "_sure",
            "_required",
            "_clean",
            "verdict",
            *(("_classes", "_visible", "_ends", "_spread") if classes else ()),
        ):
            self.__dict__.pop(name, None)

    def _standing_for(self, index: Index) -> Index:
        try:
            return self._stands_for[index]
        except KeyError:
            raise ValueError(f"combination {index} cannot be run") from None

    # -- what is known -----------------------------------------------------------------------------------

    @cached_property
    def _belief(self) -> Belief:
        return update(self._space, self._counts)

    @cached_property
    def _masses(self) -> FloatArray:
        """Posterior of each class of hypotheses, shape (classes,).

        Where combinations may be bad for another reason, two separate corners are both true. Then only
        answers about the same failures are rivals: those that call bad some failing combination of the best.
        """
        weights = self._belief.hypotheses
        if self._counts.stray and self._counts.hits.any():
            best = np.array([int(weights.argmax())])
            failed = np.flatnonzero(self._counts.hits)
            failed = failed[self._space.judged(best, failed)[0]]
            if len(failed):
                rivals = np.asarray(self._space.judged(np.arange(self._space.size), failed).any(axis=1))
                rivals[self._space.never] = True
                weights = np.where(rivals, weights, 0.0)
                weights = weights / weights.sum()
        return self._classes.masses(weights)

    @cached_property
    def _visible(self) -> NDArray[np.bool_]:
        """Cells that stand for a group that can be run."""
        flat = np.arange(self._group.size).reshape(self._group.shape)
        return np.asarray(self._group == flat)

    @cached_property
    def _classes(self) -> Classes:
        return Classes(self._space, self._visible)

    @property
    def trials(self) -> int:
        """Counted trials so far."""
        return int(self._counts.trials.sum())

    def counts(self, index: Index) -> tuple[int, int]:
        """Hits and counted trials of a combination (those of its whole group)."""
        cell = self._standing_for(index)
        return int(self._counts.hits[cell]), int(self._counts.trials[cell])

    def probability_bad(self) -> FloatArray:
        """Posterior that each combination is bad, shape of the grid."""
        return self._space.bad_mass(self._belief.hypotheses[:, None])[..., 0]

    @property
    def probabilities(self) -> FloatArray:
        """Posterior of each class of hypotheses, shape (classes,).

        Classes are numbered anew when a combination is set aside or `is_monotone` turns false.
        """
        return self._masses

    def spokesman(self, number: int) -> Hypothesis:
        """The hypothesis that speaks for a class."""
        return self._classes.spokesman(number, self._group)

    @property
    def is_monotone(self) -> bool:
        """Whether axes are still taken to change as their directions say."""
        return not self._widened

    def by_set(self) -> list[FloatArray]:
        """Posterior of each set of bad values, per axis; the first is "does not matter"."""
        return self._space.by_set(self._belief.hypotheses)

    @property
    def probability_of_nothing(self) -> float:
        """Posterior that no combination that can be run is bad."""
        return float(self._classes.masses(self._belief.hypotheses)[self._classes.never])

    @property
    def has_cells(self) -> NDArray[np.bool_]:
        """Shape of the grid: which combinations this search is about."""
        mine = np.zeros(self._grid.shape, dtype=bool)
        for index in self._stands_for:
            mine[index] = True
        return mine


def position(flat: np.intp | int, shape: tuple[int, ...]) -> Index:
    """A flat position on the lattice as an index."""
    return tuple(int(i) for i in np.unravel_index(int(flat), shape))
