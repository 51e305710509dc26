"""Reads a study out of the store and builds its report; all but the reading is pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.chapters import CommitReport, TracedReport
from bisect_env.answers.explanation import Explanation
from bisect_env.answers.origins import Origin
from bisect_env.answers.phrases import and_more, first_few
from bisect_env.answers.remedies import Asked
from bisect_env.answers.sentence import sentence, side_names
from bisect_env.answers.untrusted import clean, command_line
from bisect_env.answers.verdict_document import (
    AnswerPart,
    IterationRate,
    MeasuredRate,
    VerdictDocument,
    calls_bad,
)
from bisect_env.environments.difference import counted, difference, project_urls
from bisect_env.environments.lock import Lock
from bisect_env.environments.lockfiles import plain_lists
from bisect_env.environments.settings import default_cache_dir
from bisect_env.matrix import yaml_source
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.history import readable
from bisect_env.matrix.scalars import cutoff
from bisect_env.matrix.signatures import shown
from bisect_env.report.doubts import (
    advice,
    came_since,
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
    CombinationReport,
    DifferenceReport,
    FailureReport,
    QuestionFile,
    QuestionReport,
    Report,
    StepReport,
    StudyInfo,
    TrialCounts,
    WorkReport,
    labels,
)
from bisect_env.search.numeric import clopper_pearson
from bisect_env.storage.entries import (
    AMPLIFIED,
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
from bisect_env.storage.weighing import CAN_RUN, COUNTED, measurements, weighed
from bisect_env.trials.records import UNKNOWN_MACHINE, Evidence, Machine

_Part = TypeVar("_Part", bound=AnswerPart)

# --------------------------------------------------------------------------------------------------
# The circumstances of trials: perturbations, and iterations within a process. Pure.


def with_iterations(verdict: VerdictDocument, trials: Sequence[StoredTrial]) -> VerdictDocument:
    """Return the verdict with failure rates per iteration, if each process runs the script several times.

    Args:
        verdict: Verdict of the study.
        trials: All trials of the study.
    """
    found = {}
    for side, cell in (("bad_rate", verdict.first_bad), ("good_rate", verdict.last_good)):
        rate: MeasuredRate | None = getattr(verdict, side)
        own = [t for t in trials if t.evidence in COUNTED and t.combination.as_dict() == cell]
        iterations = sum(trial.iterations for trial in own)
        if rate is not None and iterations:
            # The rate's own hits may include trials of combinations that are the same environment.
            hits = min(sum(trial.evidence is Evidence.BAD for trial in own), iterations)
            low, high = clopper_pearson(hits, iterations)
            single = IterationRate(rate=hits / iterations, low=low, high=high)
            found[side] = rate.model_copy(update={"iterations": iterations, "per_iteration": single})
    return verdict.model_copy(update=found)


def amplified(decisions: Sequence[Decision]) -> list[str]:
    """Return a note if trials ran under circumstances that make the failure more frequent, such as CPU load.

    The result is a list with one sentence, or an empty list.
    """
    for decision in decisions:
        if decision.kind == AMPLIFIED and (name := decision.payload.get("perturbation", {}).get("name")):
            why = decision.payload.get("reason", "")
            ran = f"every trial ran under what makes the failure more frequent, {name} ({why})"
            return [f"{ran}: the rates are those under it"]
    return []


_UNAVAILABLE = (
    CombinationStatus.UNSOLVABLE,
    CombinationStatus.UNBUILDABLE,
    CombinationStatus.SET_ASIDE,
)

# --------------------------------------------------------------------------------------------------
# How long it took. Pure.


def work_of(trials: Sequence[StoredTrial], decisions: Sequence[Decision]) -> WorkReport:
    """Return how long trials and builds of a study took, and how many workers and hosts ran trials.

    Args:
        trials: The study's own trials.
        decisions: The study's decisions, which include its builds.
    """
    ended = [one for one in decisions if one.kind in (BUILT, BUILD_FAILED)]
    builds = [(one, float(one.payload.get("seconds") or 0.0)) for one in ended]
    # In seconds since 1970, because a row that others wrote may hold any number.
    starts = [(one.started_at.timestamp(), one.duration) for one in trials]
    starts += [(one.at.timestamp() - seconds, seconds) for one, seconds in builds]
    if not starts:
        return WorkReport()
    began = min(start for start, _ in starts)
    # A failed build is tried again, and counts as failed only if no attempt succeeded.
    built = {str(one.payload.get("lock", "")) for one in ended if one.kind == BUILT}
    failed = {str(one.payload.get("lock", "")) for one in ended if one.kind == BUILD_FAILED} - built
    return WorkReport(
        began=min([one.started_at for one in trials] + [one.at for one, _ in builds]),
        seconds=round(max(start + length for start, length in starts) - began, 3),
        workers=len({(one.host, one.worker) for one in trials if one.worker}),
        hosts=len({one.host for one in trials if one.host}),
        built=len(built),
        build_seconds=round(sum(seconds for _, seconds in builds), 3),
        unbuilt=len(failed),
    )


# --------------------------------------------------------------------------------------------------
# Commands that show the failure again. Pure.

_SHORT_ID = 12


def steps(
    study: Study,
    axes: Sequence[AxisInfo],
    verdict: VerdictDocument,
    lock: Lock | None,
    *,
    is_open: bool = False,
) -> tuple[StepReport, ...]:
    """Return the commands with which a user can reproduce the failure, the simplest first.

    The last command goes on with the study, or repeats it once it is answered. Without an answer, it is the
    only one.

    Args:
        study: The stored study.
        axes: Axes of the study.
        verdict: Verdict of the study.
        lock: Lock of the first bad combination.
        is_open: Whether trials came after the study had ended.
    """
    # A question without a matrix file is named by its study.
    path = clean(study.definition.matrix_path) or study.id[:_SHORT_ID]
    if path.startswith("-"):
        # Paths come from the database; this one must not be read as an option.
        path = f"./{path}"
    found = []
    if lock is not None and verdict.is_decided:
        made = command_line(*("bisect-env", "reproduce", study.id[:_SHORT_ID], "--output", "repro"))
        title = "As a directory with lock, script and Dockerfile, which needs no bisect-env to be run"
        found.append(
            StepReport(
                title=title, commands=(made, "cd repro", *_by_hand(lock)), files=plain_lists(lock.packages)
            )
        )
    bad, good = side_names(verdict, axes)
    cells = ((verdict.first_bad, bad), (verdict.last_good, good)) if verdict.is_decided else ()
    alone = [
        f"{command_line('bisect-env', 'trial', path, '--at', at(cell, axes))} # {words}"
        for cell, words in cells
        if cell and at(cell, axes)
    ]
    if alone:
        found.append(StepReport(title="Run one combination by itself", commands=tuple(alone)))
    if verdict.kind == "explanation":
        # The environments of an explanation were made by `explain` and are not combinations of the matrix.
        found.append(StepReport(title="Look for the culprit again", commands=("bisect-env explain",)))
        return tuple(found)
    asked = "run" if verdict.table is None else "map"
    if study.status is not StudyStatus.FINISHED or is_open or verdict.status != "confirmed":
        # Without `--fresh`, because the stored trials are still needed.
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
    """Return the shell commands that build the environment of a lock and run the script in it.

    The README of a directory made by `bisect-env reproduce` lists the same commands.
    """
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


def _matrix_data(study: Study) -> dict[str, Any]:
    data = yaml_source.parse(study.definition.matrix_text).data
    return data if isinstance(data, dict) else {}


def own_date(study: Study) -> datetime | None:
    """Return the time given as `exclude_newer` in the matrix file, or None if there is none."""
    named = _matrix_data(study).get("exclude_newer")
    try:
        return cutoff(str(named)) if named else None
    except ValueError:
        # A newer release may store a form that this one cannot read.
        return None


def at(cell: Mapping[str, str], axes: Sequence[AxisInfo]) -> str:
    """Format a combination for the option `--at`, leaving out the axes that have only one value."""
    several = {axis.name for axis in axes if len(axis.values) > 1}
    return ",".join(f"{axis}={value}" for axis, value in cell.items() if axis in several)


# --------------------------------------------------------------------------------------------------
# From stored data to the report. Pure.

STACK_LIMIT = 12_000
"""Maximum number of characters of a stack; the database has the whole stack."""
OUTPUT_LINES = 15
"""Number of last output lines that are shown for a failure without a stack."""
_SHOWN = 3
"""Maximum number of combinations that a warning names."""
_LEAST_RATE = 1e-6
"""Lowest failure rate that is assumed of a combination."""


def _changed(
    difference: DifferenceReport | None, explanation: Explanation | None, *, fixed: bool
) -> list[str]:
    """Return the packages that cause the failure, each with its old and new version.

    If these packages are not known, return all packages that differ between last good and first bad.

    Args:
        difference: Packages that differ between the two sides.
        explanation: Explanation of the difference, whose changes lead from the good side to the bad one.
        fixed: Whether the good side comes after the bad one.
    """
    if explanation is not None and explanation.culprits:
        culprits = [explanation.changes[i] for i in explanation.culprits]
        versions = [(one.name, *((one.new, one.old) if fixed else (one.old, one.new))) for one in culprits]
        return [f"{name} {old} → {new}" for name, old, new in versions]
    changes = difference.changes if difference is not None else ()
    return [
        f"{one.name} {one.before.version if one.before else '(none)'} → "
        f"{one.after.version if one.after else '(none)'}"
        for one in changes
    ]


def _scripts(study: Study) -> list[str]:
    """Return the paths of the files that the matrix names in `trial.files`."""
    trial = _matrix_data(study).get("trial")
    files = trial.get("files") if isinstance(trial, dict) else None
    return [files] if isinstance(files, str) else [str(file) for file in files or ()]


def _in_matrix_order(states: Sequence[CombinationState], axes: Sequence[AxisInfo]) -> list[CombinationState]:
    """Return the combinations in the order of the matrix.

    The database may hold some in another order.
    """
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
    members = measurements(states, axes)
    seconds: defaultdict[Combination, float] = defaultdict(float)
    for trial in trials:
        seconds[trial.combination] += trial.duration
    is_bad = calls_bad(verdict)
    reports = []
    for state in states:
        combination = state.combination
        measured = [one for one in members[combination] if one in counts]
        total = _sum([counts[one] for one in measured])
        outcomes: Counter[str] = Counter()
        for (_, outcome), number in total.by_outcome.items():
            outcomes[str(outcome)] += number
        status = CombinationStatus(state.status)
        # What has good or bad trials is shown with them, whatever came later.
        is_known = status in CAN_RUN or total.counted > 0
        called_bad = is_bad(combination.as_dict()) if is_known else None
        if called_bad is None and is_known:
            called_bad = _called_by_trials(verdict, members[combination], total)
        if total.by_outcome and not total.counted and verdict.table is None:
            # Its trials show neither; they say more than what its neighbours suggest.
            called_bad = None
        reports.append(
            CombinationReport(
                combination=combination.as_dict(),
                # An unlocked combination is shown as solvable; it has neither a lock nor trials.
                status=str(CombinationStatus.SOLVABLE if is_known else status),
                reason=state.reason,
                lock=state.lock_hash,
                good=total.good,
                bad=total.bad,
                other=total.other,
                void=total.void,
                skip=total.skip,
                outcomes=dict(sorted(outcomes.items())),
                rate=total.bad / total.counted if total.counted else None,
                interval=clopper_pearson(total.bad, total.counted),
                verdict=None if called_bad is None else "bad" if called_bad else "good",
                same_as=measured[0].as_dict() if measured and combination not in measured else None,
                seconds=round(seconds[combination], 3),
            )
        )
    return tuple(reports)


def _called_by_trials(
    verdict: VerdictDocument, shared: Sequence[Combination], total: EvidenceCounts
) -> bool | None:
    """Return whether a combination is bad according to a verdict without sets of bad values.

    The two combinations of the boundary are as the verdict states. The others are called by what explains
    their trials better: the failure rate of bad combinations, or that of good ones. Returns None for other
    verdicts, and for a combination without any trial.

    Args:
        verdict: Verdict of the study.
        shared: The combination and all that share its trials.
        total: Their trials.
    """
    if not verdict.is_decided or verdict.kind not in ("frontier", "pair"):
        return None
    cells = [one.as_dict() for one in shared]
    if verdict.first_bad in cells or verdict.last_good in cells:
        return verdict.first_bad in cells
    if not total.counted:
        return None
    low, high = verdict.background_rate, verdict.typical_bad_rate
    if low is None or high is None or low >= high:
        return total.bad > 0
    # No rate is exactly 0 or 1.
    low, high = max(low, _LEAST_RATE), min(high, 1.0 - _LEAST_RATE)
    passed = total.counted - total.bad
    return total.bad * math.log(high / low) > passed * math.log((1.0 - low) / (1.0 - high))


def _sum(counts: Iterable[EvidenceCounts]) -> EvidenceCounts:
    total = EvidenceCounts()
    for one in counts:
        total.add_all(one)
    return total


def _outcome_at(
    first_bad: Mapping[str, str] | None,
    counts: Mapping[Combination, EvidenceCounts],
    failures: Sequence[tuple[FailureGroup, WholeTrial]],
) -> str | None:
    """Return the outcome that all bad trials have in common, or None if their outcomes differ.

    Only bad trials at the first bad combination are compared. If there are none, all bad trials are compared.
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
    """Count the bad trials, and the good or bad trials, of all combinations that the verdict calls bad.

    Both numbers are 0 if the study has no answer.
    """
    if not verdict.is_decided:
        return 0, 0
    is_bad = calls_bad(verdict)
    found = [count for one, count in counts.items() if is_bad(one.as_dict())]
    return sum(count.bad for count in found), sum(count.counted for count in found)


