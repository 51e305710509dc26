"""The state of a search after some trials: posterior, answer, and whether the answer stands. Pure.

A `Known` is frozen and made anew after every trial. Stated probabilities come from the posterior given all
trials (`belief`). To choose trials and to end, the search may assume more (`assumed`): that first steps of
the failure which fail rarely are left to the checks, or that bad combinations fail in every trial. If no
hypothesis explains the counts, each cell is labelled by its own trials (`lawless`).

Array shapes: X groups of combinations, P patterns (hypotheses that agree on all tried combinations).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.belief import Belief, CellCounts, believe, most_evidence
from bisect_env.search.families import FloatArray
from bisect_env.search.generators import staircase_rows
from bisect_env.search.hypotheses import HypothesisRows, joined
from bisect_env.search.independent import best_fit, independent, own_labels
from bisect_env.search.independent import path as path_between
from bisect_env.search.space import Hypothesis, constant, described
from bisect_env.search.stopping import (
    CAUTION,
    FAILURES,
    PRUDENCE,
    clean_trials,
    quantile,
    required_confidence,
    usual_trials,
)
from bisect_env.search.verdict import Answer, Boundary, answer
from bisect_env.search.view import LatticeView

NO_RULE = 1e-4
"""Prior that no rule describes the bad cells."""
_DOUBT = math.log(20.0)
"""Minimum log factor by which some table explains the counts better than the best product of value sets, for
histories and staircases to be considered."""
_BELIEVED = 0.5
"""Minimum posterior of all histories and staircases together for which they are used before a product is
sure."""
_SPREAD = 5
"""Number of cells that must have failed, or have been tried often, before the answer is *always bad*."""
MOST_SWEPT = 64
"""Maximum number of cells that are tried once each before the answer is *never bad*."""
REPEATED = 3
"""Number of failures of one cell, without a pass, before bad cells are assumed to fail in every trial."""
_TWICE = 2
"""Number of trials that a cell which contradicts an answer needs before the answer stands."""
PASSES = 2
"""Number of passes of each last good combination before an answer stands, if no combination both failed and
passed: a first step of the failure may fail rarely."""
SPARE = 5
"""Number of trials, beyond one for each cell, before bad cells are assumed to fail in every trial."""


@dataclass(frozen=True, eq=False)
class Known:
    """The trials of a study so far, with the conclusions from them: posterior, labels and best answer.

    Attributes:
        view: The lattice and its groups of combinations.
        rows: The hypotheses that are products of value sets, as the directions of the axes allow them.
        wider: Function that returns hypotheses whose sets also change more often along an axis than its
            direction says, or None if there are none.
        counts: Failures and trials of each group.
        can_run: True for the groups that can still be tried, shape (X,).
        limits: When to stop.
    """

    view: LatticeView
    rows: HypothesisRows
    wider: Callable[[], HypothesisRows | None]
    counts: CellCounts
    can_run: NDArray[np.bool_]
    limits: SearchLimits

    # -- belief ------------------------------------------------------------------------------------------

    @property
    def unanimous(self) -> bool:
        """Return whether every tried combination failed in all of its trials or passed in all of them."""
        return self.counts.unanimous

    @cached_property
    def _alone(self) -> tuple[float, FloatArray]:
        """Return the log evidence, and each combination's probability to be bad, if labels are independent.

        Labels are independent if no hypothesis connects those of different combinations (see `independent`).
        The probabilities have the shape (X,).
        """
        return independent(self.counts)

    @cached_property
    def belief(self) -> Belief:
        """Return the posterior probabilities of hypotheses and failure rates, given all trials.

        Every stated probability comes from it. The hypotheses are products of value sets. More complicated
        ones are added if some table would fit the counts much better, or before a product counts as sure.
        """
        plain = believe(self.rows, self.counts)
        # "Always bad" is checked at a few cells: no number of trials rules out every gap between them.
        is_sure = (
            float(plain.answers[plain.best]) >= self.limits.confidence and not plain.rows.always[plain.best]
        )
        if not self.counts.hits.any():
            return plain
        if not is_sure and best_fit(self.counts) - plain.best_fit < _DOUBT:
            return plain
        wider, stairs = self.wider(), staircase_rows(self.view, self.labels, self.can_run)
        if wider is None and stairs is None:
            return plain
        least = 1.0 - self.limits.confidence if is_sure else _BELIEVED
        # On one axis there are many histories, and mostly a bound shows that they cannot have that share.
        is_line = sum(size > 1 for size in self.view.grid.shape) == 1 and not self.unanimous
        below = plain.log_evidence + math.log(least / 2.0)
        if is_line and wider is not None and most_evidence(wider, self.counts) < below:
            return plain
        wide = believe(joined([wider or self.rows, *([stairs] if stairs else [])]), self.counts)
        if self.unanimous:
            return wide
        return wide if float(wide.answers[wide.rows.tier > 0].sum()) > least else plain

    @cached_property
    def assumed(self) -> Belief:
        """Return the posterior by which the search ends; no probability of it is stated.

        It leaves out first steps that fail rarely (`_without_steps`). After enough trials
        (`_taken_for_certain`), hypotheses that contradict any trial are left out as well.
        """
        if self._taken_for_certain and self._agreeing.any():
            return self.belief.weighted(self._agreeing.astype(np.float64))
        return self._without_steps

    @cached_property
    def _without_steps(self) -> Belief:
        """Return the posterior if no passed combination is bad and fails rarely while others always fail.

        This doubt is left to the checks of the last good combinations. It is left out as long as no
        combination both failed and passed.
        """
        if not self.unanimous or not self.counts.hits.any() or not self._agreeing.any():
            return self.belief
        return self.belief.weighted(np.where(self._agreeing, 1.0, 1.0 - self.belief.in_two_steps))

    @cached_property
    def lawless(self) -> bool:
        """Return True if no hypothesis explains the counts, so that each combination is judged alone."""
        if not self.counts.hits.any() or len(self.counts.tried) < 2:
            return False
        if self._taken_for_certain and not self._agreeing.any():
            return True
        return self._alone[0] + math.log(NO_RULE) > self.belief.log_evidence

    @cached_property
    def usual_trials(self) -> int:
        """Return the approximate number of trials that a combination needs to get a label (good or bad)."""
        return usual_trials(*self.belief.typical_rates)

    @cached_property
    def labels(self) -> NDArray[np.int8]:
        """Return the label of each group of combinations by its own trials: 1 bad, 0 good, -1 unknown.

        The shape is (X,).
        """
        return own_labels(self.counts, self._alone[1], self.limits)

    # -- the answer --------------------------------------------------------------------------------------

    @cached_property
    def best(self) -> Answer:
        """Return the most probable answer, such as the first bad combination and the last good one.

        Combinations are given as cells of the lattice of `view`.
        """
        if self.lawless:
            return self._pair
        return self.described(self.row, float(self.belief.answers[self.row]))

    @cached_property
    def row(self) -> int:
        """Return the row number of the best answer, if some hypothesis explains the counts."""
        return self.assumed.best

    def described(self, row: int, probability: float) -> Answer:
        """Return hypothesis number `row` as an `Answer`, with its first bad and last good combination."""
        rows = self.belief.rows
        hits, trials = self.view.spread(self.counts.hits), self.view.spread(self.counts.trials)
        every_change = bool(rows.tier[row] == 1)
        return answer(rows.write(row), probability, self.feasible, hits, trials, every_change=every_change)

    @cached_property
    def feasible(self) -> NDArray[np.bool_]:
        """Return which combinations can be or were tried, as a boolean array in the shape of the lattice."""
        return self.view.spread(self.can_run | (self.counts.trials > 0))

    @cached_property
    def path(self) -> list[Index] | None:
        """Return the shortest path from a combination labelled bad to one labelled good.

        Returns None if no combination is labelled bad, or none good.
        """
        labels = self.view.spread(self.labels, -1)
        return path_between(labels, self.feasible, self.view.grid)

    @cached_property
    def _pair(self) -> Answer:
        """Return the answer to give if no hypothesis explains the counts: the two ends of `path`.

        The bad end is the first bad combination, the good end the last good one. The answer has a boundary if
        they are neighbours that differ on one axis. If there is no path, the answer is *always bad* or *never
        bad*.
        """
        found = self.path
        labels = self.view.spread(self.labels, -1)
        known = labels == 1
        if found is None:
            kind = "always" if known.any() else "never"
            return Answer(constant(kind, self.view.grid.shape), (), None, None, 0.0)
        bad, good = found[0], found[-1]
        if not known[bad]:
            bad, good = good, bad
        axes = tuple(i for i, (a, b) in enumerate(zip(bad, good, strict=True)) if a != b)
        hypothesis = Hypothesis("pair", described("pair", known).sets, axes, known)
        steps, chances = len(found) - 2, self.view.spread(self.bad)
        chance = float(chances[bad] * (1.0 - chances[good])) / (1 + steps)
        if steps or len(axes) > 1:
            return Answer(hypothesis, (), bad, good, chance)
        return Answer(hypothesis, (Boundary(axes[0], bad, good),), bad, good, chance)

    @cached_property
    def guide(self) -> Belief:
        """Return the posterior by which the next trials are chosen.

        This is `assumed`, until only what it leaves out keeps the answer from being sure.
        """
        is_settled = float(self.assumed.answers[self.row]) >= self.required
        return self.belief if is_settled else self.assumed

    @cached_property
    def required(self) -> float:
        """Return the minimum posterior probability of an answer that counts as sure."""
        if self.unanimous:
            return self.limits.confidence  # Nothing suggests that good combinations fail.
        rate, _ = self.belief.typical_rates
        background = quantile(self.counts.grid.p0, self.belief.backgrounds, PRUDENCE)
        return required_confidence(self.limits.confidence, rate, background)

    @cached_property
    def sure(self) -> bool:
        """Return whether the best answer is probable enough for the search to end, before it is checked.

        The probability is the one of `assumed`.
        If no hypothesis explains the counts, the answer is sure if nothing lies between the bad and the good
        end of `path`.
        """
        if self.lawless:
            found = self.path
            return found is not None and len(found) == 2
        return float(self.assumed.answers[self.row]) >= self.required

    @cached_property
    def _agreeing(self) -> NDArray[np.bool_]:
        """Return which patterns of hypotheses agree with every trial, as a boolean array of shape (P,).

        Such a pattern calls a tried combination bad if and only if one of its trials failed.
        """
        failed = self.counts.hits[self.counts.tried] > 0
        return np.asarray((self.belief.patterns.calls == failed).all(axis=1))

    @cached_property
    def _taken_for_certain(self) -> bool:
        """Return whether the search assumes that bad combinations fail, and good ones pass, in every trial.

        It does so if no combination both failed and passed, after enough trials (`enough_trials`), or earlier
        if the answer would otherwise contradict all of several trials of a combination. It never does so
        before a failure: then a few passes of a bad combination that fails rarely would prove it good.
        """
        if not self.unanimous or self._enough_if_certain:
            return self._enough_if_certain
        if not self.counts.hits.any():
            return False
        cells = self._contradicting
        # Passes of a bad cell are usual where failures are rare; then no answer is nearly sure.
        counts = self.counts.hits[cells] > 0
        best = self._without_steps.best
        counts |= float(self._without_steps.answers[best]) >= self.limits.confidence
        return bool((counts & (self.counts.trials[cells] >= _TWICE)).any())

    @property
    def _enough_if_certain(self) -> bool:
        """Return whether enough trials ran to assume that bad combinations fail in every trial.

        This requires that no combination both failed and passed, that one failed `REPEATED` times, and that
        `enough_trials` ran.
        """
        if not self.unanimous or int(self.counts.hits.max(initial=0)) < REPEATED:
            return False
        return int(self.counts.trials.sum()) >= self.enough_trials

    @cached_property
    def enough_trials(self) -> int:
        """Return how many trials it takes before bad combinations may be assumed to fail in every trial.

        This may be assumed only if no combination has both passed and failed. The number is one trial for
        each group of combinations, and `SPARE` more.
        """
        return int(np.count_nonzero(self.can_run | (self.counts.trials > 0))) + SPARE

    @cached_property
    def ends_wrong(self) -> tuple[str, ...]:
        """Return which stated ends (`good`, `bad`) certainly behave unlike what the user stated."""
        wrong = []
        bad_cells = self.belief.bad
        for name, end, is_bad in (("good", self.view.grid.good, False), ("bad", self.view.grid.bad, True)):
            if end is None or self.view.group[end] < 0 or self.lawless:
                continue
            cell = int(self.view.group[end])
            if not self.can_run[cell] and not self.counts.trials[cell]:
                continue
            chance = float(bad_cells[cell])
            if (1 - chance if is_bad else chance) >= self.limits.confidence or (
                self.sure and not self.wanted and self.best.hypothesis.is_bad(end) != is_bad
            ):
                wrong.append(name)
        return tuple(wrong)

    @cached_property
    def clean(self) -> int:
        """Return how many passes in a row are needed to call a combination good.

        The failure rate of bad combinations is taken from the low end of its posterior (`CAUTION`).
        """
        chances = self.belief.bad_rates @ self.counts.grid.kernel
        return clean_trials(quantile(self.counts.grid.rates, chances, CAUTION))

    @cached_property
    def wanted(self) -> list[tuple[int, int]]:
        """Return the combinations that need more trials before the answer is final, and how many.

        The number includes trials that were already made. The list is empty if no answer is sure.
        """
        if not self.sure:
            return []
        best = self.best
        if best.hypothesis.kind == "never":
            cells = np.flatnonzero(self.can_run)
            wanted = [(int(c), 1) for c in evenly(cells, MOST_SWEPT)]
        elif best.hypothesis.kind == "always":
            enough = clean_trials(self.belief.typical_rates[0])
            cells = evenly(np.flatnonzero(self.can_run), _SPREAD)
            wanted = [(int(c), 1 if self.counts.hits[c] else enough) for c in cells]
            passed = self.counts.tried[self.counts.hits[self.counts.tried] == 0]
            wanted += [(int(c), _TWICE) for c in passed]
        else:
            wanted = self._doubtful()
            # A history that changes more often than stated could be due to one odd failure.
            certain = _TWICE if self.belief.rows.tier[self.row] == 1 and not self.lawless else 1
            is_early = self.unanimous and int(self.counts.trials.sum()) < self.enough_trials
            passes = PASSES if is_early and certain == 1 and not self.lawless else 1
            sides = [(b.bad, b.good) for b in best.boundaries]
            if not sides and best.first_bad is not None and best.last_good is not None:
                sides = [(best.first_bad, best.last_good)]
            for bad, good in sides:
                cell = int(self.view.group[bad])
                if self.counts.hits[cell] < (certain if self._enough_if_certain else FAILURES):
                    # One more failure is needed, however many trials that takes.
                    wanted.append((cell, int(self.counts.trials[cell]) + 1))
                wanted.append((int(self.view.group[good]), passes))
        return [(c, n) for c, n in wanted if self.counts.trials[c] < n and self.can_run[c]]

    def _doubtful(self) -> list[tuple[int, int]]:
        """Return combinations to try a second time, because one trial contradicts or decides the answer.

        Each comes as a pair (position, 2 trials). If the answer is a history that changes more often than
        stated, these include combinations that passed although the most probable product of plain sets calls
        them bad: one that is bad and passed once is more common than such a history. The list is empty if no
        hypothesis explains the counts.
        """
        if self.lawless:
            return []
        rows, hits = self.belief.rows, self.counts.hits
        odd = [cell for cell in self._contradicting if hits[cell]]
        if self.unanimous and len(self._contradicting):
            # One that stays so is enough: bad combinations are then assumed to fail in every trial.
            odd = [max(self._contradicting, key=lambda cell: self.counts.trials[cell])]
        if rows.tier[self.row] == 1 and not self._enough_if_certain:
            tried = self.counts.tried
            plain = int(np.where(rows.tier == 0, self.belief.weight, -1.0).argmax())
            odd += list(tried[rows.says[plain, tried] & (hits[tried] == 0)])
        return [(int(cell), _TWICE) for cell in odd]

    @cached_property
    def _contradicting(self) -> NDArray[np.intp]:
        """Return the positions of the groups whose trials all contradict the most probable answer.

        This is the best answer without the assumption that bad combinations fail in every trial.
        """
        tried, hits = self.counts.tried, self.counts.hits
        calls_bad = self.belief.rows.says[self._without_steps.best, tried]
        against = np.where(calls_bad, hits[tried] == 0, hits[tried] == self.counts.trials[tried])
        return np.asarray(tried[against])

    @cached_property
    def sides_to_repeat(self) -> NDArray[np.bool_]:
        """Return which combinations are worth repeating: True at both sides of the answer's boundaries.

        The shape is (X,). All are False, unless the only doubt left is whether bad combinations fail in every
        trial: then trials of both sides are the only ones worth repeating.
        """
        sides = np.zeros_like(self.can_run)
        if not self.unanimous or not self.counts.hits.any() or self.lawless or self.best.probability <= 0.5:
            return sides
        # The answer would be sure if bad combinations were known to fail always, which is less probable.
        certain = self.assumed.weighted(self._agreeing.astype(np.float64))
        given = float(certain.answers[self.row])
        is_certain = float(self.assumed.masses[self._agreeing].sum())
        if given >= self.limits.confidence and is_certain < given:
            cells = [
                int(self.view.group[cell]) for one in self.best.boundaries for cell in (one.bad, one.good)
            ]
            if cells and self.counts.trials[cells].all():
                sides[cells] = True
        return sides

    @cached_property
    def bad(self) -> FloatArray:
        """Return, for each group of equivalent combinations, the probability that it is bad; shape (X,).

        If no hypothesis explains the counts, it is one half for combinations without trials.
        """
        return self._alone[1] if self.lawless else self.belief.bad

    @cached_property
    def stands(self) -> bool:
        """Return whether the answer is sure and no required trial is missing.

        It is also True if nothing can be run, or if a stated end is wrong.
        """
        if not self.can_run.any():
            return True
        if self.counts.trials.sum() == 0:
            return False
        if self.ends_wrong:
            return True
        return self.sure and not self.wanted


def evenly(cells: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Pick at most `count` elements of an array, evenly spaced."""
    if len(cells) <= count:
        return cells
    return cells[np.unique(np.linspace(0, len(cells) - 1, count).round().astype(np.intp))]
