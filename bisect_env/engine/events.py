"""The events of a running study as data, from which the live view and `--json` are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Reused:
    """The study starts from trials that other studies recorded.

    Attributes:
        trials: How many were taken now.
        origins: From whom it has all that it took, the largest share first.
    """

    trials: int
    origins: tuple[Origin, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """The event of a remark that a user may want to follow; nothing is wrong.

    Attributes:
        text: A sentence.
    """

    text: str


@dataclass(frozen=True, slots=True)
class LockProgress:
    """The event that some combinations are locked, or known to have no solution.

    Attributes:
        done: How many.
        total: How many were wanted.
        seconds: Of their solvers, all together, where that is known.
    """

    done: int
    total: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Locked:
    """The combinations are known; they are locked, or will be when the search asks for them.

    Attributes:
        combinations: Size of the grid.
        excluded: Taken out by rules.
        unsolvable: Without a solution, as far as is known.
        environments: Distinct locks; None where combinations are locked when they are asked for.
        withdrawn: Versions and releases that a range left out, as (axis, version, reason).
        seconds: What was spent on locking before.
    """

    combinations: int
    excluded: int
    unsolvable: int
    environments: int | None
    withdrawn: tuple[tuple[str, str, str], ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A trial was handed to the executor."""

    trial_id: str
    combination: Combination


@dataclass(frozen=True, slots=True)
class TrialFinished:
    """A trial is recorded."""

    record: TrialRecord
    evidence: Evidence
    build_seconds: float


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


@dataclass(frozen=True, slots=True)
class Warned:
    """The event of a warning that does not stop the study."""

    text: str


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
        axes: Axes of the grid (see `axes_document`).
    """

    trials: int
    hits: int
    running: dict[Combination, int]
    verdict: VerdictDocument
    probability_bad: tuple[tuple[Combination, float], ...]
    counts: Mapping[Combination, tuple[int, int]] = field(default_factory=dict)
    passing: tuple[Combination, int, float] | None = None
    axes: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """The event that the answer stands and checks of it begin.

    Attributes:
        verdict: The verdict so far.
        checks: Trials that the checks want.
        seconds: How long they may take; None for any time.
        axes: Axes of the grid (see `axes_document`).
    """

    verdict: VerdictDocument
    checks: int
    seconds: float | None
    axes: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Concluded:
    """The study ended.

    Attributes:
        report: The same object that `bisect-env report --format json` prints.
        searching: Seconds that were spent on choosing what to try.
    """

    report: dict[str, Any]
    searching: float = 0.0


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
