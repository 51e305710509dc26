"""When an answer counts."""

from __future__ import annotations

import numpy as np
import pytest

from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.simulate import simulate
from bisect_env.search.space import HypothesisSpace
from bisect_env.search.stopping import (
    clean_trials,
    judge,
    quantile,
    required_confidence,
)
from bisect_env.search.verdict import Answer, Boundary, Status, capacity, entropy_bits
from tests.search.worlds import REGRESSION, alone, configuration, grid, rates


@pytest.mark.parametrize(
    ("rate", "passes"), [(1.0, 1), (0.95, 1), (0.9, 2), (0.5, 5), (0.1, 29), (0.02, 149)]
)
def test_clean_trials_leave_a_miss_less_likely_than_one_in_twenty(rate: float, passes: int) -> None:
    assert clean_trials(rate) == passes
    assert (1 - min(rate, 0.95)) ** passes <= 0.05 + 1e-9
    assert passes == 1 or (1 - rate) ** (passes - 1) > 0.05


def test_noise_asks_for_more_certainty_than_is_stated() -> None:
    assert required_confidence(0.95, 0.1, 0.0) == pytest.approx(0.95)
    assert required_confidence(0.95, 0.15, 0.06) == pytest.approx(0.97)
    assert required_confidence(0.95, 0.1, 0.5) == pytest.approx(0.99)
    asked = [required_confidence(0.9, 0.3, p0) for p0 in (0.0, 0.01, 0.05, 0.1)]
    assert asked == sorted(asked)


def test_quantile_of_a_distribution_on_a_grid() -> None:
    values, chances = np.array([0.1, 0.2, 0.5]), np.array([0.04, 0.5, 0.46])
    assert quantile(values, chances, 0.03) == 0.1
    assert quantile(values, chances, 0.05) == 0.2
    assert quantile(values, chances, 1.0) == 0.5


def answer_with(probability: float, *, number: int = 2, boundary: bool = True) -> Answer:
    hypothesis = HypothesisSpace((4,), [REGRESSION]).hypothesis(number)
    boundaries = (Boundary(0, (2,), (1,)),) if boundary else ()
    return Answer(hypothesis, boundaries, (2,), (1,), probability)


@pytest.mark.parametrize(
    ("answer", "stands", "status"),
    [
        (answer_with(0.97), True, Status.CONFIRMED),
        (answer_with(0.97), False, Status.LIKELY),
        (answer_with(0.94), False, Status.LIKELY),
        (answer_with(0.97, boundary=False), True, Status.LIKELY),
        (answer_with(0.50), False, Status.NONE),
        (answer_with(0.99, number=0), True, Status.NONE),
        (answer_with(0.99, number=4), True, Status.NONE),
        (answer_with(0.99, number=0), False, Status.NONE),
        (answer_with(0.99, number=4), False, Status.NONE),
    ],
)
@pytest.mark.parametrize("certain", [True, False])
@pytest.mark.parametrize("rule", [True, False])
def test_only_what_meets_every_condition_is_confirmed(
    answer: Answer, stands: bool, status: Status, certain: bool, rule: bool
) -> None:
    found, reason = judge(answer, required=0.95, stands=stands, checks=0, certain=certain, rule=rule)
    assert found is status
    assert reason
    # Reports name the probability beside it, as people read it.
    assert status is not Status.NONE or not any(letter.isdigit() for letter in reason)


@pytest.mark.parametrize(("probability", "checks"), [(0.97, 57), (0.94, 0), (0.3, 0)])
def test_an_answer_that_ended_the_search_early_is_likely(probability: float, checks: int) -> None:
    found, reason = judge(
        answer_with(probability), required=0.95, stands=True, checks=checks, certain=True, rule=True
    )
    assert found is Status.LIKELY
    assert (str(checks) if checks else f"{probability:.3f}") in reason


def test_capacity_of_a_trial() -> None:
    """A perfect test tells one bit, equal rates nothing, and a rare failure about 0.531 of its rate."""
    assert capacity(0.0, 1.0) == pytest.approx(1.0)
    assert capacity(0.3, 0.3) == 0.0
    assert capacity(0.0, 0.01) == pytest.approx(0.00531, rel=0.02)
    assert np.log2(32) / capacity(0.02, 0.3) == pytest.approx(39.8, abs=0.1)


def test_entropy_in_bits() -> None:
    assert entropy_bits([0.25] * 4) == pytest.approx(2.0)
    assert entropy_bits([1.0, 0.0]) == 0.0


@pytest.mark.parametrize("confidence", [0.501, 0.95, 0.9999])
@pytest.mark.parametrize("rate", [0.0001, 0.02, 0.5])
def test_the_whole_range_of_settings_works(confidence: float, rate: float) -> None:
    lattice = grid((12,))
    chosen = SearchLimits(confidence=confidence, min_crash_rate=rate, max_trials=60)
    for shown in (1.0, 0.5):
        end = simulate(
            lattice,
            alone(lattice),
            rates(configuration((12,), {0: 5}), shown),
            np.random.default_rng(3),
            limits=chosen,
            workers=4,
        )
        assert np.isfinite(end.verdict.best.probability)
        if shown == 1.0:
            assert end.verdict.best.first_bad == (5,)
