"""The events of a running study as data, from which the live view and `--json` are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.origins import Origin
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.environments.progress import BuildStep
from bisect_env.errors import BisectEnvError, MatrixError
from bisect_env.matrix.grid import Combination
from bisect_env.trials.records import Evidence, TrialRecord


@dataclass(frozen=True, slots=True)
class StudyOpened:
    """The event that the study exists in the database.

    Attributes:
        study_id: Its id.
        name: The matrix's name.
        resumed: Trials that it had already.
    """

    study_id: str
    name: str
    resumed: int

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": "study",
            "study": self.study_id,
            "name": self.name,
            "resumed_trials": self.resumed,
        }


@dataclass(frozen=True, slots=True)
class Reused:
    """The study starts from trials that other studies recorded.

    Attributes:
        trials: How many were taken now.
        origins: From whom it has all that it took, the largest share first.
    """

    trials: int
    origins: tuple[Origin, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {"event": "reused", "trials": self.trials, "from": [asdict(one) for one in self.origins]}


@dataclass(frozen=True, slots=True)
class Said:
    """The event of a remark that a user may want to follow; nothing is wrong.

    Attributes:
        text: A sentence.
    """

    text: str

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {"event": "said", "text": self.text}


@dataclass(frozen=True, slots=True)
class LockProgress:
    """The event that some combinations are locked, or known to have no solution.

    Attributes:
        done: How many.
        total: How many were wanted.
    """

    done: int
    total: int

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {"event": "locking", "done": self.done, "total": self.total}


@dataclass(frozen=True, slots=True)
class Locked:
    """The combinations are known; they are locked, or will be when the search asks for them.

    Attributes:
        combinations: Size of the grid.
        excluded: Taken out by rules.
        unsolvable: Without a solution, as far as is known.
        environments: Distinct locks; None where combinations are locked when they are asked for.
        withdrawn: Versions and releases that a range left out, as (axis, version, reason).
    """

    combinations: int
    excluded: int
    unsolvable: int
    environments: int | None
    withdrawn: tuple[tuple[str, str, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": "locked",
            "combinations": self.combinations,
            "excluded": self.excluded,
            "unsolvable": self.unsolvable,
            "environments": self.environments,
            "withdrawn": [list(item) for item in self.withdrawn],
        }


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A trial was handed to the executor."""

    trial_id: str
    combination: Combination

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {"event": "started", "trial": self.trial_id, "combination": self.combination.as_dict()}


@dataclass(frozen=True, slots=True)
class TrialFinished:
    """A trial is recorded."""

    record: TrialRecord
    evidence: Evidence
    build_seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": "trial",
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
class Building:
    """The step that the building of an environment has reached.

    Attributes:
        lock_hash: Lock of the environment.
        step: What is done for it now.
        ready: Environments that are there.
        building: Environments that are being made.
    """

    lock_hash: str
    step: BuildStep
    ready: int
    building: int

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": "building",
            "lock": self.lock_hash,
            "step": self.step.what,
            "package": self.step.package,
            "bytes_done": self.step.done,
            "bytes_total": self.step.total,
            "environments_ready": self.ready,
            "environments_building": self.building,
        }


@dataclass(frozen=True, slots=True)
class Built:
    """An environment was made.

    Attributes:
        lock_hash: Lock of the environment.
        combinations: Those that live in it.
        seconds: What it took, on the slowest host.
    """

    lock_hash: str
    combinations: tuple[Combination, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": "built",
            "lock": self.lock_hash,
            "combinations": [one.as_dict() for one in self.combinations],
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class SetAside:
    """The event that some combinations are excluded, because trials of them are not possible or useful.

    Attributes:
        combinations: They share one measurement.
        status: As stored: `unbuildable` or `set-aside`.
        reason: Why.
    """

    combinations: tuple[Combination, ...]
    status: str
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": "set-aside",
            "combinations": [one.as_dict() for one in self.combinations],
            "status": self.status,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Warned:
    """The event of a warning that does not stop the study."""

    text: str

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {"event": "warning", "text": self.text}


@dataclass(frozen=True, slots=True)
class Progress:
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
            "event": "progress",
            "trials": self.trials,
            "bad": self.hits,
            "probability": self.verdict.probability,
            "first_bad": self.verdict.first_bad,
            "expected_left": self.verdict.expected_left,
        }


@dataclass(frozen=True, slots=True)
class Answered:
    """The event that the answer stands and checks of it begin.

    Attributes:
        verdict: The verdict so far.
        checks: Trials that the checks want.
        seconds: How long they may take; None for any time.
        axes: Axes of the grid.
    """

    verdict: VerdictDocument
    checks: int
    seconds: float | None
    axes: Sequence[AxisInfo] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": "answered",
            "verdict": self.verdict.model_dump(mode="json"),
            "checks": self.checks,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class Concluded:
    """The study ended.

    Attributes:
        report: The same object that `bisect-env report --format json` prints.
    """

    report: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {"event": "verdict", **self.report}


@dataclass(frozen=True, slots=True)
class Failed:
    """The command ends with an error; `Concluded` follows if there is a study.

    Attributes:
        exit_code: Exit code of the command.
        what: What happened.
        tried: What was attempted before giving up, or None.
        remedy: What to do next, or None.
        problems: Of a matrix file, a text each.
    """

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

    def as_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {
            "event": "error",
            "exit_code": self.exit_code,
            "what": self.what,
            "tried": self.tried,
            "remedy": self.remedy,
            "problems": list(self.problems),
        }


Event = (
    StudyOpened
    | Reused
    | Said
    | LockProgress
    | Locked
    | TrialStarted
    | TrialFinished
    | Building
    | Built
    | SetAside
    | Warned
    | Progress
    | Answered
    | Failed
    | Concluded
)
