"""The model of a report: the data behind every format. Pure.

The models are also the JSON document, version 1: `document` of a report and `read` of a document are
inverses, so that a report can be shown again from what was written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.chapters import CommitReport, TracedReport
from bisect_env.answers.explanation import Explanation
from bisect_env.answers.origins import Origin
from bisect_env.answers.sentence import side_names
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.environments.difference import PackageChange
from bisect_env.trials.records import Machine

# --------------------------------------------------------------------------------------------------
# The parts of a report that stand for themselves: packages, the trace of the posterior, the timeline, ways
# on. Pure.


class Frozen(BaseModel):
    """The base class of every part of a report."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, serialize_by_alias=True)


class DifferenceReport(Frozen):
    """The difference between the environments of the last good and the first bad combination.

    Attributes:
        before: The last good combination.
        after: The first bad one.
        summary: In a few words.
        changes: Packages of axes first, the others by name.
    """

    before: dict[str, str]
    after: dict[str, str]
    summary: str
    changes: tuple[PackageChange, ...] = ()


class AnswerReport(Frozen):
    """An answer whose probability is followed.

    Attributes:
        label: In words: `orjson ≥ 3.9.11`, `nothing is bad`.
        kind: `all`, `any`, `never` or `always`.
        bad_values: Culprit axis to its bad values.
    """

    label: str
    kind: str
    bad_values: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class PointReport(Frozen):
    """The posterior after some trials.

    Attributes:
        trials: Counted trials.
        probabilities: Of each answer, in their order.
    """

    trials: int
    probabilities: tuple[float, ...]


class PosteriorReport(Frozen):
    """How the posterior moved: the stored trials told again, one after the other.

    Attributes:
        answers: The one that leads in the end, then those that held the most on the way.
        points: From no trial to the last; of many trials not every one.
    """

    answers: tuple[AnswerReport, ...] = ()
    points: tuple[PointReport, ...] = ()


class TimedTrial(Frozen):
    """When and where one trial ran.

    Attributes:
        trial: Id.
        combination: Position in the report's `combinations`.
        outcome: What it did.
        evidence: What that says.
        start: Seconds after the timeline's beginning.
        seconds: How long it ran.
        host: Where.
        worker: By which worker.
        gpu: On which GPUs, or "".
    """

    trial: str
    combination: int
    outcome: str
    evidence: str
    start: float
    seconds: float
    host: str = ""
    worker: str = ""
    gpu: str = ""


class TimedBuild(Frozen):
    """When an environment was made.

    Attributes:
        lock: Its hash.
        combinations: Positions of those that live in it.
        start: Seconds after the timeline's beginning.
        seconds: On the slowest host; 0 where only the end is known.
        failed: Why it could not be made, "" if it was.
    """

    lock: str
    combinations: tuple[int, ...] = ()
    start: float
    seconds: float
    failed: str = ""


class TimelineReport(Frozen):
    """When trials ran and environments were built.

    Attributes:
        begin: UTC; None where nothing ran.
        trials: In the order of their beginnings.
        builds: In the order of their beginnings.
        left_out: Trials that are not listed, because there are so many.
    """

    begin: datetime | None = None
    trials: tuple[TimedTrial, ...] = ()
    builds: tuple[TimedBuild, ...] = ()
    left_out: int = 0


class StepReport(Frozen):
    """A step towards seeing the failure again.

    Attributes:
        title: What it does.
        commands: To be given in a shell, a line each.
        files: Name to content of files with which the commands can be followed where the study is not known:
            the environment, as pip's requirements or conda's explicit list.
    """

    title: str
    commands: tuple[str, ...]
    files: dict[str, str] = Field(default_factory=dict)


class QuestionFile(Frozen):
    """A file that the script needs, or the script itself.

    Attributes:
        name: Relative path, the same beside the matrix.
        text: Its content.
        executable: Whether its owner may execute it.
    """

    name: str
    text: str
    executable: bool = False


class QuestionReport(Frozen):
    """The matrix and its files, with which anybody can ask again.

    Attributes:
        matrix: Text of the matrix file, without secrets.
        files: The script and what it needs, as far as there is room for it.
        left_out: Names of files that are too large, no text, or hold a password.
    """

    matrix: str = ""
    files: tuple[QuestionFile, ...] = ()
    left_out: tuple[str, ...] = ()


