"""The plain data that the store takes and gives, without any SQL."""

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
    """Running, or ended by something that left it no time to say so."""
    FINISHED = "finished"
    """It came to its end, with or without a verdict."""
    INTERRUPTED = "interrupted"
    """Stopped by the user; the same command goes on."""
    FAILED = "failed"
    """Stopped by an error; the same command goes on once that is corrected."""


class CombinationStatus(StrEnum):
    """The status of a combination: whether it can be tried, and if not, why."""

    UNLOCKED = "unlocked"
    """Nobody has asked for its environment yet."""
    SOLVABLE = "solvable"
    """It has a lock."""
    EXCLUDED = "excluded"
    """A rule of the matrix takes it out."""
    UNSOLVABLE = "env-unsolvable"
    """No environment satisfies it."""
    UNBUILDABLE = "env-unbuildable"
    """Its environment cannot be built."""
    SET_ASIDE = "set-aside"
    """Its trials say nothing about the question."""


LEARNT = (CombinationStatus.UNBUILDABLE, CombinationStatus.SET_ASIDE)
"""Statuses that were found by a build or a trial, and not by the solver."""


@dataclass(frozen=True, slots=True)
class StudyDefinition:
    """The definition of a study: its axes, its matrix and the settings of its search.

    Attributes:
        name: Name in the matrix.
        digest: Digest of everything that decides what a trial means (`Matrix.digest`).
        matrix_path: Path of the matrix file as the user named it, "" if the question comes from no file.
        matrix_text: Raw text of the file; JSON if there is none.
        files: Files of the trial to be stored; None keeps those that are. `Store.files` reads them.
        description: Description in the matrix.
        grid: Axes in matrix order.
        settings: JSON object: the search's settings and others that may change when a study is resumed.
        target: The failure that the study is about, as the matrix states it.
        exclude_newer: The moment as of which the index is seen; a resumed study keeps its first one.
        version: Version of bisect-env.
        host: Host name.
        user: Name of the user.
        fresh: Whether it starts without any earlier trials.
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
    """A stored study.

    Attributes:
        id: 32 hex digits; any unique beginning of it names the study to a user.
        definition: As given last.
        status: How far it is.
        verdict: The verdict stored last, None before the first.
        created_at: UTC.
        finished_at: UTC, None while it is open.
    """

    id: str
    definition: StudyDefinition
    status: StudyStatus
    verdict: VerdictDocument | None
    created_at: datetime
    finished_at: datetime | None

    @property
    def name(self) -> str:
        """Return the name that the matrix gives this study."""
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
    """One combination of a study, with its status and its lock.

    Attributes:
        combination: The combination.
        status: Whether it can be tried, and if not, why.
        reason: Reason of the status; for solvable ones the warnings of their environment, mostly "".
        lock_hash: Hash of its lock, if it has one.
    """

    combination: Combination
    status: CombinationStatus
    reason: str = ""
    lock_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrial(TrialFacts):
    """A trial of a study, without its logs.

    `combination` is the combination that it counts for in this study.

    Attributes:
        sequence: Grows in the order in which the study received its trials.
        study_id: The study that recorded it.
        reused: Whether another study recorded it.
        matched: Whether its output contains the study's pattern.
        recorded_at: When it was recorded, in UTC.
        evidence: Its evidence in the study.
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
        study_id: The study that recorded it.
        record: Its record, including logs.
        collected: Whether some of its logs were dropped to save space; these are "".
    """

    study_id: str
    record: TrialRecord
    collected: bool = False


@dataclass(slots=True)
class EvidenceCounts:
    """The numbers of good, bad, other, skipped and void trials of some combinations.

    Attributes:
        good: Passes.
        bad: Trials that showed the target.
        other: Failures of another kind.
        void: Trials that do not count because of a fault of the infrastructure.
        skip: Trials that said that nothing can be learnt.
        by_outcome: (evidence, outcome) to number of trials.
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
        """Return the number of trials that were good or bad."""
        return self.good + self.bad


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Trials of a study that failed in the same way.

    Attributes:
        signature: Their common signature, or "".
        outcome: Their outcome.
        evidence: Their evidence.
        trials: Number of trials.
        trial_id: Id of the first recorded one.
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
"""Kinds of decisions about environments; their payload has `lock`, and `seconds` or `reason`."""
EXPLAINED = "explained"
"""Kind of the decision that holds what `bisect-env explain` found out; the last one counts."""
TRACED = "traced"
"""Kind of the decision that holds where a difference of two environments led: `sentence`, and of the study of
the culprit's releases `study` and `releases`, "" where there is none; the last one counts."""
COMMIT = "commit"
"""Kind of the decision that holds what is known of the first bad commit (`engine/document.py`), and
where another study found it that one's `study` and `sentence`; the last one counts."""
AMPLIFIED = "amplify"
"""Kind of the decision under which circumstances a study's trials run (`engine/amplify.py`); the first one
counts."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A stored note about something that was decided or found during a study.

    Attributes:
        at: UTC.
        kind: Kind of the decision.
        payload: JSON object.
    """

    at: datetime
    kind: str
    payload: dict[str, Any]
