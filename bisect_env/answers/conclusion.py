"""Convert the verdict of a search to the model that is stored and reported. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bisect_env.answers.requirements import requirements_in_words
from bisect_env.answers.verdict_document import (
    BayesFactors,
    CalledCombination,
    CandidateAnswer,
    ClearedCombination,
    Compatibility,
    CompatibilityTable,
    FurtherFailure,
    MeasuredRate,
    NeighbourPair,
    RateModels,
    UnexplainedCombination,
    UntestedValues,
    UntriedCombination,
    VerdictDocument,
)
from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.search.corners import CornerSearch
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.study_search import StudySearch
from bisect_env.search.table_search import TableSearch
from bisect_env.search.verdict import Answer, Boundary, Verdict

_WRONG_END = {
    "good": "the stated good combination is bad",
    "bad": "the stated bad combination is not bad",
}


def verdict_document(
    grid: Grid, search: StudySearch, missing: Mapping[Index, tuple[str, str]]
) -> VerdictDocument:
    """Convert the verdict of a search to a `VerdictDocument`, the form in which it is stored.

    Args:
        grid: The grid of the study.
        search: The search, after any number of trials.
        missing: Status and reason of each combination that cannot be run.
    """
    verdict = search.verdict
    best = verdict.best
    wrong = "; ".join(_WRONG_END[end] for end in verdict.ends_wrong)
    return VerdictDocument(
        status="none" if wrong else str(verdict.status),
        reason=wrong or verdict.reason,
        **_answer(grid, best),
        bad_values=_bad_values(grid, best),
        pattern=_pattern(grid, search, best) if verdict.certain else {},
        directions={axis.name: axis.direction for axis in grid.axes},
        models=RateModels(sharing=verdict.sharing, differing=verdict.differing),
        boundaries=tuple(
            _boundary(grid, boundary, missing)
            for one in best.boundaries
            for boundary in (one, *_other_end(grid, search, best, one, missing))
        ),
        bad_rate=_rate(search, best.first_bad),
        good_rate=_rate(search, best.last_good),
        candidates=tuple(CandidateAnswer(**_answer(grid, candidate)) for candidate in verdict.candidates),
        typical_bad_rate=verdict.bad_rate,
        background_rate=verdict.background,
        ends_wrong=verdict.ends_wrong,
        trials=search.trials,
        expected_left=verdict.expected_left,
        expected_environments_left=verdict.expected_environments,
        bayes_factors=BayesFactors(
            log10_against_no_difference=verdict.against_nothing,
            log10_against_runner_up=verdict.against_next,
        ),
        chance_of_luck=_chance_of_luck(search, best),
        monotone=verdict.monotone,
        unexplained=tuple(
            UnexplainedCombination(combination=_at(grid, one.index), **asdict(one))
            for one in verdict.unexplained
        ),
        untested=tuple(
            UntestedValues(
                **asdict(one)
                | {
                    "axis": grid.axes[one.axis].name,
                    "first": _at(grid, one.first),
                    "last": _at(grid, one.last),
                }
            )
            for one in verdict.untested
        ),
        certain=verdict.certain,
        cleared=tuple(
            ClearedCombination(combination=_at(grid, one.index), **asdict(one)) for one in verdict.cleared
        ),
        compatibility=_compatibility(grid, best),
        table=_table(grid, search)
        if isinstance(search, TableSearch) and not isinstance(search, CornerSearch)
        else None,
        others=tuple(_other(grid, search, one) for one in search.others)
        if isinstance(search, CornerSearch)
        else None,
        no_other=search.no_other if isinstance(search, CornerSearch) else None,
    )


def _compatibility(grid: Grid, best: Answer) -> Compatibility | None:
    if best.hypothesis.kind not in ("frontier", "table") or best.first_bad is None:
        return None
    hypothesis = best.hypothesis
    return requirements_in_words(grid, hypothesis.bad_cells(), hypothesis.culprits, best.first_bad)


def _boundary(grid: Grid, boundary: Boundary, missing: Mapping[Index, tuple[str, str]]) -> NeighbourPair:
    return NeighbourPair(
        axis=grid.axes[boundary.axis].name,
        bad=_named(grid, boundary.bad),
        good=_named(grid, boundary.good),
        between=tuple(
            UntriedCombination(
                combination=_named(grid, cell), status=missing[cell][0], reason=missing[cell][1]
            )
            for cell in boundary.between
            if cell in missing
        ),
    )


def _other_end(
    grid: Grid, search: StudySearch, best: Answer, boundary: Boundary, missing: Mapping[Index, object]
) -> list[Boundary]:
    """Return the second change on an axis where the failure both begins and ends, as a list of boundaries.

    Only an axis with the direction `EITHER` can have one. Both combinations of the boundary were tried, so
    that no fix is claimed for an untried version. The list is empty if `boundary` is the only change.
    """
    axis = boundary.axis
    if grid.axes[axis].direction is not Direction.EITHER or best.hypothesis.kind not in ("all", "any"):
        return []
    tried = [
        cell
        for place in range(grid.shape[axis])
        if (cell := (*boundary.bad[:axis], place, *boundary.bad[axis + 1 :])) not in missing
        and search.counts(cell)[1]
    ]
    found = []
    for low, high in itertools.pairwise(tried):
        if best.hypothesis.is_bad(low) != best.hypothesis.is_bad(high):
            bad, good = (low, high) if best.hypothesis.is_bad(low) else (high, low)
            found.append(Boundary(axis, bad, good))
    upward = boundary.good > boundary.bad
    return [one for one in found if (one.good > one.bad) is not upward and one not in best.boundaries]


def _table(grid: Grid, search: TableSearch) -> CompatibilityTable:
    """Label each combination of a search good or bad, and count both labels."""
    called = search.table.called
    return CompatibilityTable(
        good=sum(not one.bad for one in called.values()),
        bad=sum(one.bad for one in called.values()),
        tried=sum(one.tried for one in called.values()),
        complete=search.answered,
        calls=tuple(
            CalledCombination(
                combination=_at(grid, index),
                verdict="bad" if one.bad else "good",
                tried=one.tried,
                probability=one.probability,
            )
            for index, one in sorted(called.items())
        ),
    )


def _other(grid: Grid, search: StudySearch, verdict: Verdict) -> FurtherFailure:
    best = verdict.best
    return FurtherFailure(
        status=str(verdict.status),
        **_answer(grid, best),
        bad_rate=_rate(search, best.first_bad),
        bad_values=_bad_values(grid, best),
    )


def _bad_values(grid: Grid, answer: Answer) -> dict[str, tuple[str, ...]]:
    """Return the bad values of each axis that causes the failure, by the name of the axis."""
    return {
        grid.axes[i].name: tuple(
            value for value, bad in zip(grid.axes[i].values, answer.hypothesis.sets[i], strict=True) if bad
        )
        for i in answer.hypothesis.culprits
    }


def _pattern(grid: Grid, search: StudySearch, best: Answer) -> dict[str, tuple[str, ...]]:
    """Return an axis of a `pair`, with the values at which all tried combinations failed and no others."""
    tried = search.tallies.per_group.items() if best.hypothesis.kind == "pair" else ()
    for place, axis in enumerate(grid.axes):
        failed = {cell[place] for cell, (hits, _) in tried if hits}
        passed = {cell[place] for cell, (hits, trials) in tried if trials > hits}
        if failed and passed and not failed & passed:
            return {axis.name: tuple(axis.values[i] for i in sorted(failed))}
    return {}


def _chance_of_luck(search: StudySearch, best: Answer) -> float | None:
    """Return the probability that the last good combination is in fact bad and passed only by luck.

    Returns None if it failed in some trial, or if the first bad or the last good combination is not known.
    The probability is `(1 − p1_low)^n`: that all its n trials pass although it fails at `p1_low`, the lower
    bound of the first bad combination's failure rate.
    """
    if best.first_bad is None or best.last_good is None:
        return None
    low, _ = clopper_pearson(*search.counts(best.first_bad))
    hits, trials = search.counts(best.last_good)
    return None if hits else float((1.0 - low) ** trials)


def _named(grid: Grid, index: Index | None) -> dict[str, str] | None:
    return None if index is None else _at(grid, index)


def _at(grid: Grid, index: Index) -> dict[str, str]:
    return grid.combination(index).as_dict()


def _answer(grid: Grid, answer: Answer) -> dict[str, Any]:
    """Convert an answer to the fields of a `CandidateAnswer`, such as the first bad combination."""
    # Of *any of*, `answer.culprits` has only the axis between first bad and last good.
    culprits = answer.hypothesis.culprits if answer.boundaries else answer.culprits
    return {
        "kind": answer.hypothesis.kind,
        "first_bad": _named(grid, answer.first_bad),
        "last_good": _named(grid, answer.last_good),
        "culprit_axes": tuple(grid.axes[i].name for i in culprits),
        "probability": answer.probability,
    }


def _rate(search: StudySearch, index: Index | None) -> MeasuredRate | None:
    if index is None:
        return None
    hits, trials = search.counts(index)
    low, high = clopper_pearson(hits, trials)
    return MeasuredRate(hits=hits, trials=trials, rate=hits / trials if trials else 0.0, low=low, high=high)
