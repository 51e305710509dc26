"""How the posterior moved: what the store holds, told to a search again. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bisect_env.matrix.combination import Combination
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index
from bisect_env.report.model import AnswerReport, AxisInfo, PointReport, PosteriorReport
from bisect_env.report.sentence import bad_values_in_words
from bisect_env.search.coarse import is_large
from bisect_env.search.corners import CornerQuestion
from bisect_env.search.question import Question
from bisect_env.search.searcher import Search, SearchSettings
from bisect_env.search.space import Hypothesis
from bisect_env.search.trace import trace
from bisect_env.storage.records import CombinationState, CombinationStatus, StoredTrial
from bisect_env.trials.records import Evidence

POINTS = 200
"""At most; a study of more trials is looked at now and then."""
ANSWERS = 6
"""Answers that are followed."""


def posterior(
    axes: Sequence[AxisInfo],
    settings: Mapping[str, Any],
    states: Sequence[CombinationState],
    trials: Sequence[StoredTrial],
    *,
    every_corner: bool,
) -> PosteriorReport:
    """Tell the trials again, and follow the answers that led.

    Args:
        axes: Of the study.
        settings: As stored with it: those of the search, and `ends`.
        states: Every combination.
        trials: What the study knows, in the order in which it was told.
        every_corner: Whether the study looked for further failing corners.

    Returns:
        An empty one for a large matrix, whose answers are told apart only as far as they have to be.
    """
    grid = _grid(axes, settings)
    groups = groups_of(grid, states)
    if not groups or is_large(grid.shape, [axis.direction for axis in grid.axes]):
        return PosteriorReport()
    names = {field.name for field in dataclasses.fields(SearchSettings)}
    chosen = SearchSettings(**{name: value for name, value in settings.items() if name in names})
    search = Search(grid, groups, chosen, make=CornerQuestion if every_corner else Question)
    for state in states:
        index = _index(grid, state.combination)
        if state.status != CombinationStatus.SOLVABLE and index in groups:
            search.set_aside(index)
    told = []
    for trial in trials:
        index = _index(grid, trial.combination)
        if index in groups and trial.evidence in (Evidence.GOOD, Evidence.BAD):
            told.append((groups[index], trial.evidence is Evidence.BAD))
    if not told:
        return PosteriorReport()
    seen = trace(search, told, points=POINTS, answers=ANSWERS)
    return PosteriorReport(
        answers=tuple(_answer(hypothesis, grid) for hypothesis in seen.answers),
        points=tuple(
            PointReport(trials=n, probabilities=tuple(round(float(p), 6) for p in row))
            for n, row in zip(seen.trials, np.clip(seen.probabilities, 0.0, 1.0), strict=True)
        ),
    )


def groups_of(grid: Grid, states: Sequence[CombinationState]) -> dict[Index, Index]:
    """For each combination that has a lock the first one of the same lock and values of value axes."""
    values = [i for i, axis in enumerate(grid.axes) if axis.kind is AxisKind.VALUE]
    first: dict[tuple[Any, ...], Index] = {}
    groups: dict[Index, Index] = {}
    for state in states:
        index = _index(grid, state.combination)
        if state.lock_hash is not None and index is not None:
            measurement = (state.lock_hash, *(index[i] for i in values))
            groups[index] = first.setdefault(measurement, index)
    return groups


def _grid(axes: Sequence[AxisInfo], settings: Mapping[str, Any]) -> Grid:
    grid = Grid(tuple(GridAxis(a.name, AxisKind(a.kind), a.values, Direction(a.direction)) for a in axes))
    ends = settings.get("ends") or {}
    good, bad = (
        _index(grid, Combination.of(ends[end])) if ends.get(end) else None for end in ("good", "bad")
    )
    return Grid(grid.axes, good=good, bad=bad)


def _index(grid: Grid, combination: Combination) -> Index | None:
    try:
        return grid.index(combination)
    except (KeyError, ValueError):
        # A study that went on with other axes keeps what was measured before.
        return None


def _answer(hypothesis: Hypothesis, grid: Grid) -> AnswerReport:
    bad = {
        grid.axes[i].name: tuple(
            value for value, is_bad in zip(grid.axes[i].values, hypothesis.sets[i], strict=True) if is_bad
        )
        for i in hypothesis.culprits
    }
    return AnswerReport(
        label=bad_values_in_words(
            hypothesis.kind,
            bad,
            {axis.name: {"values": axis.values, "direction": str(axis.direction)} for axis in grid.axes},
        ),
        kind=hypothesis.kind,
        bad_values=bad,
    )
