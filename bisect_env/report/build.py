"""From what the store holds to the report. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bisect_env.environments.lock import Lock
from bisect_env.matrix.combination import Combination
from bisect_env.matrix.signatures import shown
from bisect_env.report.circumstances import amplified, with_bodies
from bisect_env.report.doubts import (
    machine_warnings,
    other_failures,
    stability,
    stability_warnings,
    verdict_warnings,
)
from bisect_env.report.model import (
    AxisInfo,
    CombinationReport,
    DifferenceReport,
    ExplanationReport,
    FailureReport,
    MachineReport,
    OriginReport,
    Report,
    StudyInfo,
    TrialCounts,
    is_called_bad,
)
from bisect_env.report.posterior import posterior
from bisect_env.report.reproduce import own_date, steps
from bisect_env.report.sentence import sentence
from bisect_env.report.timeline import timeline
from bisect_env.search.intervals import clopper_pearson
from bisect_env.storage.records import (
    EXPLAINED,
    TARGET,
    CombinationState,
    CombinationStatus,
    Counts,
    Decision,
    FailureGroup,
    Origin,
    StoredTrial,
    Study,
    WholeTrial,
)
from bisect_env.trials.records import UNKNOWN_MACHINE, Evidence, Machine, Outcome

STACK_LIMIT = 12_000
"""Characters of a stack in the document; the database has all of it."""
OUTPUT_LINES = 15
"""Last lines of what a failure without a stack wrote."""
_SHOWN = 3
"""Combinations that one warning names."""

_STATUS = {
    CombinationStatus.UNSOLVABLE: str(Outcome.ENV_UNSOLVABLE),
    CombinationStatus.UNBUILDABLE: str(Outcome.ENV_UNBUILDABLE),
}
_MISSING: dict[str, Any] = {
    "status": "none",
    "first_bad": None,
    "last_good": None,
    "culprit_axes": [],
    "probability": None,
    "reason": "the study has not come to a verdict yet",
}


def build_report(
    study: Study,
    states: Sequence[CombinationState],
    counts: Mapping[Combination, Counts],
    failures: Sequence[tuple[FailureGroup, WholeTrial]],
    environments: int,
    origins: Sequence[Origin] = (),
    machines: Sequence[Machine] = (),
    trials: Sequence[StoredTrial] = (),
    reused: Sequence[StoredTrial] = (),
    decisions: Sequence[Decision] = (),
    difference: DifferenceReport | None = None,
    lock: Lock | None = None,
) -> Report:
    """Put a report together.

    Args:
        study: With its verdict document, if it has one.
        states: Its combinations.
        counts: What trials said, by the combination they were recorded for.
        failures: Ways of failing with an example each, the most frequent first.
        environments: Number of distinct locks in which trials ran.
        origins: From whom it has trials that were measured before.
        machines: Classes of machines on which its own trials ran.
        trials: All of its own trials, in the order of recording.
        reused: Those of other studies that it starts from.
        decisions: What was decided during it.
        difference: Between the environments of last good and first bad.
        lock: Of the first bad combination.
    """
    axes = tuple(AxisInfo.model_validate(axis) for axis in study.definition.grid)
    states = _in_matrix_order(states, axes)
    verdict: dict[str, Any] = {**_MISSING, **(study.verdict or {})}
    totals = {evidence: sum(c.of(evidence) for c in counts.values()) for evidence in Evidence}
    counted = totals[Evidence.GOOD] + totals[Evidence.BAD]
    if study.verdict is None:
        verdict["trials"] = counted
    verdict = with_bodies(verdict, [*reused, *trials])
    combinations = _combinations(states, counts, axes, verdict, trials)
    verdict["sentence"] = sentence(
        verdict, [axis.model_dump() for axis in axes], _outcome_at(verdict.get("first_bad"), counts, failures)
    )
    steady = stability(trials)
    return Report(
        study=StudyInfo(
            id=study.id,
            name=study.name,
            status=str(study.status),
            description=study.definition.description,
            matrix=study.definition.matrix_path,
            created_at=study.created_at,
            finished_at=study.finished_at,
            exclude_newer=own if (own := own_date(study)) is not None else study.exclude_newer,
            version=study.definition.version,
        ),
        axes=axes,
        verdict=verdict,
        target=_target(decisions),
        trials=counted,
        trial_counts=TrialCounts(**{str(evidence): number for evidence, number in totals.items()}),
        environments=environments,
        reused=tuple(OriginReport(**dataclasses.asdict(origin)) for origin in origins),
        combinations=combinations,
        failures=tuple(_failure(group, example) for group, example in failures),
        stability=steady,
        warnings=(
            *amplified(decisions),
            *verdict_warnings(verdict),
            *stability_warnings(steady),
            *machine_warnings(trials),
            *_warnings(study, counts),
            *other_failures([*reused, *trials]),
            *_environment_warnings(states),
            *_mixed(machines),
        ),
        posterior=posterior(
            axes,
            study.definition.settings,
            states,
            [*reused, *trials],
            every_corner="no_other" in verdict,
        ),
        timeline=timeline(states, trials, decisions),
        machines=tuple(MachineReport(**dataclasses.asdict(m)) for m in machines if m != UNKNOWN_MACHINE),
        difference=difference,
        explanation=_explanation(decisions),
        reproduce=steps(study, axes, verdict, lock),
    )


def _in_matrix_order(states: Sequence[CombinationState], axes: Sequence[AxisInfo]) -> list[CombinationState]:
    """What was tried by itself before the study was may be stored before its neighbours."""
    places = [(axis.name, {value: place for place, value in enumerate(axis.values)}) for axis in axes]

    def place(state: CombinationState) -> tuple[int, ...]:
        values = state.combination.as_dict()
        return tuple(known.get(values.get(name, ""), len(known)) for name, known in places)

    return sorted(states, key=place)


def _combinations(
    states: Sequence[CombinationState],
    counts: Mapping[Combination, Counts],
    axes: Sequence[AxisInfo],
    verdict: Mapping[str, Any],
    trials: Sequence[StoredTrial],
) -> tuple[CombinationReport, ...]:
    # Equal locks and equal values of value axes are one measurement, recorded for one of them.
    value_axes = {axis.name for axis in axes if axis.kind == "value"}

    def measurement(state: CombinationState) -> tuple[str, ...]:
        if state.lock_hash is None:
            return ("", state.combination.key)
        values = (value for axis, value in state.combination.items if axis in value_axes)
        return (state.lock_hash, *values)

    members: defaultdict[tuple[str, ...], list[Combination]] = defaultdict(list)
    for state in states:
        members[measurement(state)].append(state.combination)
    seconds: defaultdict[Combination, float] = defaultdict(float)
    for trial in trials:
        seconds[trial.combination] += trial.duration
    reports = []
    for state in states:
        measured = [one for one in members[measurement(state)] if one in counts]
        own = state.combination in measured or not measured
        total = _sum([counts[one] for one in measured])
        took = round(seconds[state.combination], 3)
        reports.append(_combination(state, total, verdict, None if own else measured[0], took))
    return tuple(reports)


def _sum(counts: Sequence[Counts]) -> Counts:
    total: Counter[tuple[Evidence, Outcome]] = Counter()
    for one in counts:
        total.update(one.by_outcome)
    return Counts(dict(total))


def _combination(
    state: CombinationState,
    counts: Counts,
    verdict: Mapping[str, Any],
    same_as: Combination | None,
    seconds: float,
) -> CombinationReport:
    status = CombinationStatus(state.status)
    outcomes: Counter[str] = Counter()
    for (_, outcome), number in counts.by_outcome.items():
        outcomes[str(outcome)] += number
    called_bad = is_called_bad(verdict, state.combination.as_dict())
    if status is not CombinationStatus.SOLVABLE:
        called_bad = None
    return CombinationReport(
        combination=state.combination.as_dict(),
        status=_STATUS.get(status, str(status)),
        reason=state.reason,
        lock=state.lock_hash,
        good=counts.good,
        bad=counts.bad,
        other=counts.other,
        void=counts.void,
        skip=counts.skip,
        outcomes=dict(sorted(outcomes.items())),
        rate=counts.bad / counts.counted if counts.counted else None,
        interval=clopper_pearson(counts.bad, counts.counted),
        verdict=None if called_bad is None else "bad" if called_bad else "good",
        same_as=same_as.as_dict() if same_as else None,
        seconds=seconds,
    )


def _outcome_at(
    first_bad: Mapping[str, str] | None,
    counts: Mapping[Combination, Counts],
    failures: Sequence[tuple[FailureGroup, WholeTrial]],
) -> str | None:
    """What the bad trials did, if all did the same: those at the first bad combination, else all."""
    here = counts.get(Combination.of(first_bad)) if first_bad else None
    if here is not None and here.bad:
        seen = {outcome for evidence, outcome in here.by_outcome if evidence is Evidence.BAD}
    else:
        seen = {group.outcome for group, _ in failures if group.evidence is Evidence.BAD}
    return str(seen.pop()) if len(seen) == 1 else None


def _failure(group: FailureGroup, example: WholeTrial) -> FailureReport:
    record = example.record
    written = record.stderr.strip() or record.stdout.strip()
    stack = record.stack.strip("\n") or "\n".join(written.splitlines()[-OUTPUT_LINES:])
    return FailureReport(
        outcome=str(group.outcome),
        evidence=str(group.evidence),
        trials=group.trials,
        signature=group.signature,
        trial=group.trial_id,
        combination=record.combination.as_dict(),
        detail=record.detail,
        stack=stack if len(stack) <= STACK_LIMIT else stack[:STACK_LIMIT] + "\n…",
    )


def _explanation(decisions: Sequence[Decision]) -> ExplanationReport | None:
    found = [decision.payload for decision in decisions if decision.kind == EXPLAINED]
    return ExplanationReport.model_validate(found[-1]) if found else None


def _target(decisions: Sequence[Decision]) -> str:
    settled = next((decision for decision in decisions if decision.kind == TARGET), None)
    return shown(str(settled.payload["signature"])) if settled else ""


def _warnings(study: Study, counts: Mapping[Combination, Counts]) -> list[str]:
    warnings = []
    often = [
        (combination, count)
        for combination, count in counts.items()
        if count.other >= 3 and count.other >= 0.1 * (count.other + count.counted)
    ]
    often.sort(key=lambda item: -item[1].other)
    for combination, count in often[:_SHOWN]:
        warnings.append(
            f"{combination}: {count.other} of {count.other + count.counted} trials failed in another way "
            f"({_outcomes(count, Evidence.OTHER)}); they are not counted, and can hide the answer"
        )
    if len(often) > _SHOWN:
        warnings.append(f"{len(often) - _SHOWN} more combinations often failed in another way")
    total = _sum(list(counts.values()))
    everything = sum(total.by_outcome.values())
    if total.void >= 3 and total.void >= 0.1 * everything:
        warnings.append(
            f"{total.void} of {everything} trials were spoilt by infrastructure "
            f"({_outcomes(total, Evidence.VOID)}); they say nothing about the script"
        )
    return warnings


def _environment_warnings(states: Sequence[CombinationState]) -> list[str]:
    """What the solver said of environments that can be run, each text once."""
    groups: dict[str, list[Combination]] = {}
    for state in states:
        if state.status is CombinationStatus.SOLVABLE and state.reason:
            groups.setdefault(state.reason, []).append(state.combination)
    warnings = [
        f"{members[0]}{f' and {len(members) - 1} more' if len(members) > 1 else ''}: {text}"
        for text, members in groups.items()
    ]
    more = len(warnings) - _SHOWN
    return [*warnings[:_SHOWN], *([f"{more} more environments have warnings"] if more > 0 else [])]


def _mixed(machines: Sequence[Machine]) -> list[str]:
    known = [machine for machine in machines if machine != UNKNOWN_MACHINE]
    if len(known) < 2:
        return []
    named = "; ".join(str(machine) for machine in known)
    text = f"the trials ran on {len(known)} classes of machines ({named}); "
    return [f"{text}if the failure depends on the machine, their rates do not belong together"]


def _outcomes(counts: Counts, evidence: Evidence) -> str:
    found = sorted(
        ((number, str(outcome)) for (said, outcome), number in counts.by_outcome.items() if said is evidence),
        reverse=True,
    )
    return ", ".join(f"{outcome} {number}" for number, outcome in found)
