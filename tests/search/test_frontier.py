"""Frontiers in words: what the one package needs of the other, and nothing that is not true."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from packaging.specifiers import SpecifierSet

from bisect_env.answers.requirements import requirements, requirements_in_words
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis
from bisect_env.matrix.rules import matching
from bisect_env.matrix.schema import PackageAxis
from bisect_env.search.searcher import Search
from bisect_env.search.space import Hypothesis
from bisect_env.search.verdict import Answer
from tests.search.worlds import alone


def lattice(first: list[str], second: list[str]) -> Grid:
    axes = [("pyopenssl", first), ("cryptography", second)]
    return Grid(tuple(GridAxis(n, AxisKind.PACKAGE, tuple(v), Direction.EITHER) for n, v in axes))


def answer_of(bad: NDArray[np.bool_]) -> Answer:
    sets = tuple(np.asarray(bad.any(axis=1 - axis)) for axis in (0, 1))
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    return Answer(Hypothesis("frontier", sets, (0, 1), bad), (), place, place, 1.0)


def in_words(grid: Grid, best: Answer) -> dict[str, Any] | None:
    # As the verdict's document asks for them: of a table alone.
    if best.hypothesis.kind not in ("frontier", "table") or best.first_bad is None:
        return None
    hypothesis = best.hypothesis
    found = requirements_in_words(grid, hypothesis.bad_cells(), hypothesis.culprits, best.first_bad)
    return None if found is None else found.model_dump()


def test_two_frontiers_in_the_words_of_a_maintainer() -> None:
    bad = np.array([[0, 0, 1, 1, 1], [0, 0, 0, 1, 1], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]], dtype=bool)
    grid = lattice(["22.0", "23.1", "24.0", "25.0"], ["35", "37", "39", "42", "44"])
    told = in_words(grid, answer_of(bad))
    assert told is not None
    assert told["sentence"] == (
        "pyopenssl needs cryptography < 39 up to 22.0, < 42 in 23.1 and ≥ 37 from 24.0 on"
    )
    assert told["constraints"][-1] == {"when": {"pyopenssl": ">=24.0"}, "needs": {"cryptography": ">=37"}}
    assert told["exclude"][0] == {"when": {"pyopenssl": "<23.1", "cryptography": ">=39"}}


@settings(max_examples=60)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=6), st.booleans())
def test_what_is_excluded_is_what_is_bad(steps: list[int], turned: bool) -> None:
    bad = np.arange(6)[None, :] >= np.sort(steps)[:, None]
    bad = bad[::-1] if turned else bad
    if not bad.any() or bad.all():
        return
    grid = lattice([f"{i}.0" for i in range(1, len(steps) + 1)], [f"{i}.0" for i in range(1, 7)])
    told = in_words(grid, answer_of(bad))
    assert told is not None
    for index in itertools.product(range(len(steps)), range(6)):
        combination = grid.combination(index).as_dict()
        excluded = any(
            all(
                SpecifierSet(spec.replace("*", "")).contains(combination[n])
                for n, spec in rule["when"].items()
            )
            for rule in told["exclude"]
        )
        assert excluded == bad[index], (told, combination)


@pytest.mark.parametrize(
    ("manager", "values", "bad"),
    [
        ("pypi", ["2.1.0+cu118", "2.2.0+cu118", "2.3.0+cu121"], [0, 1, 1]),
        ("conda", ["1.1.1u", "1.1.1w", "3.0.0"], [0, 1, 1]),
        ("pypi", ["1.9", "2.0rc1", "2.0"], [1, 1, 0]),
        ("pypi", ["1.9", "2.0rc1", "2.0"], [0, 1, 0]),
        ("pypi", ["1.9", "2.0", "2.0.post1", "2.1"], [1, 0, 1, 1]),
        ("pypi", ["1.9", "2.0", "2.1"], [0, 1, 1]),
    ],
)
def test_what_is_excluded_is_read_as_it_was_meant(manager: str, values: list[str], bad: list[int]) -> None:
    """Ranges leave out versions that lie between their ends: local ones, candidates, those of conda."""
    package = PackageAxis(package="lib", manager=manager, versions=values)
    assert list(package.listed) == values
    grid = lattice(values, ["1", "2"])
    told = requirements_in_words(grid, np.array([[b, b] for b in bad], dtype=bool), (0,), (0, 0))
    assert told is not None
    named = [rule.when["pyopenssl"] for rule in told.exclude]
    conditions = [one for what in named for one in ([what] if isinstance(what, str) else what)]
    found = {value for one in conditions for value in matching(package, values, one)}
    assert found == {value for value, is_bad in zip(values, bad, strict=True) if is_bad}
    assert not any("+" in span for one in told.constraints for span in one.needs.values())


def test_local_parts_that_alone_differ_are_named_exactly() -> None:
    grid = lattice(["2.1+cpu", "2.1+cu118"], ["1", "2"])
    told = requirements_in_words(grid, np.array([[0, 0], [1, 1]], dtype=bool), (0,), (1, 0))
    assert told is not None
    assert [one.needs for one in told.constraints] == [{"pyopenssl": "==2.1+cpu"}]


def test_a_rule_that_holds_for_every_version_does_not_name_them() -> None:
    grid = lattice(["1", "2"], ["1", "2", "3"])
    told = in_words(grid, answer_of(np.array([[0, 0, 1], [0, 0, 1]], dtype=bool)))
    assert told is not None
    assert list(told["exclude"]) == [{"when": {"cryptography": ">=3"}}]


def test_what_lies_in_holes_is_not_put_into_words() -> None:
    assert requirements(np.array([[0, 1, 0]], dtype=bool)) is None
    bad = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=bool)
    assert in_words(lattice(["1", "2", "3"], ["1", "2", "3"]), answer_of(bad)) is None


@pytest.mark.parametrize("turned", [False, True])
def test_a_study_ends_in_such_words(turned: bool) -> None:
    grid = lattice([f"{i}.0" for i in range(5)], [f"{i}.0" for i in range(7)])
    bad = np.arange(7)[None, :] >= np.array([2, 2, 4, 5, 5])[:, None]
    bad = bad[::-1] if turned else bad
    search = Search(grid, alone(grid))
    while not search.finished:
        for cell in search.ask(2):
            search.tell(cell, hit=bool(bad[cell]))
    told = in_words(grid, search.verdict.best)
    assert told is not None
    assert "cryptography < 2.0" in told["sentence"] or "< 2.0" in told["sentence"]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_two_frontiers_of_a_real_diagonal_are_told_by_a_study(workers: int) -> None:
    """xmlsec 1.3.14 works with lxml up to 5.3.2, later ones from 6.0.0 on (xmlsec/python-xmlsec#361)."""
    grid = lattice(["1.3.14", "1.3.16", "1.3.17"], [f"{i}.0" for i in range(21)])
    lxml = np.arange(21)
    bad = np.stack([lxml >= 11, lxml < 12, lxml < 12])
    search = Search(grid, alone(grid))
    while not search.finished:
        for cell in search.ask(workers):
            search.tell(cell, hit=bool(bad[cell]))
    told = in_words(grid, search.verdict.best)
    assert told is not None
    assert told["sentence"] == ("pyopenssl needs cryptography < 11.0 up to 1.3.14 and ≥ 12.0 from 1.3.16 on")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_a_band_is_not_told_as_one_of_its_frontiers(workers: int) -> None:
    i, j = np.indices((12, 12))
    bad = abs(i - j) >= 4
    grid = lattice([f"{n}.0" for n in range(12)], [f"{n}.0" for n in range(12)])
    search = Search(grid, alone(grid))
    while not search.finished:
        for cell in search.ask(workers):
            search.tell(cell, hit=bool(bad[cell]))
    # Both frontiers, or no rule at all: what is told of other combinations is true.
    if in_words(grid, search.verdict.best) is not None:
        assert (search.verdict.best.hypothesis.bad_cells() == bad).all()