def _latest(decisions: Sequence[Decision], kind: str, model: type[_Part]) -> _Part | None:
    """Return the content of the latest stored decision of one kind, or None if there is none.

    The content is validated with the pydantic class `model`.
    """
    found = [decision.payload for decision in decisions if decision.kind == kind]
    return model.model_validate(found[-1]) if found else None


def _lost(total: EvidenceCounts) -> list[str]:
    """Return a warning, as a list, if many trials are void because of problems of the infrastructure."""
    everything = sum(total.by_outcome.values())
    if total.void < max(3, everything / 10):
        return []
    outcomes = [(n, str(outcome)) for (said, outcome), n in total.by_outcome.items() if said is Evidence.VOID]
    named = ", ".join(f"{outcome} {number}" for number, outcome in sorted(outcomes, reverse=True))
    lost = f"{total.void} of {everything} trials were lost to the infrastructure ({named})"
    return [f"{lost}; they say nothing about the script"]


def _environment_warnings(states: Sequence[CombinationState]) -> list[str]:
    """Return the solver's warnings about runnable environments.

    Equal warnings about several combinations are merged into one.
    """
    groups: dict[str, list[Combination]] = {}
    for state in states:
        if state.status is CombinationStatus.SOLVABLE and state.reason:
            groups.setdefault(state.reason, []).append(state.combination)
    warnings = [f"{and_more([str(one) for one in members], 1)}: {text}" for text, members in groups.items()]
    return first_few(
        warnings, _SHOWN, one="more environment has warnings", many="more environments have warnings"
    )


