"""Reads a study out of the store and builds its report; all but the reading is pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from bisect_env.answers.axes import AxesByName, AxisInfo
from bisect_env.answers.chapters import CommitReport, TracedReport
from bisect_env.answers.explanation import Explanation
from bisect_env.answers.origins import Origin
from bisect_env.answers.phrases import and_more, first_few
from bisect_env.answers.sentence import bad_values_in_words, sentence, side_names
from bisect_env.answers.untrusted import clean, command_line
from bisect_env.answers.verdict_document import IterationRate, MeasuredRate, VerdictDocument, calls_bad
from bisect_env.environments.difference import counted, difference, project_urls
from bisect_env.environments.lock import Lock
from bisect_env.environments.settings import default_cache_dir
from bisect_env.matrix import yaml_source
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import AxisKind, Combination, Grid, Index
from bisect_env.matrix.history import readable
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.signatures import shown
from bisect_env.report.doubts import (
    advice,
    good_side_warnings,
    machine_warnings,
    other_failures,
    rate_warnings,
    several_failures,
    speed_warnings,
    stability,
    stability_warnings,
    verdict_warnings,
    withdrawn_warnings,
)
from bisect_env.report.model import (
    AnswerReport,
    CombinationReport,
    DifferenceReport,
    FailureReport,
    PointReport,
    PosteriorReport,
    QuestionFile,
    QuestionReport,
    Report,
    StepReport,
    StudyInfo,
    TimedBuild,
    TimedTrial,
    TimelineReport,
    TrialCounts,
    labels,
)
from bisect_env.search.numeric import clopper_pearson
from bisect_env.storage.entries import (
    BUILD_FAILED,
    BUILT,
    COMMIT,
    EXPLAINED,
    TRACED,
    CombinationState,
    CombinationStatus,
    Decision,
    EvidenceCounts,
    FailureGroup,
    StoredTrial,
    Study,
    StudyStatus,
    WholeTrial,
    counts_of,
    environments_of,
    failures_of,
    machines_of,
)
from bisect_env.storage.store import Store
from bisect_env.trials.judge import Target
from bisect_env.trials.records import UNKNOWN_MACHINE, Evidence, Machine, Outcome

if TYPE_CHECKING:
    from bisect_env.search.space import Hypothesis

# --------------------------------------------------------------------------------------------------
# Under what circumstances a study's trials ran: perturbations, iterations repeated in a process. Pure.


def with_iterations(verdict: VerdictDocument, trials: Sequence[StoredTrial]) -> VerdictDocument:
    """Add the rates of single iterations to both sides of the boundary, if scripts are repeated.

    Args:
        verdict: Verdict of the study.
        trials: All trials of the study.
    """
    return verdict.model_copy(
        update={
            "bad_rate": _with_iterations(verdict.bad_rate, verdict.first_bad, trials),
            "good_rate": _with_iterations(verdict.good_rate, verdict.last_good, trials),
        }
    )


def _with_iterations(
    rate: MeasuredRate | None, combination: Mapping[str, str] | None, trials: Sequence[StoredTrial]
) -> MeasuredRate | None:
    if rate is None or not combination or not (iterations := _iterations(combination, trials)):
        return rate
    low, high = clopper_pearson(min(rate.hits, iterations), iterations)
    single = IterationRate(rate=rate.hits / iterations, low=low, high=high)
    return rate.model_copy(update={"iterations": iterations, "per_iteration": single})


def _iterations(combination: Mapping[str, str], trials: Sequence[StoredTrial]) -> int:
    counted = (Evidence.GOOD, Evidence.BAD)
    return sum(
        trial.iterations
        for trial in trials
        if trial.evidence in counted and trial.combination.as_dict() == dict(combination)
    )


def amplified(decisions: Sequence[Decision]) -> list[str]:
    """Return the note on a study whose trials ran under a perturbation."""
    for decision in decisions:
        if decision.kind == "amplify" and (name := decision.payload.get("perturbation", {}).get("name")):
            why = decision.payload.get("reason", "")
            ran = f"every trial ran under what makes the failure more frequent, {name} ({why})"
            return [f"{ran}: the rates are those under it"]
    return []


# --------------------------------------------------------------------------------------------------
# What ran when: trials and builds on one clock. Pure.

LIMIT = 2000
"""Trials that are listed; of more every second, third, … one."""


def timeline(
    states: Sequence[CombinationState], trials: Sequence[StoredTrial], decisions: Sequence[Decision]
) -> TimelineReport:
    """Put trials and builds on one time axis.

    Args:
        states: Every combination, in the report's order.
        trials: The study's own trials.
        decisions: The study's decisions, which include its builds.
    """
    position = {state.combination: i for i, state in enumerate(states)}
    members: defaultdict[str, list[int]] = defaultdict(list)
    for i, state in enumerate(states):
        if state.lock_hash:
            members[state.lock_hash].append(i)
    builds = [
        (
            decision.at - timedelta(seconds=float(decision.payload.get("seconds") or 0.0)),
            str(decision.payload.get("lock", "")),
            float(decision.payload.get("seconds") or 0.0),
            str(decision.payload.get("reason") or "failed") if decision.kind == BUILD_FAILED else "",
        )
        for decision in decisions
        if decision.kind in (BUILT, BUILD_FAILED)
    ]
    known = sorted((t for t in trials if t.combination in position), key=lambda t: (t.started_at, t.sequence))
    moments: list[datetime] = [*(t.started_at for t in known), *(start for start, *_ in builds)]
    if not moments:
        return TimelineReport()
    begin = min(moments)
    shown = known[:: max(1, math.ceil(len(known) / LIMIT))]
    return TimelineReport(
        begin=begin,
        trials=tuple(
            TimedTrial(
                trial=t.trial_id,
                combination=position[t.combination],
                outcome=str(t.outcome),
                evidence=str(t.evidence),
                start=_seconds(t.started_at - begin),
                seconds=round(t.duration, 3),
                host=t.host,
                worker=t.worker,
                gpu=t.gpu,
            )
            for t in shown
        ),
        builds=tuple(
            TimedBuild(
                lock=lock,
                combinations=tuple(members[lock]),
                start=_seconds(start - begin),
                seconds=round(seconds, 3),
                failed=failed,
            )
            for start, lock, seconds, failed in sorted(builds)
        ),
        left_out=len(known) - len(shown),
    )


def _seconds(delta: timedelta) -> float:
    return round(delta.total_seconds(), 3)


# --------------------------------------------------------------------------------------------------
# How the posterior moved: what the store holds, told to a search again. Pure.

_CAN_RUN = (CombinationStatus.SOLVABLE, CombinationStatus.UNLOCKED)
POINTS = 200
"""At most; a study of more trials is looked at now and then."""
ANSWERS = 6
"""Answers that are followed."""


def posterior(
    study: Study,
    states: Sequence[CombinationState],
    trials: Sequence[StoredTrial],
    *,
    every_configuration: bool,
) -> PosteriorReport:
    """Replay the trials in a new search and record the probabilities of the leading answers.

    Args:
        study: As stored.
        states: Every combination.
        trials: All trials of the study, in the order in which the study received them.
        every_configuration: Whether the study looked for further failing configurations.

    Returns:
        An empty report for a large matrix, whose answers are only partly distinguished, and for a matrix
        without axes, which has no answers to compare.
    """
    if not study.definition.grid:
        return PosteriorReport()
    # Most formats do not show it, and the search takes as long to import as a short report takes to be made.
    from bisect_env.matrix.schema import SearchLimits
    from bisect_env.search.goals import Goal, search_towards
    from bisect_env.search.space import is_large
    from bisect_env.search.trace import trace

    grid = study.grid
    groups = groups_of(grid, states)
    if not groups or is_large(grid.shape, [axis.direction for axis in grid.axes]):
        return PosteriorReport()
    settings = study.definition.settings
    limits = SearchLimits(**{name: settings[name] for name in SearchLimits.model_fields if name in settings})
    goal = Goal.EVERY_CONFIGURATION if every_configuration else Goal.FIRST_BAD
    search = search_towards(goal, grid, groups, limits)
    for state in states:
        index = grid.find(state.combination)
        if state.status not in _CAN_RUN and index in groups:
            search.set_aside(index)
    told = []
    for trial in trials:
        index = grid.find(trial.combination)
        if index in groups and trial.evidence in (Evidence.GOOD, Evidence.BAD):
            told.append((groups[index], trial.evidence is Evidence.BAD))
    if not told:
        return PosteriorReport()
    seen = trace(search, told, points=POINTS, answers=ANSWERS)
    return PosteriorReport(
        answers=tuple(_answer(hypothesis, grid) for hypothesis in seen.answers),
        points=tuple(
            PointReport(trials=n, probabilities=tuple(round(min(max(float(p), 0.0), 1.0), 6) for p in row))
            for n, row in zip(seen.trials, seen.probabilities, strict=True)
        ),
    )


def groups_of(grid: Grid, states: Sequence[CombinationState]) -> dict[Index, Index]:
    """Map each runnable combination to the first one with the same lock and the same values of value axes."""
    values = [i for i, axis in enumerate(grid.axes) if axis.kind is AxisKind.VALUE]
    first: dict[tuple[Any, ...], Index] = {}
    groups: dict[Index, Index] = {}
    for state in states:
        index = grid.find(state.combination)
        if index is None:
            continue
        if state.lock_hash is not None:
            measurement = (state.lock_hash, *(index[i] for i in values))
            groups[index] = first.setdefault(measurement, index)
        elif state.status == CombinationStatus.UNLOCKED:
            groups[index] = index
    return groups


def _answer(hypothesis: Hypothesis, grid: Grid) -> AnswerReport:
    bad = {
        grid.axes[i].name: tuple(
            value for value, is_bad in zip(grid.axes[i].values, hypothesis.sets[i], strict=True) if is_bad
        )
        for i in hypothesis.culprits
    }
    axes = AxesByName.of(AxisInfo(name=a.name, values=a.values, direction=a.direction) for a in grid.axes)
    return AnswerReport(
        label=readable(bad_values_in_words(hypothesis.kind, bad, axes)),
        kind=hypothesis.kind,
        bad_values=bad,
    )


# --------------------------------------------------------------------------------------------------
# Commands that show the failure again. Pure.

_SHORT_ID = 12


def steps(
    study: Study, axes: Sequence[AxisInfo], verdict: VerdictDocument, lock: Lock | None
) -> tuple[StepReport, ...]:
    """Return commands that reproduce the failure: the bare failure first, the whole study last.

    Args:
        study: As stored.
        axes: Its axes.
        verdict: Its verdict.
        lock: Lock of the first bad combination.
    """
    # A question that comes from no file is named by its study.
    path = clean(study.definition.matrix_path) or study.id[:_SHORT_ID]
    if path.startswith("-"):
        # A database names it: it is no option.
        path = f"./{path}"
    found = []
    if lock is not None:
        from bisect_env.environments.lockfiles import plain_lists

        made = command_line(*("bisect-env", "reproduce", study.id[:_SHORT_ID], "--output", "repro"))
        title = "As a directory with lock, script and Dockerfile, which needs no bisect-env to be run"
        found.append(
            StepReport(
                title=title, commands=(made, "cd repro", *_by_hand(lock)), files=plain_lists(lock.packages)
            )
        )
    bad, good = side_names(verdict, axes)
    cells = ((verdict.first_bad, bad), (verdict.last_good, good))
    alone = [
        f"{command_line('bisect-env', 'trial', path, '--at', at(cell, axes))} # {words}"
        for cell, words in cells
        if cell and at(cell, axes)
    ]
    if alone:
        found.append(StepReport(title="Run one combination by itself", commands=tuple(alone)))
    if verdict.kind == "explanation":
        # Its environments are none of the matrix's: another command made them.
        found.append(StepReport(title="Look for the culprit again", commands=("bisect-env explain",)))
        return tuple(found)
    asked = "run" if verdict.table is None else "map"
    if study.status is not StudyStatus.FINISHED:
        # `--fresh` would throw away what is there.
        found.append(
            StepReport(title="Go on with the search", commands=(command_line("bisect-env", asked, path),))
        )
        return tuple(found)
    title = "Answer the same matrix again"
    if study.exclude_newer is not None and own_date(study) is None:
        moment = f"{study.exclude_newer:%Y-%m-%dT%H:%M:%SZ}"
        title += f" (in the same environments, with exclude_newer: {moment} in it)"
    found.append(StepReport(title=title, commands=(command_line("bisect-env", asked, path, "--fresh"),)))
    return tuple(found)


def _by_hand(lock: Lock) -> list[str]:
    """Return the commands from the README of a reproduction directory."""
    if lock.image:
        return ["docker build --tag repro .", "docker run --rm repro"]
    if lock.is_conda:
        return ["conda-lock install --prefix ./env conda-lock.yml", 'PATH="$PWD/env/bin:$PATH" ./run.sh 100']
    hashes = "" if lock.has_commits else "--require-hashes "
    return [
        command_line("uv", "venv", "--python", lock.python, "env"),
        f"uv pip sync --python env/bin/python {hashes}requirements.txt",
        'PATH="$PWD/env/bin:$PATH" ./run.sh 100',
    ]


def own_date(study: Study) -> datetime | None:
    """Return the moment that the matrix names in `exclude_newer`, None if it names none."""
    data = yaml_source.parse(study.definition.matrix_text).data
    named = data.get("exclude_newer") if isinstance(data, dict) else None
    try:
        return cutoff(str(named)) if named else None
    except ValueError:
        # What a newer release may write there.
        return None


def at(cell: Mapping[str, str], axes: Sequence[AxisInfo]) -> str:
    """Return a combination as `--at` takes it; axes with one value are left out."""
    several = {axis.name for axis in axes if len(axis.values) > 1}
    return ",".join(f"{axis}={value}" for axis, value in cell.items() if axis in several)


# --------------------------------------------------------------------------------------------------
# From what the store holds to the report. Pure.

STACK_LIMIT = 12_000
"""Characters of a stack in the document; the database has all of it."""
OUTPUT_LINES = 15
"""Last lines of what a failure without a stack wrote."""
_SHOWN = 3
"""Combinations that one warning names."""

_STATUS = {
    # That nobody asked for its environment shows in that it has no lock, and no trials.
    CombinationStatus.UNLOCKED: str(CombinationStatus.SOLVABLE),
    CombinationStatus.UNSOLVABLE: str(Outcome.ENV_UNSOLVABLE),
    CombinationStatus.UNBUILDABLE: str(Outcome.ENV_UNBUILDABLE),
}


def build_report(
    study: Study,
    states: Sequence[CombinationState],
    trials: Sequence[StoredTrial],
    target: Target,
    failures: Sequence[tuple[FailureGroup, WholeTrial]],
    origins: Sequence[Origin] = (),
    decisions: Sequence[Decision] = (),
    difference: DifferenceReport | None = None,
    lock: Lock | None = None,
    question: QuestionReport = QuestionReport(),  # noqa: B008 - never changed
    *,
    with_posterior: bool = True,
) -> Report:
    """Build a report.

    Args:
        study: With its verdict, if it has one.
        states: Its combinations.
        trials: All of its trials, in the order in which it received them.
        target: The failure that it is about.
        failures: Kinds of failure with an example each, the most frequent first.
        origins: Users whose earlier trials it reuses.
        decisions: Decisions made during the study.
        difference: Between the environments of last good and first bad.
        lock: Lock of the first bad combination.
        question: Matrix and script.
        with_posterior: Whether to record the probabilities of answers trial by trial.
    """
    axes = study.definition.grid
    states = _in_matrix_order(states, axes)
    counts, machines = counts_of(trials), machines_of(trials)
    own = [trial for trial in trials if not trial.reused]
    total = _sum(counts.values())
    verdict = with_iterations(study.verdict or VerdictDocument(trials=total.counted), trials)
    combinations = _combinations(states, counts, axes, verdict, own)
    said = sentence(
        verdict,
        axes,
        _outcome_at(verdict.first_bad, counts, failures),
        _changed(difference, _explanation(decisions)),
    )
    said = readable(said, labels(axes))
    steady = stability(own)
    traced = _traced(decisions)
    if traced is not None:
        # That the one environment is bad and the other is not was only the first step.
        said = traced.sentence
    commit = _commit(decisions)
    if commit is not None and commit.study:
        said = f"{said}; by its commits: {commit.sentence}"
    verdict = verdict.model_copy(update={"sentence": said})
    ways = tuple(_failure(group, example) for group, example in failures)
    return Report(
        study=StudyInfo(
            id=study.id,
            name=study.name,
            status=str(study.status),
            description=study.definition.description,
            matrix=study.definition.matrix_path,
            created_at=study.created_at,
            finished_at=study.finished_at,
            exclude_newer=stated if (stated := own_date(study)) is not None else study.exclude_newer,
            version=study.definition.version,
            user=study.definition.user,
        ),
        axes=axes,
        verdict=verdict,
        target="" if target.is_open else shown(target.signature),
        trials=total.counted,
        trial_counts=TrialCounts.model_validate(total, from_attributes=True),
        environments=environments_of(trials),
        reused=tuple(origins),
        combinations=combinations,
        failures=ways,
        stability=steady,
        advice=tuple(
            advice(verdict, axes, ways, own, study.definition.settings, _scripts(study), _unbuilt(states))
        ),
        warnings=(
            *amplified(decisions),
            *verdict_warnings(verdict),
            *withdrawn_warnings(verdict, axes),
            *speed_warnings(verdict, axes, trials),
            *several_failures(verdict, axes, trials),
            *rate_warnings(study.definition.settings.get("crash_rate"), *_of_bad_ones(verdict, counts)),
            *_good_side(verdict, axes, counts, study.definition.settings),
            *stability_warnings(steady),
            *machine_warnings(own),
            *_warnings(counts),
            *other_failures(trials, "" if target.is_open else shown(target.signature)),
            *_environment_warnings(states),
            *_mixed(machines),
        ),
        posterior=posterior(
            study,
            states,
            trials,
            every_configuration=verdict.others is not None,
        )
        # The answers that are followed are rules: of a staircase, or of two neighbours, they say nothing.
        if with_posterior and verdict.table is None and verdict.kind not in ("frontier", "pair")
        else PosteriorReport(),
        timeline=timeline(states, own, decisions),
        machines=tuple(one for one in machines if one != UNKNOWN_MACHINE),
        difference=difference,
        explanation=_explanation(decisions),
        traced=traced,
        commit=commit,
        question=question,
        reproduce=steps(study, axes, verdict, lock),
    )


def _changed(difference: DifferenceReport | None, explanation: Explanation | None) -> list[str]:
    """Return the culprit packages with their versions if they are known, else all packages that differ."""
    if explanation is not None and explanation.culprits:
        culprits = [explanation.changes[i] for i in explanation.culprits]
        return [f"{one.name} {one.old} → {one.new}" for one in culprits]
    changes = difference.changes if difference is not None else ()
    return [
        f"{one.name} {one.before.version if one.before else '(none)'} → "
        f"{one.after.version if one.after else '(none)'}"
        for one in changes
    ]


def _scripts(study: Study) -> list[str]:
    """Return `trial.files` of a study's matrix as a list."""
    data = yaml_source.parse(study.definition.matrix_text).data
    trial = data.get("trial") if isinstance(data, dict) else None
    files = trial.get("files") if isinstance(trial, dict) else None
    return [files] if isinstance(files, str) else [str(file) for file in files or ()]


