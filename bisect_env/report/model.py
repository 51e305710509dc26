"""The model of a report: the data behind every format. Pure.

The models also define the JSON document, version 1. `Report.read` restores a report from what
`Report.document` returned.
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
# Independent parts of a report: packages, work, next steps. Pure.


class Frozen(BaseModel):
    """The base class of every part of a report."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", populate_by_name=True, serialize_by_alias=True, defer_build=True
    )


class DifferenceReport(Frozen):
    """The difference between the environments of the last good and the first bad combination.

    Attributes:
        before: The last good combination; for a fix the last bad one.
        after: The first bad combination; for a fix the first good one.
        summary: How many packages were changed, added and removed, in words.
        changes: Changed packages: first those of the matrix's axes, then the others by name.
    """

    before: dict[str, str]
    after: dict[str, str]
    summary: str
    changes: tuple[PackageChange, ...] = ()


class WorkReport(Frozen):
    """How long the trials and builds of a study took, and how many workers ran them.

    Attributes:
        began: Time of the first start, in UTC; None if nothing ran.
        seconds: Seconds from the first start to the last end.
        workers: Number of workers.
        hosts: Number of hosts.
        built: Number of environments that were built.
        build_seconds: Duration of all builds together.
        unbuilt: Number of environments that could not be built.
    """

    began: datetime | None = None
    seconds: float = 0.0
    workers: int = 0
    hosts: int = 0
    built: int = 0
    build_seconds: float = 0.0
    unbuilt: int = 0


class StepReport(Frozen):
    """A step of the instructions for reproducing the failure, with its shell commands.

    Attributes:
        title: Purpose of the commands.
        commands: Shell commands, one per line.
        files: File name to content, for readers without the database: the environment as pip requirements or
            as a conda explicit list.
    """

    title: str
    commands: tuple[str, ...]
    files: dict[str, str] = Field(default_factory=dict)


class QuestionFile(Frozen):
    """A file that the script needs, or the script itself.

    Attributes:
        name: Path relative to the matrix.
        text: Content of the file.
        executable: Whether its owner may execute it.
    """

    name: str
    text: str
    executable: bool = False


class QuestionReport(Frozen):
    """What a study was asked: its matrix, and the files that its trials ran.

    Attributes:
        matrix: Text of the matrix file, without secrets.
        files: The script and its files, up to a total size.
        left_out: Names of files that are too large, are not text, or contain a password.
    """

    matrix: str = ""
    files: tuple[QuestionFile, ...] = ()
    left_out: tuple[str, ...] = ()


# --------------------------------------------------------------------------------------------------
# The report itself. Pure.

SCHEMA = 1
"""Version of the document; raised when a key changes its meaning or goes away."""


def labels(axes: Sequence[AxisInfo]) -> dict[str, str]:
    """Return a dict from commit hashes to readable names, for all axes whose values are commits."""
    return {value: label for axis in axes for value, label in axis.labels.items()}


class EffectReport(Frozen):
    """How much the failure rate of one part of the trials (such as a host) differs from that of the rest."""

    part: str = Field(
        description="The part that deviates most: a host, a GPU, or the share of trials before the change."
    )
    bayes_factor: float = Field(
        description="Bayes factor of the rate differing in some part against being equal in all."
    )
    ratio: float = Field(description="The most likely factor between the rate in that part and in the rest.")
    hits: int = Field(description="Bad trials of that part.")
    trials: int = Field(description="Counted trials of that part.")
    noteworthy: bool = Field(description="Whether the effect is a warning of this report.")


class StabilityReport(Frozen):
    """Differences of the failure rate over time, hosts or GPUs, which versions do not explain."""

    drift: EffectReport | None = Field(
        default=None, description="Change over time; null if trials cannot be compared."
    )
    host: EffectReport | None = Field(
        default=None, description="Difference between hosts; null if trials cannot be compared."
    )
    gpu: EffectReport | None = Field(
        default=None, description="Difference between GPUs; null if trials cannot be compared."
    )


class StudyInfo(Frozen):
    """The identity of a study: its name, owner, host, times and status."""

    id: str = Field(description="Id of the study: 32 hex digits.")
    name: str = Field(description="As the matrix says.")
    status: str = Field(description="`open`, `finished`, `interrupted` or `failed`.")
    description: str = Field(default="", description="As the matrix says.")
    matrix: str = Field(default="", description="Path of the matrix file as the user named it.")
    created_at: datetime = Field(description="When the study was created, in UTC.")
    finished_at: datetime | None = Field(
        default=None, description="When the study ended, in UTC; null while it is open."
    )
    exclude_newer: datetime | None = Field(
        default=None, description="The moment as of which the index was seen."
    )
    version: str = Field(default="", description="Version of bisect-env.")
    user: str = Field(default="", description="User who ran it last.")


