"""Drifts and sick hosts are found, and not seen where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from bisect_env.search.searcher import Search
from bisect_env.search.stability import NOTEWORTHY, TrialResult, drift, host_effect
from tests.search.worlds import alone, grid

RNG = np.random.default_rng


def trials(
    rng: np.random.Generator, count: int, rate: float, *, hosts: int = 1, sick: float = 1.0, late: float = 1.0
) -> list[TrialResult]:
    """Trials of two bad cells and a good one; on the last host and after half of them the rate differs."""
    results = []
    for i in range(count):
        cell, host = int(rng.integers(3)), int(rng.integers(hosts))
        p = rate * (cell > 0) * (sick if host == hosts - 1 else 1.0) * (late if i >= count / 2 else 1.0)
        results.append(TrialResult(cell, bool(rng.random() < p), f"h{host}"))
    return results


def test_a_sick_host_is_named() -> None:
    effect = host_effect(trials(RNG(1), 300, 0.1, hosts=3, sick=5.0))
    assert effect is not None
    assert effect.noteworthy
    assert effect.part == "h2"
    assert effect.ratio >= 2


def test_a_host_on_which_nothing_fails_is_named() -> None:
    effect = host_effect(trials(RNG(2), 300, 0.3, hosts=3, sick=0.0))
    assert effect is not None
    assert effect.noteworthy
    assert (effect.part, effect.hits) == ("h2", 0)


@pytest.mark.parametrize("late", [0.1, 6.0])
def test_a_drift_is_found(late: float) -> None:
    effect = drift(trials(RNG(3), 300, 0.15 if late > 1 else 0.5, late=late))
    assert effect is not None
    assert effect.noteworthy
    assert effect.part == "0.5"
    assert (effect.ratio > 1) == (late > 1)


def test_different_combinations_on_different_hosts_say_nothing() -> None:
    """Each host had one combination to itself: that they differ may be the versions' doing."""
    results = [TrialResult(i % 2, i % 2 == 0, f"h{i % 2}") for i in range(60)]
    effect = host_effect(results)
    assert effect is not None
    assert effect.bayes_factor == pytest.approx(1.0)


def test_combinations_that_never_fail_say_nothing_of_a_drift() -> None:
    """A table is asked for after an answer: all but the first bad version get their trials late."""
    early = [TrialResult(cell, False) for _ in range(4) for cell in range(14)] + [
        TrialResult("last good", False)
    ] * 93
    early += [TrialResult("first bad", i % 6 == 0) for i in range(34)]
    late = [TrialResult(cell, False) for _ in range(57) for cell in range(14)]
    effect = drift([*early, *late])
    assert effect is not None
    assert not effect.noteworthy


def test_too_little_to_compare() -> None:
    assert host_effect([TrialResult(0, True, "a")] * 9) is None
    assert drift([TrialResult(0, True)] * 3) is None
    assert host_effect([]) is None


@pytest.mark.statistical
def test_false_alarms_are_as_rare_as_promised_though_the_search_chooses_what_to_try() -> None:
    alarms, studies = 0, 60
    for seed in range(studies):
        rng = RNG(seed)
        lattice = grid((12,))
        search = Search(lattice, alone(lattice))
        results = []
        while not search.finished:
            (cell,) = search.ask(1)
            hit = bool(rng.random() < (0.3 if cell[0] >= 5 else 0.01))
            search.tell(cell, hit=hit)
            results.append(TrialResult(cell, hit, f"h{rng.integers(3)}"))
        found = [drift(results), host_effect(results)]
        alarms += any(effect is not None and effect.noteworthy for effect in found)
    # At most two in NOTEWORTHY expected; four standard errors.
    expected = 2 * studies / NOTEWORTHY
    assert alarms <= expected + 4 * np.sqrt(expected)
