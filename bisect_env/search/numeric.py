"""Special functions for the search, and exact confidence intervals for failure rates. Pure.

SciPy has all of these. They are written here because importing SciPy took a third of the time of a simple
study, and installing it takes 114 MB. The tests compare each function with `scipy.special` or `scipy.stats`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bisect_env.search.families import FloatArray


def xlogy(x: Any, y: Any) -> FloatArray:
    """Return x·log(y) elementwise, and 0 wherever x is 0, even if y is 0, too."""
    x, y = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x == 0.0, 0.0, x * np.log(np.where(x == 0.0, 1.0, y)))


def relative_entropy(x: float, y: float) -> float:
    """Return x·log(x/y), or 0 if x is 0. The argument y must be above 0."""
    return 0.0 if x == 0.0 else x * math.log(x / y)


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the point between `low` and `high` at which a monotone function is zero, found by bisection.

    Raises:
        ValueError: The function has the same sign at `low` and at `high`.
    """
    rising = function(low) <= 0.0
    if rising == (function(high) <= 0.0):
        raise ValueError(f"no root between {low} and {high}")
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if (function(middle) <= 0.0) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def binomial_at_most(hits: int, trials: int, rates: FloatArray) -> FloatArray:
    """Return the probability of at most `hits` hits in `trials` trials for each of the given rates.

    The result has the shape of `rates`. Terms are computed as logarithms; only the shorter tail is summed.
    """
    if hits >= trials:
        return np.ones_like(rates)
    if hits < 0:
        return np.zeros_like(rates)
    if 2 * hits > trials:
        return 1.0 - binomial_at_most(trials - hits - 1, trials, 1.0 - rates)
    number = np.arange(hits + 1)
    # log of "trials choose number", from each to the next.
    steps = np.log((trials - number[:-1]) / (number[:-1] + 1.0))
    choose = np.concatenate([[0.0], np.cumsum(steps)])
    rate = np.asarray(rates, dtype=np.float64)[..., None]
    logs = choose + xlogy(number, rate) + xlogy(trials - number, 1.0 - rate)
    return np.asarray(np.minimum(np.exp(logs).sum(axis=-1), 1.0))


def passes_to_exclude(rate: float, error: float) -> int:
    """Return how many passes in a row show that a combination does not fail at `rate`, at least 1.

    With that rate, all these trials would pass with probability at most `error`: `(1 − rate)^n ≤ error`.
    """
    # One trial is exactly enough at the highest rate, whatever rounding makes of the quotient.
    return math.ceil(math.log(error) / math.log1p(-min(rate, 1.0 - error)) - 1e-9)


@functools.lru_cache(maxsize=65_536)
def rate_of(hits: int, trials: int, chance: float) -> float:
    """Return the failure rate at which at most `hits` of `trials` trials fail with probability `chance`.

    This is the 1 − `chance` quantile of Beta(hits + 1, trials − hits).

    Args:
        hits: Number of failures, from 0 to `trials` − 1.
        trials: Number of trials.
        chance: Between 0 and 1, both excluded.
    """
    return root(lambda rate: float(binomial_at_most(hits, trials, np.array(rate))) - chance, 0.0, 1.0)


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact two-sided confidence interval of Clopper and Pearson for a binomial rate.

    With `α = 1 − confidence`, the bounds are the `α/2` quantile of Beta(hits, trials − hits + 1) and the
    `1 − α/2` quantile of Beta(hits + 1, trials − hits): the rates at which a result this high, or this low,
    has probability `α/2`. The interval misses the true rate with probability at most `α`.

    Source: C. J. Clopper, E. S. Pearson, *The use of confidence or fiducial limits illustrated in the case of
    the binomial*, Biometrika 26 (1934), 404-413; in the beta form of L. D. Brown, T. T. Cai, A. DasGupta,
    *Interval estimation for a binomial proportion*, Statistical Science 16 (2001), section 4.2.1.

    Args:
        hits: Number of failures, 0 to `trials`.
        trials: Number of trials; 0 gives (0, 1).
        confidence: Between 0 and 1, both excluded.

    Returns:
        Lower and upper bound; the lower is exactly 0 if `hits` is 0, the upper exactly 1 if all trials hit.

    Raises:
        ValueError: `hits` is not between 0 and `trials`, or `confidence` is not between 0 and 1.
    """
    if not 0 <= hits <= trials or not 0.0 < confidence < 1.0:
        raise ValueError(f"no interval for {hits} of {trials} at confidence {confidence}")
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if hits == 0 else rate_of(hits - 1, trials, 1.0 - tail)
    high = 1.0 if hits == trials else rate_of(hits, trials, tail)
    return low, high
