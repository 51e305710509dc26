"""Histories of every kind, told again: the posterior on the way, at any length of an axis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_env.matrix.grid import Direction
from bisect_env.search.searcher import Search
from bisect_env.search.trace import trace
from tests.search.worlds import EITHER, FIXED, REGRESSION, alone, grid


def play_and_trace(bad: np.ndarray, direction: Direction, at_most: int = 150) -> None:
    lattice = grid((len(bad),), direction)
    groups = alone(lattice)
    live = Search(lattice, groups)
    told = []
    while not live.finished and len(told) < at_most:
        for cell in live.ask(1):
            told.append((cell, bool(bad[cell])))
            live.tell(cell, hit=told[-1][1])
    seen = trace(Search(lattice, groups), told, points=12, answers=4)
    again = Search(lattice, groups)
    for cell, hit in told:
        again.tell(cell, hit=hit)
    assert seen.probabilities.shape == (len(seen.trials), len(seen.answers))
    # The picture ends with the answer that the report names, and its probability.
    best = again.verdict.best
    assert (seen.answers[0].bad_cells() == best.hypothesis.bad_cells()).all()
    assert seen.probabilities[-1][0] == pytest.approx(best.probability)
    assert (seen.probabilities.sum(axis=1) <= 1 + 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "direction"), [(54, REGRESSION), (71, FIXED), (60, EITHER), (120, REGRESSION)]
)
def test_old_releases_that_fail_for_another_reason(size: int, direction: Direction) -> None:
    bad = np.ones(size, dtype=bool)
    bad[size // 5 : size // 2] = False
    play_and_trace(bad, direction)


@pytest.mark.slow
@settings(max_examples=5)
@given(
    st.integers(20, 120),
    st.lists(st.floats(0.01, 0.99), min_size=0, max_size=6),
    st.booleans(),
    st.sampled_from([REGRESSION, FIXED]),
)
def test_any_history_can_be_traced(size: int, turns: list[float], first: bool, direction: Direction) -> None:
    turn = np.zeros(size, dtype=int)
    for place in turns:
        turn[int(place * size) :] += 1
    play_and_trace((turn % 2 == 0) == first, direction, at_most=60)
