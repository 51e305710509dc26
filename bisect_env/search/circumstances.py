"""Find circumstances (perturbations) that make a failure more frequent, relative to their cost. Pure.

A perturbation is, for example, running several copies of the script at once. Each passing trial lowers the
chance that the combination is bad after all: after `n` passes it is `(1 − p)^n = exp(−n · c · r)`, where `p`
is the failure rate of bad combinations, `c` the cost of a trial in seconds, and

    r = −log(1 − p) / c

the rate at which trials separate good from bad. The best perturbation is therefore the one with the highest
`r`, not the one with the highest `p`: if ten copies at once fail three times as often but cost ten times as
much, they are worse.

The best of fifteen perturbations after a few trials is best partly by luck. The candidates (*arms*) are
therefore halved repeatedly: all get a few trials, the better half gets more, and so on (successive halving;
Jamieson and Talwalkar, 2016). The winner must then beat the unperturbed script with a stated probability
under Jeffreys' prior, on fresh trials that were not used to select it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bisect_env.search.numeric import passes_to_exclude

ENOUGH = 0.9
"""Failure rate above which no perturbation is needed."""
SURE = 0.95
"""Minimum probability that the winner is better than the unperturbed script."""
_DRAWS = 20_000
_LUCK, _LEAST_PASSES = 0.02, 8
"""Maximum probability that a failing good end passes all its trials, and minimum number of these trials."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Counts and cost of the trials under one perturbation (such as several copies run at once).

    Attributes:
        trials: Number of counted trials.
        hits: Number of failures with the study's signature.
        seconds: Cost of the trials, in seconds of the whole machine.
    """

    trials: int = 0
    hits: int = 0
    seconds: float = 0.0

    def __add__(self, other: Arm) -> Arm:
        return Arm(self.trials + other.trials, self.hits + other.hits, self.seconds + other.seconds)

    @property
    def rate(self) -> float:
        """Return the estimated failure rate: its posterior mean under Jeffreys' prior."""
        return (self.hits + 0.5) / (self.trials + 1.0)

    @property
    def speed(self) -> float:
        """Return how fast trials under this perturbation separate good from bad combinations, in 1/s.

        This is the rate `r` of the module; 0 before the first trial.
        """
        return -math.log1p(-self.rate) * self.trials / self.seconds if self.seconds else 0.0


def better_half(arms: Sequence[Arm], least: int = 1) -> list[int]:
    """Return the positions of the half of the arms (perturbations) that separate good from bad fastest.

    The fastest is first. The half is rounded up, and has at least `least` arms.
    """
    order = sorted(range(len(arms)), key=lambda i: -arms[i].speed)
    return order[: max(least, (len(arms) + 1) // 2)]


def probability_faster(arm: Arm, base: Arm, rng: np.random.Generator) -> float:
    """Return the probability that `arm` separates good from bad combinations faster than `base`.

    The costs are treated as known, because they are means of many trials; the failure rates have Jeffreys'
    prior.

    Args:
        arm: The arm to judge.
        base: The arm to compare it with.
        rng: Random generator for draws from the posterior of the rates.
    """
    speeds = []
    for one in (arm, base):
        rates = rng.beta(one.hits + 0.5, one.trials - one.hits + 0.5, _DRAWS)
        cost = one.seconds / one.trials if one.trials else math.inf
        speeds.append(-np.log1p(-np.minimum(rates, 1.0 - 1e-12)) / cost)
    return float(np.mean(speeds[0] > speeds[1]))


def good_end_trials(rate: float) -> int:
    """Return how many passes of the good end show that a perturbation alone does not cause failures.

    If the good end failed at `rate`, the failure rate of the bad end under the perturbation, all these trials
    would pass with probability at most `_LUCK`.
    """
    return max(_LEAST_PASSES, passes_to_exclude(rate, _LUCK))
