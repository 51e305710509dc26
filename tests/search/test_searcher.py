"""Asking and telling: what the search promises about every single step."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_env.matrix.grid import Direction, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.searcher import Search
from bisect_env.search.stopping import clean_trials
from bisect_env.search.verdict import Status
from tests.search.worlds import EITHER, FIXED, REGRESSION, UNORDERED, alone, configuration, grid, play, rates

RNG = np.random.default_rng


def search_of(
    shape: tuple[int, ...], directions: Direction = REGRESSION, *, quick: bool = False, **limits: float
) -> Search:
    lattice = grid(shape, directions)
    return Search(lattice, alone(lattice), SearchLimits(**limits), quick=quick)  # type: ignore[arg-type]


# -- what is asked ---------------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from(list(Direction)), min_size=1, max_size=3),
    st.integers(0, 2**32 - 1),
    st.integers(1, 9),
)
@settings(max_examples=25)
def test_only_what_can_be_run_is_asked(directions: list[Direction], seed: int, workers: int) -> None:
    rng = RNG(seed)
    lattice = grid([int(n) for n in rng.integers(1, 5, len(directions))], directions)
    without = [i for i in lattice.indices() if rng.random() < 0.3]
    groups = alone(lattice, without)
    search = Search(lattice, groups)
    for _ in range(12):
        asked = search.ask(workers, build_cost=dict.fromkeys(lattice.indices(), 20.0))
        assert len(asked) <= workers
        assert asked or search.finished or not groups
        assert set(asked) <= set(groups)
        for cell in asked:
            search.tell(cell, hit=bool(rng.random() < 0.5))


def test_nothing_to_run_is_the_end() -> None:
    lattice = grid((3,))
    search = Search(lattice, {})
    assert search.finished
    assert search.ask(4) == []
    assert search.verdict.status is Status.NONE


@pytest.mark.parametrize("quick", [True, False])
def test_a_confirmed_answer_about_a_flaky_failure_has_passes_on_the_good_side_that_prove_it(
    quick: bool,
) -> None:
    search = search_of((9,), quick=quick)
    play(search, rates(configuration((9,), {0: 4}), 0.5), RNG(4))
    assert search.verdict.status is (Status.LIKELY if quick else Status.CONFIRMED)
    assert search.verdict.best.first_bad == (4,)
    # At a rate of one half, five passes in a row come by luck in one of 32 studies.
    good = [search.counts((place,)) for place in range(4)]
    assert sum(trials - hits for hits, trials in good) >= 5


def test_a_bad_end_that_always_fails_is_tried_once() -> None:
    search = search_of((9,))
    search.tell((0,), hit=False)
    search.tell((8,), hit=True)
    assert search.ask(1) != [(8,)]


@pytest.mark.parametrize("quick", [True, False])
def test_stated_ends_are_where_the_answer_is_looked_for(quick: bool) -> None:
    lattice = grid((9,), EITHER, good=(2,), bad=(5,))
    search = Search(lattice, alone(lattice), quick=quick)
    play(search, rates((np.arange(9) >= 4) & (np.arange(9) < 8), 1.0), RNG(0))
    assert search.verdict.best.first_bad == (4,)
    assert search.verdict.best.last_good == (3,)


def test_a_batch_spreads_over_combinations() -> None:
    search = search_of((32,))
    search.tell((0,), hit=False)
    search.tell((31,), hit=True)
    batch = search.ask(8)
    assert len(batch) == len(set(batch)) >= 5
    assert np.diff(sorted([0, *(cell[0] for cell in batch), 31])).max() <= 8


def test_pending_trials_are_not_asked_again() -> None:
    search = search_of((32,), min_crash_rate=0.5)
    search.tell((0,), hit=False)
    search.tell((31,), hit=True)
    (first,) = search.ask(1)
    assert search.ask(1, pending={first: 8}) != [first]


def test_pending_trials_of_a_combination_set_aside_do_no_harm() -> None:
    search = search_of((5,))
    search.set_aside((2,))
    assert search.ask(1, pending={(2,): 3}) == search.ask(1)


def test_a_dear_environment_is_not_built_for_a_single_trial() -> None:
    search = search_of((32,))
    for _ in range(3):
        search.tell((0,), hit=False)
        search.tell((31,), hit=True)
        search.tell((31,), hit=False)
        search.tell((15,), hit=False)
    dear = {(i,): 90.0 for i in range(32) if i not in (0, 15, 31)}
    assert search.ask(1, build_cost=dear)[0] in {(0,), (15,), (31,)}
    assert search.ask(1)[0] not in {(0,), (31,)}


def test_a_search_asks_the_same_when_it_is_rebuilt_in_another_order() -> None:
    rng = RNG(5)
    truth = rates(configuration((6, 4), {0: 3}), 0.4)
    lattice = grid((6, 4))
    search = Search(lattice, alone(lattice))
    told: list[tuple[Index, bool]] = []
    for _ in range(40):
        (cell,) = search.ask(1)
        told.append((cell, bool(rng.random() < truth[cell])))
        search.tell(cell, hit=told[-1][1])
    again = Search(lattice, alone(lattice))
    for i in rng.permutation(len(told)):
        again.tell(told[i][0], hit=told[i][1])
    assert again.ask(3) == search.ask(3)
    assert again.verdict == search.verdict
    np.testing.assert_allclose(again.probability_bad(), search.probability_bad())


# -- groups ----------------------------------------------------------------------------------------------


def days(starts: list[int], size: int) -> dict[Index, Index]:
    """A date axis on which the environment changes at `starts` alone."""
    return {(i,): (max(s for s in starts if s <= i),) for i in range(size)}


def test_combinations_of_one_group_share_their_counts() -> None:
    lattice = grid((10,))
    search = Search(lattice, days([0, 3, 7], 10))
    search.tell((5,), hit=True)
    search.tell((3,), hit=False)
    assert search.counts((4,)) == search.counts((6,)) == (1, 2)
    assert search.counts((2,)) == (0, 0)
    assert search.trials == 2


@pytest.mark.parametrize("first_bad", [3, 7])
def test_first_bad_is_the_day_on_which_the_environment_changed(first_bad: int) -> None:
    lattice = grid((10,))
    groups = days([0, 3, 7], 10)
    search = Search(lattice, groups)
    tried = play(search, rates(configuration((10,), {0: first_bad}), 1.0), RNG(0))
    assert set(tried) <= {(0,), (3,), (7,)}
    assert search.verdict.status is Status.CONFIRMED
    assert search.verdict.best.first_bad == (first_bad,)
    assert search.verdict.best.last_good == (first_bad - 1,)


# -- set aside -------------------------------------------------------------------------------------------


def test_a_combination_set_aside_is_asked_no_more_and_keeps_its_counts() -> None:
    search = search_of((3, 3))
    search.tell((1, 1), hit=False)
    search.set_aside((1, 1))
    search.tell((1, 1), hit=False)
    search.set_aside((1, 1))
    assert search.counts((1, 1)) == (0, 2)
    assert (1, 1) not in search.ask(30)


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize(("kind", "cannot_run"), [("never", range(3, 6)), ("always", range(2))])
def test_no_boundary_is_claimed_beside_what_cannot_be_run(
    kind: str, cannot_run: range, *, learnt: bool
) -> None:
    """All that can be run is good, or all is bad; what cannot be run may differ, and nothing shows it."""
    lattice = grid((6,), good=(0,), bad=(5,))
    search = Search(lattice, alone(lattice, () if learnt else [(place,) for place in cannot_run]))
    while not search.finished:
        (cell,) = search.ask(1)
        if cell[0] in cannot_run:
            search.set_aside(cell)
        else:
            search.tell(cell, hit=kind == "always")
    verdict = search.verdict
    assert verdict.status is Status.NONE
    assert verdict.best.hypothesis.kind == kind
    assert verdict.reason.startswith(f"{kind} bad: ")
    # A stated end that could not be tried is not called wrong.
    assert verdict.ends_wrong == ()


def test_an_end_set_aside_is_tried_no_more() -> None:
    lattice = grid((8,), good=(0,), bad=(7,))
    search = Search(lattice, alone(lattice))
    search.set_aside((0,))
    search.set_aside((7,))
    tried = play(search, rates(configuration((8,), {0: 3}), 1.0), RNG(0))
    assert not {(0,), (7,)} & set(tried)
    assert search.verdict.best.first_bad == (3,)


def test_setting_aside_all_combinations_of_a_group_at_once() -> None:
    lattice = grid((10,))
    search = Search(lattice, days([0, 3, 7], 10))
    search.set_aside((5,))
    assert not {(3,), (4,), (5,), (6,)} & set(search.ask(10))


def test_a_tie_across_combinations_set_aside_is_reported_with_what_lies_between() -> None:
    search = search_of((6,))
    for cell in ((2,), (3,)):
        search.set_aside(cell)
    play(search, rates(configuration((6,), {0: 3}), 1.0), RNG(1))
    assert search.verdict.status is Status.CONFIRMED
    (boundary,) = search.verdict.best.boundaries
    assert (boundary.bad, boundary.good) == ((4,), (1,))
    assert set(boundary.between) == {(2,), (3,)}


def test_telling_of_what_never_could_be_run_is_refused() -> None:
    lattice = grid((3,))
    search = Search(lattice, alone(lattice, [(1,)]))
    with pytest.raises(ValueError, match="cannot be run"):
        search.tell((1,), hit=True)


# -- ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "kind", "reason"), [(0.0, "never", "never bad"), (1.0, "always", "always bad")]
)
@pytest.mark.parametrize("directions", [REGRESSION, FIXED, EITHER, UNORDERED])
def test_a_study_in_which_nothing_changes_ends_by_itself(
    directions: Direction, p: float, kind: str, reason: str
) -> None:
    search = search_of((6,), directions)
    play(search, np.full((6,), p), RNG(0))
    assert search.verdict.status is Status.NONE
    assert search.verdict.best.hypothesis.kind == kind
    assert reason in search.verdict.reason
    assert search.verdict.best.first_bad is None


def test_a_known_good_end_that_fails_is_named() -> None:
    lattice = grid((8,), good=(0,), bad=(7,))
    search = Search(lattice, alone(lattice))
    play(search, np.full((8,), 1.0), RNG(0))
    assert search.verdict.ends_wrong == ("good",)
    assert search.verdict.status is Status.NONE


def test_a_known_bad_end_that_never_fails_is_named() -> None:
    lattice = grid((8,), good=(0,), bad=(7,))
    search = Search(lattice, alone(lattice))
    play(search, np.zeros(8), RNG(0))
    assert search.verdict.ends_wrong == ("bad",)
    assert search.verdict.best.probability <= 1.0


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("limits", [{}, {"crash_rate": 0.2, "min_crash_rate": 0.05}])
def test_a_known_bad_end_that_fails_now_and_then_is_not_called_good_after_a_few_passes(
    size: int, limits: dict[str, float]
) -> None:
    lattice = grid((size,), good=(0,), bad=(size - 1,))
    truth = rates(configuration((size,), {0: size - 1}), 0.2)
    for seed in range(10):
        search = Search(lattice, alone(lattice), SearchLimits(**limits))  # type: ignore[arg-type]
        play(search, truth, RNG(seed))
        assert search.verdict.ends_wrong == (), seed
        assert search.verdict.status is Status.CONFIRMED, seed
        assert search.verdict.best.first_bad == (size - 1,), seed


def test_max_trials_ends_the_search_with_what_is_known() -> None:
    search = search_of((64,), max_trials=30)
    tried = play(search, rates(configuration((64,), {0: 20}), 0.1), RNG(2))
    assert len(tried) == 30
    verdict = search.verdict
    assert verdict.status is not Status.CONFIRMED
    assert verdict.expected_left > 0
    assert len(verdict.candidates) > 1
    assert verdict.candidates[0] == verdict.best


def test_candidates_hold_the_stated_confidence() -> None:
    search = search_of((5,), max_trials=12)
    play(search, rates(configuration((5,), {0: 2}), 0.3), RNG(3))
    candidates = search.verdict.candidates
    probabilities = [c.probability for c in candidates]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) >= 0.95
    assert sum(probabilities[:-1]) < 0.95


def test_a_confirmed_answer_was_seen_to_fail_and_to_pass_on_both_sides() -> None:
    for seed in range(10):
        search = search_of((16,))
        play(search, rates(configuration((16,), {0: 9}), 0.4), RNG(seed))
        verdict = search.verdict
        assert verdict.status is Status.CONFIRMED
        for boundary in verdict.best.boundaries:
            assert search.counts(boundary.bad)[0] > 0
            hits, trials = search.counts(boundary.good)
            assert trials - hits > 0
        assert verdict.best.probability >= 0.95


# -- where the boundary is said to be --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "bad", "first_bad", "last_good"),
    [
        (REGRESSION, [0, 0, 0, 1, 1, 1], 3, 2),
        (REGRESSION, [0, 1, 1, 1, 1, 1], 1, 0),
        (FIXED, [1, 1, 1, 1, 0, 0], 3, 4),
        (FIXED, [1, 0, 0, 0, 0, 0], 0, 1),
        (EITHER, [0, 0, 1, 1, 1, 0], 2, 1),
        (EITHER, [0, 0, 0, 1, 0, 0], 3, 2),
        (EITHER, [1, 1, 1, 0, 0, 0], 2, 3),
        (EITHER, [0, 0, 0, 0, 1, 1], 4, 3),
    ],
)
def test_first_bad_and_last_good(
    direction: Direction, bad: list[int], first_bad: int, last_good: int
) -> None:
    search = search_of((len(bad),), direction)
    play(search, np.array(bad, dtype=float), RNG(0))
    verdict = search.verdict
    assert verdict.status is Status.CONFIRMED, verdict.reason
    assert verdict.best.first_bad == (first_bad,)
    assert verdict.best.last_good == (last_good,)
    assert verdict.best.hypothesis.bad_cells().astype(int).tolist() == bad


@pytest.mark.parametrize(("bad", "kind"), [([0, 0, 1, 0, 0], "the one"), ([1, 1, 0, 1, 1], "all but one")])
def test_unordered_values(bad: list[int], kind: str) -> None:
    search = search_of((5,), UNORDERED)
    play(search, np.array(bad, dtype=float), RNG(0))
    verdict = search.verdict
    assert verdict.status is Status.CONFIRMED, kind
    assert verdict.best.hypothesis.bad_cells().astype(int).tolist() == bad
    assert verdict.best.first_bad is not None
    assert verdict.best.last_good is not None
    assert bad[verdict.best.first_bad[0]] == 1
    assert bad[verdict.best.last_good[0]] == 0


def test_two_culprits_in_opposite_directions() -> None:
    lattice = grid((6, 5), [FIXED, REGRESSION])
    search = Search(lattice, alone(lattice))
    bad = np.zeros((6, 5), dtype=bool)
    bad[:4, 2:] = True
    play(search, rates(bad, 1.0), RNG(0))
    best = search.verdict.best
    assert best.first_bad == (3, 2)
    assert best.culprits == best.hypothesis.culprits == (0, 1)
    assert {(b.axis, b.good) for b in best.boundaries} == {(0, (4, 2)), (1, (3, 1))}


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_any_of_two_causes(rate: float) -> None:
    """Bad iff the first axis is at its oldest value, or the second one below 12."""
    lattice = grid((2, 21), FIXED)
    search = Search(lattice, alone(lattice))
    bad = np.zeros((2, 21), dtype=bool)
    bad[0, :] = bad[:, :12] = True
    play(search, rates(bad, rate), RNG(7))
    verdict = search.verdict
    assert verdict.status is Status.CONFIRMED
    assert verdict.best.hypothesis.kind == "any"
    assert verdict.best.hypothesis.bad_cells().tolist() == bad.tolist()
    # Each cause alone suffices: between first bad and last good only one axis changes, and it is named.
    assert (verdict.best.first_bad, verdict.best.last_good) == ((1, 11), (1, 12))
    assert verdict.best.culprits == (1,)
    assert {(b.axis, b.bad, b.good) for b in verdict.best.boundaries} == {
        (0, (0, 12), (1, 12)),
        (1, (1, 11), (1, 12)),
    }


def test_a_third_axis_does_not_matter() -> None:
    lattice = grid((3, 3, 3))
    search = Search(lattice, alone(lattice))
    bad = np.zeros((3, 3, 3), dtype=bool)
    bad[1:, :, :] = bad[:, 2:, :] = True
    play(search, rates(bad, 1.0), RNG(0))
    assert search.verdict.best.hypothesis.bad_cells().tolist() == bad.tolist()
    assert search.verdict.best.hypothesis.culprits == (0, 1)


def test_what_no_combination_separates_is_one_answer() -> None:
    """Without the mixed combination, either axis alone and both together say the same."""
    lattice = grid((2, 2))
    search = Search(lattice, alone(lattice, [(0, 1), (1, 0)]))
    play(search, rates(configuration((2, 2), {0: 1}), 1.0), RNG(0))
    verdict = search.verdict
    assert search.finished
    assert verdict.best.probability >= 0.95
    assert verdict.status is Status.LIKELY
    assert (verdict.best.first_bad, verdict.best.last_good) == ((1, 1), (0, 0))
    assert verdict.best.culprits == (0, 1)
    assert "differ on one axis alone" in verdict.reason


@pytest.mark.parametrize("size", [8, 32, 100])
def test_deterministic_truths_need_few_trials(size: int) -> None:
    costs: Counter[int] = Counter()
    for first in {*range(1, size, max(1, size // 31)), size - 1}:
        search = search_of((size,), quick=True)
        costs[len(play(search, rates(configuration((size,), {0: first}), 1.0), RNG(0)))] += 1
        assert search.verdict.best.first_bad == (first,)
    assert sum(cost * n for cost, n in costs.items()) / costs.total() <= math.ceil(math.log2(size)) + 4, costs
    assert max(costs) <= math.ceil(math.log2(size)) + 6, costs


def test_the_last_good_one_is_tried_as_often_as_it_takes_to_show_anything() -> None:
    search = search_of((16,))
    play(search, rates(configuration((16,), {0: 9}), 0.3), RNG(5))
    assert search.verdict.status is Status.CONFIRMED
    assert search.verdict.best.last_good is not None
    # So many passes show that a combination does not fail at that rate.
    assert search.counts(search.verdict.best.last_good)[1] >= clean_trials(0.3)


def test_what_fails_alike_everywhere_is_always_bad() -> None:
    lattice = grid((8,))
    search = Search(lattice, alone(lattice))
    for cell in range(8):
        for number in range(200):
            search.tell((cell,), hit=number < 20)
    assert search.verdict.best.hypothesis.kind == "always"
    assert search.verdict.best.probability > 0.95


@pytest.mark.parametrize("ends", [{"good": (0,)}, {"bad": (5,)}])
def test_a_stated_end_that_cannot_be_run_says_nothing_of_others(ends: dict[str, Index]) -> None:
    without = [(0,), (5,)]
    stated = grid((6,), **ends)
    found = Search(stated, alone(stated, without)).probability_bad()
    plain = Search(grid((6,)), alone(grid((6,)), without)).probability_bad()
    assert found == pytest.approx(plain)


def test_a_search_among_no_combinations_has_nothing_to_ask() -> None:
    search = Search(grid((6,), good=(0,), bad=(5,)), {})
    assert search.finished
    assert search.ask(1) == []
    assert search.verdict.status is Status.NONE


def test_what_passed_and_can_no_longer_be_run_is_not_forgotten() -> None:
    lattice = grid((5,), UNORDERED)
    search = Search(lattice, alone(lattice))
    for index, failed, trials in ((3, True, 4), (4, False, 26), (2, False, 25), (1, True, 1), (0, True, 1)):
        for _ in range(trials):
            search.tell((index,), hit=failed)
    search.set_aside((2,))
    search.set_aside((4,))
    verdict = search.verdict
    # Twenty-five passes leave rates of a tenth possible.
    assert verdict.status is Status.LIKELY
    assert verdict.best.last_good in ((2,), (4,))
    assert not verdict.best.hypothesis.is_bad((4,))
    assert not verdict.best.hypothesis.is_bad((2,))
    # Both count, and neither is asked for again.
    assert {(2,), (4,)}.isdisjoint(search.ask(100))


def test_a_bad_end_is_not_repeated_for_a_good_end_that_cannot_be_run() -> None:
    without = [(0,)]
    both, one = (
        Search(g, alone(g, without)) for g in (grid((9,), good=(0,), bad=(8,)), grid((9,), bad=(8,)))
    )
    for search in (both, one):
        search.tell((8,), hit=True)
    assert both.ask(2) == one.ask(2)


def test_a_search_ends_if_only_what_gets_no_more_trials_could_decide() -> None:
    limits = SearchLimits(confidence=0.999)
    lattice = grid((8,))
    search = Search(lattice, alone(lattice), limits)
    rng = np.random.default_rng(1)
    for _ in range(3):
        search.tell((5,), hit=False)
    search.set_aside((5,))
    while search.trials < 1000 and (asked := search.ask(1)):
        assert asked != [(5,)]
        search.tell(asked[0], hit=asked[0][0] >= 6 and bool(rng.random() < 0.7))
    assert search.trials < 200
    assert search.verdict.best.last_good in ((4,), (5,))
