"""What would end a search in which nothing fails: as many passes as are told, and no more."""

from __future__ import annotations

import pytest

from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.searcher import Search
from tests.search.worlds import alone, grid


@pytest.mark.parametrize("shape", [(4,), (4, 2)])
def test_so_many_passes_end_it(shape: tuple[int, ...]) -> None:
    cells = grid(shape)
    search = Search(cells, alone(cells), SearchLimits(min_crash_rate=0.1, max_trials=1000))
    for _ in range(5):
        search.tell(search.ask(1)[0], hit=False)
    left = search.passes_left()
    assert left is not None
    assert left > 5
    before = search.trials
    while not search.finished:
        search.tell(search.ask(1)[0], hit=False)
    assert search.trials == before + left
    assert search.passes_left() == 0


def test_what_takes_too_many_is_not_told() -> None:
    cells = grid((4,))
    assert (
        Search(cells, alone(cells), SearchLimits(min_crash_rate=0.01, max_trials=10_000)).passes_left(most=20)
        is None
    )
