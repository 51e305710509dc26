"""Belief about which combinations are bad and how often bad and good ones show the target outcome.

The log likelihood of a hypothesis `h` is a sum over cells: each is scored as bad or as good (`RateGrid`), so
it is one mode product a grid column (`HypothesisSpace.bad_totals`). The joint with the rates factors but for
the prior's support m >= 2·p0, held in C:

    W(h, (m, σ), p0) = π(h) · exp A[h, (m, σ)] · C[(m, σ), p0] · exp B[h, p0]

hence both marginals cost `hypotheses × (columns of A + columns of B)` exponentials, never their product.
Counts are sufficient: the belief is rebuilt from stored trials alone, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index
from bisect_env.search.families import FloatArray
from bisect_env.search.rates import IMPOSSIBLE, RateGrid
from bisect_env.search.space import HypothesisSpace

# For `share`: hypotheses weighed first, and the log of what the others are left out below.
_FIRST = 64
_NEGLIGIBLE = -16.0
# exp() of more overflows; only rows that are all zero anyway come near it.
_LARGEST_EXPONENT = 700.0


class Counts:
    """Target outcomes and counted trials of every cell, with their log likelihoods kept up to date.

    Args:
        shape: Of the lattice.
        grid: Rates to score.
        stray: For each column of p0 the chance that a cell which an answer calls good is bad for another
            reason, each by itself, shape (K,); None for never:

            P(counts | good, p0) → (1 − stray) · P(counts | good, p0) + stray · P(counts | bad)

    Attributes:
        hits: Target outcomes per cell, shape of the lattice.
        trials: Counted trials per cell, shape of the lattice.
        log_bad: Log likelihood of each cell if it is bad, shape (*lattice, J).
        log_good: Log likelihood of each cell if it is good, shape (*lattice, K).
        own_rate: For cells with trials: posterior of the cell's own rate if bad, shape (J, R).
    """

    def __init__(self, shape: tuple[int, ...], grid: RateGrid, *, stray: FloatArray | None = None) -> None:
        self.grid = grid
        self.stray = stray
        self.hits = np.zeros(shape)
        self.trials = np.zeros(shape)
        self.log_bad = np.zeros((*shape, len(grid.m)))
        self.log_good = np.zeros((*shape, len(grid.p0)))
        self.own_rate: dict[Index, FloatArray] = {}

    def add(self, index: Index, hits: int, trials: int) -> None:
        """Count `trials` more trials of a cell, `hits` of which showed the target."""
        self.hits[index] += hits
        self.trials[index] += trials
        y, n = float(self.hits[index]), float(self.trials[index])
        self.log_bad[index], self.own_rate[index] = self.grid.if_bad(y, n)
        self.log_good[index] = self.grid.if_good(y, n)
        if self.stray is not None:
            _, otherwise = self._own_marginal(index)
            self.log_good[index] = np.logaddexp(
                self.log_good[index] + np.log1p(-self.stray), otherwise + np.log(self.stray)
            )

    def _own_marginal(self, index: Index) -> tuple[FloatArray, float]:
        """A cell taken by itself as bad: posterior of its columns, shape (J,), and log evidence."""
        log_columns = self.log_bad[index]
        top = float(log_columns.max())
        weights = self.grid.joint.sum(axis=1) * np.exp(log_columns - top)
        return weights / weights.sum(), top + float(np.log(weights.sum()))

    def evidence_if_bad(self, index: Index) -> float:
        """Log probability of a tried cell's counts if it is bad, all else unknown."""
        return self._own_marginal(index)[1]

    def astray(self, index: Index) -> FloatArray:
        """Posterior, for each p0, that a tried cell that is called good is bad for another reason."""
        if self.stray is None:
            return np.zeros(len(self.grid.p0))
        _, evidence = self._own_marginal(index)
        return np.asarray(np.exp(evidence + np.log(self.stray) - self.log_good[index]), dtype=np.float64)

    def if_called_good(self, index: Index | None, by_p0: FloatArray, by_rate: FloatArray) -> FloatArray:
        """Chances of what comes next at a cell that is called good, for each p0.

        Args:
            index: The cell; None for one without trials.
            by_p0: Chances at each background rate, shape (K, B).
            by_rate: Chances at each rate of bad cells, shape (R, B).

        Returns:
            Shape (K, B); `by_p0` itself where no cell is stray.
        """
        if self.stray is None:
            return by_p0
        if index is None:
            columns, own, share = (
                self.grid.joint.sum(axis=1),
                self.grid.kernel,
                self.stray,
            )
        else:
            columns, _ = self._own_marginal(index)
            own, share = self.own_rate[index], self.astray(index)
        astray = columns @ (own @ by_rate)
        return np.asarray((1 - share[:, None]) * by_p0 + share[:, None] * astray, dtype=np.float64)

    def at(self, values: Sequence[Sequence[int]]) -> Counts:
        """The same on some values of each axis; for a posterior, not to be added to.

        Args:
            values: Per axis, positions.
        """
        part = object.__new__(Counts)
        part.grid, part.stray = self.grid, self.stray
        here = np.ix_(*values)
        part.hits, part.trials = self.hits[here], self.trials[here]
        part.log_bad, part.log_good = self.log_bad[here], self.log_good[here]
        part.own_rate = {}
        return part

    def copy(self) -> Counts:
        """An independent copy, for looking ahead."""
        twin = object.__new__(Counts)
        twin.grid, twin.stray = self.grid, self.stray
        twin.hits, twin.trials = self.hits.copy(), self.trials.copy()
        twin.log_bad, twin.log_good = self.log_bad.copy(), self.log_good.copy()
        twin.own_rate = dict(self.own_rate)
        return twin


