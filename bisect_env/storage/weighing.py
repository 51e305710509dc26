"""Weigh all trials of a study anew, because its stored verdict may be older than some of them.

Trials come after a verdict by `bisect-env trial`, by a merge of two databases, and by other commands; a
changed environment makes some void. What is reported is the verdict that the search gives for all trials.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.phrases import how_many
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.matrix.grid import AxisKind, Combination, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.storage.entries import (
    CombinationState,
    CombinationStatus,
    StoredTrial,
    Study,
    counts_of,
)
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence

if TYPE_CHECKING:  # a command that reads a verdict without new trials needs no search
    from bisect_env.search.study_search import StudySearch

COUNTED = (Evidence.GOOD, Evidence.BAD)
CAN_RUN = (CombinationStatus.SOLVABLE, CombinationStatus.UNLOCKED)
"""Statuses of combinations that can be tried."""
_TOO_MANY = 20_000
"""Number of combinations above which weighing their trials takes longer than a report may."""


def digest_of(trials: Sequence[StoredTrial]) -> str:
    """Return a digest of the counts of good and bad trials, which is equal if a search sees no difference.

    Args:
        trials: All trials of a study, with their evidence.
    """
    counts = counts_of(trials)
    facts = sorted((one.key, found.bad, found.counted) for one, found in counts.items() if found.counted)
    return hashlib.sha256(json.dumps(facts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def measurements(
    states: Sequence[CombinationState], axes: Sequence[AxisInfo]
) -> dict[Combination, list[Combination]]:
    """Map each combination to all combinations that share its trials.

    Combinations share trials if they have the same lock and equal values on the axes of kind `value`.
    """
    value_axes = {axis.name for axis in axes if axis.kind is AxisKind.VALUE}
    shared: defaultdict[tuple[str, ...], list[Combination]] = defaultdict(list)
    found = {}
    for state in states:
        values = [value for axis, value in state.combination.items if axis in value_axes]
        key = (state.lock_hash, *values) if state.lock_hash else ("", state.combination.key)
        shared[key].append(state.combination)
        found[state.combination] = shared[key]
    return found


@dataclass(frozen=True, slots=True)
class Replay:
    """A new search of a stored study, to which its trials can be passed again.

    Attributes:
        search: The search; it knows no trials yet.
        results: Combination of each good or bad trial, and whether it is bad, in the order of the trials.
        missing: Status and reason of each combination that could not be tried.
    """

    search: StudySearch
    results: Sequence[tuple[Index, bool]]
    missing: Mapping[Index, tuple[str, str]]


def replay_of(
    study: Study, states: Sequence[CombinationState], trials: Sequence[StoredTrial]
) -> Replay | None:
    """Return a new search of a stored study with the results to pass to it; None if nothing can be tried.

    Args:
        study: The study; the shape of its verdict says what its search was to find.
        states: All of its combinations.
        trials: All of its trials, with their evidence.
    """
    from bisect_env.search.goals import Goal, search_towards  # see above

    grid = study.grid
    counted = {one.combination for one in trials if one.evidence in COUNTED}
    same = measurements(states, study.definition.grid)
    groups: dict[Index, Index] = {}
    missing: dict[Index, tuple[str, str]] = {}
    for state in states:
        index, first = grid.find(state.combination), grid.find(same[state.combination][0])
        if index is None or first is None:
            continue
        is_tried = not counted.isdisjoint(same[state.combination])
        if is_tried or (state.status in CAN_RUN) or state.lock_hash:
            groups[index] = first
        if not is_tried and state.status not in CAN_RUN:
            missing[index] = (str(state.status), state.reason)
    if not groups:
        return None
    settings, verdict = study.definition.settings, study.verdict or VerdictDocument()
    limits = SearchLimits(**{name: settings[name] for name in SearchLimits.model_fields if name in settings})
    goal = Goal.EVERY_CONFIGURATION if verdict.others is not None else Goal.FIRST_BAD
    search = search_towards(Goal.TABLE if verdict.table is not None else goal, grid, groups, limits)
    for state in states:
        index = grid.find(state.combination)
        if index in groups and state.status not in CAN_RUN:
            search.set_aside(index)
    found = [
        (grid.find(one.combination), one.evidence is Evidence.BAD)
        for one in trials
        if one.evidence in COUNTED
    ]
    results = [(groups[index], is_bad) for index, is_bad in found if index in groups]
    return Replay(search, results, missing)


@dataclass(frozen=True, slots=True)
class Weighed:
    """The verdict of a study for all of its trials, and how many of them came after the stored verdict.

    Attributes:
        verdict: The verdict; None if the study has none.
        since: What changed after the stored verdict, such as "6 trials"; "" if nothing did.
    """

    verdict: VerdictDocument | None
    since: str = ""


def weighed(study: Study, states: Sequence[CombinationState], trials: Sequence[StoredTrial]) -> Weighed:
    """Return the verdict of a study with all of its trials weighed, by the belief of its search.

    A verdict that cannot be weighed anew in a short time is returned as not decided, with the reason.

    Args:
        study: The study.
        states: All of its combinations.
        trials: All of its trials, with their evidence.
    """
    stored = study.verdict
    if stored is None or stored.weighed in ("", digest_of(trials)):
        # The verdict of an auxiliary study is of another kind, and has no digest.
        return Weighed(stored)
    number = sum(one.evidence in COUNTED for one in trials) - stored.trials
    since = how_many(number, "trial") if number > 0 else "a change of what its trials mean"
    found = None
    if math.prod(len(axis.values) for axis in study.definition.grid) <= _TOO_MANY:
        found = replay_of(study, states, trials)
    if found is None:
        reason = f"answered before {since}, which `bisect-env run` weighs"
        return Weighed(stored.model_copy(update={"status": "none", "reason": reason}), since)
    from bisect_env.answers.conclusion import verdict_document  # see above

    for index, is_bad in found.results:
        found.search.tell(index, hit=is_bad)
    verdict = verdict_document(study.grid, found.search, found.missing)
    return Weighed(verdict.model_copy(update={"weighed": digest_of(trials)}), since)


def weighed_study(store: Store, study: Study) -> Study:
    """Return a study whose verdict takes all of its trials into account; see `weighed`."""
    if study.verdict is None:
        return study
    with store.reading():
        found = weighed(study, store.combinations(study.id), store.study_trials(study.id).look())
    return replace(study, verdict=found.verdict)
