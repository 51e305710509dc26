"""The plain data that the store takes and gives, without any SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from bisect_env.matrix.grid import Combination
from bisect_env.trials.records import (
    Evidence,
    Outcome,
    TrialFacts,
    TrialRecord,
)


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
    exclude_newer: datetime | None = None
    version: str = ""
    host: str = ""
    user: str = ""
    fresh: bool = False

    @property
    def packages(self) -> list[str]:
        """Packages that the axes move, in matrix order."""
        # Studies of older releases say nothing of packages; an axis is mostly called as what it moves.
        named = (axis.get("package", axis["name"]) for axis in self.grid)
        return [name for name in named if name]


@dataclass(frozen=True, slots=True)
class Study:
    """A stored study.

    Attributes:
        id: 32 hex digits; any unique beginning of it names the study to a user.
        definition: As given last.
        status: How far it is.
        verdict: The verdict document stored last, None before the first.
        created_at: UTC.
        updated_at: UTC; of the last change to the study itself, not of its last trial.
        finished_at: UTC, None while it is open.
    """

    id: str
    definition: StudyDefinition
    status: StudyStatus
    verdict: dict[str, Any] | None
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
    """A trial as a study reads thousands of them: without its logs, but with what it says there.

    Attributes:
        sequence: Grows in the order of recording.
        study_id: Its study.
        evidence: What it says in that study.
        recorded_at: UTC.
    """

    sequence: int
    study_id: str
    evidence: Evidence
    recorded_at: datetime

    def record(self, **logs: Any) -> TrialRecord:
        """The trial's record, with the given logs."""
        return TrialRecord(**{one.name: getattr(self, one.name) for one in fields(TrialFacts)}, **logs)


@dataclass(frozen=True, slots=True)
class WholeTrial:
    """A trial with everything that is known about it.

    Attributes:
        study_id: Its study.
        record: What it did, logs included.
        evidence: What that says in its study.
        recorded_at: UTC.
        collected: Whether some of its logs were collected to make room; they are "" then.
    """

    study_id: str
    record: TrialRecord
    evidence: Evidence
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
class News:
    """The results and claims of other commands since the last look.

    Attributes:
        trials: Recorded since, in order.
        claimed: Trials of each combination that others run now, by who claimed them.
        last: The `sequence` up to which everything is known by now.
    """

    trials: list[StoredTrial]
    claimed: Mapping[str, Counter[Combination]]
    last: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where trials that a study reused were measured: study, user and host.

    Attributes:
        study_id: The study that recorded them.
        study: Its name.
        user: Who ran it.
        host: Where its command ran.
        trials: How many.
    """

    study_id: str
    study: str
    user: str
    host: str
    trials: int


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
TARGET = "target"
"""Kind of the decision which failure a study is about; its payload has `signature` and `trial`."""


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
