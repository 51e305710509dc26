"""Keeps what a study was told, and computes the posterior from it.

Pure: counts, the posterior over hypotheses and rates, and which hypotheses can be told apart.
"""

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
from bisect_env.search.posterior import Belief, Counts, Patterns, share, update
from bisect_env.search.rates import RateGrid
from bisect_env.search.space import Hypothesis, HypothesisSpace

# Odds that a stated end is not as stated: people state what they saw, on another machine perhaps.
_STATED_END_DOUBT = 0.1


class Knowledge:
    """Counts and belief of one question.

    Args:
        grid: The lattice of combinations, with stated ends if there are any.
        groups: For each cell the cell that stands for it (combinations with one measurement share a group),
            missing for cells that cannot be run.
        min_rate: Smallest crash rate that is looked for.
        stated_rate: How often it fails where it does, if the user says so.
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
        self._grid = grid
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
        self.rates = RateGrid.default(min_rate, stated_rate)
        self._counts = Counts(grid.shape, self.rates)
        self._patterns = Patterns.before(self._space)
        self._group = np.full(grid.shape, -1, dtype=np.intp)
        for index, stands_for in groups.items():
            self._group[index] = np.ravel_multi_index(stands_for, grid.shape)
        # Trials that were under way when their combination was set aside are told all the same, and what was
        # counted there stays on record.
        self._stands_for = dict(groups)
        self.forget()

    def _believing(self, space: HypothesisSpace, groups: Mapping[Index, Index]) -> HypothesisSpace:
        """Return the space with what is said of the ends in its prior."""
        for end, is_bad in ((self._grid.good, False), (self._grid.bad, True)):
            if end is not None and end in groups:
                space.expect(groups[end], bad=is_bad, doubt=_STATED_END_DOUBT)
        return space

    def over(self, histories: Histories) -> Self:
        """The same trials under hypotheses that may change more often.

        Counts are shared: what is told to either is known to both, once `forget` was called on the other.
        """
        twin = copy.copy(self)
        space = HypothesisSpace(self._grid.shape, self._directions, families=histories.families)
        twin._space = self._believing(space, self._stands_for)
        twin._patterns = Patterns.before(twin._space)
        twin._plain = space.made_of(histories.plain)
        twin.forget()
        return twin

    # -- telling -----------------------------------------------------------------------------------------

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial of a combination: good or bad. Other outcomes and void trials are never told."""
        self._counts.add(self.representative_of(index), int(hit), 1)
        self.forget(classes=False)

    def tell_counts(self, index: Index, hits: int, trials: int) -> None:
        """Count several trials of a combination at once."""
        self._counts.add(self.representative_of(index), hits, trials)
        self.forget(classes=False)

    def can_be_told(self, index: Index) -> bool:
        """Return whether the combination was one that can be run when the search began."""
        return index in self._stands_for

    def set_aside(self, index: Index) -> None:
        """Nothing more can be learnt at this combination (unbuildable, skipped, always failing another way).

        Its whole group is asked no more; trials of it that were told, or still will be, keep counting.
        """
        if self._group[index] >= 0:
            self._group[self._group == self._group[index]] = -1
            self.forget()

    def forget(self, *, classes: bool = True) -> None:
        """Drop what followed from earlier counts, and with `classes` from what could be tried."""
        for name in ("_belief", "_masses", *(("_classes", "_plain_classes", "_visible") if classes else ())):
            self.__dict__.pop(name, None)

    def representative_of(self, index: Index) -> Index:
        """Return the cell that stands for a combination's group.

        Raises:
            ValueError: It is none that could be run when the search began.
        """
        try:
            return self._stands_for[index]
        except KeyError:
            raise ValueError(f"combination {index} cannot be run") from None

    def can_run(self, index: Index) -> bool:
        """Return whether something can still be learnt at a combination."""
        return bool(self._group[index] >= 0)

    def by_cell(self, numbers: Mapping[Index, int]) -> dict[Index, int]:
        """Numbers of combinations as numbers of the cells that stand for them; those that can be run."""
        found: dict[Index, int] = {}
        for index, number in numbers.items():
            if self.can_run(index):
                cell = self.representative_of(index)
                found[cell] = found.get(cell, 0) + number
        return found

    def unanimous(self) -> dict[Index, bool] | None:
        """Return whether each cell that was tried always failed; None where some failed and passed."""
        labels: dict[Index, bool] = {}
        for cell in self._counts.own_rate:
            hits = self._counts.hits[cell]
            if 0 < hits < self._counts.trials[cell]:
                return None
            labels[cell] = bool(hits)
        return labels

    @property
    def space(self) -> HypothesisSpace:
        """The hypotheses, with what is said of the ends in their prior."""
        return self._space

    @property
    def group(self) -> NDArray[np.intp]:
        """For each cell the flat position of the one that stands for it, -1 where nothing can be learnt."""
        return self._group

    @property
    def tallies(self) -> Counts:
        """The counts so far, which must not be changed."""
        return self._counts

    @property
    def total_hits(self) -> int:
        """Trials that showed the target so far."""
        return int(self._counts.hits.sum())

    @property
    def visible_count(self) -> int:
        """Combinations of which something can be learnt, each group once."""
        return int(np.count_nonzero(self._visible))

    def rates_under(self, hypothesis: Hypothesis) -> tuple[float, float]:
        """Posterior means of the target rate of bad combinations and of good ones if a hypothesis is true."""
        log_weight = np.log(np.maximum(self.rates.joint, 1e-300))
        for cell in self._counts.own_rate:
            if hypothesis.is_bad(cell):
                log_weight = log_weight + self._counts.log_bad[cell][:, None]
            else:
                log_weight = log_weight + self._counts.log_good[cell][None, :]
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        bad_rate = float(weight.sum(axis=1) @ (self.rates.kernel @ self.rates.rates))
        return bad_rate, float(weight.sum(axis=0) @ self.rates.p0)

    # -- what is known -----------------------------------------------------------------------------------

    @cached_property
    def _belief(self) -> Belief:
        return self._believe(self._counts)

    def _believe(self, counts: Counts) -> Belief:
        if counts is self._counts:
            self._patterns = self._patterns.after(self._space, counts.own_rate)
        return update(self._space, counts, patterns=self._patterns)

    def typical_rates(self) -> tuple[float, float]:
        """Posterior means of the target rate of bad combinations and of good ones."""
        belief = self._belief
        bad_rate = float(belief.bad_rates @ (self.rates.kernel @ self.rates.rates))
        return bad_rate, float(belief.backgrounds @ self.rates.p0)

    @cached_property
    def _masses(self) -> FloatArray:
        """Posterior of each class of hypotheses, shape (classes,)."""
        return self._classes.masses(self._belief.hypotheses)

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
        cell = self.representative_of(index)
        return int(self._counts.hits[cell]), int(self._counts.trials[cell])

    def probability_bad(self) -> FloatArray:
        """Posterior that each combination is bad, shape of the grid."""
        return self._space.bad_mass(self._belief.hypotheses[:, None])[..., 0]

    def _chance_bad(self, index: Index) -> float:
        return float(self.probability_bad()[index])

    @property
    def probabilities(self) -> FloatArray:
        """Posterior of each class of hypotheses, shape (classes,).

        Classes are numbered anew when a combination is set aside.
        """
        return self._masses

    @property
    def fingerprints(self) -> FloatArray:
        """Numbers that identify each class by its good and bad combinations, shape (classes, 2)."""
        return self._classes.prints

    def representative(self, number: int) -> Hypothesis:
        """Return the hypothesis that stands for a class."""
        return self._classes.representative(number, self._group)

    @property
    def tried(self) -> Values:
        """Per axis the values of combinations that were tried, and of the stated ends."""
        ends = [self._stands_for[end] for end in (self._grid.good, self._grid.bad) if end in self._stands_for]
        cells = [*self._counts.own_rate, *ends]
        return tuple(tuple(sorted({cell[axis] for cell in cells})) for axis in range(len(self._grid.shape)))

    def chance_not_monotone(self, histories: Histories) -> float:
        """Posterior that some axis changes more often than its direction says, by what was tried.

        Histories that agree wherever something was tried are one here, and one that a plain history agrees
        with is plain: what nothing speaks for is not doubted. That is the posterior of the whole lattice.
        """
        cells = sorted(self._counts.own_rate)
        if self._looked_at is None or self._looked_at[:2] != (histories, cells):
            self._looked_at = (histories, cells, *self._look_at(histories, self.tried))
        _, _, space, plain, patterns = self._looked_at
        return share(space, self._counts.at(self.tried), ~plain, patterns)

    def _look_at(
        self, histories: Histories, values: Values
    ) -> tuple[HypothesisSpace, NDArray[np.bool_], Patterns]:
        """Histories on some values, which agree with a plain one where something was tried, and patterns."""
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
            tuple(at[i] for at, i in zip(place, cell, strict=True)) for cell in sorted(self._counts.own_rate)
        ]
        patterns = Patterns.before(space).after(space, tried)
        # "Never" says what others say that call nothing bad which was tried.
        silent = np.asarray(~patterns.calls.any(axis=1))
        of = np.where(silent[patterns.of], int(silent.argmax()), patterns.of)
        plain = np.asarray(np.bincount(of, weights=space.made_of(part.plain)) > 0)
        return space, np.asarray(plain[of]), patterns

    def _is_plain(self, number: int) -> bool:
        """Return whether a class changes along each axis as its direction says."""
        return self._plain_classes is None or bool(self._plain_classes[number])

    @cached_property
    def _plain_classes(self) -> NDArray[np.bool_] | None:
        """Classes that change as the directions say, as far as can be tried, shape (classes,)."""
        if self._plain is None:
            return None
        return np.bincount(self._classes.of, weights=self._plain, minlength=self._classes.count) > 0

    def by_set(self) -> list[FloatArray]:
        """Posterior of each set of bad values, per axis; the first is "does not matter"."""
        return self._space.by_set(self._belief.hypotheses)


def position(flat: np.intp | int, shape: tuple[int, ...]) -> Index:
    """Return a flat position on the lattice as an index."""
    return tuple(int(i) for i in np.unravel_index(int(flat), shape))
