from __future__ import annotations

import math

import numpy as np
import pytest

from bisect_env.search.circumstances import Arm, better_half, good_end_trials, probability_faster


def test_the_speed_is_what_it_takes_to_be_sure() -> None:
    arm = Arm(trials=1000, hits=300, seconds=500.0)
    # After n passes the chance of a bad end is exp(-n * cost * speed); with p = 0.3 that is 0.7 ** n.
    assert math.exp(-0.5 * arm.speed) == pytest.approx(0.7, abs=2e-3)
    assert Arm().speed == 0.0
    assert Arm(6, 6, 1.0).speed < math.inf


def test_ten_copies_that_fail_three_times_as_often_lose() -> None:
    as_it_is = Arm(1000, 100, 1000.0)
    copies = Arm(1000, 300, 10_000.0)
    load = Arm(1000, 200, 1200.0)
    assert better_half([as_it_is, copies, load]) == [2, 0]
    assert better_half([as_it_is, copies, load], least=3) == [2, 0, 1]


def test_arms_add_up() -> None:
    assert Arm(3, 1, 2.0) + Arm(4, 2, 1.0) == Arm(7, 3, 3.0)


def test_probability_faster_is_calibrated() -> None:
    """Of planted arms called faster with 95 %, hardly any is not: the rate of false calls is held."""
    seed = 20261121
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    wrong = sum(
        probability_faster(
            Arm(36, int(rng.binomial(36, 0.1)), 36.0), Arm(60, int(rng.binomial(60, 0.1)), 60.0), rng
        )
        >= 0.95
        for _ in range(400)
    )
    # Equal rates: at most one in twenty is called faster; four deviations of that count.
    assert wrong <= 20 + 4 * math.sqrt(400 * 0.05 * 0.95)
    right = probability_faster(Arm(36, 18, 36.0), Arm(60, 6, 60.0), rng)
    assert right > 0.999


@pytest.mark.parametrize(("rate", "trials"), [(0.9, 8), (0.3, 11), (0.05, 77), (1.0, 8)])
def test_how_many_passes_show_that_the_good_end_is_clean(rate: float, trials: int) -> None:
    assert good_end_trials(rate) == trials
    assert (1 - rate) ** trials <= 0.02
