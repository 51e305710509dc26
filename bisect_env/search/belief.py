"""The posterior of every hypothesis after some trials, with failure rates integrated out. Pure.

A row h calls the tried cells x bad or good. With B_j(x) the likelihood of the counts of x if it is bad, at
column j of the rates (typical rate and spread, `rates.py`), and G_k(x) if it is good, at background k,

    P(h, j, k | counts) ∝ prior(h) · prior(j, k) · Π_{x bad under h} B_j(x) · Π_{x good under h} G_k(x)

The column with typical rate 1 and spread 0 means that bad combinations fail in every trial. Rows that agree
on all tried cells form a *pattern* and have one likelihood; there are few patterns, however many rows. Counts
are sufficient: the belief is made anew from stored trials alone, in any order, and never changed.

Array shapes: H rows (hypotheses), P patterns, X groups of combinations, J columns, R failure rates, K
background rates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.search.families import FloatArray
from bisect_env.search.hypotheses import HypothesisRows, Patterns, share_bad
from bisect_env.search.rates import IMPOSSIBLE, RateGrid, score

_FIRST, _NEGLIGIBLE = 64, -30.0
"""Number of patterns that are weighed first, and the log of the share of the best pattern below which another
is left out."""
_LEAST = 1e-12
"""Hypotheses less likely than this, as a share of the most probable one, are left out of sums."""


@dataclass(frozen=True, eq=False)
class CellCounts:
    """The failures and trials of every group of equivalent combinations, and the prior of failure rates.

    Attributes:
        grid: Prior of failure rates.
        hits: Failures of each cell, shape (X,).
        trials: Counted trials of each cell, shape (X,).
    """

    grid: RateGrid
    hits: NDArray[np.int64]
    trials: NDArray[np.int64]

    @cached_property
    def tried(self) -> NDArray[np.intp]:
        """Return the positions of the groups that have trials, in ascending order."""
        return np.flatnonzero(self.trials)

    @cached_property
    def unanimous(self) -> bool:
        """Return whether every tried combination failed in all of its trials or passed in all of them."""
        return bool(((self.hits == 0) | (self.hits == self.trials)).all())

    @cached_property
    def scored(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return three arrays that say how well "bad" and "good" explain each tried combination's counts.

        The first is the log likelihood of the counts if the combination is bad (log B of the module), shape
        (tried, J); the second, if it is good (log G), shape (tried, K). The third is the posterior of its own
        failure rate if it is bad, shape (tried, J, R).
        """
        bad, good, own = [], [], []
        for cell in self.tried:
            log_bad, rate, log_good = score(self.grid, int(self.hits[cell]), int(self.trials[cell]))
            bad.append(log_bad)
            own.append(rate)
            good.append(log_good)
        shape = (len(self.grid.m), len(self.grid.rates))
        if not bad:
            return np.zeros((0, shape[0])), np.zeros((0, len(self.grid.p0))), np.zeros((0, *shape))
        return np.stack(bad), np.stack(good), np.stack(own)

    def given(self, cell: int, hits: int, trials: int) -> CellCounts:
        """Return a copy of the counts to which failures and trials of one combination were added."""
        more, of = self.hits.copy(), self.trials.copy()
        more[cell] += hits
        of[cell] += trials
        return CellCounts(self.grid, more, of)