def _unbuilt(states: Sequence[CombinationState]) -> list[str]:
    """Return why environments could not be built, one reason per combination."""
    failed = [state for state in states if state.status == CombinationStatus.UNBUILDABLE]
    return [state.reason for state in failed if state.reason.strip()]


def _in_matrix_order(states: Sequence[CombinationState], axes: Sequence[AxisInfo]) -> list[CombinationState]:
    """Return the combinations in matrix order; storage may hold some out of order."""
    places = [(axis.name, {value: place for place, value in enumerate(axis.values)}) for axis in axes]

    def place(state: CombinationState) -> tuple[int, ...]:
        values = state.combination.as_dict()
        return tuple(known.get(values.get(name, ""), len(known)) for name, known in places)

    return sorted(states, key=place)


def _combinations(
    states: Sequence[CombinationState],
    counts: Mapping[Combination, EvidenceCounts],
    axes: Sequence[AxisInfo],
    verdict: VerdictDocument,
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
    is_bad = calls_bad(verdict)
    reports = []
    for state in states:
        measured = [one for one in members[measurement(state)] if one in counts]
        own = state.combination in measured or not measured
        total = _sum([counts[one] for one in measured])
        took = round(seconds[state.combination], 3)
        called = is_bad(state.combination.as_dict())
        if called is None and verdict.kind in ("frontier", "pair") and total.counted:
            # No sets of values say what is bad: what was seen does.
            called = total.bad > 0
        reports.append(_combination(state, total, called, None if own else measured[0], took))
    return tuple(reports)


def _sum(counts: Iterable[EvidenceCounts]) -> EvidenceCounts:
    total = EvidenceCounts()
    for one in counts:
        total.add_all(one)
    return total


def _combination(
    state: CombinationState,
    counts: EvidenceCounts,
    called_bad: bool | None,
    same_as: Combination | None,
    seconds: float,
) -> CombinationReport:
    status = CombinationStatus(state.status)
    outcomes: Counter[str] = Counter()
    for (_, outcome), number in counts.by_outcome.items():
        outcomes[str(outcome)] += number
    if status not in _CAN_RUN:
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
    counts: Mapping[Combination, EvidenceCounts],
    failures: Sequence[tuple[FailureGroup, WholeTrial]],
) -> str | None:
    """Return the outcome of the bad trials if all have the same one, else None.

    The bad trials are those at the first bad combination, or all of them if it has none.
    """
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


