"""The prior for failure rates: a grid of rates with weights.

Bad combinations need not share one rate: three bad releases of one package crashed in 14 %, 15 % and 5 % of
runs. The rate of a bad cell is therefore drawn around a typical rate `m`, log-normally with spread `σ`:

    P(r | m, σ) ∝ exp(−(ln r − ln m)² / 2σ²)   on a log-spaced grid of r        (σ = 0: r = m for every cell)

A beta distribution around `m`, the textbook choice, has much of its mass near zero if m is small; then
hundreds of passes would prove little. On a log scale, half the rate and twice the rate are equally likely.

Good cells share one background rate `p0`. The rate of a bad cell must be clearly higher: rates below a floor,
which grows with p0, have no weight. Without the floor, no number of trials could tell a good cell from a bad
cell that fails at the background rate.

Letters for array shapes: J columns (pairs of m and σ), R rates of a single cell, K background rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from bisect_env.search.families import FloatArray
from bisect_env.search.numeric import relative_entropy, root

# Stands for log 0: large enough to rule out, small enough that sums keep their digits.
IMPOSSIBLE = -1e5

# Background rates: in octaves where they are rare, in thirds of one where trials can tell them apart. On a
# coarser grid a thousand trials at 0.05 contradict 0.03 and 0.06, and a wrong hypothesis explains them best.
_OFTEN, _MOST_OFTEN = 0.008, 0.5
_STEPS_AN_OCTAVE = 3
# Rarer than a tenth of the smallest rate looked for, a background is as good as none; more points there
# would only put more weight on "none", which a lucky study then believes too soon.
_LEAST_BACKGROUND = 0.1
# Prior weights. More on "bad combinations always fail" and on "they share one rate" saves trials where that
# is so, and costs wrong answers where it is not: at a rate of one half, and where the rates differ. That good
# combinations never fail is hardly believed beforehand: a study in which they do would take its first lucky
# passes for proof. Low rates are less likely than high ones, by the square root: the density of Jeffreys'
# prior near zero. `docs/decisions/search.md` has what each choice costs. Real failures differ more
# than planted ones (a load axis trebles the rate of one and the same bug), hence the weight on wide spreads.
_NO_BACKGROUND = 0.04
# Where bad combinations always fail, good ones rarely do: else a first step that fails rarely would look like
# a background, and telling the two apart would take most of the trials.
_NO_BACKGROUND_IF_CERTAIN = 0.9
_DETERMINISTIC = 0.3
_SPREADS = {0.0: 0.8, 0.7: 0.2}
# Somebody who says how often it fails has mostly seen that, and may be wrong: typical rates near the stated
# one get most of the prior (log-normally: half and double are near), others keep a tenth of their share.
_STATED_SPREAD = 0.7
_STATED_DOUBT = 0.1
_SAID_CERTAIN, _SAID_UNCERTAIN = 0.8, 0.05
# Regressions in two steps: where bad combinations always fail, a few may fail at any rate at all. How few
# is not known: with one share, each version that always fails would speak against a first one that does not.
# Three of 43 real regressions began with a version that failed in 6 to 11 % of runs before all others did.
_TWO_STEPS, _OF_THEM = 0.4, (0.04, 0.2)
_POINTS = 14


@dataclass(frozen=True, eq=False)
class RateGrid:
    """The prior probabilities of failure rates, on a grid of possible rates.

    Attributes:
        m: Typical failure rate of bad cells in each column, shape (J,).
        spread: σ of each column, shape (J,). 0 means that all bad cells have the rate m. Infinity means that
            most of them have it, and each of the others has any rate.
        rates: Rates that a single bad cell can have, shape (R,).
        kernel: P(rate | m, σ, floor), shape (J, R); rows sum to 1.
        p0: Background rates, shape (K,).
        joint: Prior of (column, p0), shape (J, K), sums to 1. Zero where m < 2·p0, and where the floor of a
            column with a spread is not the floor of p0.
    """

    m: FloatArray
    spread: FloatArray
    rates: FloatArray
    kernel: FloatArray
    p0: FloatArray
    joint: FloatArray

    @classmethod
    def default(
        cls, min_rate: float = 0.02, stated: float | None = None, *, two_steps: bool = True
    ) -> RateGrid:
        """Create the default grid: rates from `min_rate` to 1, spaced evenly on a log scale.

        The rate 1 (every trial fails) gets extra weight.

        Args:
            min_rate: The smallest failure rate to search for, in (0, 1).
            stated: Approximate failure rate of bad combinations if the user states it, else None.
            two_steps: Whether some bad combinations may fail rarely while all others always fail.
        """
        points = np.geomspace(min_rate, 1.0, _POINTS)
        # No cell fails more rarely than what is looked for: such a cell could not be told from a good one.
        rates = np.unique(np.concatenate([points, np.geomspace(min_rate, 1.0, 2 * _POINTS)]))
        p0, p0_prior = _background(min_rate)
        floor_at = _floors(min_rate, p0)
        columns: list[tuple[float, float, float, float]] = []
        for sigma, share in _SPREADS.items():
            # A spread around 1 is no belief of its own: rates end there. Spreads overlap: half the points do.
            typical = points if sigma == 0 else points[:-1:2]
            floors = [0.0] if sigma == 0 else np.unique(floor_at).tolist()
            weights = np.sqrt(typical) / np.sqrt(typical).sum()
            columns += [
                (m, sigma, share * w, floor)
                for m, w in zip(typical, weights, strict=True)
                for floor in floors
            ]
        m, spread, weight, floor = (np.array(column) for column in zip(*columns, strict=True))
        share = _DETERMINISTIC
        if stated is not None:
            share = _SAID_CERTAIN if stated == 1 else _SAID_UNCERTAIN
            near = np.exp(-0.5 * (np.log(m / stated) / _STATED_SPREAD) ** 2)
            believed = weight * (_STATED_DOUBT + (1 - _STATED_DOUBT) * near)
            weight = believed * weight.sum() / believed.sum()
        weight = (1 - share) * weight / sum(_SPREADS.values()) + share * ((m == 1) & (spread == 0))
        fits = (spread == 0)[:, None] | (floor[:, None] == floor_at)
        certain = (m == 1) & (spread == 0)
        of_background = np.where(certain[:, None], _with_none(p0_prior, _NO_BACKGROUND_IF_CERTAIN), p0_prior)
        joint = np.where(fits & (m[:, None] >= 2 * p0), weight[:, None] * of_background, 0.0)
        used = joint.sum(axis=1) > 0
        kernel = _kernel(m, spread, floor, rates)
        grid = cls(m[used], spread[used], rates, kernel[used], p0, joint[used] / joint.sum())
        return grid._with_two_steps(p0_prior) if two_steps else grid

    def _with_two_steps(self, p0_prior: FloatArray) -> RateGrid:
        """Add columns for regressions in two steps: some bad combinations fail rarely, the others always.

        There is a column for each share of `_OF_THEM`: this share of bad cells has any failure rate, and all
        others fail in every trial.

        Args:
            p0_prior: Prior of each background rate, shape (K,).
        """
        width, share = np.gradient(np.log(self.rates)), np.array(_OF_THEM)
        rows = share[:, None] * width / width.sum()
        rows[:, -1] += 1.0 - share
        possible = np.where(2.0 * self.p0 <= self.rates.min(), p0_prior, 0.0)
        prior = _with_none(possible, _NO_BACKGROUND_IF_CERTAIN)
        of_each = np.tile(_TWO_STEPS / len(share) * prior / prior.sum(), (len(share), 1))
        return RateGrid(
            np.append(self.m, np.ones(len(share))),
            np.append(self.spread, np.full(len(share), np.inf)),
            self.rates,
            np.vstack([self.kernel, rows]),
            self.p0,
            np.vstack([(1.0 - _TWO_STEPS) * self.joint, of_each]),
        )

    def if_bad(self, hits: float, trials: float) -> tuple[FloatArray, FloatArray]:
        """Compute how well the counts of a combination fit each typical failure rate, if it is bad.

        Args:
            hits: Number of trials that showed the target failure.
            trials: Number of counted trials.

        Returns:
            The log marginal likelihood for each column, shape (J,), and the posterior of the cell's own rate
            for each column, shape (J, R).
        """
        with np.errstate(divide="ignore"):
            log_joint = np.log(self.kernel) + _log_likelihood(hits, trials, self.rates)
        # Each column has a peak of its own: after many trials they are too far apart for a common one.
        top = log_joint.max(axis=1)
        weighted = np.exp(log_joint - top[:, None])
        total = weighted.sum(axis=1)
        return np.log(total) + top, weighted / total[:, None]

    def if_good(self, hits: float, trials: float) -> FloatArray:
        """Return the log likelihood of a good combination's counts at each background rate, shape (K,)."""
        return _log_likelihood(hits, trials, self.p0)


