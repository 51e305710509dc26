"""A frontier in the words of a maintainer: which versions of one package need which of another. Pure.

A table of good and bad combinations of two axes whose every line has its good values side by side is a list
of requirements: for a run of versions of the one package, the versions of the other that it works with. Of
the two ways to read the table the one with fewer requirements is told.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid
from bisect_env.search.verdict import Answer


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a run of values of one axis needs of another axis.

    Attributes:
        first: Position of the run's first value.
        last: Position of its last.
        low: Position of the lowest value of the other axis that is good; None where none is.
        high: Of the highest.
    """

    first: int
    last: int
    low: int | None
    high: int | None


def requirements(bad: NDArray[np.bool_]) -> list[Requirement] | None:
    """Read a table line by line.

    Args:
        bad: Shape (values of the axis that needs, values of the axis that is needed).

    Returns:
        One requirement for each run of lines that are alike; None where the good values of some line do not
        lie side by side.
    """
    spans: list[tuple[int, int] | None] = []
    for line in bad:
        good = np.flatnonzero(~line)
        if not len(good):
            spans.append(None)
        elif good[-1] - good[0] + 1 == len(good):
            spans.append((int(good[0]), int(good[-1])))
        else:
            return None
    found = []
    start = 0
    for span, run in itertools.groupby(spans):
        stop = start + len(list(run))
        low, high = span if span is not None else (None, None)
        found.append(Requirement(start, stop - 1, low, high))
        start = stop
    return found


def in_words(grid: Grid, best: Answer) -> dict[str, Any] | None:
    """A frontier between two axes as a sentence, as constraints and as rules that exclude it.

    Args:
        grid: The lattice.
        best: An answer with a table and two axes that matter.

    Returns:
        `sentence`; `constraints`, each with `when` and `needs`, axis name to a range of versions; `exclude`,
        rules for a matrix file. None for another answer, or where no list of requirements describes it.
    """
    hypothesis = best.hypothesis
    axes = hypothesis.culprits
    if hypothesis.kind != "frontier" or len(axes) != 2 or best.first_bad is None:
        return None
    here: tuple[Any, ...] = tuple(
        slice(None) if axis in axes else place for axis, place in enumerate(best.first_bad)
    )
    table = hypothesis.bad_cells()[here]
    read = [
        (needs, needed, requirements(side))
        for needs, needed, side in (
            (axes[0], axes[1], table),
            (axes[1], axes[0], table.T),
        )
    ]
    told = [(len(found), needs, needed, found) for needs, needed, found in read if found is not None]
    if not told:
        return None
    _, needs, needed, found = min(told, key=lambda one: (one[0], one[1]))
    mine, its = grid.axes[needs], grid.axes[needed]
    clauses, constraints, exclude = [], [], []
    for one in found:
        when = _span(one.first, one.last, mine.values)
        allowed = None if one.low is None or one.high is None else _span(one.low, one.high, its.values)
        run = _run(one, mine.values)
        if allowed is None:
            clauses.append(f"works with no {its.name} that was tried {run}")
            exclude.append({"when": {mine.name: when}})
            continue
        if allowed == "*":
            clauses.append(f"works with any {its.name} {run}")
            continue
        # "needs x < 39 up to 22.0, < 42 up to 23.1": what is needed is named once.
        verb = "" if clauses and not clauses[-1].startswith("works") else f"needs {its.name} "
        clauses.append(f"{verb}{_readable(allowed)} {run}")
        constraints.append({"when": {mine.name: when}, "needs": {its.name: allowed}})
        exclude += [
            {"when": {mine.name: when, its.name: outside}}
            for outside in _outside(one.low or 0, one.high or 0, its.values)
        ]
    return {
        "sentence": f"{mine.name} {_joined(clauses)}",
        "constraints": constraints,
        "exclude": exclude,
    }


def _span(first: int, last: int, values: Sequence[str]) -> str:
    """A run of values as a range: `>=22.1,<39`; `*` for all of them.

    The first value after the run is the limit, not its last: releases in between were not tried, and a patch
    release belongs with what it patches.
    """
    parts = [f">={values[first]}"] if first > 0 else []
    if last < len(values) - 1:
        parts.append(f"<{values[last + 1]}")
    return ",".join(parts) or "*"


def _outside(low: int, high: int, values: Sequence[str]) -> list[str]:
    below = [f"<{values[low]}"] if low > 0 else []
    return below + ([f">={values[high + 1]}"] if high < len(values) - 1 else [])


def _run(one: Requirement, values: Sequence[str]) -> str:
    if one.first == 0 and one.last == len(values) - 1:
        return ""
    if one.first == 0:
        return f"up to {values[one.last]}"
    if one.last == len(values) - 1:
        return f"from {values[one.first]} on"
    if one.first == one.last:
        return f"in {values[one.first]}"
    return f"from {values[one.first]} to {values[one.last]}"


def _readable(allowed: str) -> str:
    return allowed.replace(">=", "≥ ").replace("<", "< ").replace(",", " and ")


def _joined(clauses: Sequence[str]) -> str:
    clauses = [clause.strip() for clause in clauses]
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"