def _good_side(
    verdict: VerdictDocument,
    axes: Sequence[AxisInfo],
    counts: Mapping[Combination, EvidenceCounts],
    settings: Mapping[str, Any],
) -> list[str]:
    found = counts.get(Combination.of(verdict.last_good)) if verdict.last_good else None
    if found is None:
        return []
    least = float(settings.get("min_crash_rate") or 0.02)
    return good_side_warnings(verdict, axes, found.bad, found.counted, least)


def _of_bad_ones(verdict: VerdictDocument, counts: Mapping[Combination, EvidenceCounts]) -> tuple[int, int]:
    """Return the numbers of bad and of counted trials of the combinations that a verdict calls bad."""
    if not verdict.is_decided:
        return 0, 0
    is_bad = calls_bad(verdict)
    found = [count for one, count in counts.items() if is_bad(one.as_dict())]
    return sum(count.bad for count in found), sum(count.counted for count in found)


def _explanation(decisions: Sequence[Decision]) -> Explanation | None:
    found = [decision.payload for decision in decisions if decision.kind == EXPLAINED]
    return Explanation.model_validate(found[-1]) if found else None


def _traced(decisions: Sequence[Decision]) -> TracedReport | None:
    found = [decision.payload for decision in decisions if decision.kind == TRACED]
    return TracedReport.model_validate(found[-1]) if found else None


