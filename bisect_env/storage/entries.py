"""Data classes that the store accepts and returns, such as `Study` and `StoredTrial`, without any SQL."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import Combination, Grid, GridAxis
from bisect_env.trials.judge import Target
from bisect_env.trials.records import Evidence, Machine, Outcome, TrialFacts, TrialRecord


class StudyStatus(StrEnum):
    """The status of a study, such as open or finished."""

    OPEN = "open"
    """The study is running, or it was killed before it could store another status."""
    FINISHED = "finished"
    """The study ended regularly, with or without a verdict."""
    INTERRUPTED = "interrupted"
    """The user stopped the study; the same command resumes it."""
    FAILED = "failed"
    """An error stopped the study; the same command resumes it after the error has been corrected."""


class CombinationStatus(StrEnum):
    """The status of a combination: whether it can be tried, and if not, why."""

    UNLOCKED = "unlocked"
    """The combination has not been locked yet, because no trial of it was wanted."""
    SOLVABLE = "solvable"
    """The combination has a lock, so its environment can be built."""
    EXCLUDED = "excluded"
    """A rule of the matrix excludes the combination."""
    UNSOLVABLE = "env-unsolvable"
    """The solver found no environment with these versions."""
    UNBUILDABLE = "env-unbuildable"
    """The environment, or a package whose metadata the solver needs, cannot be built."""
    SET_ASIDE = "set-aside"
    """Trials showed that the combination cannot be tested, so it gets no more trials."""


LEARNT = (CombinationStatus.UNBUILDABLE, CombinationStatus.SET_ASIDE)
"""Statuses that result from a build or a trial, and not from the solver or the matrix."""


@dataclass(frozen=True, slots=True)
class StudyDefinition:
    """The definition of a study: its axes, its matrix and the settings of its search.

    Attributes:
        name: Name of the study, as the matrix states it.
        digest: Digest of everything that decides what a trial means (`Matrix.digest`).
        matrix_path: Path of the matrix file as the user named it; "" if the question comes from no file.
        matrix_text: Raw text of the matrix file; the matrix as JSON if there is no file.
        files: Files of the trial to store; None to keep those already stored. `Store.files` reads them.
        description: Description of the study in the matrix.
        grid: Axes in matrix order.
        settings: JSON object with the settings of the search and others that may change on resuming.
        target: The failure that the study is about, as the matrix states it.
        exclude_newer: Time from which on releases are ignored; a resumed study keeps its first one.
        version: Version of bisect-env that runs the study.
        host: Name of the host that runs the study.
        user: Name of the user who runs the study.
        fresh: Whether the study starts anew, without trials of earlier studies.
    """

    name: str
    digest: str
    matrix_path: str
    matrix_text: str
    files: tuple[StudyFile, ...] | None = None
    description: str = ""
    grid: tuple[AxisInfo, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    target: Target = field(default_factory=Target)
    exclude_newer: datetime | None = None
    version: str = ""
    host: str = ""
    user: str = ""
    fresh: bool = False

    @property
    def packages(self) -> list[str]:
        """Return the names of the packages that the axes of the matrix vary, in matrix order."""
        # If an axis names no package, its own name is the package.
        named = (axis.name if axis.package is None else axis.package for axis in self.grid)
        return [name for name in named if name]


@dataclass(frozen=True, slots=True)
class Study:
    """A study as stored in the database: its definition, its status and its verdict.

    Attributes:
        id: Unique id of 32 hex digits. Users may name the study by any unique beginning of it.
        definition: Definition with which the study was last opened.
        status: Whether the study is open, finished, interrupted or failed.
        verdict: The latest verdict; None before the first one.
        created_at: Time (UTC) at which the study was created.
        finished_at: Time (UTC) at which the study ended; None while it is open.
    """

    id: str
    definition: StudyDefinition
    status: StudyStatus
    verdict: VerdictDocument | None
    created_at: datetime
    finished_at: datetime | None

    @property
    def name(self) -> str:
        """Return the name of the study, as its matrix states it."""
        return self.definition.name

    @property
    def exclude_newer(self) -> datetime | None:
        """Return the time (UTC) up to which releases in the package index are considered, or None."""
        return self.definition.exclude_newer

    @property
    def grid(self) -> Grid:
        """Return the version matrix of the study, with the stated good and bad end.

        The matrix is the one with which the study was last opened.
        """
        grid = Grid(tuple(GridAxis(a.name, a.kind, a.values, a.direction) for a in self.definition.grid))
        ends = self.definition.settings.get("ends") or {}
        stated = {end: grid.find(Combination.of(ends[end])) for end in ("good", "bad") if ends.get(end)}
        return replace(grid, good=stated.get("good"), bad=stated.get("bad"))


@dataclass(frozen=True, slots=True)
class CombinationState:
    """One combination of a study, with its status (such as solvable or excluded) and its lock.

    Attributes:
        combination: The combination.
        status: Whether the combination can be tried, and if not, why.
        reason: Reason of the status; for a solvable one, warnings about its environment, mostly "".
        lock_hash: Hash of its lock; None if it has none.
    """

    combination: Combination
    status: CombinationStatus
    reason: str = ""
    lock_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrial(TrialFacts):
    """A stored trial of a study with its evidence, but without its logs.

    `combination` is the combination for which the trial counts in this study, even if it was run for another
    one.

    Attributes:
        sequence: Number that grows in the order in which the study received its trials.
        study_id: Id of the study that recorded the trial.
        reused: Whether another study recorded the trial.
        matched: Whether its output matches a pattern of the study's target.
        recorded_at: Time (UTC) at which the trial was recorded.
        evidence: What the trial means in this study: good, bad, other, void or skip.
    """

    sequence: int
    study_id: str
    reused: bool
    matched: bool
    recorded_at: datetime
    evidence: Evidence = Evidence.VOID


@dataclass(frozen=True, slots=True)
class WholeTrial:
    """A trial with its logs, as stored by the study that recorded the trial.

    Attributes:
        study_id: Id of the study that recorded the trial.
        record: The trial's record, including logs.
        collected: Whether some logs were deleted to save space; these are "" in `record`.
    """

    study_id: str
    record: TrialRecord
    collected: bool = False


@dataclass(slots=True)
class EvidenceCounts:
    """Counts of the good, bad, other, skipped and void trials of one or more combinations.

    Attributes:
        good: Number of trials that passed.
        bad: Number of trials with the failure that the study looks for.
        other: Number of trials with another failure.
        void: Number of trials that do not count because of a fault of the infrastructure.
        skip: Number of trials that showed that the combination cannot be tested.
        by_outcome: Maps (evidence, outcome) to the number of trials.
    """

    good: int = 0
    bad: int = 0
    other: int = 0
    void: int = 0
    skip: int = 0
    by_outcome: Counter[tuple[Evidence, Outcome]] = field(default_factory=Counter)

    def add(self, evidence: Evidence, outcome: Outcome, number: int = 1) -> None:
        """Add a number of trials with the same evidence and outcome to the counts."""
        setattr(self, str(evidence), getattr(self, str(evidence)) + number)
        self.by_outcome[evidence, outcome] += number

    def add_all(self, other: EvidenceCounts) -> None:
        """Add the counts of another object to these counts."""
        for kind, number in other.by_outcome.items():
            self.add(*kind, number)

    @property
    def counted(self) -> int:
        """Return the number of good and bad trials, which are the ones that count for the failure rate."""
        return self.good + self.bad


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """A group of trials of a study that failed in the same way.

    Attributes:
        signature: Common signature of the failures; "" if they have none.
        outcome: Common outcome of the trials.
        evidence: Common evidence of the trials, bad or other.
        trials: Number of trials in the group.
        trial_id: Id of the trial that was recorded first.
    """

    signature: str
    outcome: Outcome
    evidence: Evidence
    trials: int
    trial_id: str


def counts_of(trials: Collection[StoredTrial]) -> dict[Combination, EvidenceCounts]:
    """Count the trials of each combination by evidence (good, bad, ...) and outcome.

    Combinations without trials are left out.
    """
    found: defaultdict[Combination, EvidenceCounts] = defaultdict(EvidenceCounts)
    for trial in trials:
        found[trial.combination].add(trial.evidence, trial.outcome)
    return dict(found)


def failures_of(trials: Collection[StoredTrial]) -> list[FailureGroup]:
    """Group failures with equal signature, outcome and evidence, the largest group first.

    Failures are trials with the evidence bad or other.
    """
    found: dict[tuple[str, Outcome, Evidence], list[str]] = {}
    for trial in trials:
        if trial.evidence in (Evidence.BAD, Evidence.OTHER):
            found.setdefault((trial.signature, trial.outcome, trial.evidence), []).append(trial.trial_id)
    # Sorting is stable: of groups with the same size, the one seen first stays first.
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [FailureGroup(*kind, trials=len(ids), trial_id=ids[0]) for kind, ids in ordered]


def environments_of(trials: Collection[StoredTrial]) -> int:
    """Return the number of different environments in which the trials ran.

    Void trials are not counted.
    """
    return len({trial.lock_hash for trial in trials if trial.evidence is not Evidence.VOID})


def machines_of(trials: Collection[StoredTrial]) -> list[Machine]:
    """Return the kinds of machines on which a study's own trials ran.

    Reused and void trials are left out.
    """
    own = (trial for trial in trials if not trial.reused and trial.evidence is not Evidence.VOID)
    return sorted({trial.machine for trial in own}, key=str)


BUILT, BUILD_FAILED = "built", "build-failed"
"""Kinds of decisions about built environments. The payload has `lock`, and `seconds` or `reason`."""
EXPLAINED = "explained"
"""Kind of the decision with the result of `bisect-env explain`; the last one counts."""
TRACED = "traced"
"""Kind of the decision with the result of `bisect-env between`; the last one counts.

The payload has `sentence`, and the `study` and `releases` of the study that bisected the culprit's releases;
these are "" if there is no such study."""
COMMIT = "commit"
"""Kind of the decision with details of the first bad commit (`engine/document.py`); the last one counts.

If another study found the commit, the payload has the `study` and `sentence` of that one."""
AMPLIFIED = "amplify"
"""Kind of the decision with the circumstances (such as CPU load) under which a study's trials run; the first
one counts. See `engine/amplify.py`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A stored note about something that was decided or found during a study.

    Attributes:
        at: Time (UTC) at which the decision was stored.
        kind: Kind of the decision, such as `AMPLIFIED`.
        payload: Data of the decision, as a JSON object.
    """

    at: datetime
    kind: str
    payload: dict[str, Any]
