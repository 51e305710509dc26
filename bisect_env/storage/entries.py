"""The plain data that the store takes and gives, without any SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.matrix.grid import AxisKind, Combination, Direction, Grid, GridAxis
from bisect_env.trials.judge import Target
from bisect_env.trials.records import Evidence, Machine, Outcome, TrialFacts, TrialRecord


class StudyStatus(StrEnum):
    """How far a study is."""

    OPEN = "open"
    """Running, or ended by something that left it no time to say so."""
    FINISHED = "finished"
    """It came to its end, with or without a verdict."""
    INTERRUPTED = "interrupted"
    """Stopped by the user; the same command goes on."""
    FAILED = "failed"
    """Stopped by an error; the same command goes on once that is mended."""


class CombinationStatus(StrEnum):
    """Whether anything can be learnt at a combination."""

    UNLOCKED = "unlocked"
    """Nobody has asked for its environment yet."""
    SOLVABLE = "solvable"
    """It has a lock."""
    EXCLUDED = "excluded"
    """A rule of the matrix takes it out."""
    UNSOLVABLE = "unsolvable"
    """No environment satisfies it."""
    UNBUILDABLE = "unbuildable"
    """Its environment cannot be built."""
    SET_ASIDE = "set-aside"
    """Its trials say nothing about the question."""

    @property
    def is_learnt(self) -> bool:
        """Whether it was found out by running something, not by solving."""
        return self in (CombinationStatus.UNBUILDABLE, CombinationStatus.SET_ASIDE)


@dataclass(frozen=True, slots=True)
class StudyDefinition:
    """The question of a study and its settings.

    Attributes:
        name: Of the matrix.
        digest: Of everything that decides what a trial means (`Matrix.digest`).
        matrix_path: As the user named it.
        matrix_text: The file's raw text.
        description: Of the matrix.
        grid: JSON list, in matrix order an object for each axis: `name`, `kind`, `direction`, `values`.
        settings: JSON object: the search's settings and whatever else may change when a study goes on.
        target: The failure that the study is about, as the matrix states it.
        exclude_newer: The moment as of which the index is seen; a study that goes on keeps its first one.
        version: Of bisect-env.
        host: Host name.
        user: Name of the user.
        fresh: Whether it starts from nothing, whatever has been measured already.
    """

    name: str
    digest: str
    matrix_path: str
    matrix_text: str
    description: str = ""
    grid: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    target: Target = field(default_factory=Target)
    exclude_newer: datetime | None = None
    version: str = ""
    host: str = ""
    user: str = ""
    fresh: bool = False

    @property
    def packages(self) -> list[str]:
        """Packages that the axes move, in matrix order."""
        # Where an axis names no package, it is called as what it moves.
        named = (axis.get("package", axis["name"]) for axis in self.grid)
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
        updated_at: UTC; of the last change to the study itself, not of its last trial.
        finished_at: UTC, None while it is open.
    """

    id: str
    definition: StudyDefinition
    status: StudyStatus
    verdict: VerdictDocument | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None

    @property
    def name(self) -> str:
        """Of the matrix."""
        return self.definition.name

    @property
    def exclude_newer(self) -> datetime | None:
        """The moment as of which the index is seen, UTC."""
        return self.definition.exclude_newer

    @property
    def grid(self) -> Grid:
        """The combinations that the study was about when it was opened last, with its stated ends."""
        axes = tuple(
            GridAxis(
                axis["name"],
                AxisKind(axis.get("kind", AxisKind.PACKAGE)),
                tuple(axis["values"]),
                Direction(axis.get("direction", Direction.REGRESSION)),
            )
            for axis in self.definition.grid
        )
        grid = Grid(axes)
        ends = self.definition.settings.get("ends") or {}
        stated = {end: grid.find(Combination.of(ends[end])) for end in ("good", "bad") if ends.get(end)}
        return replace(grid, good=stated.get("good"), bad=stated.get("bad"))


@dataclass(frozen=True, slots=True)
class CombinationState:
    """One combination of a study.

    Attributes:
        combination: The point of the matrix.
        status: A `CombinationStatus`.
        reason: Why; of solvable ones what their environment warns of, mostly "".
        lock_hash: Of its lock, if it has one.
    """

    combination: Combination
    status: str
    reason: str = ""
    lock_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrial(TrialFacts):
    """A trial of a study, without its logs.

    `combination` is the one that it stands for in this study.

    Attributes:
        sequence: Grows in the order in which the study got its trials.
        study_id: The study that recorded it.
        reused: Whether that is another study than the one that was asked for.
        matched: Whether its output contains what the study looks for.
        evidence: Its meaning in the study.
        recorded_at: UTC.
    """

    sequence: int
    study_id: str
    reused: bool
    matched: bool
    recorded_at: datetime
    evidence: Evidence = Evidence.VOID

    def judged(self, evidence: Evidence) -> StoredTrial:
        """Return the trial with its evidence."""
        return replace(self, evidence=evidence)