def _commit(decisions: Sequence[Decision]) -> CommitReport | None:
    found = [decision.payload for decision in decisions if decision.kind == COMMIT]
    return CommitReport.model_validate(found[-1]) if found else None


def _warnings(counts: Mapping[Combination, EvidenceCounts]) -> list[str]:
    often = [
        (combination, count)
        for combination, count in counts.items()
        if count.other >= 3 and count.other >= 0.1 * (count.other + count.counted)
    ]
    often.sort(key=lambda item: -item[1].other)
    told = [
        f"{combination}: {count.other} of {count.other + count.counted} trials failed in another way "
        f"({_outcomes(count, Evidence.OTHER)}); they are not counted, and can hide the answer"
        for combination, count in often
    ]
    warnings = first_few(told, _SHOWN, more="more combinations often failed in another way")
    total = _sum(counts.values())
    everything = sum(total.by_outcome.values())
    if total.void >= 3 and total.void >= 0.1 * everything:
        warnings.append(
            f"{total.void} of {everything} trials were lost to the infrastructure "
            f"({_outcomes(total, Evidence.VOID)}); they say nothing about the script"
        )
    return warnings


def _environment_warnings(states: Sequence[CombinationState]) -> list[str]:
    """Return the solver's warnings about environments that can be run, each text once."""
    groups: dict[str, list[Combination]] = {}
    for state in states:
        if state.status is CombinationStatus.SOLVABLE and state.reason:
            groups.setdefault(state.reason, []).append(state.combination)
    warnings = [f"{and_more([str(one) for one in members], 1)}: {text}" for text, members in groups.items()]
    return first_few(warnings, _SHOWN, more="more environments have warnings")