def with_strays(grid: RateGrid, shares: Mapping[float, float]) -> tuple[RateGrid, FloatArray]:
    """Rates together with how many of the cells that an answer calls good are bad for another reason.

    Args:
        grid: The rates.
        shares: Prior of each share of such cells; sums to 1.

    Returns:
        The grid with each p0 once for each share, and the share of each of its columns, shape (K,).
    """
    count, weights = len(shares), np.array(list(shares.values()))
    columns = np.repeat(grid.joint, count, axis=1) * np.tile(weights, len(grid.p0))
    wide = replace(grid, p0=np.repeat(grid.p0, count), joint=columns)
    return wide, np.tile(np.array(list(shares)), len(grid.p0))


@dataclass(frozen=True, slots=True)
class Belief:
    """The posterior, summarised.

    Attributes:
        hypotheses: Posterior of each hypothesis, shape (H,), sums to 1.
        with_bad_rate: Joint of hypothesis and (m, σ), shape (H, J).
        with_background: Joint of hypothesis and p0, shape (H, K).
        log_evidence: Log marginal likelihood of all counts; differences between models are Bayes factors.
    """

    hypotheses: FloatArray
    with_bad_rate: FloatArray
    with_background: FloatArray
    log_evidence: float


def update(space: HypothesisSpace, counts: Counts, grid: RateGrid | None = None) -> Belief:
    """The posterior after all counts.

    Args:
        space: The hypotheses with their prior.
        counts: What was seen.
        grid: Another prior over the same grid points (`RateGrid.assuming`); the counts' own if None.
    """
    joint = (grid or counts.grid).joint
    a, b = _log_likelihoods(space, counts)
    top_a, top_b = a.max(axis=1), b.max(axis=1)
    exp_a, exp_b = np.exp(a - top_a[:, None]), np.exp(b - top_b[:, None])
    with_bad_rate = exp_a * (exp_b @ joint.T)
    with_background = exp_b * (exp_a @ joint)
    # The peaks top_a and top_b may lie at rates that exclude each other (m < 2·p0), so that only the sums say
    # how well a hypothesis fits. Some fit: never and always bad have one of the two terms free.
    with np.errstate(divide="ignore"):
        log_scale = np.log(space.prior) + top_a + top_b
        log_fit = log_scale + np.log(with_bad_rate.sum(axis=1))
    peak = float(log_fit.max())
    scale = np.exp(np.minimum(log_scale - peak, _LARGEST_EXPONENT))[:, None]
    with_bad_rate *= scale
    with_background *= scale
    hypotheses = with_bad_rate.sum(axis=1)
    total = float(hypotheses.sum())
    log_evidence = peak + float(np.log(total))
    return Belief(hypotheses / total, with_bad_rate / total, with_background / total, log_evidence)


def _log_likelihoods(space: HypothesisSpace, counts: Counts) -> tuple[FloatArray, FloatArray]:
    """Of the cells that each hypothesis calls bad, shape (H, J), and of those it calls good, (H, K)."""
    a = space.bad_totals(counts.log_bad)
    all_good = counts.log_good.reshape(-1, counts.log_good.shape[-1]).sum(axis=0)
    b = all_good - space.bad_totals(counts.log_good)
    if not space.never_may_fail:
        # Where all combinations fail alike, and not rarely, they are bad: "never" is no name for it.
        b[space.never, counts.grid.too_often] = IMPOSSIBLE
    return a, b


def share(space: HypothesisSpace, counts: Counts, these: NDArray[np.bool_]) -> float:
    """Posterior of some hypotheses together, for less than `update` costs where there are many.

    No hypothesis explains the counts better than at the best rates for its bad cells and for its good ones,
    each taken by itself. Where that bound is `_NEGLIGIBLE` of the best one's fit the hypothesis is left out.

    Args:
        space: The hypotheses with their prior.
        counts: What was seen.
        these: Which of them, shape (H,).
    """
    a, b = _log_likelihoods(space, counts)
    top_a, top_b = a.max(axis=1), b.max(axis=1)
    with np.errstate(divide="ignore"):
        bound = np.log(space.prior) + top_a + top_b
    fit = np.full(len(bound), -np.inf)

    def weigh(chosen: NDArray[np.intp]) -> None:
        exp_a = np.exp(a[chosen] - top_a[chosen, None])
        exp_b = np.exp(b[chosen] - top_b[chosen, None])
        with np.errstate(divide="ignore"):
            fit[chosen] = bound[chosen] + np.log((exp_a * (exp_b @ counts.grid.joint.T)).sum(axis=1))

    order = np.argsort(-bound)
    weigh(order[:_FIRST])
    rest = order[_FIRST:]
    weigh(rest[bound[rest] > fit.max() + _NEGLIGIBLE])
    weight = np.exp(fit - fit.max())
    return float(weight[these].sum() / weight.sum())
