"""The parts of a report that stand for themselves: packages, the course, the timeline, ways on. Pure."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field


class Frozen(BaseModel):
    """What every part of a report has in common."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, serialize_by_alias=True)


class PackageReport(Frozen):
    """A package in one environment.

    Attributes:
        version: Exact version.
        build: conda's build string, "" for wheels.
        manager: `pip`, `conda`, or "" for an interpreter that no package manager brings.
        source: Channel or host that it comes from.
        sha256: Of the archive.
        url: Of the archive.
    """

    version: str
    build: str = ""
    manager: str = ""
    source: str = ""
    sha256: str = ""
    url: str = ""

    @property
    def label(self) -> str:
        """Version and, where there is one, build."""
        return f"{self.version} {self.build}".rstrip()


class ChangeReport(Frozen):
    """A package that is not the same on both sides.

    Attributes:
        name: Normalised.
        kind: `changed`, `rebuilt` (same version, another archive), `moved` (same archive, another place),
            `added` or `removed`.
        before: With the last good combination, None where it is added.
        after: With the first bad one, None where it is removed.
        of_axis: Whether an axis of the matrix moves it.
        home: Page of the project, "" where none is known on this host.
    """

    name: str
    kind: str
    before: PackageReport | None = None
    after: PackageReport | None = None
    of_axis: bool = False
    home: str = ""


class DifferenceReport(Frozen):
    """What differs between the environments of the last good and the first bad combination.

    Attributes:
        before: The last good combination.
        after: The first bad one.
        summary: In a few words.
        changes: Packages of axes first, the others by name.
    """

    before: dict[str, str]
    after: dict[str, str]
    summary: str
    changes: tuple[ChangeReport, ...] = ()


class MovedReport(Frozen):
    """A package that changed, as `bisect-env explain` looked at it.

    Attributes:
        name: Of the package.
        old: What the good environment has.
        new: What the bad one has.
        of_axis: Whether an axis of the matrix moves it.
    """

    name: str
    old: str
    new: str
    of_axis: bool = False


class HybridReport(Frozen):
    """Trials of an environment between last good and first bad.

    Attributes:
        moved: Positions of the changes that it has.
        bad: Bad trials.
        trials: That are evidence.
        interval: 95 % interval of the rate.
    """

    moved: tuple[int, ...]
    bad: int
    trials: int
    interval: tuple[float, float] = (0.0, 1.0)


class ExplanationReport(Frozen):
    """Which of the packages that changed carry the failure: what `bisect-env explain` found out.

    Attributes:
        sentence: In one sentence.
        good: The combination that passes.
        bad: The one that fails.
        changes: What changed between them, packages of axes first.
        kind: `all` (the culprits together), `any` (each by itself) or `whole` (nothing less than everything).
        culprits: Positions in `changes`.
        tied: Further answers that no environment tells from this one.
        probability: Of the answer, those tied to it included.
        is_sure: Whether the confidence was reached.
        hybrids: What was tried, both ends included.
        unsolvable: Environments in between that no solver makes.
    """

    sentence: str
    good: dict[str, str]
    bad: dict[str, str]
    changes: tuple[MovedReport, ...] = ()
    kind: str
    culprits: tuple[int, ...] = ()
    tied: tuple[tuple[int, ...], ...] = ()
    probability: float
    is_sure: bool
    hybrids: tuple[HybridReport, ...] = ()
    unsolvable: int = 0


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
    """What was believed after some trials.

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
    """What ran when: the study's own trials, and the environments made for it.

    Attributes:
        begin: UTC; None where nothing ran.
        trials: In the order of their beginnings.
        builds: Likewise.
        left_out: Trials that are not listed, because there are so many.
    """

    begin: datetime | None = None
    trials: tuple[TimedTrial, ...] = ()
    builds: tuple[TimedBuild, ...] = ()
    left_out: int = 0


class MachineReport(Frozen):
    """A class of machines on which trials ran.

    Attributes:
        cpu: Its architecture.
        gpu_model: Of the GPU lent to trials, or "".
        driver: Of that GPU, or "".
    """

    cpu: str
    gpu_model: str = ""
    driver: str = ""


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
