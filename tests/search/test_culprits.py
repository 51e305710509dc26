"""The search among package changes: planted culprits, noisy trials, environments that do not exist."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_env.search.culprits import Changes, Culprit, CulpritSearch

Bad = Callable[[Changes], bool]


def played(
    search: CulpritSearch,
    is_bad: Bad,
    rates: tuple[float, float],
    rng: np.random.Generator,
    *,
    feasible: Bad = lambda intermediate: True,
    build_cost: float = 5.0,
) -> tuple[Culprit, int, bool]:
    """Answer, trials, and whether it was sure."""
    good, bad = rates
    trials = 0
    for _ in range(2000):
        step = search.next_step(build_cost=build_cost)
        if step is None:
            return search.answer, trials, search.is_sure
        if not feasible(step.intermediate):
            search.set_aside(step.intermediate)
        else:
            rate = bad if is_bad(step.intermediate) else good
            search.tell(step.intermediate, hits=int(rng.binomial(step.trials, rate)), trials=step.trials)
            trials += step.trials
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    ("size", "culprits", "rates", "at_most"),
    [
        (2, 1, (0.0, 1.0), 4),
        (9, 1, (0.0, 1.0), 9),
        pytest.param(9, 1, (0.0, 0.3), 80, marks=pytest.mark.statistical),
        pytest.param(9, 2, (0.02, 0.6), 110, marks=pytest.mark.statistical),
    ],
)
def test_planted_culprits_are_found(
    size: int, culprits: int, rates: tuple[float, float], at_most: float
) -> None:
    seed = 20261121
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    wrong, spent, studies = 0, 0, 20
    for _ in range(studies):
        planted = frozenset(rng.choice(size, culprits, replace=False).tolist())
        ends = tuple((int(rng.binomial(60, rate)), 60) for rate in rates)
        search = CulpritSearch(size, ends[0], ends[1])
        answer, trials, is_sure = played(search, planted.issubset, rates, rng)
        wrong += not (is_sure and answer.kind == "all" and answer.changes == planted)
        spent += trials
    # 5 % of 20 is 1; with three standard errors it may be 4.
    assert wrong <= 4
    assert spent / studies <= at_most


def test_either_of_two_is_told_from_both_together() -> None:
    rng = np.random.default_rng(3)
    search = CulpritSearch(6, (0, 40), (30, 40))
    answer, _, is_sure = played(search, lambda h: bool(h & {1, 4}), (0.0, 0.8), rng)
    assert (answer.kind, answer.changes, is_sure) == ("any", frozenset({1, 4}), True)


def test_nothing_less_than_everything() -> None:
    rng = np.random.default_rng(3)
    search = CulpritSearch(5, (0, 40), (40, 40))
    answer, _, is_sure = played(search, lambda h: len(h) == 5, (0.0, 1.0), rng)
    assert (answer.kind, is_sure) == ("whole", True)


def test_what_no_environment_separates_is_one_answer() -> None:
    """2 pins 3 and 4 exactly, as torch pins its CUDA libraries: they move together or not at all."""
    rng = np.random.default_rng(5)
    bound = frozenset({2, 3, 4})

    def feasible(intermediate: Changes) -> bool:
        return bound <= intermediate or not bound & intermediate

    forced = [bound if i in bound else frozenset({i}) for i in range(6)]
    search = CulpritSearch(6, (0, 40), (36, 40), forced=forced, released=forced)
    answer, _, is_sure = played(search, lambda h: 3 in h, (0.0, 0.9), rng, feasible=feasible)
    assert is_sure
    assert answer.changes | frozenset().union(*answer.tied) <= bound
    assert frozenset({3}) in (answer.changes, *answer.tied)


@pytest.mark.parametrize(("size", "together"), [(7, 6), (12, 6), (20, 12)])
@pytest.mark.parametrize(("stated", "rate", "most"), [(1.0, 1.0, 20), (None, 0.4, 250)])
def test_many_that_no_environment_separates_are_soon_one_answer(
    size: int, together: int, stated: float | None, rate: float, most: int
) -> None:
    """No one of them leads, so that trials would still tell of rates, and never of packages."""
    rng = np.random.default_rng(6)
    bound = frozenset(range(together))

    def feasible(intermediate: Changes) -> bool:
        return bound <= intermediate or not bound & intermediate

    closure = [bound if i in bound else frozenset({i}) for i in range(size)]
    bad = (2, 2) if stated else (16, 40)
    search = CulpritSearch(
        size, (0, 40), bad, closure, closure, min_rate=0.25, stated_rate=stated, is_sound=feasible
    )
    answer, trials, is_sure = played(search, lambda h: 3 in h, (0.0, rate), rng, feasible=feasible)
    assert is_sure
    assert {answer.changes, *answer.tied} == {frozenset({one}) for one in bound}
    assert trials <= most


def test_what_comes_along_with_the_culprit_may_be_needed_as_well() -> None:
    """1 requires 4: no environment has 1 without 4, so nobody can say whether 4 is needed."""
    along = [frozenset({i, 4}) if i == 1 else frozenset({i}) for i in range(6)]
    back = [frozenset({i, 1}) if i == 4 else frozenset({i}) for i in range(6)]

    def feasible(intermediate: Changes) -> bool:
        return 1 not in intermediate or 4 in intermediate

    for needs_both in (False, True):
        search = CulpritSearch(6, (0, 40), (36, 40), forced=along, released=back)
        answer, _, is_sure = played(
            search,
            lambda h, both=needs_both: 1 in h and (4 in h or not both),
            (0.0, 0.9),
            np.random.default_rng(5),
            feasible=feasible,
        )
        assert is_sure
        assert answer.changes == {1}
        assert answer.perhaps == {4}


def test_no_environment_in_between_ends_it_at_once() -> None:
    search = CulpritSearch(4, (0, 30), (30, 30))
    answer, trials, is_sure = played(
        search, lambda h: 0 in h, (0.0, 1.0), np.random.default_rng(1), feasible=lambda h: False
    )
    # No trial can tell the four apart, which is the answer.
    assert (trials, is_sure) == (0, True)
    assert answer.changes.union(*answer.tied) == {0, 1, 2, 3}


def test_a_prior_only_decides_where_to_look_first() -> None:
    rng = np.random.default_rng(9)
    search = CulpritSearch(5, (0, 40), (40, 40), weights=[100, 1, 1, 1, 1])
    first = search.next_step(build_cost=5)
    assert first is not None
    assert first.intermediate in (frozenset({0}), frozenset({1, 2, 3, 4}))
    answer, _, _ = played(search, lambda h: 3 in h, (0.0, 1.0), rng)
    assert answer.changes == {3}


def test_of_equally_probable_culprits_the_first_is_named_whatever_the_order() -> None:
    """Changes 1 and 2 alone explain the trials equally well; a rounding error decided between them."""
    told = [
        (frozenset({0}), 0, 3),
        (frozenset({0, 1}), 1, 3),
        (frozenset(range(6)), 4, 8),
        (frozenset({2}), 1, 3),
    ]
    answers = set()
    for order in itertools.permutations(told):
        search = CulpritSearch(7, (0, 9), (7, 9))
        for changes, hits, trials in order:
            search.tell(changes, hits=hits, trials=trials)
        answers.add((search.answer.changes, round(search.answer.probability, 9)))
    assert len(answers) == 1


@settings(max_examples=15)
@given(st.integers(2, 7), st.data())
def test_the_posterior_does_not_mind_the_order(size: int, data: st.DataObject) -> None:
    intermediate = st.frozensets(st.integers(0, size - 1), min_size=1, max_size=size)
    counts = st.tuples(intermediate, st.integers(0, 3), st.integers(3, 6))
    told = data.draw(st.lists(counts, min_size=1, max_size=5))
    one, other = CulpritSearch(size, (0, 9), (7, 9)), CulpritSearch(size, (0, 9), (7, 9))
    for search, order in ((one, told), (other, told[::-1])):
        for changes, hits, trials in order:
            search.tell(changes, hits=hits, trials=trials)
    assert one.answer.probability == pytest.approx(other.answer.probability)
    assert one.best.probability == pytest.approx(other.best.probability)


def test_no_counts_and_no_changes_are_refused() -> None:
    with pytest.raises(ValueError, match="no changes"):
        CulpritSearch(0, (0, 1), (1, 1))
    with pytest.raises(ValueError, match="no counts"):
        CulpritSearch(2, (0, 1), (1, 1)).tell(frozenset({0}), hits=3, trials=2)


def test_an_environment_that_cannot_be_built_any_more_is_not_asked_for_after_a_late_trial() -> None:
    search = CulpritSearch(4, (0, 20), (20, 20))
    first = search.next_step()
    assert first is not None
    search.set_aside(first.intermediate)
    search.tell(first.intermediate, hits=0, trials=1)
    assert search.infeasible == 1
    following = search.next_step()
    assert following is not None
    assert following.intermediate != first.intermediate
    assert search.counts[first.intermediate] == (0, 1)
