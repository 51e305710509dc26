"""The search for the first bad combination: what to try next, and the verdict so far.

Pure: no clock, no randomness, no I/O. The caller says which trials are pending and what an environment costs.
The same results in any order give the same choices, so that a resumed study goes on as if it had never
stopped.

After each trial the belief is made anew from all counts (`belief.py`), over the hypotheses that the
generators return (`generators.py`). An answer stands when it is sure and both sides of its boundary were
tried (`known.py`). Until then, trials are chosen by their expected information (`next_trials.py`). A large
lattice is searched in stages (`stages.py`). An answer that stands is checked (`checks.py`): the longest
untested part gets a trial, and the last good combinations get trials until a failure rate of `clean_rate` is
excluded there. The search is `finished` after that, or at once with `quick`, or when `end_checks` was called.
A failure during the checks can overturn the answer; then the search goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from bisect_env.matrix.grid import AxisKind, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.belief import Belief
from bisect_env.search.checks import Check, apart_checks, clean_checks, cleared, untested_checks
from bisect_env.search.families import FloatArray
from bisect_env.search.goodness_of_fit import log10_bayes_factor, unexplained
from bisect_env.search.known import Known
from bisect_env.search.next_trials import NextTrials
from bisect_env.search.stages import MOST_STAGES, Stage, closer_shape, first_shape
from bisect_env.search.stopping import judge
from bisect_env.search.study_search import Situation, StudySearch
from bisect_env.search.untested_intervals import checks as interval_checks
from bisect_env.search.untested_intervals import untested_intervals
from bisect_env.search.verdict import Answer, Verdict, capacity, entropy_bits

_FORESEEN = 3
"""Maximum number of running combinations for which the next trial after their result is predicted."""
_FIRST_PASSES = 5
"""Number of trials of the last good combinations before others are looked at, which take few trials each."""
_CANDIDATES = 10
"""Maximum number of answers that a verdict lists."""


class Search(StudySearch):
    """A search for the first bad combination: it chooses trials and finds the boundary between good and bad.

    Only trials with the target failure count as failures.

    Args:
        grid: The lattice of combinations, of any size; may contain a stated good and bad end.
        groups: For each cell that can be run, the representative of its group (combinations whose trials
            would be equal form a group). Cells that cannot be run are missing.
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
        self._stages = [Stage(grid, groups, self.limits, first_shape(grid), 1)]

    # -- what is known -----------------------------------------------------------------------------------

    @property
    def is_staged(self) -> bool:
        """Return whether the lattice is so large that it is searched in stages."""
        return self._stages[0].shape is not None

    @cached_property
    def _stage(self) -> Stage:
        """Return the current stage: the first one without a sure answer, or the last possible stage."""
        stages = self._stages[:1]
        while len(stages) < MOST_STAGES and (known := stages[-1].known(self.tallies)).stands:
            shape = closer_shape(stages[-1], known, self._grid, self.tallies)
            # Combinations that cannot be run may leave no closer ones than a stage already has.
            if shape is None or any(stage.shape == shape for stage in stages):
                break
            number = len(stages) + 1
            kept = [stage for stage in self._stages[number - 1 : number] if stage.shape == shape]
            stages += kept or [Stage(self._grid, self.tallies.groups, self.limits, shape, number)]
        self._stages = stages
        return stages[-1]

    @cached_property
    def known(self) -> Known:
        """Return the posterior, labels and best answer of the current stage."""
        return self._stage.known(self.tallies)

    # -- asking ------------------------------------------------------------------------------------------

    def _choose(self, count: int, now: Situation) -> list[Index]:
        known, cells = self.known, self._stage.stands_for
        allowed = known.can_run & now.allowed(cells)
        following = NextTrials(known, self._running(now), now.prices(cells), allowed)
        if now.only is not None and now.worth and not following.are_worth(now.worth):
            return []
        return [cells[cell] for cell in following.choose(count)]

    def _running(self, now: Situation) -> dict[int, int]:
        position = self._stage.position
        return {position[cell]: n for cell, n in now.running.items() if cell in position}

    def _foresee(self, now: Situation) -> list[Index]:
        """Return the combinations that `ask` would choose next if a running trial failed, or if it passed.

        Only running trials of the `_FORESEEN` combinations that are most probably bad are considered.
        """
        known, running = self.known, self._running(now)
        bad = known.belief.bad
        wanted: list[int] = []
        for cell in sorted(running, key=lambda cell: (-bad[cell], cell))[:_FORESEEN]:
            for hits in (1, 0):
                after = replace(known, counts=known.counts.given(cell, hits, 1))
                rest = {c: n - (c == cell) for c, n in running.items() if n > (c == cell)}
                if not after.stands:
                    wanted += NextTrials(after, rest, np.zeros(len(bad)), after.can_run).choose(1)
        return [self._stage.stands_for[cell] for cell in dict.fromkeys(wanted)]

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def answered(self) -> bool:
        """Return whether the search has a sure answer, so that further trials only check it."""
        return self.known.stands

    def _wanted_checks(self) -> list[Check]:
        known, best = self.known, self.verdict.best
        clean = [
            one for one in clean_checks(best, self.tallies, self.limits) if self.tallies.can_run(one.cell)
        ]
        if self.is_staged:
            return clean
        wanted: list[Check] = []
        if known.lawless:
            wanted += apart_checks(best, self.tallies, self.limits, len(known.counts.tried))
        elif known.unanimous:
            if not any(axis.kind is AxisKind.COMMIT for axis in self._grid.axes):
                wanted += untested_checks(best, self._grid, self.tallies)
        else:
            wanted += self._proof(best)
        is_begun = all(self.counts(one.cell)[1] >= _FIRST_PASSES for one in clean)
        return [*wanted, *clean] if is_begun and wanted else clean or wanted or self._until_probable()

    def _until_probable(self) -> list[Check]:
        """Return one more trial if the answer is checked and still less probable than a confirmed one."""
        known = self.known
        if known.lawless or known.best.probability >= known.required:
            return []
        none = np.zeros(len(known.can_run))
        cells = NextTrials(known, {}, none, known.can_run).most_telling(1, known.can_run)
        return [Check(self._stage.stands_for[cell], 1) for cell in cells]

    def _proof(self, best: Answer) -> list[Check]:
        """Return the trials that an answer still needs, at last good versions and in untested intervals."""
        wanted = [(b.good, self.known.clean) for b in best.boundaries]
        wanted += interval_checks(best, self._grid, self.tallies, self.known.belief.typical_rates[0])
        lacking = [(cell, trials - self.counts(cell)[1]) for cell, trials in wanted]
        return [Check(cell, number) for cell, number in lacking if number > 0]

    @cached_property
    def verdict(self) -> Verdict:
        """Return the verdict after the trials so far: the most probable answer, and how sure it is.

        It depends only on the counts, not on the order of trials.
        """
        known, stage = self.known, self._stage
        belief = known.belief
        rate, background = belief.typical_rates
        candidates = [known.best]
        if not known.lawless:
            order = [int(row) for row in np.argsort(-belief.answers, kind="stable") if row != known.row]
            total = belief.answers[known.row]
            for row in order[: _CANDIDATES - 1]:
                if total >= known.limits.confidence:
                    break
                total += belief.answers[row]
                candidates.append(known.described(row, float(belief.answers[row])))
        best = stage.whole(known.best)
        stands = known.sure and not known.wanted and not known.ends_wrong
        clear = cleared(best, self.tallies, self.limits) if stands else ()
        status, reason = judge(
            known.best,
            required=known.required,
            stands=stands,
            checks=sum(one.wanted for one in clear),
            certain=known.unanimous,
            rule=not known.lawless,
            tried=bool(known.counts.trials.any()),
            can_run=bool(known.feasible.any()),
            untried=self.tallies.untried,
        )
        bits = entropy_bits(belief.answers[belief.answers > 1e-12])
        untried = int(np.count_nonzero(known.can_run & (known.counts.trials == 0)))
        calls_bad = known.best.hypothesis.bad_cells().ravel()[stage.view.flat]
        spread = known.counts.grid.spread
        alone = known.lawless
        return Verdict(
            status=status,
            reason=reason,
            best=best,
            candidates=tuple(map(stage.whole, candidates)),
            sharing=best.probability if alone else known.belief.given_columns(spread == 0.0, known.row),
            differing=best.probability if alone else known.belief.given_columns(spread > 0.0, known.row),
            bad_rate=rate,
            background=background,
            ends_wrong=known.ends_wrong if known.stands else (),
            expected_left=0.0 if known.stands else bits / max(capacity(background, rate), 1e-6),
            expected_environments=0 if known.stands else min(untried, math.ceil(bits - 1e-9)),
            against_nothing=None if alone else self._against(known.belief, known.row, nothing=True),
            against_next=None if alone else self._against(known.belief, known.row, nothing=False),
            unexplained=() if alone else unexplained(calls_bad, known.counts, stage.stands_for),
            monotone=alone or bool(belief.rows.tier[known.row] != 1),
            untested=untested_intervals(best, self._grid, self.tallies, min(rate, 0.999)),
            cleared=clear,
            certain=known.unanimous,
        )

    def _against(self, belief: Belief, best: int, *, nothing: bool) -> float | None:
        """Return how strongly the trials favour an answer over others, as log10 of the Bayes factor.

        Returns None if the factor is not defined (see `log10_bayes_factor`).

        Args:
            belief: The posterior of all hypotheses.
            best: Row number of the answer.
            nothing: True to compare with *never* and *always bad*, False for the second most probable answer.
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
        """Return the probability that each combination is bad, in the shape of the grid.

        It is 0.5 for combinations that are in no stage.
        """
        bad = np.full(self._grid.shape, 0.5)
        last = self._stage
        for stage in (*self._stages[:-1], last):
            has_group = stage.view.group >= 0
            chances = stage.known(self.tallies).bad
            bad.flat[stage.places[has_group]] = chances[stage.view.group[has_group]]
        return bad
