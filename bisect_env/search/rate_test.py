"""Tests whether a failure rate is below a limit, trial by trial, with exact error probabilities.

Trials come one after another, and one looks after each; the error has to hold however long one goes on. Let
`r` be the limit, `α` the allowed error, and let the trials be throws with rate `r` exactly, the hardest case.
Two families of boundaries end the test:

* *below*: with k failures, once that has become improbable. Let f(n, k) be the probability of k failures in n
  trials without having ended before. The boundary for k is the first n with f(n, k) ≤ α_k, where
  α_0 = (1 − q)α and α_k = qα / (k(k + 1)); what is absorbed there sums to at most α.
* *above*: at the k-th failure, if it comes so early that all such early arrivals together have probability at
  most β_k = α / (k(k + 1)); these sum to at most α as well.

f is computed exactly, trial by trial: f(n, k) = (1 − r)·f(n − 1, k) + r·f(n − 1, k − 1), less what was
absorbed. For a rate beyond the limit the wrong end is rarer still: more failures lead away from it.

A fixed number of clean trials, n ≥ ln α / ln(1 − r) (299 for 1 % and 95 %), is the least that any test can do
without a failure. With q = 0.1 this one needs ln(0.9 α) / ln(1 − r) (309), and in return survives failures.

Source: the spending of an error over looks is that of K. K. G. Lan and D. L. DeMets, *Discrete sequential
boundaries for clinical trials*, Biometrika 70 (1983), 659-663, here over failures in place of time.
"""

from __future__ import annotations

import math
from enum import StrEnum

import numpy as np

from bisect_env.search.numeric import beta_quantile

_LATER = 0.1
"""q: the share of the error that is kept for tests in which a failure has been seen."""
_TINY = 1e-300


class RateClaim(StrEnum):
    """A claim that the test can make."""

    BELOW = "below"
    ABOVE = "above"


class RateTest:
    """A sequential test of whether a failure rate is below or above a limit; see the module.

    Args:
        max_rate: The limit, between 0 and 1, both excluded.
        confidence: One minus the error probability of either claim, between 0 and 1, both excluded.

    Attributes:
        trials: Number of trials so far.
        hits: Failures among them.
        claim: The first claim that was shown, None before that; later trials do not change it.

    Raises:
        ValueError: An argument is not between 0 and 1.
    """

    def __init__(self, max_rate: float, confidence: float = 0.95) -> None:
        if not 0.0 < max_rate < 1.0 or not 0.0 < confidence < 1.0:
            raise ValueError(f"no test for the rate {max_rate} at confidence {confidence}")
        self.max_rate = max_rate
        self.confidence = confidence
        self.trials = 0
        self.hits = 0
        self.claim: RateClaim | None = None
        self._error = 1.0 - confidence
        self._alive = np.ones(1)  # f(n, k) for k = _least, _least + 1, …
        self._least = 0
        self._early: dict[int, float] = {}

    @property
    def clean_needed(self) -> int:
        """Return how many trials without a failure show a rate below the limit."""
        return math.ceil(math.log((1.0 - _LATER) * self._error) / math.log1p(-self.max_rate))

    def tell(self, hit: bool) -> RateClaim | None:
        """Add a trial.

        Args:
            hit: Whether it failed.

        Returns:
            The claim, if there is one now.
        """
        self.trials += 1
        self.hits += hit
        if self.claim is None:
            self.claim = self._step(hit)
        return self.claim

    def _step(self, hit: bool) -> RateClaim | None:
        failed = self._alive * self.max_rate
        stayed = self._alive * (1.0 - self.max_rate)
        alive = np.append(stayed, 0.0)
        claim: RateClaim | None = None
        for offset, mass in enumerate(failed.tolist()):
            k = self._least + offset + 1
            if self._is_early(k, mass):
                if hit and self.hits == k:
                    claim = RateClaim.ABOVE
            else:
                alive[offset + 1] += mass
        while alive.size and alive[0] <= self._error * share(self._least):
            if not hit and self.hits == self._least:
                claim = claim or RateClaim.BELOW
            alive = alive[1:]
            self._least += 1
        # What is as improbable as this decides nothing any more, and the array stays short.
        keep = alive.size
        while keep > 1 and alive[keep - 1] < _TINY:
            keep -= 1
        self._alive = alive[:keep]
        return claim

    def _is_early(self, k: int, mass: float) -> bool:
        """Return whether the k-th failure, arriving now with this probability, still counts as early."""
        spent = self._early.get(k, 0.0)
        if spent < 0.0:
            return False
        early = spent + mass <= self._error / (k * (k + 1))
        self._early[k] = spent + mass if early else -1.0
        return early


def share(failures: int) -> float:
    """Return the share of the error spent on the claim *below* after so many failures; shares sum to 1."""
    return 1.0 - _LATER if failures == 0 else _LATER / (failures * (failures + 1))


def upper_bound(hits: int, trials: int, confidence: float = 0.95) -> float:
    """Return the rate above which a result this good has at most probability 1 − confidence.

    This is a one-sided bound for a single look.

    Source: Clopper and Pearson (see `numeric.py`); without hits 1 − (1 − confidence)^(1 / trials), the
    "rule of three" for 95 %.
    """
    if hits >= trials:
        return 1.0
    return beta_quantile(hits + 1, trials - hits, confidence)
