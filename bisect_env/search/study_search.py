"""The base class of all searches: it records trials, runs the final checks and states a verdict. Pure."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.checks import Check
from bisect_env.search.families import FloatArray
from bisect_env.search.plan import Plan
from bisect_env.search.tallies import Tallies
from bisect_env.search.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of a study when its search is asked for trials: what is running, and what may be chosen.

    Attributes:
        running: Number of running trials of each group, by the representative of the group.
        build_cost: As in `Plan.ask`.
        only: As in `Plan.ask`.
        worth: As in `Plan.ask`.
    """

    running: Mapping[Index, int]
    build_cost: Mapping[Index, float] = field(default_factory=dict)
    only: Collection[Index] | None = None
    worth: float = 0.0

    def allows(self, cell: Index) -> bool:
        """Return whether a combination may be chosen for the next trial."""
        return self.only is None or cell in self.only

    def allowed(self, cells: Sequence[Index]) -> NDArray[np.bool_]:
        """Return which of the given cells may be chosen for the next trial, as a boolean array."""
        return np.array([self.allows(cell) for cell in cells], dtype=np.bool_)

    def prices(self, cells: Sequence[Index]) -> FloatArray:
        """Return the price of each combination's environment as a number of trials, 0 if it exists."""
        return np.array([self.build_cost.get(cell, 0.0) for cell in cells], dtype=np.float64)


class StudySearch(Plan):
    """The base class of all searches: chooses trials of combinations and states a verdict.

    Subclasses compute everything from `tallies`. They keep results in cached properties, which are discarded
    whenever the tallies change.

    Args:
        grid: The lattice of combinations; may contain a stated good and bad end.
        groups: The representative of the group of each combination that can be run (combinations whose trials
            would be equal form a group). Combinations that cannot be run are missing.
        limits: When to stop.
        quick: Whether to finish as soon as the answer stands, without final checks.

    Attributes:
        limits: When to stop.
        tallies: The counts of all recorded trials.
    """

    def __init__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        limits: SearchLimits | None = None,
        *,
        quick: bool = False,
    ) -> None:
        self.limits = limits or SearchLimits()
        self.tallies = Tallies(groups)
        self._grid = grid
        self._checks_ended = quick

    # -- telling -----------------------------------------------------------------------------------------

    def tell(self, index: Index, *, hit: bool) -> None:
        """Record one trial of the combination `index`: a failure if `hit` is True, otherwise a pass.

        Trials with another outcome, and void trials, must not be recorded.

        Raises:
            ValueError: The combination could not be run when the search began.
        """
        self.tallies.add(index, int(hit), 1)
        self._changed()

    def set_aside(self, index: Index) -> None:
        """Exclude a combination, and all equivalent ones, from further trials.

        Trials that were recorded before still count.
        """
        self.tallies.set_aside(index)
        self._changed()

    def _changed(self) -> None:
        """Discard all cached properties after a change of the tallies, from which they follow."""
        for name in [*vars(self)]:
            if isinstance(getattr(type(self), name, None), cached_property):
                delattr(self, name)

    @property
    def trials(self) -> int:
        """Return the number of counted trials so far."""
        return self.tallies.trials

    def counts(self, index: Index) -> tuple[int, int]:
        """Return (failures, counted trials) of the group of a combination."""
        return self.tallies.counts(index)

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
        """Return the representatives of the groups to try next, one entry per trial. See `Plan.ask`."""
        now = Situation(self.tallies.by_group(pending or {}), build_cost or {}, only, worth)
        if count <= 0:
            return []
        return self._checking(count, now) if self.answered else self._choose(count, now)

    @abstractmethod
    def _choose(self, count: int, now: Situation) -> list[Index]:
        """Return the combinations of at most `count` trials to start now, as long as no answer is sure."""

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return the combinations that may be tried after the pending trials. See `Plan.foresee`."""
        now = Situation(self.tallies.by_group(pending), build_cost or {})
        return self._checking(1, now) if self.answered else self._foresee(now)

    @abstractmethod
    def _foresee(self, now: Situation) -> list[Index]:
        """Return combinations that may be tried after the running trials, as long as no answer is sure."""

    # -- checking the answer -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def answered(self) -> bool:
        """Return whether the search has a sure answer, so that further trials only check it."""

    @property
    def finished(self) -> bool:
        """Return whether the answer is sure and checked, or the maximum number of trials is reached."""
        if self.trials >= self.limits.max_trials:
            return True
        return self.answered and (self._checks_ended or not self.checks)

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """Return the final checks that the answer still needs, in the order in which to run them.

        There is at most one check for each group of combinations. The tuple is empty as long as no answer
        stands, and for answers without a boundary.
        """
        found: dict[Index, Check] = {}
        has_answer = self.answered and not self.verdict.ends_wrong and bool(self.verdict.best.boundaries)
        for check in self._wanted_checks() if has_answer else ():
            cell = self.tallies.representative(check.cell)
            if not self.tallies.can_run(cell):
                continue
            if cell not in found or found[cell].wanted < check.wanted:
                found[cell] = replace(check, cell=cell)
        return tuple(found.values())

    def _wanted_checks(self) -> Iterable[Check]:
        """List the checks that an answer needs; a combination may occur in several of them."""
        return ()

    def _checking(self, count: int, now: Situation) -> list[Index]:
        """Return the next trials of the final checks, one entry per trial."""
        trials = (
            [one.cell] * (one.wanted - now.running.get(one.cell, 0))
            for one in self.checks
            if now.allows(one.cell)
        )
        return list(itertools.chain.from_iterable(trials))[:count]

    @property
    def checks_left(self) -> int:
        """Return how many trials the final checks still need, or 0 if they are skipped."""
        return 0 if self._checks_ended else sum(check.wanted for check in self.checks)

    def end_checks(self) -> None:
        """Skip all final checks, so that the search finishes as soon as it has an answer."""
        self._checks_ended = True

    def resume_checks(self) -> None:
        """Run final checks again: undo `end_checks`, because its answer has become uncertain."""
        self._checks_ended = False

    # -- answering ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def verdict(self) -> Verdict:
        """Return the verdict after the trials so far: the most probable answer, and how sure it is.

        It depends only on the counts, not on the order of trials.
        """

    @abstractmethod
    def probability_bad(self) -> FloatArray:
        """Return the probability that each combination is bad, in the shape of the grid."""
