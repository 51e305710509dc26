"""What the searches of a study have in common: they are told of trials, and state a verdict. Pure."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.checks import Check
from bisect_env.search.families import FloatArray
from bisect_env.search.plan import Plan
from bisect_env.search.tallies import Tallies
from bisect_env.search.verdict import Status, Verdict


class StudySearch(Plan):
    """The base class of all searches: chooses trials of combinations and states a verdict.

    Subclasses compute everything from `tallies`, and discard cached results in `_changed`.

    Args:
        grid: The lattice of combinations; may contain a stated good and bad end.
        groups: For each combination that can be run, the one that stands for its group (combinations with the
            same measurement form a group). Combinations that cannot be run are missing.
        limits: When to stop.
        quick: Whether to finish as soon as the answer stands, without final checks.

    Attributes:
        limits: When to stop.
        tallies: What was told.
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
        self._checks: tuple[Check, ...] | None = None
        self._verdict: Verdict | None = None

    # -- telling -----------------------------------------------------------------------------------------

    def tell(self, index: Index, *, hit: bool) -> None:
        """Record one trial of the combination `index`: a failure if `hit` is True, otherwise a pass.

        Trials with another outcome, and void trials, must not be recorded.
        """
        self.tell_counts(index, int(hit), 1)

    def tell_counts(self, index: Index, hits: int, trials: int) -> None:
        """Record `trials` trials of a combination at once, of which `hits` showed the target failure.

        Raises:
            ValueError: The combination could not be run when the search began.
        """
        self.tallies.add(index, hits, trials)
        self._changed()

    def set_aside(self, index: Index) -> None:
        """Exclude a combination and its group from further trials.

        Trials that were recorded before still count.
        """
        self.tallies.set_aside(index)
        self._changed()

    def _changed(self) -> None:
        """Discard all cached results, because the tallies have changed."""
        self._checks = self._verdict = None

    @property
    def trials(self) -> int:
        """Return the number of counted trials so far."""
        return self.tallies.trials

    def counts(self, index: Index) -> tuple[int, int]:
        """Return (failures, counted trials) of the group of a combination."""
        return self.tallies.counts(index)

    # -- checking the answer -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def answered(self) -> bool:
        """Return whether the search has a sure answer; later trials only check this answer."""

    @property
    def finished(self) -> bool:
        """Return whether the answer is checked, or the maximum number of trials is reached."""
        if self.trials >= self.limits.max_trials:
            return True
        return self.answered and (self._checks_ended or not self.checks)

    @property
    def checks(self) -> tuple[Check, ...]:
        """Return the final checks that the answer still needs, in the order in which to run them.

        There is at most one for each group of combinations. Empty as long as no answer is confirmed.
        """
        if self._checks is None:
            found: dict[Index, Check] = {}
            is_confirmed = self.answered and self.verdict.status is Status.CONFIRMED
            for check in self._wanted_checks() if is_confirmed else ():
                cell = self.tallies.representative(check.cell)
                if cell not in found or found[cell].wanted < check.wanted:
                    found[cell] = replace(check, cell=cell)
            self._checks = tuple(found.values())
        return self._checks

    def _wanted_checks(self) -> Iterable[Check]:
        """Return the checks that a confirmed answer needs; several may concern the same combinations."""
        return ()

    def _checking(
        self, count: int, pending: Mapping[Index, int], only: Collection[Index] | None = None
    ) -> list[Index]:
        """Return the next trials of the final checks, one entry per trial. Arguments as for `ask`."""
        running = self.tallies.by_group(pending)
        trials = (
            [one.cell] * (one.wanted - running.get(one.cell, 0))
            for one in self.checks
            if only is None or one.cell in only
        )
        return list(itertools.chain.from_iterable(trials))[:count]

    @property
    def checks_left(self) -> int:
        """Return how many trials the final checks still need; 0 if they are skipped."""
        return 0 if self._checks_ended else sum(check.wanted for check in self.checks)

    def end_checks(self) -> None:
        """Skip all final checks, so that the search finishes as soon as it has an answer."""
        self._checks_ended = True

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        """Return the verdict so far.

        It depends only on the counts, not on the order of trials.
        """
        if self._verdict is None:
            self._verdict = self._make_verdict()
        return self._verdict

    @abstractmethod
    def _make_verdict(self) -> Verdict:
        """Calculate the verdict from the counts."""

    @abstractmethod
    def probability_bad(self) -> FloatArray:
        """Return the probability that each combination is bad, in the shape of the grid."""
