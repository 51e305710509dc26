"""Ask and tell: which combination to try next, and what is known by now.

Pure: no clock, no randomness, no I/O. The caller says what is pending and what an environment costs; the same
tells in any order give the same answers, so that a resumed study goes on as if it had never stopped.

A question is put to hypotheses that change along each axis as its direction says, and, where the trials so
far speak against that, to those that may change more often (`history.py`). To which of the two follows from
the counts, not from their order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from bisect_env.matrix.grid import Grid, Index
from bisect_env.search.families import Family, FloatArray
from bisect_env.search.history import RARE, Histories, histories
from bisect_env.search.question import Question
from bisect_env.search.rates import RateGrid
from bisect_env.search.space import Hypothesis
from bisect_env.search.stopping import SearchSettings
from bisect_env.search.verdict import Verdict

__all__ = ["Search", "SearchSettings"]

_BELIEVED = 0.5
"""Posterior from which on a history that is not monotone is searched for whatever else is known. As the prior
is 0.04 for an axis, it takes a Bayes factor of 24: *strong* evidence in the scale of Kass and Raftery."""


class MakeQuestion(Protocol):
    """What a `Question`, or a kind of it, is made by."""

    def __call__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        settings: SearchSettings,
        /,
        *,
        families: Sequence[Family] | None = None,
    ) -> Question:
        """Make one; arguments as for `Question`."""


class Search:
    """One question: where in the grid do trials begin to show the target?

    Args:
        grid: The lattice of combinations, with stated ends if there are any.
        groups: For each cell the cell that stands for it (combinations with one measurement share a group),
            missing for cells that cannot be run.
        settings: When to stop.
        make: The kind of question that is put.
    """

    def __init__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        settings: SearchSettings | None = None,
        *,
        make: MakeQuestion = Question,
    ) -> None:
        self.settings = settings or SearchSettings()
        self._narrow = make(grid, groups, self.settings)
        self._shape, self._directions = grid.shape, [axis.direction for axis in grid.axes]
        self._wide: tuple[Histories, Question] | None = None

    @cached_property
    def _question(self) -> Question:
        """To which hypotheses the question is put, by the counts so far."""
        narrow = self._narrow
        if not narrow.may_be_doubted:
            return narrow
        possible = histories(self._shape, self._directions, narrow.tried)
        if possible is None:
            return narrow
        limit = max(1.0 - self.settings.confidence, RARE) if narrow.is_confirmed else _BELIEVED
        return self._over(possible) if narrow.chance_not_monotone(possible) > limit else narrow

    def _over(self, possible: Histories) -> Question:
        """The same question with histories that change more often; kept from trial to trial."""
        if self._wide is None or self._wide[0] is not possible:
            self._wide = possible, self._narrow.over(possible)
        return self._wide[1]

    def _forget(self, *, classes: bool) -> None:
        self.__dict__.pop("_question", None)
        if self._wide is not None:
            self._wide[1].forget(classes=classes)

    # -- telling -----------------------------------------------------------------------------------------

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial of a combination: good or bad. Other outcomes and void trials are never told."""
        self.tell_counts(index, int(hit), 1)

    def tell_counts(self, index: Index, hits: int, trials: int) -> None:
        """Count several trials of a combination at once."""
        self._narrow.tell_counts(index, hits, trials)
        self._forget(classes=False)

    def can_be_told(self, index: Index) -> bool:
        """Whether the combination was one that can be run when the search began."""
        return self._narrow.can_be_told(index)

    def set_aside(self, index: Index) -> None:
        """Nothing more can be learnt at this combination; see `Question.set_aside`."""
        self._narrow.set_aside(index)
        self._forget(classes=True)

    # -- asking ------------------------------------------------------------------------------------------

    def ask(
        self,
        count: int,
        *,
        pending: Mapping[Index, int] | None = None,
        build_cost: Mapping[Index, float] | None = None,
        only: Collection[Index] | None = None,
        worth: float = 0.0,
    ) -> list[Index]:
        """Choose the next trials; see `Question.ask`."""
        return self._question.ask(count, pending=pending, build_cost=build_cost, only=only, worth=worth)

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """What would be asked next if a pending trial showed the target; see `Question.foresee`."""
        return self._question.foresee(pending, build_cost)

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether more trials are not wanted: confirmed, or decided that nothing changes, or budget spent."""
        return self._question.finished

    @property
    def verdict(self) -> Verdict:
        """The answer by now; a pure function of the counts."""
        return self._question.verdict

    @property
    def is_monotone(self) -> bool:
        """Whether axes are taken to change as their directions say; classes are numbered for either case."""
        return self._question is self._narrow

    @property
    def trials(self) -> int:
        """Counted trials so far."""
        return self._narrow.trials

    def counts(self, index: Index) -> tuple[int, int]:
        """Hits and counted trials of a combination (those of its whole group)."""
        return self._narrow.counts(index)

    def probability_bad(self) -> FloatArray:
        """Posterior that each combination is bad, shape of the grid."""
        return self._question.probability_bad()

    @property
    def probabilities(self) -> FloatArray:
        """Posterior of each class of hypotheses, shape (classes,).

        Classes are numbered anew when a combination is set aside or `is_monotone` changes.
        """
        return self._question.probabilities

    @property
    def fingerprints(self) -> FloatArray:
        """What each class says of the combinations that can be run, as numbers, shape (classes, 2)."""
        return self._question.fingerprints

    def representative(self, number: int) -> Hypothesis:
        """The hypothesis that stands for a class."""
        return self._question.representative(number)

    @property
    def probability_of_nothing(self) -> float:
        """Posterior that no combination that can be run is bad."""
        return self._question.probability_of_nothing

    @property
    def rates(self) -> RateGrid:
        """What is assumed about rates."""
        return self._narrow.rates
