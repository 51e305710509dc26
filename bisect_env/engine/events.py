"""The events of a running study. The live view and the output of `--json` are made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.origins import Origin
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.environments.progress import BuildStep
from bisect_env.errors import BisectEnvError, MatrixError
from bisect_env.matrix.grid import Combination
from bisect_env.trials.records import Evidence, TrialRecord


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of everything that a running study reports to the live view and to `--json`.

    By default, the JSON object of an event contains its fields.

    Attributes:
        kind: Value of the key `event` in the JSON object.
    """

    kind: ClassVar[str]

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object, one line of the output of `--json`."""
        return {"event": self.kind, **{one.name: _plain(getattr(self, one.name)) for one in fields(self)}}


def _plain(value: Any) -> Any:
    match value:
        case Combination():
            return value.as_dict()
        case Origin():
            return value.model_dump()
        case tuple():
            return [_plain(item) for item in value]
        case _:
            return value


@dataclass(frozen=True, slots=True)
class StudyOpened(Event):
    """Event: the study was begun or resumed.

    Attributes:
        study: Id of the study.
        name: Name of its matrix.
        resumed_trials: Number of trials that it already had.
    """

    kind: ClassVar[str] = "study"
    study: str
    name: str
    resumed_trials: int


@dataclass(frozen=True, slots=True)
class Reused(Event):
    """Event: trials that other studies had recorded were added to this study.

    Attributes:
        trials: Number of trials that were taken over now.
        origins: The studies from which all reused trials come, the largest share first.
    """

    kind: ClassVar[str] = "reused"
    trials: int
    origins: tuple[Origin, ...]


@dataclass(frozen=True, slots=True)
class Said(Event):
    """Event: a message about the progress that is not a warning.

    Attributes:
        text: A sentence.
    """

    kind: ClassVar[str] = "said"
    text: str


@dataclass(frozen=True, slots=True)
class LockProgress(Event):
    """Event: a solver has finished some more combinations, with or without a solution.

    Attributes:
        done: Number of combinations finished.
        total: Number of combinations requested.
    """

    kind: ClassVar[str] = "locking"
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Locked(Event):
    """Event: the matrix was expanded to the combinations of versions that the study may try.

    Attributes:
        combinations: Number of combinations of the grid.
        excluded: Number of combinations that rules of the matrix exclude.
        unsolvable: Number of combinations without a solution, as far as is known.
        environments: Number of different locks; None if combinations are locked on demand.
    """

    kind: ClassVar[str] = "locked"
    combinations: int
    excluded: int
    unsolvable: int
    environments: int | None


@dataclass(frozen=True, slots=True)
class TrialStarted(Event):
    """Event: a trial was submitted to the executor."""

    kind: ClassVar[str] = "started"
    trial: str
    combination: Combination


@dataclass(frozen=True, slots=True)
class TrialFinished(Event):
    """Event: a trial was recorded in the database."""

    kind: ClassVar[str] = "trial"
    record: TrialRecord
    evidence: Evidence

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": self.kind,
            "trial": self.record.trial_id,
            "combination": self.record.combination.as_dict(),
            "outcome": str(self.record.outcome),
            "evidence": str(self.evidence),
            "detail": self.record.detail,
            "returncode": self.record.returncode,
            "seconds": round(self.record.duration, 4),
        }


@dataclass(frozen=True, slots=True)
class Building(Event):
    """Event: the build of an environment reached a new step.

    Attributes:
        lock_hash: Content hash of the environment's lock.
        step: The present step.
        ready: Number of environments that exist.
        building: Number of environments that are being built.
    """

    kind: ClassVar[str] = "building"
    lock_hash: str
    step: BuildStep
    ready: int
    building: int

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": self.kind,
            "lock": self.lock_hash,
            "step": self.step.what,
            "package": self.step.package,
            "bytes_done": self.step.done,
            "bytes_total": self.step.total,
            "environments_ready": self.ready,
            "environments_building": self.building,
        }


@dataclass(frozen=True, slots=True)
class Built(Event):
    """Event: an environment was built.

    Attributes:
        lock: Content hash of the environment's lock.
        combinations: The combinations that use it.
        seconds: Duration of the build on the slowest host.
    """

    kind: ClassVar[str] = "built"
    lock: str
    combinations: tuple[Combination, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class SetAside(Event):
    """Event: some combinations get no more trials, because these would be impossible or useless.

    Attributes:
        combinations: The combinations, which share one measurement.
        status: `env-unsolvable`, `env-unbuildable` or `set-aside`.
        reason: Why, in words.
    """

    kind: ClassVar[str] = "set-aside"
    combinations: tuple[Combination, ...]
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class Warned(Event):
    """Event: a warning for the user; the study continues.

    Attributes:
        text: A sentence.
    """

    kind: ClassVar[str] = "warning"
    text: str


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """Event: the present state of the search, sent several times a second.

    Attributes:
        trials: Number of counted trials.
        hits: Number of these that showed the target failure.
        running: Number of running trials of each combination.
        verdict: The verdict so far.
        probability_bad: Pairs of a runnable combination and its posterior probability of being bad.
        counts: Number of bad and of counted trials of each combination, including those of earlier commands.
        passing: As long as nothing has failed: a combination (the bad end if it was tried), its number of
            passes, and the smallest failure rate searched for. Else None.
        axes: The axes of the grid.
        is_certain: Whether the user stated that bad combinations always fail.
    """

    kind: ClassVar[str] = "progress"
    trials: int
    hits: int
    running: dict[Combination, int]
    verdict: VerdictDocument
    probability_bad: tuple[tuple[Combination, float], ...]
    counts: Mapping[Combination, tuple[int, int]] = field(default_factory=dict)
    passing: tuple[Combination, int, float] | None = None
    axes: Sequence[AxisInfo] = ()
    is_certain: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": self.kind,
            "trials": self.trials,
            "bad": self.hits,
            "probability": self.verdict.probability,
            "first_bad": self.verdict.first_bad,
            "expected_left": self.verdict.expected_left,
        }


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """Event: the search has a result (usually the first bad version), which further trials now check.

    Attributes:
        verdict: The verdict so far.
        checks: Number of trials that the checks need.
        seconds: Maximum run time of the checks' trials; None for no limit.
        axes: The axes of the grid.
    """

    kind: ClassVar[str] = "answered"
    verdict: VerdictDocument
    checks: int
    seconds: float | None
    axes: Sequence[AxisInfo] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": self.kind,
            "verdict": self.verdict.model_dump(mode="json"),
            "checks": self.checks,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class Concluded(Event):
    """Event: the study has ended; the event contains the study's report.

    Attributes:
        report: The object that `bisect-env report --format json` prints.
    """

    kind: ClassVar[str] = "verdict"
    report: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {"event": self.kind, **self.report}


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """Event: the command ends with an error.

    If there is a study, a `Concluded` event follows.

    Attributes:
        exit_code: Exit code of the command.
        what: What happened.
        tried: What was attempted before giving up, or None.
        remedy: What the user can do, or None.
        problems: For an invalid matrix file, one text per problem.
    """

    kind: ClassVar[str] = "error"
    exit_code: int
    what: str
    tried: str | None
    remedy: str | None
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: BisectEnvError) -> Failed:
        """Build the event from an error, with the error's message and remedy."""
        problems = error.problems if isinstance(error, MatrixError) else ()
        return cls(int(error.exit_code), error.what, error.tried, error.remedy, problems)