def _mixed(machines: Sequence[Machine]) -> list[str]:
    known = [machine for machine in machines if machine != UNKNOWN_MACHINE]
    if len(known) < 2:
        return []
    named = "; ".join(str(machine) for machine in known)
    text = f"the trials ran on {len(known)} classes of machines ({named}); "
    return [f"{text}if the failure depends on the machine, their rates do not belong together"]


def _outcomes(counts: EvidenceCounts, evidence: Evidence) -> str:
    found = sorted(
        ((number, str(outcome)) for (said, outcome), number in counts.by_outcome.items() if said is evidence),
        reverse=True,
    )
    return ", ".join(f"{outcome} {number}" for number, outcome in found)


# --------------------------------------------------------------------------------------------------
# From the store to the report: the only part of this package with effects.

QUESTION_LIMIT = 64 * 1024
"""Bytes of the files that a report holds."""
FAILURES = 5
"""Ways of failing that a report gives examples of."""


def load_report(store: Store, study_id: str, *, posterior: bool = True) -> Report:
    """Return the report of a study from one consistent state of the database, even while others write.

    Args:
        store: The storage.
        study_id: Its whole id.
        posterior: Whether to record the probabilities of answers trial by trial, which takes as long as the
            search did.

    Raises:
        UsageError: There is no such study.
        StorageError: The database cannot be read.
    """
    with store.snapshot():
        study = store.study(study_id)
        # Other failures are shown too, but never crowd out the ones that the study is about.
        known = store.study_trials(study.id)
        trials = known.look()
        groups = sorted(failures_of(trials), key=lambda group: group.evidence is not Evidence.BAD)
        examples = [(group, store.trial(group.trial_id)) for group in groups[:FAILURES]]
        states = store.combinations(study.id)
        verdict = study.verdict or VerdictDocument()
        good, bad = (_lock(store, states, cell) for cell in (verdict.last_good, verdict.first_bad))
        return build_report(
            study,
            states,
            trials,
            known.target,
            [(group, example) for group, example in examples if example is not None],
            store.origins(study.id),
            store.decisions(study.id),
            _difference(study, good, bad),
            bad,
            _question(study, *store.files(study.id)),
            with_posterior=posterior,
        )