@dataclass(frozen=True, eq=False)
class Belief:
    """The posterior probabilities of hypotheses and failure rates, given the counts of all trials.

    Attributes:
        rows: The hypotheses.
        counts: The counts.
        patterns: The rows, grouped by the tried cells that they call bad.
        by_rate: Posterior of each pattern with each column, divided by the pattern's prior, shape (P, J).
        by_background: Posterior of each pattern with each background rate, divided by the pattern's prior,
            shape (P, K).
        log_evidence: Log marginal likelihood of the counts under all rows together.
    """

    rows: HypothesisRows
    counts: CellCounts
    patterns: Patterns
    by_rate: FloatArray
    by_background: FloatArray
    log_evidence: float

    @cached_property
    def masses(self) -> FloatArray:
        """Return the posterior of each pattern (hypotheses that agree on all tried combinations), shape (P,).

        The sum is 1.
        """
        return np.asarray(self.patterns.prior * self.by_rate.sum(axis=1))

    @cached_property
    def best_fit(self) -> float:
        """Return the log likelihood of the counts under the hypothesis that fits them best."""
        return self.log_evidence + float(np.log(self.by_rate.sum(axis=1).max()))

    @cached_property
    def weight(self) -> FloatArray:
        """Return the posterior probability of each hypothesis, shape (H,); the sum is 1."""
        return np.asarray(self.rows.prior * self.by_rate.sum(axis=1)[self.patterns.of])

    @cached_property
    def answers(self) -> FloatArray:
        """Return the posterior probability of each hypothesis, with 0 for needlessly complicated ones.

        The shape is (H,). A hypothesis is needlessly complicated if one of a lower tier agrees with it on all
        tried combinations. The simplest hypotheses of each pattern share its posterior (see
        `Patterns.share`), so that the sum is 1.
        """
        return np.minimum(self.patterns.share * self.masses[self.patterns.of], 1.0)  # rounding can exceed 1

    @cached_property
    def best(self) -> int:
        """Return the row number of the hypothesis that is most probable according to `answers`."""
        return int(self.answers.argmax())

    def among(self, these: NDArray[np.bool_]) -> Belief:
        """Return the belief under the assumption that the true hypothesis is in one of the given patterns.

        Returns the same belief if none of these patterns is possible.

        Args:
            these: True for each of these patterns, shape (P,).
        """
        share = float(self.masses[these].sum())
        if share <= 0.0:
            return self
        factor = (these / share)[:, None]
        return replace(self, by_rate=self.by_rate * factor, by_background=self.by_background * factor)

    def given_columns(self, columns: NDArray[np.bool_], row: int) -> float:
        """Return the posterior of hypothesis `row`, assuming that only some failure rates are possible.

        The possible rates are given as columns: pairs of a typical failure rate of bad combinations and a
        spread. The posterior is shared within a pattern as in `answers`. Returns 0 if no hypothesis is
        possible at these rates.

        Args:
            columns: True for the possible columns, shape (J,).
            row: Number of the hypothesis.
        """
        mass = self.patterns.prior * self.by_rate[:, columns].sum(axis=1)
        total = float(mass.sum())
        return float(self.patterns.share[row] * mass[self.patterns.of[row]] / total) if total > 0 else 0.0

    @cached_property
    def bad_rates(self) -> FloatArray:
        """Return how probable each typical failure rate and spread of bad combinations is, shape (J,)."""
        return np.asarray(self.patterns.prior @ self.by_rate)

    @cached_property
    def backgrounds(self) -> FloatArray:
        """Return how probable each failure rate of good combinations (background rate) is, shape (K,)."""
        return np.asarray(self.patterns.prior @ self.by_background)

    @property
    def typical_rates(self) -> tuple[float, float]:
        """Return the expected failure rates of bad and of good combinations, in this order.

        Both are means over the posterior.
        """
        grid = self.counts.grid
        return float(self.bad_rates @ (grid.kernel @ grid.rates)), float(self.backgrounds @ grid.p0)

    @cached_property
    def bad(self) -> FloatArray:
        """Return, for each group of equivalent combinations, the probability that it is bad; shape (X,)."""
        likely = self.answers > _LEAST * self.answers[self.best]
        return share_bad(self.answers[likely], self.rows.says[likely])


def believe(rows: HypothesisRows, counts: CellCounts) -> Belief:
    """Calculate the posterior of hypotheses and failure rates from the counts of all trials.

    Args:
        rows: The hypotheses with their prior.
        counts: The failures and trials of all groups of combinations, with the prior of rates.
    """
    patterns = rows.patterns(counts.tried)
    log_bad, log_good, _ = counts.scored
    a, b = patterns.calls @ log_bad, (1.0 - patterns.calls) @ log_good
    if patterns.never >= 0:
        # Where all combinations fail alike, and not rarely, they are bad.
        b[patterns.never, counts.grid.p0 >= counts.grid.rates.min()] = IMPOSSIBLE
    top_a, top_b = a.max(axis=1), b.max(axis=1)
    with np.errstate(divide="ignore"):
        # A pattern fits at most as well as with the best rates for its bad cells and for its good cells.
        bound = top_a + top_b + np.log(patterns.prior)
    joint = counts.grid.joint

    def weighed(these: NDArray[np.intp]) -> tuple[FloatArray, FloatArray, FloatArray]:
        exp_a, exp_b = np.exp(a[these] - top_a[these, None]), np.exp(b[these] - top_b[these, None])
        by_rate = exp_a * (exp_b @ joint.T)
        with np.errstate(divide="ignore"):
            return by_rate, exp_b * (exp_a @ joint), bound[these] + np.log(by_rate.sum(axis=1))

    best = np.argsort(-bound, kind="stable")[:_FIRST]
    these = np.flatnonzero(bound > float(weighed(best)[2].max()) + _NEGLIGIBLE)
    by_rate, by_background, fit = weighed(these)
    peak = float(fit.max())
    total = float(np.exp(fit - peak).sum())
    scale = (np.exp(np.minimum(bound[these] - peak, 700.0)) / patterns.prior[these] / total)[:, None]
    rates, backgrounds = np.zeros_like(a), np.zeros_like(b)
    rates[these], backgrounds[these] = by_rate * scale, by_background * scale
    return Belief(rows, counts, patterns, rates, backgrounds, peak + float(np.log(total)))
