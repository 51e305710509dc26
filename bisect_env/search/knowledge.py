"""Computes the posterior of a space of hypotheses from what a study was told. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid, Index
from bisect_env.search.classes import Classes
from bisect_env.search.families import Family, FloatArray
from bisect_env.search.nonmonotone import Histories, Values, looked_at
from bisect_env.search.posterior import Belief, Patterns, share, update
from bisect_env.search.rates import RateGrid
from bisect_env.search.space import Hypothesis, HypothesisSpace
from bisect_env.search.tallies import Counts, Tallies

# Odds that a stated end is not as stated: people state what they saw, on another machine perhaps.
_STATED_END_DOUBT = 0.1


class Knowledge(Tallies):
    """The counts of a question and the posterior over its hypotheses.

    Args:
        grid: The lattice of combinations, with stated ends if there are any.
        groups: For each cell the cell that stands for it (combinations with one measurement share a group),
            missing for cells that cannot be run.
        min_rate: Smallest crash rate that is looked for.
        stated_rate: Failure rate of bad combinations, if the user states it.
        families: As for `HypothesisSpace`.
    """

    def __init__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        *,
        min_rate: float,
        stated_rate: float | None = None,
        families: Sequence[Family] | None = None,
    ) -> None:
        super().__init__(grid, groups, RateGrid.default(min_rate, stated_rate))
        self._directions = [axis.direction for axis in grid.axes]
        space = HypothesisSpace(grid.shape, self._directions, families=families)
        self._space = self._believing(space, groups)
        # With families of a caller's, values of an axis may be missing.
        self._whole = families is None
        # Which hypotheses change along each axis as its direction says; None where all do.
        self._plain: NDArray[np.bool_] | None = None
        self._looked_at: (
            tuple[Histories, list[Index], HypothesisSpace, NDArray[np.bool_], Patterns] | None
        ) = None
        self._patterns = Patterns.before(self._space)

    def _believing(self, space: HypothesisSpace, groups: Mapping[Index, Index]) -> HypothesisSpace:
        """Return the space after its prior was adapted to the stated ends."""
        for end, is_bad in ((self._grid.good, False), (self._grid.bad, True)):
            if end is not None and end in groups:
                space.expect(groups[end], bad=is_bad, doubt=_STATED_END_DOUBT)
        return space

    def over(self, histories: Histories) -> Self:
        """Return a copy with the same trials and with hypotheses that may change more often.

        The counts are shared; call `forget` on one copy after trials were added to the other.
        """
        twin = copy.copy(self)
        space = HypothesisSpace(self._grid.shape, self._directions, families=histories.families)
        twin._space = self._believing(space, self._stands_for)
        twin._patterns = Patterns.before(twin._space)
        twin._plain = space.made_of(histories.plain)
        twin.forget()
        return twin

    def forget(self, *, classes: bool = True) -> None:
        """Drop cached results that depend on the counts.

        With `classes` also those that depend on the groups.
        """
        super().forget(classes=classes)
        for name in ("_belief", "_masses", *(("_classes", "_plain_classes") if classes else ())):
            self.__dict__.pop(name, None)

    @property
    def space(self) -> HypothesisSpace:
        """Return the hypotheses, with the stated ends in their prior."""
        return self._space

    # -- what is known -----------------------------------------------------------------------------------

    @cached_property
    def _belief(self) -> Belief:
        return self._believe(self.seen)

    def _believe(self, counts: Counts) -> Belief:
        if counts is self.seen:
            self._patterns = self._patterns.after(self._space, counts.own_rate)
        return update(self._space, counts, patterns=self._patterns)

    def typical_rates(self) -> tuple[float, float]:
        """Return the posterior means of the target rate of bad combinations and of good ones."""
        belief = self._belief
        bad_rate = float(belief.bad_rates @ (self.rates.kernel @ self.rates.rates))
        return bad_rate, float(belief.backgrounds @ self.rates.p0)

    @cached_property
    def _masses(self) -> FloatArray:
        """Return the posterior of each class of hypotheses, shape (classes,)."""
        return self._classes.masses(self._belief.hypotheses)

    @cached_property
    def _classes(self) -> Classes:
        return Classes(self._space, self.visible)

    def probability_bad(self) -> FloatArray:
        """Return the posterior that each combination is bad, shape of the grid."""
        return self._space.bad_mass(self._belief.hypotheses[:, None])[..., 0]

    def _chance_bad(self, index: Index) -> float:
        return float(self.probability_bad()[index])

    @property
    def probabilities(self) -> FloatArray:
        """Return the posterior of each class of hypotheses, shape (classes,).

        Classes are renumbered when a combination is set aside.
        """
        return self._masses

    @property
    def fingerprints(self) -> FloatArray:
        """Return two numbers per class that identify its good and bad combinations, shape (classes, 2)."""
        return self._classes.prints

    def representative(self, number: int) -> Hypothesis:
        """Return the hypothesis that stands for a class."""
        return self._classes.representative(number, self.group)

    @property
    def tried(self) -> Values:
        """Return, per axis, the values of tried combinations and of the stated ends."""
        ends = [self._stands_for[end] for end in (self._grid.good, self._grid.bad) if end in self._stands_for]
        cells = [*self.seen.own_rate, *ends]
        return tuple(tuple(sorted({cell[axis] for cell in cells})) for axis in range(len(self._grid.shape)))

    def chance_not_monotone(self, histories: Histories) -> float:
        """Return the posterior that some axis changes more often than its direction says.

        Histories that agree on all tried values count as one, and one that agrees with a plain history
        counts as plain: trials give no reason to doubt it. The result equals the posterior over the whole
        lattice.
        """
        cells = sorted(self.seen.own_rate)
        if self._looked_at is None or self._looked_at[:2] != (histories, cells):
            self._looked_at = (histories, cells, *self._look_at(histories, self.tried))
        _, _, space, plain, patterns = self._looked_at
        return share(space, self.seen.at(self.tried), ~plain, patterns)

    def _look_at(
        self, histories: Histories, values: Values
    ) -> tuple[HypothesisSpace, NDArray[np.bool_], Patterns]:
        """Return histories reduced to some values, with a mask of the plain ones and their patterns.

        A history counts as plain if it agrees with a plain one on all tried cells.
        """
        part = looked_at(histories, values)
        shape = [len(some) for some in values]
        space = HypothesisSpace(shape, self._directions, families=part.families)
        place = [{value: i for i, value in enumerate(some)} for some in values]
        ends = {
            end: tuple(at[i] for at, i in zip(place, self._stands_for[end], strict=True))
            for end in (self._grid.good, self._grid.bad)
            if end is not None and end in self._stands_for
        }
        space = self._believing(space, ends)
        tried = [
            tuple(at[i] for at, i in zip(place, cell, strict=True)) for cell in sorted(self.seen.own_rate)
        ]
        patterns = Patterns.before(space).after(space, tried)
        # "Never" says what others say that call nothing bad which was tried.
        silent = np.asarray(~patterns.calls.any(axis=1))
        of = np.where(silent[patterns.of], int(silent.argmax()), patterns.of)
        plain = np.asarray(np.bincount(of, weights=space.made_of(part.plain)) > 0)
        return space, np.asarray(plain[of]), patterns

    def _is_plain(self, number: int) -> bool:
        """Return whether a class changes along each axis as its direction allows."""
        return self._plain_classes is None or bool(self._plain_classes[number])

    @cached_property
    def _plain_classes(self) -> NDArray[np.bool_] | None:
        """Return which classes change only as the directions allow, shape (classes,); None if all do."""
        if self._plain is None:
            return None
        return np.bincount(self._classes.of, weights=self._plain, minlength=self._classes.count) > 0

    def by_set(self) -> list[FloatArray]:
        """Return the posterior of each set of bad values, per axis; the first set means "does not matter"."""
        return self._space.by_set(self._belief.hypotheses)
