import pytest

from bisect_env.engine.rules import Tally, build_cost, in_flight
from bisect_env.trials.records import Evidence


def tally(**counts: int) -> Tally:
    return Tally(**counts)


def test_counting_covers_every_kind_of_evidence() -> None:
    t = Tally()
    for evidence in Evidence:
        t.count(evidence)
    assert (t.good, t.bad, t.other, t.skip, t.void) == (1, 1, 1, 1, 1)


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
    assert (tally(**counts).why_aside() is not None) is aside


def test_build_cost_is_in_trials() -> None:
    assert build_cost(20.0, 5.0) == 4.0
    assert build_cost(None, 5.0) == build_cost(20.0, None) > 0
    assert build_cost(1e9, 0.01) < 1e4


def test_short_trials_have_a_second_one_waiting() -> None:
    assert in_flight(4, 5.0) == 4
    assert in_flight(4, 0.05) == 8
    assert in_flight(4, None) == 4
