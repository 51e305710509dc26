import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_env.engine.forecast import Forecast
from bisect_env.engine.next_work import build_cost, in_flight
from bisect_env.engine.state import says_bad, why_aside
from bisect_env.search.searcher import Search
from bisect_env.storage.entries import EvidenceCounts
from bisect_env.trials.records import Evidence, Outcome
from tests.search.worlds import alone, grid


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


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(list(Evidence))), max_size=40))
@settings(max_examples=40)
def test_other_failures_and_void_trials_never_move_the_posterior(
    trials: list[tuple[int, Evidence]],
) -> None:
    lattice = grid((6,))
    everything, counted_alone = Search(lattice, alone(lattice)), Search(lattice, alone(lattice))
    known = [EvidenceCounts() for _ in range(6)]
    for cell, evidence in trials:
        # As the study's loop does.
        known[cell].add(evidence, Outcome.CRASH)
        if (bad := says_bad(evidence)) is not None:
            everything.tell((cell,), hit=bad)
        if why_aside(known[cell]) is not None:
            # That it cannot be tried any more is known to both: an end that is gone changes what is asked.
            everything.set_aside((cell,))
            counted_alone.set_aside((cell,))
        if evidence in (Evidence.GOOD, Evidence.BAD):
            counted_alone.tell((cell,), hit=evidence is Evidence.BAD)
    np.testing.assert_array_equal(everything.probability_bad(), counted_alone.probability_bad())
    assert everything.trials == counted_alone.trials


def test_gpu_hours_of_a_forecast() -> None:
    forecast = Forecast(0.1, 0.0, 20, 100.0, (50.0, 200.0), 5.0)
    assert forecast.gpu_hours(36.0, 2) == pytest.approx((2.0, 1.0, 4.0))
    assert forecast.gpu_hours(36.0, 0) == (0.0, 0.0, 0.0)
