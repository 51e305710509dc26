"""Test whether a failure rate is below a limit, trial by trial, with exact error probabilities.

The test looks at the result after every trial, so the error must hold no matter how many trials follow. Let
`r` be the limit and `α` the allowed error; the hardest case is a true rate of exactly `r`. Two families of
boundaries end the test:

* *below*: with k failures, once this has become improbable. Let f(n, k) be the probability of k failures in n
  trials without having ended before. The boundary for k is the first n with f(n, k) ≤ α_k, where α_0 = (1 −
  q)α and α_k = qα / (k(k + 1)). The probability of ending at these boundaries is at most α in total.
* *above*: at the k-th failure, if it comes so early that all such early arrivals together have a probability
  of at most β_k = α / (k(k + 1)). These also sum to at most α.

f is computed exactly, trial by trial: f(n, k) = (1 − r)·f(n − 1, k) + r·f(n − 1, k − 1), less the probability
of having ended. If the true rate is beyond the limit, the wrong result is even less likely.

A test with a fixed number of trials needs at least n ≥ ln α / ln(1 − r) trials without a failure (299 for 1 %
and 95 %). With q = 0.1, this test needs ln(0.9 α) / ln(1 − r) (309), and in return it tolerates failures.

Source: spending an error over looks is due to K. K. G. Lan and D. L. DeMets, *Discrete sequential boundaries
for clinical trials*, Biometrika 70 (1983), 659-663; here it is spent over failures instead of time.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from bisect_env.search.numeric import passes_to_exclude, rate_of

_LATER = 0.1
"""q of the module: share of the error that is reserved for tests in which a failure was seen."""
_TINY = 1e-300
_ROUNDING = 1e-9
"""Maximum relative rounding error of the computed probabilities."""


class RateClaim(StrEnum):
    """The result of a `RateTest`: the failure rate is below or above the limit."""

    BELOW = "below"
    ABOVE = "above"


class RateTest:
    """A sequential test of whether a failure rate is below or above a limit (see the module).

    Args:
        max_rate: The limit, between 0 and 1, both excluded.
        confidence: One minus the error probability of either result, between 0 and 1, both excluded.

    Attributes:
        trials: Number of trials so far.
        hits: Number of failures among them.
        claim: The first result that was reached, None before that. Later trials do not change it.

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
        """Return how many passes, from the first trial on, show that the rate is below the limit."""
        return passes_to_exclude(self.max_rate, share(0) * self._error)

    def tell(self, hit: bool) -> RateClaim | None:
        """Record one trial and return the result of the test, or None if it has none yet.

        Args:
            hit: Whether the trial failed.
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
        # `clean_needed` allows for rounding, too: after as many passes the test must end.
        while alive.size and alive[0] <= self._error * share(self._least) * (1.0 + _ROUNDING):
            if not hit and self.hits == self._least:
                claim = claim or RateClaim.BELOW
            alive = alive[1:]
            self._least += 1
        # States this improbable no longer affect the result; dropping them keeps the array short.
        keep = alive.size
        while keep > 1 and alive[keep - 1] < _TINY:
            keep -= 1
        self._alive = alive[:keep]
        return claim

    def _is_early(self, k: int, mass: float) -> bool:
        """Return whether a `k`-th failure as early as this trial shows that the rate is above the limit.

        If it does, `mass` is added to the error that is spent on early `k`-th failures.

        Args:
            k: Number of the failure.
            mass: Probability that the k-th failure comes at exactly this trial, if the rate is the limit.
        """
        spent = self._early.get(k, 0.0)
        if spent < 0.0:
            return False
        early = spent + mass <= self._error / (k * (k + 1))
        self._early[k] = spent + mass if early else -1.0
        return early


def share(failures: int) -> float:
    """Return the share of the allowed error for the result *below* after exactly `failures` failures.

    The shares for 0, 1, 2, … failures add up to 1.
    """
    return 1.0 - _LATER if failures == 0 else _LATER / (failures * (failures + 1))


def upper_bound(hits: int, trials: int, confidence: float = 0.95) -> float:
    """Return an upper bound for the true failure rate (one-sided) after `hits` failures in `trials` trials.

    If the true rate is higher than this bound, at most `hits` failures in `trials` trials have a probability
    of at most 1 − `confidence`. The bound is valid for a single look.

    Source: Clopper and Pearson (see `numeric.py`); without hits 1 − (1 − confidence)^(1 / trials), the "rule
    of three" for 95 %.
    """
    if hits >= trials:
        return 1.0
    return rate_of(hits, trials, 1.0 - confidence)
