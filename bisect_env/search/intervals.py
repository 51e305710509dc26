"""Exact intervals for a rate that was seen so many times in so many trials."""

from __future__ import annotations

from bisect_env.search.numeric import beta_quantile


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of Clopper and Pearson for a binomial rate.

    With `α = 1 − confidence`, the ends are the `α/2` quantile of Beta(hits, trials − hits + 1) and the
    `1 − α/2` quantile of Beta(hits + 1, trials − hits): the rates at which a result this high, or this low,
    has probability `α/2`. No true rate is missed more often than `α`.

    Source: C. J. Clopper, E. S. Pearson, *The use of confidence or fiducial limits illustrated in the case of
    the binomial*, Biometrika 26 (1934), 404-413; in the beta form of L. D. Brown, T. T. Cai, A. DasGupta,
    *Interval estimation for a binomial proportion*, Statistical Science 16 (2001), section 4.2.1.

    Args:
        hits: How often it happened, 0 to `trials`.
        trials: Out of how many; 0 gives (0, 1).
        confidence: Between 0 and 1, both excluded.

    Returns:
        Lower and upper end, exactly 0 where nothing hit and exactly 1 where everything did.

    Raises:
        ValueError: The numbers are no such counts.
    """
    if not 0 <= hits <= trials or not 0.0 < confidence < 1.0:
        raise ValueError(f"no interval for {hits} of {trials} at confidence {confidence}")
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if hits == 0 else beta_quantile(hits, trials - hits + 1, tail)
    high = 1.0 if hits == trials else beta_quantile(hits + 1, trials - hits, 1.0 - tail)
    return low, high
