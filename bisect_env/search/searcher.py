"""The search that a study asks and tells: which combination to try next, and what is known so far.

Pure: no clock, no randomness, no I/O. The caller says what is pending and what an environment costs; the same
tells in any order give the same answers, so that a resumed study goes on as if it had never stopped.

After each trial the belief is made anew from all counts (`belief.py`), over the hypotheses that the
generators supply (`generators.py`). Trials are chosen by what they are expected to tell (`choice.py`). An
answer stands when it is sure and both sides of its boundary were tried (`known.py`). Then it is checked: a
look into the longest part that nobody tried, and the last good combinations until a failure rate of
`clean_rate` is excluded there (`checks.py`). The study is `finished` after that, or at once with `quick`, or
when `end_checks` was called. A failure during the checks opens the question again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import AxisKind, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.belief import Belief, CellCounts
from bisect_env.search.checks import Check, apart_checks, clean_checks, cleared, untested_checks
from bisect_env.search.families import FloatArray
from bisect_env.search.generators import products, wider
from bisect_env.search.goodness_of_fit import log10_bayes_factor, unexplained
from bisect_env.search.hypotheses import Rows
from bisect_env.search.known import Known
from bisect_env.search.nonmonotone import Histories
from bisect_env.search.plan import Plan
from bisect_env.search.rates import RateGrid
from bisect_env.search.stopping import judge
from bisect_env.search.untested_intervals import checks as interval_checks
from bisect_env.search.untested_intervals import untested_intervals
from bisect_env.search.verdict import Answer, Status, Verdict, capacity, entropy_bits
from bisect_env.search.view import View

_LEAST_WORTH = 0.2
"""A trial beside others is not started if it is worth less than this share of the best one."""
_FORESEEN = 3
_CANDIDATES = 10


@functools.lru_cache(maxsize=16)
def _rates(min_rate: float, stated: float | None, two_steps: bool) -> RateGrid:
    return RateGrid.default(min_rate, stated, two_steps=two_steps)


class StudySearch(Plan, Protocol):
    """A plan that searches a grid for an answer, with defaults for searches that do not check theirs."""

    @property
    def answered(self) -> bool:
        """Return whether the answer stands."""
        return self.finished

    @property
    def checks_left(self) -> int:
        """Return how many trials the checks of a standing answer still need."""
        return 0

    def end_checks(self) -> None:
        """Skip further checks: the search is finished as soon as the answer stands."""
        return

    def look_at(self, index: Index) -> None:
        """Add a combination to the checks of the answer, if this search makes checks."""
        return

    @property
    def verdict(self) -> Verdict:
        """Return the answer so far."""
        ...

    def counts(self, index: Index) -> tuple[int, int]:
        """Return hits and counted trials of a combination."""
        ...

    def probability_bad(self) -> FloatArray:
        """Return the probability that each combination is bad, shape of the grid."""
        ...


class Search:
    """A search for where in the grid trials begin to show the target.

    Args:
        grid: The lattice of combinations, with stated ends if there are any.
        groups: For each cell the cell that stands for it (combinations with one measurement share a group),
            missing for cells that cannot be run.
        limits: When to stop.
        quick: Whether the search ends as soon as the answer stands, without checks.
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
        self._grid, self._groups, self._quick = grid, groups, quick
        self._told: dict[Index, tuple[int, int]] = {}
        self._aside: set[Index] = set()
        self._checks_ended = quick
        self._doubted: Index | None = None
        self._view = View.of(grid, groups)
        self._rows: dict[bool, tuple[tuple[object, ...], Rows]] = {}
        self._known: Known | None = None
        self._checks: tuple[Check, ...] | None = None
        self._verdict: Verdict | None = None

    # -- telling -----------------------------------------------------------------------------------------

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial of a combination, good or bad.

        Other outcomes and void trials must not be counted.
        """
        self.tell_counts(index, int(hit), 1)

    def tell_counts(self, index: Index, hits: int, trials: int) -> None:
        """Count several trials of a combination at once."""
        if trials:
            cell = self._representative(index)
            before = self._told.get(cell, (0, 0))
            self._told[cell] = (before[0] + hits, before[1] + trials)
            self._forget()

    def can_be_told(self, index: Index) -> bool:
        """Return whether the combination was one that can be run when the search began."""
        return index in self._groups

    def set_aside(self, index: Index) -> None:
        """Exclude a combination: no more trials of its group are possible. Its counts keep counting."""
        cell = self._groups.get(index)
        if cell is not None:
            self._aside.add(cell)
            self._forget()

    def end_checks(self) -> None:
        """Skip further checks: the search is finished as soon as the answer stands."""
        self._checks_ended = True

    def look_at(self, index: Index) -> None:
        """Add a combination to the checks of the answer, unless it was tried: it may not be bad."""
        self._doubted = index
        self._checks = None

    def _forget(self) -> None:
        self._known = self._checks = self._verdict = None

    def _representative(self, index: Index) -> Index:
        try:
            return self._groups[index]
        except KeyError:
            raise ValueError(f"combination {index} cannot be run") from None

    # -- what is known -----------------------------------------------------------------------------------

    @property
    def known(self) -> Known:
        """Return what is known after all trials so far."""
        if self._known is None:
            view = self._view
            counts, can_run = self._counted(view)
            seen = can_run | (counts.trials > 0)
            self._known = Known(
                view,
                self._hypotheses(None, seen),
                lambda: self._wider(counts, seen),
                counts,
                can_run,
                self.limits,
                self._quick,
            )
        return self._known

    def _counted(self, view: View) -> tuple[CellCounts, NDArray[np.bool_]]:
        """Return the counts of each position of a view, and which of them can still be tried."""
        hits, trials = (np.zeros(len(view.cells), dtype=np.int64) for _ in range(2))
        for index, (failed, of) in self._told.items():
            hits[view.position[index]], trials[view.position[index]] = failed, of
        # Bad cells that fail rarely among such as always fail are asked about once one did both.
        both = bool(((hits > 0) & (hits < trials)).any())
        rates = _rates(self.limits.min_crash_rate, self.limits.crash_rate, both)
        return CellCounts(rates, hits, trials), view.without(self._aside)

    def _wider(self, counts: CellCounts, seen: NDArray[np.bool_]) -> Rows | None:
        wide = wider(self._view, [self._view.cells[c] for c in counts.tried])
        return None if wide is None else self._hypotheses(wide, seen)

    def _hypotheses(self, wide: Histories | None, seen: NDArray[np.bool_]) -> Rows:
        """Return the products of value sets over the view. Cached, as they change with the view alone."""
        key = (self._view, wide, seen.tobytes())
        kept = self._rows.get(wide is None)
        if kept is None or kept[0] != key:
            kept = self._rows[wide is None] = key, products(self._view, wide, seen)
        return kept[1]

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
        """Choose the next trials, at most `count`; fewer, or none, if no more are worth their time.

        Args:
            count: How many can start now.
            pending: Trials of each combination that run at this moment.
            build_cost: Price of each combination's environment in trials; missing = it exists.
            only: Cells to choose from because the others have to wait; None for all.
            worth: With `only`: minimum score of the best of them, as a share of the best score of all.

        Returns:
            Cells that stand for their groups; a cell appears once per trial.
        """
        known = self.known
        if count <= 0 or not known.can_run.any():
            return []
        running = self._by_place(pending or {})
        stands_for = self._view.cells
        if known.stands:
            return self._checking(count, running, only)
        prices = np.zeros(len(stands_for))
        for index, price in (build_cost or {}).items():
            if index in self._groups and self._groups[index] in self._view.position:
                prices[self._view.position[self._groups[index]]] = price
        allowed = known.can_run
        if only is not None:
            allowed = allowed & np.array([index in only for index in stands_for])
            if worth and not known.are_worth(allowed, worth):
                return []
        cells = known.next(count, running, prices, allowed, _LEAST_WORTH)
        return [stands_for[cell] for cell in cells]

    def _by_place(self, pending: Mapping[Index, int]) -> dict[int, int]:
        running: dict[int, int] = {}
        for index, number in pending.items():
            place = self._view.position.get(self._groups.get(index, index))
            if place is not None and number and self.known.can_run[place]:
                running[place] = running.get(place, 0) + number
        return running

    def _checking(
        self, count: int, running: Mapping[int, int], only: Collection[Index] | None
    ) -> list[Index]:
        chosen: list[Index] = []
        for check in self.checks:
            if only is None or check.cell in only:
                wanted = check.wanted - running.get(self._view.position[check.cell], 0)
                chosen += [check.cell] * min(max(wanted, 0), count - len(chosen))
        return chosen

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return the combinations that would be asked for either result of the pending trials.

        Args:
            pending: Trials of each combination that run at this moment.
            build_cost: As in `ask`.
        """
        if not self.known.can_run.any():
            return []
        running = self._by_place(pending)
        if self.known.stands:
            return self._checking(1, running, None)
        bad = self.known.belief.bad
        wanted: list[Index] = []
        for cell in sorted(running, key=lambda cell: (-bad[cell], cell))[:_FORESEEN]:
            for hits in (1, 0):
                after = replace(self.known, counts=self.known.counts.given(cell, hits, 1))
                rest = {c: n - (c == cell) for c, n in running.items() if n > (c == cell)}
                if not after.stands:
                    free = np.zeros(len(self._view.cells))
                    found = after.next(1, rest, free, after.can_run, _LEAST_WORTH)
                    wanted += [self._view.cells[c] for c in found]
        return list(dict.fromkeys(wanted))

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Return whether no more trials are wanted: the answer is checked, or the budget is spent."""
        if self.trials >= self.limits.max_trials or not self.known.can_run.any():
            return True
        return self.known.stands and (self._checks_ended or not self.checks)

    @property
    def answered(self) -> bool:
        """Return whether the answer stands; later trials only check it."""
        return self.known.stands

    @property
    def checks(self) -> tuple[Check, ...]:
        """Return the checks that a standing answer still needs, in order; empty before it stands."""
        if self._checks is None:
            self._checks = tuple(self._list_checks())
        return self._checks

    def _list_checks(self) -> list[Check]:
        known = self.known
        if not known.stands or self.verdict.status is not Status.CONFIRMED:
            return []
        best = self.verdict.best
        can_run = self._can_run
        wanted: list[Check] = []
        if known.lawless:
            wanted += apart_checks(best, self.counts, self.limits, len(known.counts.tried))
        elif known.unanimous:
            if not any(axis.kind is AxisKind.COMMIT for axis in self._grid.axes):
                wanted += untested_checks(best, self._grid, can_run, self.counts)
            doubted = self._doubted
            if doubted is not None and can_run[doubted] and not self.counts(doubted)[1]:
                wanted.insert(0, Check(doubted, 1, "untested"))
        else:
            wanted += self._proof(best)
        wanted += clean_checks(best, can_run, self.counts, self.limits)
        found: dict[Index, Check] = {}
        for check in wanted:
            cell = self._representative(check.cell)
            before = found.get(cell)
            if before is None or before.wanted < check.wanted:
                found[cell] = Check(cell, check.wanted, check.why)
        return list(found.values())

    def _proof(self, best: Answer) -> list[Check]:
        """Return the trials that both sides of each boundary and long untested parts still lack."""
        clean = self.known.clean
        wanted = [(b.good, clean, "last good") for b in best.boundaries]
        rate = self.known.belief.typical_rates[0]
        longest = interval_checks(best, self._grid, self._can_run, self.counts, rate)
        wanted += [(cell, trials, "untested") for cell, trials in longest]
        return [
            Check(cell, trials - self.counts(cell)[1], why)
            for cell, trials, why in wanted
            if self.counts(cell)[1] < trials
        ]

    @property
    def _can_run(self) -> NDArray[np.bool_]:
        return self.known.feasible

    @property
    def checks_left(self) -> int:
        """Return how many trials the checks still need."""
        return 0 if self._checks_ended else sum(check.wanted for check in self.checks)

    @property
    def verdict(self) -> Verdict:
        """Return the answer so far; a pure function of the counts."""
        if self._verdict is None:
            self._verdict = self._make_verdict()
        return self._verdict

    def _make_verdict(self) -> Verdict:
        known = self.known
        best = known.best
        belief = known.belief
        rate, background = belief.typical_rates
        candidates = [best]
        if not known.lawless:
            total = belief.answers[known.order[0]]
            for row in known.order[1:_CANDIDATES]:
                if total >= self.limits.confidence:
                    break
                total += belief.answers[row]
                candidates.append(known.described(int(row), float(belief.answers[row])))
        status, reason = judge(
            best,
            required=known.required,
            stands=known.stands and bool(known.can_run.any()) and not known.ends_wrong,
            certain=known.unanimous,
            rule=not known.lawless,
            tried=bool(known.counts.trials.any()),
        )
        bits = entropy_bits(belief.answers[belief.answers > 1e-12])
        untried = int(np.count_nonzero(known.can_run & (known.counts.trials == 0)))
        calls_bad = best.hypothesis.bad_cells().ravel()[self._view.flat]
        spread = known.counts.grid.spread
        alone = known.lawless
        verdict = Verdict(
            status=status,
            reason=reason,
            best=best,
            candidates=tuple(candidates),
            sharing=best.probability if alone else known.whole.given_columns(spread == 0.0, belief.best),
            differing=best.probability if alone else known.whole.given_columns(spread > 0.0, belief.best),
            bad_rate=rate,
            background=background,
            ends_wrong=known.ends_wrong if known.stands else (),
            expected_left=0.0 if known.stands else bits / max(capacity(background, rate), 1e-6),
            expected_environments=0 if known.stands else min(untried, math.ceil(bits - 1e-9)),
            against_nothing=None if alone else self._against(known.whole, belief.best, nothing=True),
            against_next=None if alone else self._against(known.whole, belief.best, nothing=False),
            unexplained=() if alone else unexplained(calls_bad, known.counts, self._view.cells),
            monotone=alone or bool(belief.rows.tier[belief.best] != 1),
            untested=untested_intervals(best, self._grid, self._can_run, self.counts, min(rate, 0.999)),
            certain=known.unanimous,
        )
        if status is Status.CONFIRMED:
            verdict = replace(verdict, cleared=cleared(best, self._can_run, self.counts, self.limits))
        return verdict

    def _against(self, belief: Belief, best: int, *, nothing: bool) -> float | None:
        """Return the decimal logarithm of the Bayes factor of an answer against others.

        Args:
            belief: The belief.
            best: Row of the answer.
            nothing: Against *never* and *always bad*; else against the next answer.
        """
        constant = belief.rows.never | belief.rows.always
        these = np.arange(len(constant)) == best
        if nothing:
            those = constant & ~these
        else:
            others = np.where(these, -1.0, belief.answers)
            those = np.arange(len(constant)) == int(others.argmax())
        return log10_bayes_factor(belief.weight, belief.rows.prior, these, those)

    @property
    def trials(self) -> int:
        """Return the number of counted trials so far."""
        return sum(trials for _, trials in self._told.values())

    def counts(self, index: Index) -> tuple[int, int]:
        """Return hits and counted trials of a combination's group."""
        return self._told.get(self._representative(index), (0, 0))

    @property
    def rates(self) -> RateGrid:
        """Return the prior for rates."""
        return self.known.counts.grid

    def probability_bad(self) -> FloatArray:
        """Return the posterior that each combination is bad, shape of the grid."""
        known = self.known
        bad = known.belief.bad
        if known.lawless:
            bad = np.full(len(bad), 0.5)
            bad[known.counts.tried] = known._alone[1]
        return self._view.spread(bad)
