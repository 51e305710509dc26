import pytest

from bisect_env.engine.forecast import Forecast
from bisect_env.engine.next_work import build_cost, in_flight
from bisect_env.engine.state import why_aside
from bisect_env.storage.entries import EvidenceCounts
from bisect_env.trials.records import Evidence, Outcome


def test_counting_covers_every_kind_of_evidence() -> None:
    counts = EvidenceCounts()
    for evidence in Evidence:
        counts.add(evidence, Outcome.CRASH)
    assert (counts.good, counts.bad, counts.other, counts.skip, counts.void) == (1, 1, 1, 1, 1)
    assert counts.counted == 2


@pytest.mark.parametrize(
    ("counts", "aside"),
    [
        ({}, False),
        ({"other": 2}, False),
        ({"other": 3}, True),
        ({"other": 3, "good": 1}, False),
        ({"other": 19, "bad": 1}, False),
        ({"other": 20, "bad": 1}, True),
        ({"other": 20, "good": 10}, False),
        ({"skip": 1}, True),
        ({"void": 50}, False),
    ],
)
def test_when_a_combination_is_set_aside(counts: dict[str, int], aside: bool) -> None:
    assert (why_aside(EvidenceCounts(**counts)) is not None) is aside


def test_build_cost_is_in_trials() -> None:
    assert build_cost(20.0, 5.0) == 4.0
    assert build_cost(None, 5.0) == build_cost(20.0, None) > 0
    assert build_cost(1e9, 0.01) < 1e4


def test_short_trials_have_a_second_one_waiting() -> None:
    assert in_flight(4, 5.0) == 4
    assert in_flight(4, 0.05) == 8
    assert in_flight(4, None) == 4


def test_gpu_hours_of_a_forecast() -> None:
    forecast = Forecast(
        crash_rate=0.1, studies=20, trials=100.0, trials_range=(50.0, 200.0), environments=5.0
    )
    assert forecast.gpu_hours(36.0, 2) == pytest.approx((2.0, 1.0, 4.0))
    assert forecast.gpu_hours(36.0, 0) == (0.0, 0.0, 0.0)
