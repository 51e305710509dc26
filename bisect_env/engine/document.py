"""Turns a verdict into the document that is stored, reported and printed, with names for positions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bisect_env.matrix.grid import Grid, GridAxis, Index
from bisect_env.search.frontier import in_words
from bisect_env.search.multiple import SearchAll
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.searcher import StudySearch
from bisect_env.search.table import TableSearch
from bisect_env.search.verdict import Answer, Verdict


def verdict_document(
    grid: Grid, search: StudySearch, missing: Mapping[Index, tuple[str, str]]
) -> dict[str, Any]:
    """Describe the search's verdict.

    Args:
        grid: The study's grid.
        search: After any number of trials.
        missing: Status and reason of each combination that cannot be run.

    Returns:
        A JSON object; `docs/reference/report.md` explains its keys.
    """
    verdict = search.verdict
    best = verdict.best
    document: dict[str, Any] = {
        "status": str(verdict.status),
        "reason": verdict.reason,
        "kind": best.hypothesis.kind,
        "first_bad": _named(grid, best.first_bad),
        "last_good": _named(grid, best.last_good),
        "culprit_axes": _culprits(grid, best),
        "bad_values": {
            grid.axes[i].name: [
                value for value, bad in zip(grid.axes[i].values, best.hypothesis.sets[i], strict=True) if bad
            ]
            for i in best.hypothesis.culprits
        },
        "directions": {axis.name: str(axis.direction) for axis in grid.axes},
        "probability": best.probability,
        "models": {"sharing": verdict.sharing, "differing": verdict.differing},
        "boundaries": [
            {
                "axis": grid.axes[boundary.axis].name,
                "bad": _named(grid, boundary.bad),
                "good": _named(grid, boundary.good),
                "between": [
                    {
                        "combination": _named(grid, cell),
                        "status": missing[cell][0],
                        "reason": missing[cell][1],
                    }
                    for cell in boundary.between
                    if cell in missing
                ],
            }
            for boundary in best.boundaries
        ],
        "bad_rate": _rate(search, best.first_bad),
        "good_rate": _rate(search, best.last_good),
        "candidates": [
            {
                "kind": candidate.hypothesis.kind,
                "first_bad": _named(grid, candidate.first_bad),
                "last_good": _named(grid, candidate.last_good),
                "culprit_axes": _culprits(grid, candidate),
                "probability": candidate.probability,
            }
            for candidate in verdict.candidates
        ],
        "typical_bad_rate": verdict.bad_rate,
        "background_rate": verdict.background,
        "ends_wrong": list(verdict.ends_wrong),
        "trials": search.trials,
        "expected_left": verdict.expected_left,
        "expected_environments_left": verdict.expected_environments,
        "bayes_factors": {
            "log10_against_no_difference": verdict.against_nothing,
            "log10_against_runner_up": verdict.against_next,
        },
        "miss": _miss(search, best),
        "monotone": verdict.monotone,
        "unexplained": [
            {
                "combination": _named(grid, one.index),
                "called_bad": one.called_bad,
                "hits": one.hits,
                "trials": one.trials,
                "chance": one.chance,
            }
            for one in verdict.unexplained
        ],
    }
    document["assumed"] = [
        {
            "axis": grid.axes[one.axis].name,
            "first": _named(grid, one.first),
            "last": _named(grid, one.last),
            "called_bad": one.called_bad,
            "length": one.length,
            "trials": one.trials,
            "chance": one.chance,
        }
        for one in verdict.untested
    ]
    document["compatibility"] = in_words(grid, best)
    document["certain"] = verdict.certain
    document["cleared"] = [
        {
            "combination": _named(grid, one.index),
            "hits": one.hits,
            "trials": one.trials,
            "below": one.below,
            "wanted": one.wanted,
        }
        for one in verdict.cleared
    ]
    if isinstance(search, TableSearch):
        document["table"] = _table(grid, search)
    if isinstance(search, SearchAll):
        document["others"] = [_other(grid, search, other) for other in search.others]
        document["no_other"] = search.no_other
    return document


def axes_document(grid: Grid) -> list[dict[str, Any]]:
    """The axes of a grid, which a verdict is told with; what an axis does not list is there, too."""
    return [
        {
            "name": axis.name,
            "kind": str(axis.kind),
            "direction": str(axis.direction),
            "values": list(axis.values),
            **_left_out(axis),
        }
        for axis in grid.axes
    ]


def _left_out(axis: GridAxis) -> dict[str, Any]:
    """What an axis does not list; of commits, which may be many, their number, and what they are called."""
    if axis.history is None:
        return {"passed_over": list(axis.passed_over)}
    return {
        "labels": {value: axis.history.label(value) for value in axis.values},
        "left_out": axis.history.left_out(axis.values),
    }


def _table(grid: Grid, search: TableSearch) -> dict[str, Any]:
    """What every combination is called, and how many are called what."""
    called = search.called
    return {
        "good": sum(not one.bad for one in called.values()),
        "bad": sum(one.bad for one in called.values()),
        "tried": sum(one.tried for one in called.values()),
        "complete": search.is_complete,
        "calls": [
            {
                "combination": _named(grid, index),
                "verdict": "bad" if one.bad else "good",
                "tried": one.tried,
                "probability": one.probability,
            }
            for index, one in sorted(called.items())
        ],
    }


def _other(grid: Grid, search: SearchAll, verdict: Verdict) -> dict[str, Any]:
    best = verdict.best
    return {
        "status": str(verdict.status),
        "first_bad": _named(grid, best.first_bad),
        "last_good": _named(grid, best.last_good),
        "culprit_axes": _culprits(grid, best),
        "probability": best.probability,
        "bad_rate": _rate(search, best.first_bad),
    }


def _miss(search: StudySearch, best: Answer) -> float | None:
    """How likely the last good combination would have passed so often if it failed like the first bad one.

    `(1 − p1_low)^n` with the lower end of the bad one's interval, and the good one's trials.
    """
    if best.first_bad is None or best.last_good is None:
        return None
    low, _ = clopper_pearson(*search.counts(best.first_bad))
    hits, trials = search.counts(best.last_good)
    return None if hits else float((1.0 - low) ** trials)


def _named(grid: Grid, index: Index | None) -> dict[str, str] | None:
    return None if index is None else grid.combination(index).as_dict()


def _culprits(grid: Grid, answer: Answer) -> list[str]:
    return [grid.axes[i].name for i in answer.culprits]


def _rate(search: StudySearch, index: Index | None) -> dict[str, float] | None:
    if index is None:
        return None
    hits, trials = search.counts(index)
    low, high = clopper_pearson(hits, trials)
    rate = hits / trials if trials else 0.0
    return {"hits": hits, "trials": trials, "rate": rate, "low": low, "high": high}