@lru_cache(maxsize=4096)
def score(grid: RateGrid, hits: int, trials: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return how well the counts of a combination fit if it is bad and if it is good. Cached.

    The first two arrays are those of `grid.if_bad`, shapes (J,) and (J, R); the third is that of
    `grid.if_good`, shape (K,).
    """
    return (*grid.if_bad(hits, trials), grid.if_good(hits, trials))


def _background(min_rate: float) -> tuple[FloatArray, FloatArray]:
    """Return the possible background rates (failure rates of good combinations) and the prior of each.

    Both arrays have the shape (K,). The prior is uniform on a log scale, with extra weight on exactly 0.
    """
    octaves = round(np.log2(_OFTEN / (_LEAST_BACKGROUND * min_rate)))
    rare = _OFTEN * 2.0 ** -np.arange(max(octaves, 2), 0, -1)
    steps = round(np.log2(_MOST_OFTEN / _OFTEN) * _STEPS_AN_OCTAVE)
    above = np.concatenate([rare, np.geomspace(_OFTEN, _MOST_OFTEN, steps + 1)])
    width = np.gradient(np.log(above))
    prior = np.concatenate([[_NO_BACKGROUND], (1 - _NO_BACKGROUND) * width / width.sum()])
    return np.concatenate([[0.0], above]), prior


def _with_none(prior: FloatArray, share: float) -> FloatArray:
    """Return a prior of background rates in which the rate 0, which comes first, has the given share."""
    above = prior[1:] * (1.0 - share) / prior[1:].sum()
    return np.concatenate([[share], above])


def _floors(min_rate: float, p0: FloatArray) -> FloatArray:
    """Return the lowest failure rate that a bad combination can have, for each background rate; shape (K,).

    This floor is 0 if it would not be above `min_rate`.

    The number of trials that show a good cell not to fail at rate r is ln(1 / error) / KL(p0 ‖ r) on average,
    where

        KL(p0 ‖ r) = p0 · ln(p0 / r) + (1 − p0) · ln((1 − p0) / (1 − r))     (nats a trial)

    grows with r. Without a background, the smallest rate searched for gives −ln(1 − min_rate). The floor is
    chosen to give the same value at every background, so that a background does not increase the number of
    trials; it is at least 2·p0, and is rounded to octaves above `min_rate`. Source: A. Wald, *Sequential
    tests of statistical hypotheses*, Annals of Mathematical Statistics 16 (1945), 117-186.
    """
    enough = -np.log1p(-min_rate)

    def lacks(background: float, rate: float) -> float:
        information = relative_entropy(background, rate) + relative_entropy(1.0 - background, 1.0 - rate)
        return float(information - enough)

    floors = np.array([root(partial(lacks, background), background, 1.0 - 1e-12) for background in p0[1:]])
    octaves = np.round(np.log2(np.maximum(floors, 2.0 * p0[1:]) / min_rate))
    octaves = np.minimum(octaves, np.floor(np.log2(1.0 / min_rate)))
    return np.concatenate([[0.0], np.where(octaves > 0, min_rate * 2.0**octaves, 0.0)])


def _kernel(m: FloatArray, spread: FloatArray, floor: FloatArray, rates: FloatArray) -> FloatArray:
    log_rates = np.log(rates)
    # Cell widths on the log axis, so that an uneven grid does not favour where it is dense.
    width = np.gradient(log_rates)
    distance = log_rates[None, :] - np.log(m)[:, None]
    sigma = np.where(spread > 0, spread, 1.0)[:, None]
    wide = np.exp(-0.5 * (distance / sigma) ** 2) * width * (rates >= floor[:, None] * (1 - 1e-9))
    exact = (np.abs(distance) == np.abs(distance).min(axis=1, keepdims=True)).astype(np.float64)
    kernel = np.where((spread > 0)[:, None], wide, exact)
    return np.asarray(kernel / kernel.sum(axis=1, keepdims=True), dtype=np.float64)


def _log_likelihood(hits: float, trials: float, rates: FloatArray) -> FloatArray:
    """Return the log probability of `hits` failures, in one order, in `trials` trials at each of `rates`."""
    return _times_log(hits, rates) + _times_log(trials - hits, 1.0 - rates)


def _times_log(count: float, p: FloatArray) -> FloatArray:
    return count * np.where(p > 0, np.log(np.where(p > 0, p, 1.0)), IMPOSSIBLE) if count else np.zeros_like(p)