# --------------------------------------------------------------------------------------------------
# The model of a report: everything that any format shows, as data. Pure.

SCHEMA = 1
"""Version of the document; raised when a key changes its meaning or goes away."""


def labels(axes: Sequence[AxisInfo]) -> dict[str, str]:
    """Return the readable names of commit hashes that are values."""
    return {value: label for axis in axes for value, label in axis.labels.items()}


class StudyInfo(Frozen):
    """Which study this is about."""

    id: str = Field(description="32 hex digits.")
    name: str = Field(description="As the matrix says.")
    status: str = Field(description="`open`, `finished`, `interrupted` or `failed`.")
    description: str = Field(default="", description="As the matrix says.")
    matrix: str = Field(default="", description="Path of the matrix file as the user named it.")
    created_at: datetime = Field(description="UTC.")
    finished_at: datetime | None = Field(default=None, description="UTC, None while it is open.")
    exclude_newer: datetime | None = Field(
        default=None, description="The moment as of which the index was seen."
    )
    version: str = Field(default="", description="Version of bisect-env.")
    user: str = Field(default="", description="User who ran it last.")


class TrialCounts(Frozen):
    """How many trials said what."""

    good: int = 0
    bad: int = 0
    other: int = 0
    void: int = 0
    skip: int = 0

    @property
    def counted(self) -> int:
        """Return the number of trials that are evidence."""
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
        """Return the number of trials that are evidence."""
        return self.good + self.bad

    @property
    def is_runnable(self) -> bool:
        """Return whether trials of the combination are possible."""
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


class Report(Frozen):
    """Everything that a report shows.

    Attributes:
        schema_version: `schema` in the document.
        study: Which study.
        axes: In matrix order.
        target: Signature of the failure that the study is about, in words; "" where any failure counts.
        verdict: The answer; its `sentence` is that of this report.
        trials: Number of trials that are evidence.
        trial_counts: Of all trials, by what they said.
        environments: Number of distinct locks in which trials ran.
        reused: From whom trials were taken that had been measured before; they are among `trials`.
        combinations: Every one, in matrix order.
        failures: The most frequent first.
        stability: `drift`, `host` and `gpu`: whether rates changed over time or between machines.
        advice: Where there is no answer: the likely reason, and a line to paste; a sentence each.
        warnings: What should be known before the verdict is believed; a sentence each.
        posterior: How the probability of the answers moved.
        timeline: What ran when, and where.
        machines: On which classes of machines trials ran.
        difference: Packages that differ between last good and first bad; None without both.
        explanation: Which of them carry the failure; None until `bisect-env explain` was asked.
        traced: Where that led, in studies that `bisect-env between` began.
        commit: The first bad commit, where commits were asked about, here or by `bisect-env explain --git`.
        question: The matrix and the script.
        reproduce: How to see the failure again.
    """

    schema_version: int = Field(default=SCHEMA, alias="schema")
    study: StudyInfo
    axes: tuple[AxisInfo, ...] = ()
    verdict: VerdictDocument
    target: str = ""
    trials: int
    trial_counts: TrialCounts
    environments: int
    reused: tuple[Origin, ...] = ()
    combinations: tuple[CombinationReport, ...] = ()
    failures: tuple[FailureReport, ...] = ()
    stability: dict[str, Any] = Field(default_factory=dict)
    advice: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    posterior: PosteriorReport = PosteriorReport()
    timeline: TimelineReport = TimelineReport()
    machines: tuple[Machine, ...] = ()
    difference: DifferenceReport | None = None
    explanation: Explanation | None = None
    traced: TracedReport | None = None
    commit: CommitReport | None = None
    question: QuestionReport = QuestionReport()
    reproduce: tuple[StepReport, ...] = ()

    @property
    def has_verdict(self) -> bool:
        """Return whether there is an answer, confirmed or likely."""
        return self.verdict.is_decided

    @property
    def side_names(self) -> tuple[str, str]:
        """Return what the bad and the good side of the boundary are called: `first bad`, `last good`."""
        return side_names(self.verdict, self.axes)

    @property
    def sentence(self) -> str:
        """Return the verdict in one sentence."""
        return self.verdict.sentence

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return self.model_dump(mode="json")

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Report:
        """Return a report from its document; keys that this release does not know are left out.

        Raises:
            ValueError: It is no such document (pydantic's `ValidationError`).
        """
        return cls.model_validate(document)
