"""The search of a study: which combination to try next, and the verdict so far.

Pure: no clock, no randomness, no I/O. The caller says which trials are pending and what an environment costs.
The same results in any order give the same choices, so that a resumed study goes on as if it had never
stopped.

After each trial the belief is made anew from all counts (`belief.py`), over the hypotheses that the
generators supply (`generators.py`). An answer stands when it is sure and both sides of its boundary were
tried (`known.py`); until then trials are chosen by what they are expected to tell (`next_trials.py`). A
standing answer is checked: a look into the longest part that nobody tried, and the last good combinations
until a failure rate of `clean_rate` is excluded there (`checks.py`). The study is `finished` after that, or
at once with `quick`, or when `end_checks` was called. A failure during the checks opens the question again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import AxisKind, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.belief import Belief, CellCounts
from bisect_env.search.checks import Check, apart_checks, clean_checks, cleared, untested_checks
from bisect_env.search.families import Family, FloatArray
from bisect_env.search.generators import products, wider
from bisect_env.search.goodness_of_fit import log10_bayes_factor, unexplained
from bisect_env.search.hypotheses import HypothesisRows
from bisect_env.search.known import Known
from bisect_env.search.next_trials import NextTrials
from bisect_env.search.rates import RateGrid
from bisect_env.search.stopping import judge
from bisect_env.search.study_search import StudySearch
from bisect_env.search.untested_intervals import checks as interval_checks
from bisect_env.search.untested_intervals import untested_intervals
from bisect_env.search.verdict import Answer, Status, Verdict, capacity, entropy_bits
from bisect_env.search.view import LatticeView

_FORESEEN = 3
"""Running combinations for whose results the next trial is foreseen."""
_CANDIDATES = 10
"""Answers that a verdict lists at most."""


@functools.lru_cache(maxsize=16)
def _rates(min_rate: float, stated: float | None, two_steps: bool) -> RateGrid:
    return RateGrid.default(min_rate, stated, two_steps=two_steps)


class Search(StudySearch):
    """A search for the boundary between combinations that pass and those that fail.

    Only failures of the target kind count.

    Args:
        grid: The lattice of combinations; may contain a stated good and bad end.
        groups: For each cell that can be run, the representative of its group (combinations with the same
            measurement form a group). Cells that cannot be run are missing.
        limits: When to stop.
        quick: Whether to finish as soon as the answer stands, without checks.
    """

    def __init__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        limits: SearchLimits | None = None,
        *,
        quick: bool = False,
    ) -> None:
        super().__init__(grid, groups, limits, quick=quick)
        self._view = LatticeView.of(grid, groups)
        self._rows: dict[bool, tuple[tuple[object, ...], HypothesisRows]] = {}
        self._known: Known | None = None

    def _changed(self) -> None:
        super()._changed()
        self._known = None

    # -- what is known -----------------------------------------------------------------------------------

    @property
    def known(self) -> Known:
        """Return the posterior, labels and best answer that follow from all trials so far."""
        if self._known is None:
            view, can_run = self._view, self.tallies.runnable(self._view)
            counts = self._counted()
            seen = can_run | (counts.trials > 0)
            self._known = Known(
                view,
                self._hypotheses(None, seen),
                lambda: self._wider(counts, seen),
                counts,
                can_run,
                self.limits,
            )
        return self._known

    def _counted(self) -> CellCounts:
        # Bad cells that fail rarely among such as always fail are asked about once one did both.
        both = any(0 < hits < trials for hits, trials in self.tallies.told.values())
        rates = _rates(self.limits.min_crash_rate, self.limits.crash_rate, both)
        return self.tallies.in_view(self._view, rates)

    def _wider(self, counts: CellCounts, seen: NDArray[np.bool_]) -> HypothesisRows | None:
        wide = wider(self._view, [self._view.cells[c] for c in counts.tried])
        return None if wide is None else self._hypotheses(wide, seen)

    def _hypotheses(self, wide: tuple[Family, ...] | None, seen: NDArray[np.bool_]) -> HypothesisRows:
        """Return all hypotheses that consist of one set of bad values for each axis.

        The result is cached until an argument changes.
        """
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
        """Choose the representatives of the groups to try next. See `Plan.ask`."""
        known = self.known
        if count <= 0 or not known.can_run.any():
            return []
        if known.stands:
            return self._checking(count, pending or {}, only)
        running = self._by_place(pending or {})
        stands_for = self._view.cells
        prices = self.tallies.prices(self._view, build_cost)
        allowed = known.can_run
        if only is not None:
            allowed = allowed & np.array([index in only for index in stands_for])
        following = NextTrials(known, running, prices, allowed)
        if only is not None and worth and not following.are_worth(worth):
            return []
        return [stands_for[cell] for cell in following.choose(count)]

    def _by_place(self, pending: Mapping[Index, int]) -> dict[int, int]:
        return {self._view.position[cell]: n for cell, n in self.tallies.by_group(pending).items()}

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return what `ask` would choose next if a pending trial failed, or if it passed.

        Only the pending trials of the combinations that are most probably bad are considered. See
        `Plan.foresee`.
        """
        if not self.known.can_run.any():
            return []
        if self.known.stands:
            return self._checking(1, pending)
        running = self._by_place(pending)
        bad = self.known.belief.bad
        wanted: list[Index] = []
        for cell in sorted(running, key=lambda cell: (-bad[cell], cell))[:_FORESEEN]:
            for hits in (1, 0):
                after = replace(self.known, counts=self.known.counts.given(cell, hits, 1))
                rest = {c: n - (c == cell) for c, n in running.items() if n > (c == cell)}
                if not after.stands:
                    free = np.zeros(len(self._view.cells))
                    found = NextTrials(after, rest, free, after.can_run).choose(1)
                    wanted += [self._view.cells[c] for c in found]
        return list(dict.fromkeys(wanted))

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def answered(self) -> bool:
        """Return whether the search has a sure answer; later trials only check this answer."""
        return self.known.stands

    def _wanted_checks(self) -> list[Check]:
        known, best = self.known, self.verdict.best
        wanted: list[Check] = []
        if known.lawless:
            wanted += apart_checks(best, self.tallies, self.limits, len(known.counts.tried))
        elif known.unanimous:
            if not any(axis.kind is AxisKind.COMMIT for axis in self._grid.axes):
                wanted += untested_checks(best, self._grid, self.tallies)
        else:
            wanted += self._proof(best)
        wanted += clean_checks(best, self.tallies, self.limits)
        return wanted

    def _proof(self, best: Answer) -> list[Check]:
        """Return the trials still missing at the good side of each boundary and in long untested parts."""
        clean = self.known.clean
        wanted = [(b.good, clean, "last good") for b in best.boundaries]
        rate = self.known.belief.typical_rates[0]
        longest = interval_checks(best, self._grid, self.tallies, rate)
        wanted += [(cell, trials, "untested") for cell, trials in longest]
        return [
            Check(cell, trials - self.counts(cell)[1], why)
            for cell, trials, why in wanted
            if self.counts(cell)[1] < trials
        ]

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
            untested=untested_intervals(best, self._grid, self.tallies, min(rate, 0.999)),
            certain=known.unanimous,
        )
        if status is Status.CONFIRMED:
            verdict = replace(verdict, cleared=cleared(best, self.tallies, self.limits))
        return verdict

    def _against(self, belief: Belief, best: int, *, nothing: bool) -> float | None:
        """Return the log10 of the Bayes factor by which the trials favour an answer over others.

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

    def probability_bad(self) -> FloatArray:
        """Return the posterior probability that each combination is bad, in the shape of the grid."""
        return self._view.spread(self.known.bad)
