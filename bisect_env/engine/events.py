"""The events of a running study as data, from which the live view and `--json` are made."""

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
    """Something that happens while a study runs; by default its JSON object has its fields.

    Attributes:
        kind: Value of the key `event`.
    """

    kind: ClassVar[str]

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
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
    """The event that the study exists in the database.

    Attributes:
        study: Its id.
        name: The matrix's name.
        resumed_trials: Trials that it had already.
    """

    kind: ClassVar[str] = "study"
    study: str
    name: str
    resumed_trials: int


@dataclass(frozen=True, slots=True)
class Reused(Event):
    """The study starts from trials that other studies recorded.

    Attributes:
        trials: How many were taken now.
        origins: From whom it has all that it took, the largest share first.
    """

    kind: ClassVar[str] = "reused"
    trials: int
    origins: tuple[Origin, ...]


@dataclass(frozen=True, slots=True)
class Said(Event):
    """The event of a remark that a user may want to follow; nothing is wrong.

    Attributes:
        text: A sentence.
    """

    kind: ClassVar[str] = "said"
    text: str


@dataclass(frozen=True, slots=True)
class LockProgress(Event):
    """The event that some combinations are locked, or known to have no solution.

    Attributes:
        done: How many.
        total: How many were wanted.
    """

    kind: ClassVar[str] = "locking"
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Locked(Event):
    """The combinations are known; they are locked, or will be when the search asks for them.

    Attributes:
        combinations: Size of the grid.
        excluded: Taken out by rules.
        unsolvable: Without a solution, as far as is known.
        environments: Distinct locks; None where combinations are locked when they are asked for.
        withdrawn: Versions and releases that a range left out, as (axis, version, reason).
    """

    kind: ClassVar[str] = "locked"
    combinations: int
    excluded: int
    unsolvable: int
    environments: int | None
    withdrawn: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TrialStarted(Event):
    """A trial was handed to the executor."""

    kind: ClassVar[str] = "started"
    trial: str
    combination: Combination


@dataclass(frozen=True, slots=True)
class TrialFinished(Event):
    """A trial is recorded."""

    kind: ClassVar[str] = "trial"
    record: TrialRecord
    evidence: Evidence
    build_seconds: float

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
            "build_seconds": round(self.build_seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Building(Event):
    """The step that the building of an environment has reached.

    Attributes:
        lock_hash: Lock of the environment.
        step: What is done for it now.
        ready: Environments that are there.
        building: Environments that are being made.
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
    """An environment was made.

    Attributes:
        lock: Lock of the environment.
        combinations: Those that live in it.
        seconds: What it took, on the slowest host.
    """

    kind: ClassVar[str] = "built"
    lock: str
    combinations: tuple[Combination, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class SetAside(Event):
    """The event that some combinations are excluded, because trials of them are not possible or useful.

    Attributes:
        combinations: They share one measurement.
        status: As stored: `unbuildable` or `set-aside`.
        reason: Why.
    """

    kind: ClassVar[str] = "set-aside"
    combinations: tuple[Combination, ...]
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class Warned(Event):
    """The event of a warning that does not stop the study."""

    kind: ClassVar[str] = "warning"
    text: str


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """The state of the search.

    Attributes:
        trials: Counted trials.
        hits: Of those, showing the target.
        running: Combination to number of trials running now.
        verdict: The verdict so far.
        probability_bad: Combination and its posterior of being bad, for combinations that can be run.
        counts: Combination to its bad and its counted trials, those of earlier commands included.
        passing: While nothing has failed: the bad end, how often it has passed, and the rate down to which
            failures are looked for; else None.
        axes: Axes of the grid.
        is_certain: Whether the user says that it fails every time.
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
    """The event that the answer stands and checks of it begin.

    Attributes:
        verdict: The verdict so far.
        checks: Trials that the checks want.
        seconds: How long they may take; None for any time.
        axes: Axes of the grid.
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
    """The study ended.

    Attributes:
        report: The same object that `bisect-env report --format json` prints.
    """

    kind: ClassVar[str] = "verdict"
    report: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {"event": self.kind, **self.report}


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The command ends with an error; `Concluded` follows if there is a study.

    Attributes:
        exit_code: Exit code of the command.
        what: What happened.
        tried: What was attempted before giving up, or None.
        remedy: What to do next, or None.
        problems: Of a matrix file, a text each.
    """

    kind: ClassVar[str] = "error"
    exit_code: int
    what: str
    tried: str | None
    remedy: str | None
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: BisectEnvError) -> Failed:
        """Return the event of an error that is shown to the user."""
        problems = error.problems if isinstance(error, MatrixError) else ()
        return cls(int(error.exit_code), error.what, error.tried, error.remedy, problems)