@dataclass(frozen=True, slots=True)
class WholeTrial:
    """A trial with its logs, as the study that recorded it has it.

    Attributes:
        study_id: The study that recorded it.
        record: What it did, logs included.
        recorded_at: UTC.
        collected: Whether some of its logs were collected to make room; they are "" then.
    """

    study_id: str
    record: TrialRecord
    recorded_at: datetime
    collected: bool = False


@dataclass(frozen=True, slots=True)
class Want:
    """A trial that a command wants to run.

    Attributes:
        trial_id: It will have.
        combination: Of the study.
        believed: Trials of this combination that are recorded in the study or being run, as far as who asks
            knows; of those recorded only what is counted, see `Store.claim`.
    """

    trial_id: str
    combination: Combination
    believed: int


@dataclass(frozen=True, slots=True)
class EvidenceCounts:
    """How many trials of one combination said what.

    Attributes:
        by_outcome: (evidence, outcome) to number of trials.
    """

    by_outcome: Mapping[tuple[Evidence, Outcome], int] = field(default_factory=dict)

    def of(self, evidence: Evidence) -> int:
        """Number of trials with this evidence."""
        return sum(n for (said, _), n in self.by_outcome.items() if said is evidence)

    @property
    def good(self) -> int:
        """Passes."""
        return self.of(Evidence.GOOD)

    @property
    def bad(self) -> int:
        """Trials that showed the target."""
        return self.of(Evidence.BAD)

    @property
    def other(self) -> int:
        """Failures of another kind."""
        return self.of(Evidence.OTHER)

    @property
    def void(self) -> int:
        """Trials that infrastructure spoilt."""
        return self.of(Evidence.VOID)

    @property
    def skip(self) -> int:
        """Trials that said nothing can be learnt."""
        return self.of(Evidence.SKIP)

    @property
    def counted(self) -> int:
        """Trials that are evidence: good and bad."""
        return self.good + self.bad


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Trials of a study that failed in the same way.

    Attributes:
        signature: What makes them the same, or "".
        outcome: What they did.
        evidence: What that says.
        trials: How many.
        trial_id: One of them, the first recorded.
    """

    signature: str
    outcome: Outcome
    evidence: Evidence
    trials: int
    trial_id: str


def counts_of(trials: Collection[StoredTrial]) -> dict[Combination, EvidenceCounts]:
    """Count the trials of each combination by evidence and outcome; combinations without any are left out."""
    found: dict[Combination, Counter[tuple[Evidence, Outcome]]] = {}
    for trial in trials:
        found.setdefault(trial.combination, Counter())[(trial.evidence, trial.outcome)] += 1
    return {combination: EvidenceCounts(dict(by_outcome)) for combination, by_outcome in found.items()}


def failures_of(trials: Collection[StoredTrial]) -> list[FailureGroup]:
    """Group failures (bad and other ones) by signature, outcome and evidence, the most frequent first."""
    found: dict[tuple[str, Outcome, Evidence], list[str]] = {}
    for trial in trials:
        if trial.evidence in (Evidence.BAD, Evidence.OTHER):
            found.setdefault((trial.signature, trial.outcome, trial.evidence), []).append(trial.trial_id)
    # Stable: of groups of the same size the one that was seen first stays first.
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [FailureGroup(*kind, trials=len(ids), trial_id=ids[0]) for kind, ids in ordered]


def environments_of(trials: Collection[StoredTrial]) -> int:
    """Count the environments in which trials that are not void ran."""
    return len({trial.lock_hash for trial in trials if trial.evidence is not Evidence.VOID})


def machines_of(trials: Collection[StoredTrial]) -> list[Machine]:
    """List the classes of machines on which a study's own trials ran, without void ones."""
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
    """Something that was decided during a study, for those who want to follow it.

    Attributes:
        at: UTC.
        kind: What was decided.
        payload: JSON object.
    """

    at: datetime
    kind: str
    payload: dict[str, Any]
