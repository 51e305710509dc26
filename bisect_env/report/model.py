"""The model of a report: everything that any format shows, as data. Pure.

The models are also the JSON document, version 1: `document` of a report and `read` of a document are
inverses, so that a report can be shown again from what was written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import Field

from bisect_env.report.parts import (
    AnswerReport,
    ChangeReport,
    DifferenceReport,
    ExplanationReport,
    Frozen,
    HybridReport,
    MachineReport,
    MovedReport,
    PackageReport,
    PointReport,
    PosteriorReport,
    StepReport,
    TimedBuild,
    TimedTrial,
    TimelineReport,
)

__all__ = [
    "SCHEMA",
    "AnswerReport",
    "AxisInfo",
    "ChangeReport",
    "CombinationReport",
    "DifferenceReport",
    "ExplanationReport",
    "FailureReport",
    "HybridReport",
    "MachineReport",
    "MovedReport",
    "OriginReport",
    "PackageReport",
    "PointReport",
    "PosteriorReport",
    "Report",
    "StepReport",
    "StudyInfo",
    "TimedBuild",
    "TimedTrial",
    "TimelineReport",
    "TrialCounts",
    "is_called_bad",
]

SCHEMA = 1
"""Version of the document; raised when a key changes its meaning or goes away."""


class AxisInfo(Frozen):
    """One axis, its values in ascending order."""

    name: str
    kind: str = "package"
    direction: str = "regression"
    values: tuple[str, ...] = ()


class StudyInfo(Frozen):
    """Which study this is about.

    Attributes:
        id: 32 hex digits.
        name: Of the matrix.
        status: `open`, `finished`, `interrupted` or `failed`.
        description: Of the matrix.
        matrix: Path of the matrix file as the user named it.
        created_at: UTC.
        finished_at: UTC, None while it is open.
        exclude_newer: The moment as of which the index was seen.
        version: Of bisect-env.
    """

    id: str
    name: str
    status: str
    description: str = ""
    matrix: str = ""
    created_at: datetime
    finished_at: datetime | None = None
    exclude_newer: datetime | None = None
    version: str = ""


class TrialCounts(Frozen):
    """How many trials said what."""

    good: int = 0
    bad: int = 0
    other: int = 0
    void: int = 0
    skip: int = 0

    @property
    def counted(self) -> int:
        """Trials that are evidence."""
        return self.good + self.bad


class CombinationReport(Frozen):
    """One combination of the matrix.

    Attributes:
        combination: Axis to value, in matrix order.
        status: `solvable`, `excluded`, `env-unsolvable`, `env-unbuildable` or `set-aside`.
        reason: Why; of a solvable one what its environment warns of, mostly "". Others' words, line breaks
            included.
        lock: Hash of its environment's lock, or None.
        good, bad, other, void, skip: Trials of it, or of the combination that it is the same as.
        outcomes: Outcome to number of these trials.
        rate: Bad ones of those that count, None without any.
        interval: 95 % interval of that rate, (0, 1) without trials.
        verdict: What the verdict says of it: `bad`, `good`, or None without a verdict or an environment.
        same_as: The combination whose trials these are, if its environment and values are the same.
        seconds: What the study's own trials of it took together.
    """

    combination: dict[str, str]
    status: str
    reason: str = ""
    lock: str | None = None
    good: int = 0
    bad: int = 0
    other: int = 0
    void: int = 0
    skip: int = 0
    outcomes: dict[str, int] = Field(default_factory=dict)
    rate: float | None = None
    interval: tuple[float, float] = (0.0, 1.0)
    verdict: str | None = None
    same_as: dict[str, str] | None = None
    seconds: float = 0.0

    @property
    def counted(self) -> int:
        """Trials that are evidence."""
        return self.good + self.bad

    @property
    def is_runnable(self) -> bool:
        """Whether trials of it say something about the question."""
        return self.status == "solvable"


class FailureReport(Frozen):
    """A way in which trials failed, with one of them as the example.

    Attributes:
        outcome: What they did.
        evidence: `bad` or `other`.
        trials: How many.
        signature: What makes them the same, or "".
        trial: Id of the example.
        combination: Of the example.
        detail: Why this outcome, one line.
        stack: Of the example; without one, the end of what it wrote.
    """

    outcome: str
    evidence: str
    trials: int
    signature: str
    trial: str
    combination: dict[str, str]
    detail: str = ""
    stack: str = ""


class OriginReport(Frozen):
    """A study that recorded trials which this one reuses.

    Attributes:
        study_id: Its id.
        study: Its name.
        user: Who ran it.
        host: Where its command ran.
        trials: How many of its trials are reused.
    """

    study_id: str
    study: str
    user: str = ""
    host: str = ""
    trials: int


class Report(Frozen):
    """All that is known about a study.

    Attributes:
        schema_version: `schema` in the document.
        study: Which study.
        axes: In matrix order.
        target: Signature of the failure that the study is about, in words; "" where any failure counts.
        verdict: The verdict document; `status`, `first_bad`, `last_good`, `culprit_axes`, `probability`,
            `reason` and `sentence` are always there.
        trials: Number of trials that are evidence.
        trial_counts: Of all trials, by what they said.
        environments: Number of distinct locks in which trials ran.
        reused: From whom trials were taken that had been measured before; they are among `trials`.
        combinations: Every one, in matrix order.
        failures: The most frequent first.
        stability: `drift`, `host` and `gpu`: whether rates changed over time or between machines.
        warnings: What should be known before the verdict is believed; a sentence each.
        posterior: How the probability of the answers moved.
        timeline: What ran when, and where.
        machines: On which classes of machines trials ran.
        difference: Packages that differ between last good and first bad; None without both.
        explanation: Which of them carry the failure; None until `bisect-env explain` was asked.
        reproduce: How to see the failure again.
    """

    schema_version: int = Field(default=SCHEMA, alias="schema")
    study: StudyInfo
    axes: tuple[AxisInfo, ...] = ()
    verdict: dict[str, Any]
    target: str = ""
    trials: int
    trial_counts: TrialCounts
    environments: int
    reused: tuple[OriginReport, ...] = ()
    combinations: tuple[CombinationReport, ...] = ()
    failures: tuple[FailureReport, ...] = ()
    stability: dict[str, Any] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    posterior: PosteriorReport = PosteriorReport()
    timeline: TimelineReport = TimelineReport()
    machines: tuple[MachineReport, ...] = ()
    difference: DifferenceReport | None = None
    explanation: ExplanationReport | None = None
    reproduce: tuple[StepReport, ...] = ()

    @property
    def has_verdict(self) -> bool:
        """Whether there is an answer, confirmed or likely."""
        return str(self.verdict.get("status", "none")) != "none"

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        return str(self.verdict.get("sentence", ""))

    def document(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return self.model_dump(mode="json")

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Report:
        """A report from its document; keys that this release does not know are left out.

        Raises:
            ValueError: It is no such document (pydantic's `ValidationError`).
        """
        return cls.model_validate(document)


def is_called_bad(verdict: Mapping[str, Any], combination: Mapping[str, str]) -> bool | None:
    """Whether a verdict calls a combination bad; None if it says nothing.

    `all`: bad iff every culprit axis has a bad value there; `any`: iff at least one has.
    """
    if str(verdict.get("status", "none")) == "none":
        return None
    kind = verdict.get("kind")
    if kind in ("never", "always"):
        return bool(kind == "always")
    bad_values: Mapping[str, Sequence[str]] = verdict.get("bad_values") or {}
    inside = [combination.get(axis) in values for axis, values in bad_values.items()]
    if kind not in ("all", "any") or not inside:
        return None
    return all(inside) if kind == "all" else any(inside)
