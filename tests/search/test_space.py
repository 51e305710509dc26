"""The value sets of each direction, the hypotheses made of them, and their prior."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction
from bisect_env.search.families import family
from bisect_env.search.space import HypothesisSpace
from bisect_env.search.verdict import boundary_pairs
from tests.search.worlds import EITHER, FIXED, REGRESSION, UNORDERED

DIRECTIONS = st.sampled_from(list(Direction))


def spelled_out(space: HypothesisSpace) -> NDArray[np.bool_]:
    """Every hypothesis's bad cells, shape (hypotheses, *lattice)."""
    return np.stack([space.hypothesis(i).bad_cells() for i in range(space.size)])


@st.composite
def spaces(draw: st.DrawFn) -> HypothesisSpace:
    directions = draw(st.lists(DIRECTIONS, min_size=1, max_size=3))
    longest = {1: 7, 2: 4, 3: 3}[len(directions)]
    shape = [draw(st.integers(1, longest)) for _ in directions]
    return HypothesisSpace(shape, directions)


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        (REGRESSION, {"1111", "0111", "0011", "0001"}),
        (FIXED, {"1111", "1000", "1100", "1110"}),
        (
            EITHER,
            {"1111", "0111", "0011", "0001", "1000", "1100", "1110", "0100", "0010", "0110"}
            | {"1011", "1101", "1001"},
        ),
        (UNORDERED, {"1111", "1000", "0100", "0010", "0001", "0111", "1011", "1101", "1110"}),
    ],
)
def test_family_holds_exactly_the_sets_of_its_direction(direction: Direction, expected: set[str]) -> None:
    found = family(direction, 4)
    rows = ["".join(str(int(v)) for v in row) for row in found.sets]
    assert set(rows) == expected
    assert len(rows) == len(expected)
    assert rows[0] == "1111"
    assert found.prior[0] == 0
    assert found.prior.sum() == pytest.approx(1)
    assert (found.prior[1:] > 0).all()


@pytest.mark.parametrize("direction", list(Direction))
def test_an_axis_of_one_value_cannot_matter(direction: Direction) -> None:
    assert family(direction, 1).sets.tolist() == [[1.0]]


@pytest.mark.parametrize("direction", list(Direction))
def test_two_values_make_no_set_twice(direction: Direction) -> None:
    sets = family(direction, 2).sets
    assert len(np.unique(sets, axis=0)) == len(sets)


@given(spaces())
@settings(max_examples=60)
def test_prior_is_a_distribution_that_prefers_few_culprits(space: HypothesisSpace) -> None:
    assert space.prior.sum() == pytest.approx(1)
    assert (space.prior >= 0).all()
    share: dict[tuple[str, int], float] = {}
    for i in range(space.size):
        h = space.hypothesis(i)
        key = (h.kind, len(h.culprits))
        share[key] = share.get(key, 0.0) + space.prior[i]
    if ("all", 2) in share and min(space.shape) > 1:
        assert share["all", 1] > share["any", 2] > 0


@given(spaces(), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_cells_judged_together_are_judged_as_one_by_one(space: HypothesisSpace, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bad = spelled_out(space).reshape(space.size, -1)
    cells = np.flatnonzero(rng.random(bad.shape[1]) < 0.7)
    np.testing.assert_array_equal(space.says(cells), bad[:, cells])


@given(spaces())
@settings(max_examples=40)
def test_spelled_out_hypotheses_agree_cell_by_cell(space: HypothesisSpace) -> None:
    for i in range(space.size):
        h = space.hypothesis(i)
        cells = h.bad_cells()
        assert all(h.is_bad(index) == cells[index] for index in np.ndindex(*space.shape))
        if h.kind in ("all", "any") and space.prior[i] > 0:
            # Values at which an axis that does not matter stands never change the judgement.
            free = [a for a in range(len(space.shape)) if a not in h.culprits]
            for axis in free:
                assert (cells == np.take(cells, [0], axis=axis)).all()


def test_any_of_finds_the_letter_l() -> None:
    space = HypothesisSpace((2, 4), [FIXED, FIXED])
    wanted = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], dtype=bool)
    (match,) = [i for i, cells in enumerate(spelled_out(space)) if (cells == wanted).all() and space.prior[i]]
    assert space.hypothesis(match).kind == "any"
    assert space.hypothesis(match).culprits == (0, 1)


def test_boundary_pairs_skip_what_cannot_be_run() -> None:
    bad = np.array([[0, 0, 1, 1], [0, 0, 0, 0]], dtype=bool)
    feasible = np.array([[1, 0, 1, 1], [1, 1, 0, 1]], dtype=bool)
    assert boundary_pairs(bad, feasible, 1) == [((0, 2), (0, 0))]
    assert boundary_pairs(bad, feasible, 0) == [((0, 3), (1, 3))]


@given(spaces(), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_boundary_pairs_are_all_adjacent_disagreements(space: HypothesisSpace, seed: int) -> None:
    rng = np.random.default_rng(seed)
    feasible = rng.random(space.shape) < 0.7
    bad = space.hypothesis(int(rng.integers(space.size))).bad_cells()
    for axis in range(len(space.shape)):
        expected = set()
        for a, b in itertools.permutations(np.ndindex(*space.shape), 2):
            same_line = a[:axis] + a[axis + 1 :] == b[:axis] + b[axis + 1 :]
            if not (same_line and feasible[a] and feasible[b] and bad[a] and not bad[b]):
                continue
            low, high = sorted((a[axis], b[axis]))
            if not any(feasible[(*a[:axis], i, *a[axis + 1 :])] for i in range(low + 1, high)):
                expected.add((a, b))
        assert set(boundary_pairs(bad, feasible, axis)) == expected
