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
from bisect_env.search.hypotheses import AT_ONCE, HypothesisRows, Patterns, share_bad
from bisect_env.search.rates import IMPOSSIBLE, RateGrid, score

_LEAST = 1e-12
"""Hypotheses and patterns less likely than this, as a share of the most probable one, are left out of
sums."""


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
        likelihood: Likelihood of the counts under each pattern, as a multiple of that under all rows
            together, shape (P,); 0 for patterns without a prior.
        log_evidence: Log marginal likelihood of the counts under all rows together.
    """

    rows: HypothesisRows
    counts: CellCounts
    patterns: Patterns
    likelihood: FloatArray
    log_evidence: float

    @cached_property
    def masses(self) -> FloatArray:
        """Return the posterior probability of each pattern, shape (P,).

        The sum is 1.
        """
        return np.asarray(self.patterns.prior * self.likelihood)

    @cached_property
    def best_fit(self) -> float:
        """Return the log likelihood of the counts under the hypothesis that fits them best."""
        return self.log_evidence + float(np.log(self.likelihood.max()))

    @cached_property
    def weight(self) -> FloatArray:
        """Return the posterior probability of each hypothesis, shape (H,); the sum is 1."""
        return np.asarray(self.rows.prior * self.likelihood[self.patterns.of])

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

    def weighted(self, weights: FloatArray) -> Belief:
        """Return the belief after multiplying the probability of each pattern by a weight.

        Returns the same belief if nothing would be left.

        Args:
            weights: Weight of each pattern, between 0 and 1, shape (P,).
        """
        left = float(self.masses @ weights)
        if left <= 0.0:
            return self
        return replace(self, likelihood=self.likelihood * weights / left)

    @cached_property
    def in_two_steps(self) -> FloatArray:
        """Return, given each pattern, how probable it is that a few bad combinations fail rarely; shape (P,).

        The others then fail in every trial. It is 0 for patterns whose posterior is negligible.
        """
        found = np.zeros(len(self.masses))
        found[self._likely] = self.rates(self._likely)[0][:, np.isinf(self.counts.grid.spread)].sum(axis=1)
        return found

    def given_columns(self, columns: NDArray[np.bool_], row: int) -> float:
        """Return the posterior of hypothesis `row`, assuming that only some failure rates are possible.

        The possible rates are given as columns: pairs of a typical failure rate of bad combinations and a
        spread. The posterior is shared within a pattern as in `answers`. Returns 0 if no hypothesis is
        possible at these rates.

        Args:
            columns: True for the possible columns, shape (J,).
            row: Number of the hypothesis.
        """
        mass = np.zeros_like(self.masses)
        mass[self._likely] = self.masses[self._likely] * self.rates(self._likely)[0][:, columns].sum(axis=1)
        total = float(mass.sum())
        return float(self.patterns.share[row] * mass[self.patterns.of[row]] / total) if total > 0 else 0.0

    @cached_property
    def _likely(self) -> NDArray[np.intp]:
        """Return the numbers of the patterns whose posterior is not negligible (`_LEAST`)."""
        return np.flatnonzero(self.masses > _LEAST * self.masses.max())

    def rates(self, these: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Return the posterior of failure rates under each of some patterns.

        Args:
            these: Numbers of patterns with a posterior above 0.

        Returns:
            The probability of each typical failure rate and spread of bad combinations, shape (these, J), and
            of each failure rate of good combinations, shape (these, K). All rows sum to 1.
        """
        bad, good, _ = _scaled(self.patterns, self.counts, these)
        joint = self.counts.grid.joint
        by_rate = bad * (good @ joint.T)
        total = by_rate.sum(axis=1, keepdims=True)
        return by_rate / total, good * (bad @ joint) / total

    @cached_property
    def bad_rates(self) -> FloatArray:
        """Return how probable each typical failure rate and spread of bad combinations is, shape (J,)."""
        return self._mean_rates[0]

    @cached_property
    def backgrounds(self) -> FloatArray:
        """Return how probable each failure rate of good combinations (background rate) is, shape (K,)."""
        return self._mean_rates[1]

    @cached_property
    def _mean_rates(self) -> tuple[FloatArray, FloatArray]:
        by_rate, by_background = self.rates(self._likely)
        mass = self.masses[self._likely]
        return mass @ by_rate, mass @ by_background

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
    fit = np.empty(len(patterns.prior))
    # In parts that fit into a cache, this takes half of the time.
    for start in range(0, len(fit), AT_ONCE):
        these = np.arange(start, min(start + AT_ONCE, len(fit)))
        bad, good, log_scale = _scaled(patterns, counts, these)
        bad *= good @ counts.grid.joint.T
        with np.errstate(divide="ignore"):
            fit[these] = np.log(bad.sum(axis=1)) + log_scale
    with np.errstate(divide="ignore"):
        weighted = fit + np.log(patterns.prior)
    peak = float(weighted.max())
    log_evidence = peak + float(np.log(np.exp(weighted - peak).sum()))
    # A pattern without a prior could fit so much better than all others that the ratio overflows.
    likelihood = np.where(patterns.prior > 0, np.exp(np.minimum(fit - log_evidence, 700.0)), 0.0)
    return Belief(rows, counts, patterns, likelihood, log_evidence)