class TrialCounts(Frozen):
    """The counts of good, bad, other, void and skipped trials."""

    good: int = 0
    bad: int = 0
    other: int = 0
    void: int = 0
    skip: int = 0

    @property
    def counted(self) -> int:
        """Return the number of good and bad trials."""
        return self.good + self.bad


class CombinationReport(TrialCounts):
    """One combination of the matrix, with the counts of its trials.

    If `same_as` names another combination, the counts are those of that combination.

    Attributes:
        combination: Axis to value, in matrix order.
        status: `solvable`, `excluded`, `env-unsolvable`, `env-unbuildable` or `set-aside`.
        reason: Reason of the status; for a solvable combination, warnings about its environment, mostly "".
            Quotes solvers, with their line breaks.
        lock: Hash of the environment's lock, or None.
        outcomes: Outcome to number of these trials.
        rate: Bad trials divided by counted trials; None without counted trials.
        interval: 95 % interval of the rate; (0, 1) without counted trials.
        verdict: `bad` or `good` by the verdict; None without a verdict or an environment.
        same_as: The combination with the same environment and values whose trials are shown, or None.
        seconds: Total duration of the study's own trials of the combination.
    """

    combination: dict[str, str]
    status: str
    reason: str = ""
    lock: str | None = None
    outcomes: dict[str, int] = Field(default_factory=dict)
    rate: float | None = None
    interval: tuple[float, float] = (0.0, 1.0)
    verdict: str | None = None
    same_as: dict[str, str] | None = None
    seconds: float = 0.0

    @property
    def is_runnable(self) -> bool:
        """Return whether trials of the combination can be run."""
        return self.status == "solvable"


class FailureReport(Frozen):
    """A group of equal failures, with one trial as the example.

    Attributes:
        outcome: Outcome of these trials.
        evidence: `bad` or `other`.
        trials: Number of trials.
        signature: Common signature of these trials, or "".
        trial: Id of the example.
        combination: Combination of the example.
        detail: Reason of the outcome, in one line.
        stack: Stack of the example; without one, the last lines of its output.
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
    """The report on one study: all data that any output format shows.

    Attributes:
        schema_version: `schema` in the document.
        study: Identity of the study.
        axes: Axes in matrix order.
        target: Signature of the failure that the study is about, in words; "" where any failure counts.
        verdict: The verdict; its `sentence` is the sentence of this report.
        trials: Number of trials that are evidence.
        trial_counts: Number of trials for each kind of evidence.
        environments: Number of distinct locks in which trials ran.
        reused: Studies whose trials are reused; `trials` includes these trials.
        combinations: All combinations, in matrix order.
        failures: Groups of equal failures, the most frequent first.
        stability: Whether rates changed over time or between machines.
        advice: If there is no answer, likely reasons with an option or a line to paste; one sentence each.
        warnings: Doubts about the verdict; one sentence each.
        work: How long trials and builds took, and how many workers ran them.
        machines: Classes of machines on which trials ran.
        difference: Packages that differ between last good and first bad; None without both.
        explanation: The packages that cause the failure; None until `bisect-env explain` has run.
        traced: Result of `bisect-env between`; None for other studies.
        commit: The first bad commit, found by this study or by `bisect-env explain --git`; None otherwise.
        question: The matrix and the script.
        reproduce: Commands that reproduce the failure.
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
    stability: StabilityReport = StabilityReport()
    advice: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    work: WorkReport = WorkReport()
    machines: tuple[Machine, ...] = ()
    difference: DifferenceReport | None = None
    explanation: Explanation | None = None
    traced: TracedReport | None = None
    commit: CommitReport | None = None
    question: QuestionReport = QuestionReport()
    reproduce: tuple[StepReport, ...] = ()

    @property
    def has_verdict(self) -> bool:
        """Return whether the study has an answer, either confirmed or likely."""
        return self.verdict.is_decided

    @property
    def side_names(self) -> tuple[str, str]:
        """Return the names of the two sides of the boundary, such as `first bad` and `last good`."""
        return side_names(self.verdict, self.axes)

    @property
    def sides_in_order(self) -> tuple[str, str]:
        """Return the names of the two compared combinations, such as `last good`, the older one first."""
        bad, good = self.side_names
        return (bad, good) if bad == "last bad" else (good, bad)

    @property
    def sentence(self) -> str:
        """Return the verdict in one sentence."""
        return self.verdict.sentence

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return self.model_dump(mode="json")

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Report:
        """Parse a report's JSON object; unknown keys are ignored.

        Raises:
            ValueError: The object is not a report (pydantic's `ValidationError`).
        """
        return cls.model_validate(document)
