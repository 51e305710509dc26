"""Choosing among what exists, and thinking ahead of what is running."""

from __future__ import annotations

from bisect_env.search.searcher import Search
from tests.search.worlds import REGRESSION, alone, grid

GRID = grid([16], REGRESSION)
PRICE = {(i,): 20.0 for i in range(1, 15)}


def begun() -> Search:
    """Both ends tested: the good one passes, the bad one fails nearly always."""
    search = Search(GRID, alone(GRID))
    for _ in range(12):
        search.tell((0,), hit=False)
        search.tell((15,), hit=True)
    search.tell((15,), hit=False)
    return search


def test_only_what_exists_is_chosen() -> None:
    search = begun()
    (free,) = search.ask(1, build_cost=PRICE)
    assert 0 < free[0] < 15
    assert set(search.ask(3, build_cost=PRICE, only={(0,), (15,)})) <= {(0,), (15,)}
    assert search.ask(2, build_cost=PRICE, only={free}) == [free, free]
    assert search.ask(2, build_cost=PRICE, only=set()) == []


def test_what_tells_too_little_is_not_chosen() -> None:
    search = begun()
    for _ in range(60):
        search.tell((0,), hit=False)
        search.tell((15,), hit=True)
    assert search.ask(1, build_cost=PRICE, only={(0,), (15,)}, worth=0.5) == []
    assert len(search.ask(1, build_cost=PRICE, only={(0,), (15,)}, worth=0.0)) == 1


def test_what_is_asked_next_was_foreseen_whatever_the_result() -> None:
    for hit in (True, False):
        search = begun()
        (running,) = search.ask(1, build_cost=PRICE)
        ahead = search.foresee({running: 1}, PRICE)
        search.tell(running, hit=hit)
        assert set(search.ask(1)) <= set(ahead)


def test_a_hit_leads_to_the_good_side() -> None:
    search = begun()
    (running,) = search.ask(1, build_cost=PRICE)
    search.tell(running, hit=True)
    (after,) = search.ask(1)
    assert after[0] < running[0]


def test_thinking_ahead_changes_nothing() -> None:
    search, untouched = begun(), begun()
    search.foresee({(7,): 2, (3,): 1}, PRICE)
    assert search.ask(5, build_cost=PRICE) == untouched.ask(5, build_cost=PRICE)
    assert search.foresee({}, PRICE) == []
