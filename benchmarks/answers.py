"""How many trials `verify` and `explain` take on planted truths: `python -m benchmarks.answers`.

Rivals: for `verify` the fewest clean trials that any test can do with, and a betting martingale with the same
weight on "never fails"; for `explain` delta debugging whose every test is sure to 1 %.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter

import numpy as np
from scipy.special import betainc, betaln

from bisect_env.search.culprits import CulpritSearch
from bisect_env.search.rate_test import RateTest

LIMIT, ERROR = 0.01, 0.05
WEIGHT = 0.9
"""Of the martingale's bet on a rate of zero; the rest is spread evenly below the limit."""


def martingale(failures: int) -> int:
    """Trials until the martingale shows "below the limit", all failures early on."""
    for n in range(failures + 1, 100_000):
        rest = n - failures
        # The mean of p^k (1 - p)^(n - k) over rates below the limit, by a beta distribution.
        spread = betaln(failures + 1, rest + 1) + math.log(betainc(failures + 1, rest + 1, LIMIT) / LIMIT)
        bet = (1 - WEIGHT) * math.exp(spread - failures * math.log(LIMIT) - rest * math.log1p(-LIMIT))
        if failures == 0:
            bet += WEIGHT * math.exp(-n * math.log1p(-LIMIT))
        if bet >= 1 / ERROR:
            return n
    raise AssertionError("it never claims anything")


def with_failures(failures: int) -> int:
    """The same for `verify`'s own test."""
    test = RateTest(LIMIT, 1 - ERROR)
    while test.claim is None:
        test.tell(100 < test.trials <= 100 + failures)
    return test.trials


def verifying(studies: int, seed: int) -> None:
    """Print what `verify` claims at several true rates."""
    least = math.ceil(math.log(ERROR) / math.log1p(-LIMIT))
    print(f"verify, limit {LIMIT:.0%}, {1 - ERROR:.0%} sure; seed {seed}")
    print(f"  the least possible without a failure: {least} trials")
    print(f"  without a failure: {with_failures(0)} trials; martingale {martingale(0)}")
    print(f"  with one failure:  {with_failures(1)} trials; martingale {martingale(1)}")
    for rate in (0.0, 0.002, 0.01, 0.05, 0.1):
        rng = np.random.default_rng(seed)
        claims: Counter[str] = Counter()
        trials = []
        for _ in range(studies):
            test = RateTest(LIMIT, 1 - ERROR)
            for hit in (rng.random(6000) < rate).tolist():
                if test.tell(hit) is not None:
                    break
            claims[str(test.claim)] += 1
            trials.append(test.trials)
        print(f"  true rate {rate:6.1%}: {np.mean(trials):6.0f} trials, {dict(claims)}, of {studies}")


def explaining(studies: int, seed: int) -> None:
    """Print what `explain` finds among planted changes, all intermediates having an environment."""
    print(f"explain, confidence 0.95, both ends tried 60 times, {studies} studies each; seed {seed}")
    for size, culprits, bad, good in (
        (10, 1, 0.85, 0.0),
        (10, 1, 0.1, 0.0),
        (10, 2, 0.5, 0.0),
        (20, 1, 0.3, 0.02),
    ):
        rng = np.random.default_rng(seed)
        wrong, trials, environments = 0, [], []
        for _ in range(studies):
            planted = frozenset(rng.choice(size, culprits, replace=False).tolist())
            search = CulpritSearch(size, (int(rng.binomial(60, good)), 60), (int(rng.binomial(60, bad)), 60))
            while (step := search.next_step(build_cost=5.0)) is not None:
                rate = bad if planted <= step.intermediate else good
                search.tell(step.intermediate, hits=int(rng.binomial(step.trials, rate)), trials=step.trials)
            wrong += search.answer.changes != planted
            trials.append(sum(n for _, n in search.counts.values()))
            environments.append(len(search.counts))
        sure = math.ceil(math.log(0.01) / math.log1p(-bad))
        print(
            f"  {size} changes, {culprits} to blame, {bad:.0%} against {good:.0%}: "
            f"{np.mean(trials):4.0f} trials, {np.mean(environments):4.1f} environments, {wrong} wrong; "
            f"ddmin, if one were to blame: about {2 * math.log2(size) * sure:.0f} trials"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=30)
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    verifying(10 * arguments.studies, arguments.seed)
    explaining(arguments.studies, arguments.seed)
