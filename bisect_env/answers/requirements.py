"""Says a table as requirements of a maintainer: which versions of one package need which of another. Pure.

A table of good and bad combinations of two axes whose every line has its good values side by side is a list
of requirements: for a run of versions of the one package, the versions of the other that it works with. Of
the two ways to read the table the one with fewer requirements is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_env.answers.verdict_document import Compatibility
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index


@dataclass(frozen=True, slots=True)
class Requirement:
    """What some values of one axis need of another axis.

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


def requirements(bad: NDArray[np.bool_], *, apart: bool = False) -> list[Requirement] | None:
    """Read a table line by line.

    Args:
        bad: Shape (values of the axis that needs, values of the axis that is needed).
        apart: Whether lines stay apart although they are alike.

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
    for (span, _), run in itertools.groupby(enumerate(spans), lambda line: (line[1], apart and line[0])):
        stop = start + len(list(run))
        low, high = span if span is not None else (None, None)
        found.append(Requirement(start, stop - 1, low, high))
        start = stop
    return found


def requirements_in_words(
    grid: Grid, bad: NDArray[np.bool_], axes: Sequence[int], first_bad: Index
) -> Compatibility | None:
    """Return a table as a sentence, as constraints and as rules that exclude what is bad.

    Args:
        grid: The lattice.
        bad: Which combinations are bad, shape of the lattice.
        axes: Axes that matter; one or two can be put into words.
        first_bad: Where the other axes are looked at.

    Returns:
        None where no list of requirements describes the table.
    """
    if not 1 <= len(axes) <= 2:
        return None
    if len(axes) == 1:
        others = tuple(axis for axis in range(bad.ndim) if axis != axes[0])
        described = _of_one(grid, axes[0], np.asarray(bad.any(axis=others)))
        return Compatibility.model_validate(described)
    here: tuple[Any, ...] = tuple(
        slice(None) if axis in axes else place for axis, place in enumerate(first_bad)
    )
    table = bad[here]
    read = [
        (needs, needed, requirements(side, apart=grid.axes[needs].direction is Direction.UNORDERED))
        for needs, needed, side in (
            (axes[0], axes[1], table),
            (axes[1], axes[0], table.T),
        )
        # Values without order have no limit that could be named.
        if grid.axes[needed].direction is not Direction.UNORDERED
    ]
    known = [(len(found), needs, needed, found) for needs, needed, found in read if found is not None]
    if not known:
        return None
    _, needs, needed, found = min(known, key=lambda one: (one[0], one[1]))
    mine, its = grid.axes[needs], grid.axes[needed]
    clauses, constraints, exclude = [], [], []
    for one in found:
        alone = mine.direction is Direction.UNORDERED
        when = mine.values[one.first] if alone else _span(one.first, one.last, mine.values)
        allowed = None if one.low is None or one.high is None else _span(one.low, one.high, its.values)
        run = f"with {mine.values[one.first]}" if alone else _run(one, mine.values)
        if allowed is None:
            clauses.append(f"works with no {its.name} that was tried {run}")
            exclude.append({"when": {mine.name: _condition(mine, one.first, one.last)}})
            continue
        if allowed == "*":
            clauses.append(f"works with any {its.name} {run}")
            continue
        # "needs x < 39 up to 22.0, < 42 up to 23.1": what is needed is named once.
        verb = "" if clauses and not clauses[-1].startswith("works") else f"needs {its.name} "
        clauses.append(f"{verb}{_readable(allowed)} {run}")
        constraints.append({"when": {mine.name: when}, "needs": {its.name: allowed}})
        exclude += [
            {"when": {mine.name: _condition(mine, one.first, one.last), its.name: outside}}
            for outside in _outside(one.low or 0, one.high or 0, its)
        ]
    told = {"sentence": f"{mine.name} {_joined(clauses)}", "constraints": constraints, "exclude": exclude}
    return Compatibility.model_validate(told)


def _of_one(grid: Grid, axis: int, bad: NDArray[np.bool_]) -> dict[str, Any]:
    """Return what values of a single axis work."""
    name, values = grid.axes[axis].name, grid.axes[axis].values
    if grid.axes[axis].direction is Direction.UNORDERED:
        good = [value for value, is_bad in zip(values, bad, strict=True) if not is_bad]
        wrong = [value for value, is_bad in zip(values, bad, strict=True) if is_bad]
        return {
            "sentence": f"{name} works as {', '.join(good)}",
            "constraints": [{"when": {}, "needs": {name: value}} for value in good],
            "exclude": [{"when": {name: wrong}}],
        }
    runs = [
        (is_bad, [i for i, _ in run]) for is_bad, run in itertools.groupby(enumerate(bad), lambda p: p[1])
    ]
    good = [_span(places[0], places[-1], values) for is_bad, places in runs if not is_bad]
    return {
        "sentence": f"{name} works {' and '.join(map(_readable, good))}",
        "constraints": [{"when": {}, "needs": {name: span}} for span in good],
        "exclude": [
            {"when": {name: _condition(grid.axes[axis], places[0], places[-1])}}
            for is_bad, places in runs
            if is_bad
        ],
    }


def _span(first: int, last: int, values: Sequence[str]) -> str:
    """Return a run of values as a range: `>=22.1,<39`; `*` for all of them.

    The first value after the run is the limit, not its last: releases in between were not tried, and a patch
    release belongs with what it patches.
    """
    parts = [f">={values[first]}"] if first > 0 else []
    if last < len(values) - 1:
        parts.append(f"<{values[last + 1]}")
    return ",".join(parts) or "*"


def _condition(axis: GridAxis, first: int, last: int) -> str | list[str]:
    """Return a run of values as a rule of a matrix names it: values that no range can compare are listed."""
    if axis.kind in (AxisKind.PACKAGE, AxisKind.DATE) and axis.direction is not Direction.UNORDERED:
        return _span(first, last, axis.values)
    return list(axis.values[first : last + 1])


def _outside(low: int, high: int, axis: GridAxis) -> list[str | list[str]]:
    below = [_condition(axis, 0, low - 1)] if low > 0 else []
    last = len(axis.values) - 1
    return below + ([_condition(axis, high + 1, last)] if high < last else [])


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
