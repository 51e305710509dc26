"""Express a table as requirements: which versions of one package need which versions of another. Pure.

A table says which combinations of two axes are good. If the good values of every line (one value of the first
axis) are adjacent, the table is a list of requirements: for a run of versions of one package, the range of
versions of the other that works with it. Either axis can be the first one; the choice with fewer requirements
is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_env.answers.phrases import enumerated
from bisect_env.answers.verdict_document import Compatibility
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index
from bisect_env.matrix.versions import parse_range


@dataclass(frozen=True, slots=True)
class Requirement:
    """The range of values of another axis that works with a run of values of one axis.

    Attributes:
        first: Position of the first value of the run.
        last: Position of the last value of the run.
        low: Position of the lowest good value of the other axis; None if no value is good.
        high: Position of the highest good value of the other axis; None if no value is good.
    """

    first: int
    last: int
    low: int | None
    high: int | None


def requirements(bad: NDArray[np.bool_], *, apart: bool = False) -> list[Requirement] | None:
    """Express a table of good and bad combinations as a list of version requirements.

    Args:
        bad: True for bad combinations, shape (values of the first axis, values of the other axis).
        apart: Whether to return one requirement per line, instead of joining equal neighbouring lines.

    Returns:
        One requirement for each run of equal lines; None if the good values of some line are not adjacent.
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
    """Express a table of good and bad combinations as a sentence, requirements and `exclude` rules.

    Args:
        grid: The lattice of combinations.
        bad: True for bad combinations, shape of the lattice.
        axes: Positions of the axes that matter.
        first_bad: The combination whose values of the other axes are used.

    Returns:
        None if more than two axes matter or no list of requirements describes the table.
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
        # Unordered values have no lower or upper limit.
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
        allowed = None if one.low is None or one.high is None else _span(one.low, one.high, its.values)
        run = f"with {mine.values[one.first]}" if alone else _run(one, mine.values)
        if allowed is None:
            clauses.append(f"works with no {its.name} that was tried {run}")
            exclude.append({"when": {mine.name: _condition(mine, one.first, one.last)}})
            continue
        if allowed == "*":
            clauses.append(f"works with any {its.name} {run}")
            continue
        # Name the needed axis only once: "needs x < 39 up to 22.0, < 42 up to 23.1".
        verb = "" if clauses and not clauses[-1].startswith("works") else f"needs {its.name} "
        clauses.append(f"{verb}{_readable(allowed)} {run}")
        when = mine.values[one.first] if alone else _requirement(one.first, one.last, mine)
        constraints.append(
            {
                "when": {mine.name: when},
                "needs": {its.name: _requirement(one.low or 0, one.high or 0, its)},
            }
        )
        # A rule that holds for every value of an axis does not name it.
        every = one.last - one.first + 1 == len(mine.values)
        only = {} if every else {mine.name: _condition(mine, one.first, one.last)}
        exclude += [
            {"when": {**only, its.name: outside}} for outside in _outside(one.low or 0, one.high or 0, its)
        ]
    fields = {
        "sentence": f"{mine.name} {enumerated([clause.strip() for clause in clauses])}",
        "constraints": constraints,
        "exclude": exclude,
    }
    return Compatibility.model_validate(fields)


def _of_one(grid: Grid, axis: int, bad: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the fields of `Compatibility` for a lattice in which only one axis matters, as a dict.

    Args:
        grid: The lattice of combinations.
        axis: Position of the axis.
        bad: True for its bad values.
    """
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
    works = [places for is_bad, places in runs if not is_bad]
    spans = [_readable(_span(places[0], places[-1], values)) for places in works]
    return {
        "sentence": f"{name} works {' and '.join(spans)}",
        "constraints": [
            {"when": {}, "needs": {name: _requirement(places[0], places[-1], grid.axes[axis])}}
            for places in works
        ],
        "exclude": [
            {"when": {name: _condition(grid.axes[axis], places[0], places[-1])}}
            for is_bad, places in runs
            if is_bad
        ],
    }


def _span(first: int, last: int, values: Sequence[str]) -> str:
    """Return a run of values as a range such as `>=22.1,<39`, or as `*` for all values.

    The upper limit is the first value after the run, not its last value: releases in between were not tried,
    and a patch release is assumed to behave like the release that it patches.
    """
    parts = [f">={values[first]}"] if first > 0 else []
    if last < len(values) - 1:
        parts.append(f"<{values[last + 1]}")
    return ",".join(parts) or "*"


def _condition(axis: GridAxis, first: int, last: int) -> str | list[str]:
    """Return a run of values as a rule of a matrix file: a range, or a list if ranges do not apply.

    A range of versions does not apply if it means other values: `<2.0` leaves out 2.0rc1.
    """
    run = list(axis.values[first : last + 1])
    if axis.direction is Direction.UNORDERED or axis.kind not in (AxisKind.PACKAGE, AxisKind.DATE):
        return run
    span = _span(first, last, axis.values)
    applies = span != "*" if axis.kind is AxisKind.DATE else _matching(span, axis.values) == run
    return span if applies else run


def _matching(span: str, values: Sequence[str]) -> list[str]:
    """Return the versions in a range, which a matrix file reads in the same way; empty for no valid range."""
    try:
        specifier = parse_range(span)
    except ValueError:
        return []

    def contains(version: str) -> bool:
        try:
            return specifier.contains(version, prereleases=True)
        except ValueError:
            return False

    return [value for value in values if contains(value)]


def _requirement(first: int, last: int, axis: GridAxis) -> str:
    """Return a run of values as a range for the metadata of a package, without local parts such as `+cu118`.

    Ranges cannot have them. A single version that differs from others only in its local part is named
    exactly.
    """
    if axis.kind is not AxisKind.PACKAGE:
        return _span(first, last, axis.values)
    public = [value.partition("+")[0] for value in axis.values]
    if first == last and public.count(public[first]) > 1:
        return f"=={axis.values[first]}"
    return _span(first, last, public)


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