def report_document(store: Store, study_id: str, *, posterior: bool = True) -> dict[str, Any]:
    """Return the report of a study as a JSON object, as `--format json` and `run --json` print it."""
    return load_report(store, study_id, posterior=posterior).document()


def _question(study: Study, files: Sequence[StudyFile], missing: Sequence[str]) -> QuestionReport:
    """Return the matrix with as many files as there is room for, the smallest first."""
    kept: dict[str, QuestionFile] = {}
    room = QUESTION_LIMIT
    for file in sorted(files, key=lambda file: len(file.content)):
        try:
            text = file.content.decode()
        except UnicodeDecodeError:
            continue
        room -= len(file.content)
        if room >= 0 and "\0" not in text:
            kept[file.name] = QuestionFile(name=file.name, text=text, executable=file.executable)
    left_out = [file.name for file in files if file.name not in kept]
    return QuestionReport(
        matrix=study.definition.matrix_text,
        files=tuple(kept[file.name] for file in files if file.name in kept),
        left_out=(*left_out, *missing),
    )


def _lock(store: Store, states: Sequence[CombinationState], cell: Mapping[str, str] | None) -> Lock | None:
    hashes = [s.lock_hash for s in states if s.lock_hash and s.combination.as_dict() == cell]
    return store.lock(hashes[0]) if hashes else None


def _difference(study: Study, good: Lock | None, bad: Lock | None) -> DifferenceReport | None:
    """Return the packages that differ between last good and first bad; None if either is unknown.

    Project pages are included if the prefixes are on this host.
    """
    verdict = study.verdict or VerdictDocument()
    if good is None or bad is None or verdict.last_good is None or verdict.first_bad is None:
        return None
    prefixes = default_cache_dir() / "prefixes"
    urls = project_urls(prefixes / lock.content_hash for lock in (good, bad))
    changes = difference(good, bad, study.definition.packages, urls)
    return DifferenceReport(
        before=verdict.last_good,
        after=verdict.first_bad,
        summary=counted(changes),
        changes=tuple(changes),
    )
