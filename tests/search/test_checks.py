"""What an answer that stands still wants where only its own failures tell the first bad combination apart."""

from __future__ import annotations

import pytest

from bisect_env.matrix.grid import Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.checks import apart_checks
from bisect_env.search.searcher import Search
from bisect_env.search.verdict import Answer
from tests.search.worlds import UNORDERED, alone, grid

GOOD, BAD = (0,), (1,)


def pair() -> Answer:
    """The answer that one of two combinations is bad and the other good."""
    lattice = grid((2,), UNORDERED)
    search = Search(lattice, alone(lattice), quick=True)
    while not search.answered:
        for cell in search.ask(1):
            search.tell(cell, hit=cell == BAD)
    (boundary,) = search.verdict.best.boundaries
    assert (boundary.bad, boundary.good) == (BAD, GOOD)
    return search.verdict.best


@pytest.mark.parametrize(
    ("good", "bad", "wanted"),
    [
        # As often as the good one: that is luck in half of all cases.
        ((93, 186), (3, 6), True),
        ((93, 186), (40, 40), False),
        # Five in a row at one half are one in 32, and any of ten combinations may have had that luck.
        ((93, 186), (5, 5), True),
        ((0, 60), (3, 6), False),
    ],
)
def test_a_first_bad_combination_is_told_from_a_last_good_one_that_failed_too(
    good: tuple[int, int], bad: tuple[int, int], wanted: bool
) -> None:
    seen = {GOOD: good, BAD: bad}
    checks = apart_checks(pair(), lambda cell: seen[cell], SearchLimits(), 10)
    assert bool(checks) is wanted
    assert all(check.cell == BAD and check.wanted >= 1 for check in checks)


def test_telling_apart_what_fails_alike_comes_to_an_end() -> None:
    seen: dict[Index, tuple[int, int]] = {GOOD: (93, 186), BAD: (3, 6)}
    for _ in range(100):
        if not (checks := apart_checks(pair(), lambda cell: seen[cell], SearchLimits(), 10)):
            break
        hits, trials = seen[BAD]
        more = checks[0].wanted
        seen[BAD] = (hits + more // 2, trials + more)
    assert not checks
