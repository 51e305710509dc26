"""The sequential test of a rate: exact errors, and as few trials as can be."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.search.rate_test import RateClaim, RateTest, upper_bound


def walk(test: RateTest, rate: float, rng: np.random.Generator, limit: int) -> RateClaim | None:
    for hit in (rng.random(limit) < rate).tolist():
        if test.tell(hit) is not None:
            break
    return test.claim


@pytest.mark.parametrize(("max_rate", "confidence"), [(0.01, 0.95), (0.05, 0.9), (0.2, 0.99), (0.5, 0.95)])
def test_clean_trials_needed(max_rate: float, confidence: float) -> None:
    test = RateTest(max_rate, confidence)
    told = 0
    while test.tell(False) is None:
        told += 1
    assert test.claim is RateClaim.BELOW
    assert told + 1 == test.clean_needed
    least = math.ceil(math.log(1 - confidence) / math.log1p(-max_rate))
    assert least <= test.clean_needed <= 1.06 * least + 1
    assert upper_bound(0, test.trials, confidence) < max_rate


def exact_errors(max_rate: float, confidence: float, trials: int) -> tuple[float, float]:
    """Probability of either claim within so many trials at the limit itself: every path is walked.

    Paths of equal length and with equally many failures that have not ended are alike, so that one of them
    speaks for all.
    """
    alive = {0: (RateTest(max_rate, confidence), 1.0)}
    below = above = 0.0
    for _ in range(trials):
        after: dict[int, tuple[RateTest, float]] = {}
        for test, mass in alive.values():
            for hit, chance in ((True, max_rate), (False, 1 - max_rate)):
                moved = copy.deepcopy(test)
                claim = moved.tell(hit)
                if claim is RateClaim.BELOW:
                    below += mass * chance
                elif claim is RateClaim.ABOVE:
                    above += mass * chance
                else:
                    before = after.get(moved.hits, (moved, 0.0))[1]
                    after[moved.hits] = (moved, before + mass * chance)
        alive = after
    return below, above


@pytest.mark.parametrize(("max_rate", "confidence"), [(0.2, 0.95), (0.4, 0.8), (0.5, 0.99)])
def test_errors_at_the_limit_are_exact(max_rate: float, confidence: float) -> None:
    below, above = exact_errors(max_rate, confidence, 60)
    assert 0.5 * (1 - confidence) < below <= 1 - confidence
    assert 0.0 < above <= 1 - confidence


@pytest.mark.parametrize(
    ("rate", "claim"), [(0.0, RateClaim.BELOW), (0.002, RateClaim.BELOW), (0.1, RateClaim.ABOVE)]
)
def test_what_is_far_from_the_limit_is_soon_known(rate: float, claim: RateClaim) -> None:
    seed = 7
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    tests = [RateTest(0.01) for _ in range(100)]
    claims = [walk(test, rate, rng, 6000) for test in tests]
    assert claims.count(claim) >= 93
    mean = float(np.mean([test.trials for test in tests]))
    assert mean <= {0.0: 309.0, 0.002: 900.0, 0.1: 40.0}[rate]


@given(st.floats(0.001, 0.9), st.floats(0.5, 0.999), st.lists(st.booleans(), max_size=60))
def test_nothing_is_lost_on_the_way(max_rate: float, confidence: float, outcomes: list[bool]) -> None:
    test = RateTest(max_rate, confidence)
    claims = [test.tell(outcome) for outcome in outcomes]
    assert (test.trials, test.hits) == (len(outcomes), sum(outcomes))
    first = next((claim for claim in claims if claim is not None), None)
    assert test.claim is first
    # An end is reached by what it claims: a pass shows *below*, a failure *above*.
    if first is not None:
        assert outcomes[claims.index(first)] is (first is RateClaim.ABOVE)


@pytest.mark.parametrize(("max_rate", "confidence"), [(0.0, 0.9), (1.0, 0.9), (0.1, 0.0), (0.1, 1.0)])
def test_what_is_no_rate_is_refused(max_rate: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="no test"):
        RateTest(max_rate, confidence)


def test_zero_in_427_means_below_seven_tenths_of_a_percent() -> None:
    assert round(upper_bound(0, 427), 4) == 0.007
    assert upper_bound(5, 5) == 1.0


@pytest.mark.parametrize(("rate", "confidence"), [(0.7, 0.9), (0.82, 0.8), (0.97, 0.999)])
def test_as_many_passes_as_are_needed_end_the_test(rate: float, confidence: float) -> None:
    """Here the probability of so many passes is the allowed error, but for rounding."""
    test = RateTest(rate, confidence)
    for _ in range(test.clean_needed):
        assert test.claim is None
        test.tell(False)
    assert test.claim is RateClaim.BELOW