def _mixed(machines: Sequence[Machine]) -> list[str]:
    if len(machines) < 2:
        return []
    named = "; ".join(map(str, machines))
    text = f"the trials ran on {len(machines)} classes of machines ({named}); "
    return [f"{text}if the failure depends on the machine, their rates do not belong together"]


# --------------------------------------------------------------------------------------------------
# Reading the store: the only part of this package with side effects.

QUESTION_LIMIT = 64 * 1024
"""Maximum total size in bytes of the files in a report."""
FAILURES = 5
"""Maximum number of kinds of failures in a report."""


def load_report(store: Store, study_id: str) -> Report:
    """Return the report of a study, read from one consistent state of the database.

    Args:
        store: Store with the study.
        study_id: Full id of the study.
        posterior: Whether to record the probabilities of answers trial by trial, which takes as long as the
            search did.

    Raises:
        UsageError: There is no such study.
        StorageError: The database cannot be read.
    """
    with store.reading():
        study = store.study(study_id)
        known = store.study_trials(study.id)
        trials, target = known.look(), known.target
        # Failures that the study is about come first, so that others never displace them.
        groups = sorted(failures_of(trials), key=lambda group: group.evidence is not Evidence.BAD)
        examples = [(group, store.trial(group.trial_id)) for group in groups[:FAILURES]]
        failures = [(group, example) for group, example in examples if example is not None]
        states = store.combinations(study.id)
        current = weighed(study, states, trials)
        study = replace(study, verdict=current.verdict)
        verdict = study.verdict or VerdictDocument()
        good, bad = (_lock(store, states, cell) for cell in (verdict.last_good, verdict.first_bad))
        origins, decisions = store.origins(study.id), store.decisions(study.id)
        question = _question(study, *store.files(study.id))
    axes = study.definition.grid
    asked = Asked.of(study.definition.matrix_path, [axis.name for axis in axes])
    states = _in_matrix_order(states, axes)
    difference = _difference(study, good, bad)
    counts = counts_of(trials)
    machines = tuple(one for one in machines_of(trials) if one != UNKNOWN_MACHINE)
    own = [trial for trial in trials if not trial.reused]
    total = _sum(counts.values())
    verdict = with_iterations(study.verdict or VerdictDocument(trials=total.counted), trials)
    combinations = _combinations(states, counts, axes, verdict, own)
    explanation = _latest(decisions, EXPLAINED, Explanation)
    said = sentence(
        verdict,
        axes,
        _outcome_at(verdict.first_bad, counts, failures),
        _changed(difference, explanation, fixed=side_names(verdict, axes)[0] == "last bad"),
    )
    said = readable(said, labels(axes))
    steady = stability(own)
    unavailable = [one.reason for one in combinations if one.status in _UNAVAILABLE]
    traced = _latest(decisions, TRACED, TracedReport)
    if traced is not None:
        # `between` first confirms that one environment fails; its real answer is in this chapter.
        said = traced.sentence
    commit = _latest(decisions, COMMIT, CommitReport)
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
        reused=_counted_origins(origins, trials),
        combinations=combinations,
        failures=ways,
        stability=steady,
        advice=tuple(
            advice(
                verdict,
                axes,
                ways,
                trials,
                study.definition.settings,
                _scripts(study),
                [reason for reason in unavailable if reason.strip()],
                asked,
                _elapsed(study),
                target,
            )
        ),
        warnings=(
            *came_since(current.since),
            *amplified(decisions),
            *verdict_warnings(verdict, axes, asked),
            *withdrawn_warnings(verdict, axes),
            *speed_warnings(verdict, axes, trials),
            *several_failures(verdict, axes, trials, asked),
            *rate_warnings(study.definition.settings.get("crash_rate"), *_of_bad_ones(verdict, counts)),
            *_good_side(verdict, axes, counts, study.definition.settings),
            *stability_warnings(steady),
            *machine_warnings(own),
            *other_failures(trials, "" if target.is_open else shown(target.signature)),
            *_lost(total),
            *_environment_warnings(states),
            *_mixed(machines),
        ),
        work=work_of(own, decisions),
        machines=machines,
        difference=difference,
        explanation=explanation,
        traced=traced,
        commit=commit,
        question=question,
        reproduce=steps(study, axes, verdict, bad, is_open=bool(current.since)),
    )