def most_evidence(rows: HypothesisRows, counts: CellCounts) -> float:
    """Return an upper bound of the log evidence that comes from histories (rows above tier 0).

    Along one axis it is close and quick to compute, however many histories there are: histories that begin
    alike and change equally often have nearly equal priors, and the likelihoods of all of these, at each pair
    of failure rates, are summed value by value (the forward algorithm of hidden Markov models; L. R. Rabiner,
    Proceedings of the IEEE 77 (1989), 257-286).

    Args:
        rows: Hypotheses about the values of one axis.
        counts: The failures and trials of all values, at least one of which was tried.
    """
    prior = rows.patterns(counts.tried).most_prior
    columns, backgrounds = np.nonzero(counts.grid.joint)
    log_bad, log_good, _ = counts.scored
    log = np.stack([log_good[:, backgrounds], log_bad[:, columns]])
    top = log.max(axis=0)
    label = np.exp(log - top)[:, None]
    # Sum over all histories of the values from here on, by how they begin and how often they change.
    total = np.zeros((*prior.shape, len(columns)))
    total[:, 0] = label[:, 0, -1]
    for place in range(len(counts.tried) - 2, -1, -1):
        total[:, 1:] += total[::-1, :-1].copy()
        total *= label[:, :, place]
    found = np.einsum("lc,lcp->p", prior, total) * counts.grid.joint[columns, backgrounds]
    with np.errstate(divide="ignore"):
        return float(np.logaddexp.reduce(np.log(found) + top.sum(axis=0)))


def _scaled(
    patterns: Patterns, counts: CellCounts, these: NDArray[np.intp]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return how well some patterns explain the counts of their bad and of their good cells.

    Args:
        patterns: All patterns.
        counts: The counts.
        these: Numbers of the patterns.

    Returns:
        The likelihood of the counts of all bad cells at each column, shape (these, J), and of all good cells
        at each background, shape (these, K). Each row is divided by its maximum. Third, the log of the
        product of both maxima, shape (these,).
    """
    log_bad, log_good, _ = counts.scored
    calls = patterns.calls[these]
    bad, good = calls @ log_bad, (1.0 - calls) @ log_good
    if patterns.never >= 0:
        # Where all combinations fail alike, and not rarely, they are bad.
        high = counts.grid.p0 >= counts.grid.rates.min()
        good[np.ix_(these == patterns.never, high)] = IMPOSSIBLE
    log_scale = np.zeros(len(these))
    for likelihood in (bad, good):
        top = likelihood.max(axis=1)
        log_scale += top
        likelihood -= top[:, None]
        np.exp(likelihood, out=likelihood)
    return bad, good, log_scale
