"""Choose trials by their expected information for their cost. Pure.

For a cell x, let O be the event "at least one of k trials fails", and h the true hypothesis. The information
of a block of k trials is

    I(h; O) = H(O) − Σ_h P(h)·H(O | h)      (H: binary entropy, in bits)

where P(O | h) is the mean over the rates that are still possible under h, given earlier trials of x. As long
as no answer leads, knowing the rates makes later trials cheaper, so that information about the rates counts
as well, with the weight `RATES_WEIGHT`. A block costs k trials and, if the environment does not exist, its
price. Source: D. V. Lindley, *On a measure of the information provided by an experiment*,
Annals of Mathematical Statistics 27 (1956), 986-1005.

Several trials at a time are chosen one after the other. Each one that is chosen, or is running, may fail or
pass; every likely sequence of results is a *branch* with weights of its own. The worth of the next trial is
multiplied by the share of its information that remains, on average over the branches.

Array shapes: C cells to choose from, S states (see `Choice._states`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.search.belief import Belief
from bisect_env.search.families import FloatArray

RATES_WEIGHT = 0.5
BLOCKS = (1, 4, 10, 25, 50)
LEADING = 0.2
"""Posterior of an answer above which information about failure rates no longer counts."""
_SAMPLE = 256
"""Maximum number of hypotheses, drawn by their posterior, for which the information is computed."""
_BRANCHES = 48
_LEAST = 1e-9
BUILT_AT_ONCE = 6
"""Maximum number of expensive environments that are built at the same time; hosts build about as many."""
_DEAR = 0.5
"""Price, in trials, from which an environment counts as expensive. Building more of these at a time would
delay the first one."""


def binary_entropy(p: FloatArray) -> FloatArray:
    """Return the entropy, in bits, of a yes/no result with probability `p`, elementwise."""
    p = np.clip(p, 1e-300, 1.0)
    q = np.clip(1.0 - p, 1e-300, 1.0)
    return np.asarray(-(p * np.log2(p) + q * np.log2(q)))


class Choice:
    """The expected information of trials of each combination, given the posterior of all hypotheses.

    Args:
        belief: The posterior of hypotheses and failure rates.
        cells: Positions of the cells that can be chosen, shape (C,).
    """

    def __init__(self, belief: Belief, cells: NDArray[np.intp]) -> None:
        self._cells = cells
        rows, weight = _sample(belief.answers)
        of = belief.patterns.of[rows]
        self._weight = weight
        self._says = belief.rows.says[np.ix_(rows, cells)]
        counts = belief.counts
        self._grid = counts.grid
        self._by_rate, self._by_background = belief.rates(of)
        self._tried = counts.trials[cells] > 0
        self._own = counts.scored[2][np.searchsorted(counts.tried, cells[self._tried])]
        self._rates_matter = float(belief.answers[belief.best]) < LEADING

    def _chances(self, value: Callable[[FloatArray], FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Average `value(rate)` over the failure rates that are possible under each sampled hypothesis.

        Args:
            value: Function that maps an array of rates to an array of numbers, elementwise.

        Returns:
            The mean for each cell if it is bad, shape (sample, C), and for good cells, shape (sample, 1).
        """
        grid = self._grid
        of_rate = value(grid.rates)
        given = np.repeat((grid.kernel @ of_rate)[:, None], len(self._cells), axis=1)
        given[:, self._tried] = (self._own @ of_rate).T
        return self._by_rate @ given, (self._by_background @ value(grid.p0))[:, None]

    @cached_property
    def _single(self) -> FloatArray:
        """Return the expected information of one trial of each combination, shape (C,)."""
        return self.information()

    def _fails(self, block: int) -> FloatArray:
        """Return the probability that at least one of `block` trials of each combination fails.

        The shape is (sample, C): one row for each sampled hypothesis.
        """
        bad, good = self._chances(lambda r: 1.0 - (1.0 - r) ** block)
        return np.where(self._says, bad, good)

    def information(self, block: int = 1, *, of_rates: bool = True) -> FloatArray:
        """Return the expected information, in bits, of `block` trials of each combination, shape (C,).

        Args:
            block: Number of trials.
            of_rates: Whether information about failure rates counts as well, as long as no answer leads.
        """
        fails = self._fails(block)
        known = self._weight @ binary_entropy(fails)
        if of_rates and self._rates_matter:
            bad, good = self._chances(lambda r: binary_entropy(1.0 - (1.0 - r) ** block))
            given_rates = self._weight @ np.where(self._says, bad, good)
            known = (1.0 - RATES_WEIGHT) * known + RATES_WEIGHT * given_rates
        return np.asarray(np.maximum(binary_entropy(self._weight @ fails) - known, 0.0))

    def scores(self, prices: FloatArray) -> FloatArray:
        """Return how much information each combination promises per cost, at its best number of trials.

        The numbers of trials that are compared are in `BLOCKS`. The shape is (C,).

        Args:
            prices: Price of each cell's environment in trials, 0 where it exists, shape (C,).
        """
        if not prices.any():
            return self._single
        return np.asarray(np.max([self.information(k) / (k + prices) for k in BLOCKS], axis=0))

    def batch(
        self, count: int, running: Sequence[int], prices: FloatArray, least: float, *, once: bool = False
    ) -> list[int]:
        """Return the next trials to run, the most informative first, as positions in `cells`.

        Args:
            count: Maximum number of trials.
            running: Position in `cells` of each running trial's combination.
            prices: As for `scores`.
            least: Minimum worth of a chosen trial, as a share of the worth of the best single trial.
            once: Whether to choose each cell at most once.
        """
        prices = prices.copy()
        alone = self.scores(prices)
        first = float(alone.max(initial=0.0))
        branches, fails = self._states()
        unknown = branches[0] @ binary_entropy(fails)
        before = binary_entropy(branches[0] @ fails) - unknown
        # Each further trial of the same cell repeats part of the information about the rates.
        of_rates = np.maximum(self._single - before, 0.0)
        times = np.bincount(np.asarray(running, dtype=np.intp), minlength=len(prices))
        new = len({place for place in running if prices[place] > 0})
        for place in running:
            branches = _split(branches, fails[:, place])
        chosen: list[int] = []
        while len(chosen) < count:
            total = branches.sum(axis=1)
            chance = (branches @ fails) / np.maximum(total, 1e-300)[:, None]
            left = np.maximum(total @ binary_entropy(chance) - unknown, 0.0)
            rest = left + of_rates / (1 + times)
            worth = alone * np.minimum(rest / np.maximum(before + of_rates, 1e-12), 1.0)
            if new >= BUILT_AT_ONCE:
                worth = np.where(prices >= _DEAR, 0.0, worth)
            if once:
                worth[chosen] = 0.0
            place = int(worth.argmax())
            if worth[place] <= max(least * first, _LEAST):
                break
            chosen.append(place)
            times[place] += 1
            if prices[place]:
                new += 1
                prices[place] = 0.0
                alone = self.scores(prices)
            if len(chosen) < count:
                branches = _split(branches, fails[:, place])
        return chosen

    def _states(self) -> tuple[FloatArray, FloatArray]:
        """List possible truths: the probability of each, and how often each combination fails if it is true.

        The shapes are (1, S) and (S, C). A possible truth (state) is a hypothesis together with whether bad
        combinations fail in every trial: given both, trials of one combination hardly depend on each other.
        """
        certain = (self._grid.m == 1.0) & (self._grid.spread == 0.0)
        share = self._by_rate[:, certain].sum(axis=1)
        fails = self._fails(1)
        rest = np.maximum(1.0 - share, 1e-12)[:, None]
        flaky = np.where(self._says, np.clip((fails - share[:, None]) / rest, 0.0, 1.0), fails)
        weight = np.concatenate([self._weight * share, self._weight * (1.0 - share)])
        return weight[None, :], np.concatenate([np.where(self._says, 1.0, fails), flaky])


def _split(branches: FloatArray, fails: FloatArray) -> FloatArray:
    """Extend each branch (sequence of results) by a failure and by a pass, and keep the likeliest ones.

    The total weight of the branches stays the same.
    """
    both = np.concatenate([branches * fails, branches * (1.0 - fails)])
    total = both.sum(axis=1)
    kept = np.argsort(-total, kind="stable")[:_BRANCHES]
    kept = kept[total[kept] > 1e-6]
    return np.asarray(both[kept] * (total.sum() / total[kept].sum()))


def _sample(weight: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
    """Draw hypotheses in proportion to their weights; return their row numbers and their shares.

    If at most `_SAMPLE` hypotheses have a weight, all of these are returned with their normalised weights.
    """
    likely = np.flatnonzero(weight > 1e-9 * weight.max())
    if len(likely) > _SAMPLE:
        mass = np.cumsum(weight[likely])
        steps = (np.arange(_SAMPLE) + 0.5) / _SAMPLE * mass[-1]
        drawn, times = np.unique(np.searchsorted(mass, steps), return_counts=True)
        return likely[np.minimum(drawn, len(likely) - 1)], times / _SAMPLE
    return likely, weight[likely] / weight[likely].sum()
