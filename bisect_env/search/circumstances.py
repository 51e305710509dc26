r"""Finds circumstances that make a failure frequent enough for what they cost. Pure.

A trial that fails with probability `p` and costs `c` seconds tells good from bad at the rate

    r = −log(1 − p) / c,

for `n` passes leave a chance of `(1 − p)^n = exp(−n · c · r)` that the combination is bad all the same. So
the perturbation with the highest `r` is wanted, not the one with the highest `p`: ten copies at once that
fail three times as often, and take ten times as long, lose.

Few trials tell little, and the best of fifteen is best partly by luck. Arms are therefore halved: all get a
few trials, the better half more, and so on (Jamieson and Talwalkar, 2016). What is left has to beat the
script as it is with a stated probability under Jeffreys' prior, on fresh trials, for which it was not chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ENOUGH = 0.9
"""Rate from which nothing is worth looking for."""
SURE = 0.95
"""Probability with which the winner has to be better than the script as it is."""
_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Arm:
    """Counts and cost of the trials of one perturbation.

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
        """Return the posterior mean of the failure rate under Jeffreys' prior."""
        return (self.hits + 0.5) / (self.trials + 1.0)

    @property
    def speed(self) -> float:
        """Return how fast trials separate good from bad: `r` of the module, in 1/s.

        0 before the first trial.
        """
        return -math.log1p(-self.rate) * self.trials / self.seconds if self.seconds else 0.0


def better_half(arms: Sequence[Arm], least: int = 1) -> list[int]:
    """Return the positions of the faster half of the arms, the fastest first.

    The half is rounded up and has at least `least` arms.
    """
    order = sorted(range(len(arms)), key=lambda i: -arms[i].speed)
    return order[: max(least, (len(arms) + 1) // 2)]


def probability_faster(arm: Arm, base: Arm, rng: np.random.Generator) -> float:
    """Return the probability that an arm separates good from bad faster than a base arm.

    Costs are means of many trials and treated as known; rates have Jeffreys' prior.

    Args:
        arm: The arm in question.
        base: The arm to compare with.
        rng: Random generator for the draws.
    """
    speeds = []
    for one in (arm, base):
        rates = rng.beta(one.hits + 0.5, one.trials - one.hits + 0.5, _DRAWS)
        cost = one.seconds / one.trials if one.trials else math.inf
        speeds.append(-np.log1p(-np.minimum(rates, 1.0 - 1e-12)) / cost)
    return float(np.mean(speeds[0] > speeds[1]))


def clean_trials(rate: float, error: float = 0.02, least: int = 8) -> int:
    """Return how many passes of the good end show that a perturbation does not make it fail, too.

    If the perturbation made the good end fail as often as the bad one, all of these trials would pass with
    probability `error`.

    Args:
        rate: Failure rate of the bad end under the perturbation.
        error: Probability that all trials pass by chance.
        least: Minimum number of trials.
    """
    if rate >= 1.0:
        return least
    return max(least, math.ceil(math.log(error) / math.log1p(-rate)))