def report_document(store: Store, study_id: str) -> dict[str, Any]:
    """Return the report of a study as a JSON object, as `--format json` and `run --json` print it."""
    return load_report(store, study_id).document()


def _question(study: Study, files: Sequence[StudyFile], missing: Sequence[str]) -> QuestionReport:
    """Return the matrix and as many of its files as fit into a report.

    The smallest files are chosen first, up to `QUESTION_LIMIT` bytes in total.
    """
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


def _counted_origins(origins: Iterable[Origin], trials: Iterable[StoredTrial]) -> tuple[Origin, ...]:
    """Return the studies whose trials are reused, each with the number of its good and bad trials.

    The study with the most of these trials is first; studies without any are left out.
    """
    counts = Counter(trial.study_id for trial in trials if trial.reused and trial.evidence in COUNTED)
    found = [one.model_copy(update={"trials": counts[one.study_id]}) for one in origins]
    return tuple(sorted((one for one in found if one.trials), key=lambda one: -one.trials))


def _elapsed(study: Study) -> float:
    """Return the seconds from the beginning of a study to its end, or 0 if it has not come to its end."""
    if study.status is not StudyStatus.FINISHED or study.finished_at is None:
        return 0.0
    return (study.finished_at - study.created_at).total_seconds()


def _lock(store: Store, states: Sequence[CombinationState], cell: Mapping[str, str] | None) -> Lock | None:
    hashes = [s.lock_hash for s in states if s.lock_hash and s.combination.as_dict() == cell]
    return store.lock(hashes[0]) if hashes else None


def _difference(study: Study, good: Lock | None, bad: Lock | None) -> DifferenceReport | None:
    """Return the packages that differ between last good and first bad, or None if one of these is unknown.

    For a fix, the changes lead from the last bad to the first good combination. Project
    pages are included if the prefixes are on this host.
    """
    verdict = study.verdict or VerdictDocument()
    if good is None or bad is None or verdict.last_good is None or verdict.first_bad is None:
        return None
    sides = [(verdict.last_good, good), (verdict.first_bad, bad)]
    if side_names(verdict, study.definition.grid)[0] == "last bad":
        sides.reverse()
    (before, old), (after, new) = sides
    prefixes = default_cache_dir() / "prefixes"
    urls = project_urls(prefixes / lock.content_hash for lock in (old, new))
    changes = difference(old, new, study.definition.packages, urls)
    return DifferenceReport(before=before, after=after, summary=counted(changes), changes=tuple(changes))
