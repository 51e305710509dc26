"""Measure whether a verdict explains the counts, and how much better than other answers it does.

*Posterior predictive check.* For each combination, the other combinations (labelled good or bad by the
answer) predict how often it shows the target failure. Its own counts are compared with the prediction:

    P(Y ≥ y) = Σ_k w_k · P(Binomial(n, p0_k) ≥ y)                        called good, y of n trials hit
    P(Y ≤ y) = Σ_j w_j · Σ_r P(r | m_j, σ_j) · P(Binomial(n, r) ≤ y)     called bad

with w the posterior of the rates given the answer and all *other* combinations. A combination is reported if
this probability is below `SURPRISE`, divided by the number of combinations compared.
Source: D. B. Rubin, *Bayesianly justifiable and relevant frequency calculations for the applied
statistician*, Annals of Statistics 12 (1984), 1151-1172; leaving one out: A. E.
Gelfand, D. K. Dey, H. Chang, *Bayesian Statistics* 4 (1992), 147-167.

*Bayes factors.* How much more likely the data are under one answer than under another, averaged over the
rates: posterior odds divided by prior odds. Source: R. E. Kass, A. E. Raftery, *Bayes factors*, Journal of
the American Statistical Association 90 (1995), 773-795.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index
from bisect_env.search.belief import CellCounts
from bisect_env.search.families import FloatArray
from bisect_env.search.numeric import binomial_at_most

SURPRISE = 0.01
"""Approximate probability that any combination is reported although the verdict is right."""
_LARGEST = 300.0


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A combination whose trials contradict the verdict: it failed too often or too seldom.

    Attributes:
        index: The combination, as the representative of its group.
        called_bad: Whether the verdict calls it bad.
        hits: Number of trials that showed the target failure.
        trials: Number of counted trials.
        chance: Probability of a result at least as far from the prediction.
    """

    index: Index
    called_bad: bool
    hits: int
    trials: int
    chance: float


def unexplained(
    calls_bad: NDArray[np.bool_], counts: CellCounts, cells: Sequence[Index]
) -> tuple[Unexplained, ...]:
    """Return the combinations whose counts contradict an answer, the least probable counts first.

    The tuple is empty if fewer than two combinations were tried.

    Args:
        calls_bad: True for the groups of combinations that the answer calls bad, shape (X,).
        counts: The failures and trials of each group.
        cells: The representative of each group.
    """
    grid, tried = counts.grid, counts.tried
    if len(tried) < 2:
        return ()
    says = calls_bad[tried]
    log_bad, log_good, _ = counts.scored
    total_bad, total_good = log_bad[says].sum(axis=0), log_good[~says].sum(axis=0)
    with np.errstate(divide="ignore"):
        log_prior = np.log(grid.joint)
    found = []
    for place, (cell, bad) in enumerate(zip(tried, says, strict=True)):
        a = total_bad - log_bad[place] if bad else total_bad
        b = total_good if bad else total_good - log_good[place]
        weights = log_prior + a[:, None] + b[None, :]
        weights = np.exp(weights - np.logaddexp.reduce(weights.ravel()))
        hits, trials = int(counts.hits[cell]), int(counts.trials[cell])
        if bad:
            chance = float(weights.sum(axis=1) @ (grid.kernel @ binomial_at_most(hits, trials, grid.rates)))
        else:
            chance = float(weights.sum(axis=0) @ (1.0 - binomial_at_most(hits - 1, trials, grid.p0)))
        if chance < SURPRISE / len(tried):
            found.append(Unexplained(cells[cell], bool(bad), hits, trials, chance))
    return tuple(sorted(found, key=lambda u: (u.chance, u.index)))


def log10_bayes_factor(
    posterior: FloatArray, prior: FloatArray, these: NDArray[np.bool_], those: NDArray[np.bool_]
) -> float | None:
    """Return how strongly the trials favour one set of hypotheses over another, as log10 of the Bayes factor.

    Args:
        posterior: Posterior of each hypothesis, shape (H,).
        prior: Prior of each hypothesis, shape (H,).
        these: True for the hypotheses in the numerator, shape (H,).
        those: True for the hypotheses in the denominator, shape (H,).

    Returns:
        A number limited to -300 … 300. None if one of the sets has no prior, or neither has any posterior.
    """
    mine, its = float(prior @ these), float(prior @ those)
    if mine <= 0 or its <= 0:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = float(np.log10(posterior @ these / mine) - np.log10(posterior @ those / its))
    return None if math.isnan(factor) else max(-_LARGEST, min(_LARGEST, factor))
