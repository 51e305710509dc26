"""The matrix file, version 1, as a whole: its axes, its trial, its search, and its JSON schema.

A model refuses what one key alone can get wrong. `contradictions` finds keys that do not fit each other.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from packaging.utils import canonicalize_name
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from bisect_env.matrix.grid import AxisKind, Direction
from bisect_env.matrix.interpreter import can_repeat
from bisect_env.matrix.scalars import (
    AxisName,
    BuildPattern,
    Bytes,
    ChannelName,
    CondaSpec,
    DateText,
    DayText,
    EnvName,
    ExitStatus,
    FindLinks,
    ImageName,
    IndexName,
    IndexUrl,
    PackageName,
    PypiRequirement,
    Regex,
    RepositoryName,
    Revision,
    Seconds,
    SignalNumber,
    Slug,
    StepText,
    Subdirectory,
    Text,
    Value,
    VersionText,
    VirtualPackage,
    cutoff,
    days_between,
)
from bisect_env.matrix.signatures import FROM_BAD_END, SIGNATURE_VERSION, read_signature
from bisect_env.matrix.versions import (
    Manager,
    PackageIndex,
    Step,
    check_version,
    order_key,
    parse_range,
)

# --------------------------------------------------------------------------------------------------
# The kinds of axes of a matrix file.


class StrictModel(BaseModel):
    """A frozen model that refuses unknown keys: a misspelt key must never be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def _list_or_text(value: Any) -> str:
    return "range" if isinstance(value, str) else "list"


def _list_or_mapping(value: Any) -> str:
    return "range" if isinstance(value, Mapping | BaseModel) else "list"


Versions = Annotated[
    Annotated[tuple[VersionText, ...], Field(min_length=1), Tag("list")] | Annotated[Text, Tag("range")],
    Discriminator(_list_or_text),
]


def _texts(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


_T = TypeVar("_T")
OneOrMany = Annotated[
    tuple[_T, ...],
    BeforeValidator(_texts),
    WithJsonSchema({"type": ["string", "number", "array"], "items": {"type": ["string", "number"]}}),
]
"""A list of texts, or one text, which stands for a list of one."""


def _refuse_twice(what: str, values: Iterable[str], key: Callable[[str], Any]) -> None:
    """Raise an error if two values have the same key."""
    # Sorting is stable: of two equal values the one written first comes first.
    ordered = sorted(((key(value), value) for value in values), key=lambda pair: pair[0])
    for (known, earlier), (found, value) in itertools.pairwise(ordered):
        if found == known:
            same = "stands twice" if earlier == value else f"is the same as {earlier!r}"
            raise ValueError(f"{what} {value!r} {same}; remove one")


class AxisModel(StrictModel):
    """The keys that axes of all kinds have."""

    kind: ClassVar[AxisKind]

    direction: Direction = Field(default=Direction.REGRESSION, description="Where the bad values may lie.")
    skip: OneOrMany[Value] = Field(
        default=(),
        description="Values that are not to be tried, such as ['3.1.2'] or '<3.2'; what was measured stays.",
    )

    @property
    def listed(self) -> tuple[str, ...] | None:
        """Return the values in their final order; None if an index or a repository has to be queried."""
        return None

    @property
    def uses_conda(self) -> bool:
        """Return whether the axis names conda packages."""
        return False


class PackageAxis(AxisModel):
    """An axis whose values are exact versions of one package."""

    kind: ClassVar = AxisKind.PACKAGE

    package: PackageName = Field(description="Name of the package; `python` is the interpreter itself.")
    manager: Manager = Field(default=Manager.PYPI, description="Where the package comes from.")
    build: BuildPattern | None = Field(
        default=None, description="Of a conda package: a pattern for its build string, such as 'cuda*'."
    )
    versions: Versions = Field(
        description="A list of exact versions (withdrawn ones too), or a range such as '>=2.1,<2.6'."
    )
    index: IndexName | None = Field(
        default=None, description="Name of the index in `indexes` that the package comes from."
    )
    step: Step = Field(
        default=Step.MINOR,
        description="Of a range: the newest release of each major, minor or patch version, or every one.",
    )
    refine: bool = Field(
        default=True,
        description="Of a range: look at the releases that `step` left out between last good and first bad.",
    )
    prereleases: bool = Field(default=False, description="Of a range: take pre-releases too.")
    yanked: bool = Field(default=False, description="Of a range: take withdrawn releases too.")

    @field_validator("versions")
    @classmethod
    def _versions_make_sense(cls, versions: tuple[str, ...] | str, info: ValidationInfo) -> Any:
        manager = info.data.get("manager", Manager.PYPI)
        if isinstance(versions, str):
            parse_range(versions)
            return versions
        for version in versions:
            check_version(version, manager)
        _refuse_twice("version", versions, partial(order_key, manager=manager))
        return versions

    @model_validator(mode="after")
    def _range_keys_need_a_range(self) -> Self:
        extra = sorted({"step", "prereleases", "yanked", "refine"} & self.model_fields_set)
        if extra and not isinstance(self.versions, str):
            raise ValueError(
                f"`{extra[0]}` belongs to a range, and `versions` is a list; remove it, or write a range"
            )
        return self

    @model_validator(mode="after")
    def _builds_are_condas(self) -> Self:
        if self.build is not None and self.manager is not Manager.CONDA:
            raise ValueError("`build` belongs to conda packages; remove it, or add `manager: conda`")
        if self.index is not None and (self.manager is Manager.CONDA or self.is_python):
            raise ValueError("`index` belongs to PyPI packages; remove it")
        return self

    @property
    def listed(self) -> tuple[str, ...] | None:
        """Return the versions of a list, ascending; None for a range."""
        if isinstance(self.versions, str):
            return None
        return tuple(sorted(self.versions, key=lambda version: order_key(version, self.manager)))

    @property
    def uses_conda(self) -> bool:
        """Return whether the package is a conda package."""
        return self.manager is Manager.CONDA

    @property
    def is_python(self) -> bool:
        """Return whether this axis is the interpreter."""
        return self.canonical_package == "python"

    @property
    def canonical_package(self) -> str:
        """Return the package's name as its manager writes it; to conda `a_b` and `a-b` are two packages."""
        return self.package.lower() if self.manager is Manager.CONDA else str(canonicalize_name(self.package))


class ValueAxis(AxisModel):
    """An axis whose values reach the script and leave the environment as it is."""

    kind: ClassVar = AxisKind.VALUE

    values: Annotated[tuple[Value, ...], Field(min_length=1)] = Field(
        description="The values in their order; they reach the script as BISECT_ENV_<AXIS> and as {axis}."
    )

    @field_validator("values")
    @classmethod
    def _no_duplicates(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        _refuse_twice("value", values, str)
        return values

    @property
    def listed(self) -> tuple[str, ...]:
        """Return the values, as written."""
        return self.values


class DateRange(StrictModel):
    """A range of days, both ends included."""

    from_: DayText = Field(alias="from", description="First day.")
    to: DayText = Field(description="Last day; it belongs to the axis even where the step would miss it.")
    step: StepText = Field(default="1d", description="Days between two values: 1d, 2w, or a number of days.")

    @model_validator(mode="after")
    def _days_make_sense(self) -> Self:
        days_between(self.from_, self.to, self.step)
        return self

    @property
    def days(self) -> tuple[str, ...]:
        """Return all days, ascending."""
        return days_between(self.from_, self.to, self.step)


class DateAxis(AxisModel):
    """An axis of days: what is not pinned is resolved as the index stood then."""

    kind: ClassVar = AxisKind.DATE

    dates: Annotated[
        Annotated[tuple[DateText, ...], Field(min_length=1), Tag("list")]
        | Annotated[DateRange, Tag("range")],
        Discriminator(_list_or_mapping),
    ] = Field(description="A list of days or instants, or {from, to, step}. A day counts whole.")

    @field_validator("dates")
    @classmethod
    def _no_duplicates(cls, dates: tuple[str, ...] | DateRange) -> Any:
        if not isinstance(dates, DateRange):
            _refuse_twice("date", dates, cutoff)
        return dates

    @property
    def listed(self) -> tuple[str, ...]:
        """Return all dates, ascending."""
        if isinstance(self.dates, DateRange):
            return self.dates.days
        return tuple(sorted(self.dates, key=cutoff))


class Packages(StrictModel):
    """Packages in an environment, beside those of the axes."""

    pypi: tuple[PypiRequirement, ...] = Field(default=(), description="Requirements such as 'numpy<2'.")
    conda: tuple[CondaSpec, ...] = Field(default=(), description="Specs such as 'cuda-version 12.8'.")


class WholeEnvironment(Packages):
    """One value of an environment axis: packages that stand in it, beside those of the file."""

    python: VersionText | None = Field(
        default=None, description="Version of Python; with conda, name it among the packages instead."
    )


class EnvironmentAxis(AxisModel):
    """An axis whose values are whole lists of packages, such as two locks between which something broke."""

    kind: ClassVar = AxisKind.ENVIRONMENT

    environments: Annotated[dict[Value, WholeEnvironment], Field(min_length=1)] = Field(
        description="Name to {python, pypi, conda}, in their order; `bisect-env between` writes such an axis."
    )

    @property
    def listed(self) -> tuple[str, ...]:
        """Return the names, in their order."""
        return tuple(self.environments)

    @property
    def uses_conda(self) -> bool:
        """Return whether an environment names conda packages."""
        return any(one.conda for one in self.environments.values())


class CommitBuild(StrictModel):
    """Settings for building commits."""

    env: dict[EnvName, Value] = Field(
        default_factory=dict,
        description="Environment variables of the build, such as {CC: 'ccache gcc'}. "
        "Values of those named like secrets are kept out of locks and the database.",
    )
    requires: tuple[PypiRequirement, ...] = Field(
        default=(), description="What builds are made with, instead of what each commit asks for itself."
    )
    exclude_newer: DateText | None = Field(
        default=None,
        description="Builds are made with what was uploaded by then; default: by the day of the commit, or "
        "by the release of the Python that builds it, if that is later.",
    )
    time_limit: Seconds = Field(
        default=1800.0, description="Of one build: seconds, or a text like 20m; what takes longer fails."
    )
    memory: Bytes | None = Field(
        default=None, description="That one process of a build may take: bytes, or a text like 8GB."
    )
    partial: bool = Field(
        default=False,
        description="Build although submodules or files of git-lfs, which are not fetched, are missing.",
    )
    ahead: bool = Field(
        default=False,
        description="Build what may be wanted next beside what is: sooner done where cores are idle, with up "
        "to twice as many builds.",
    )


class CommitAxis(AxisModel):
    """An axis whose values are commits that one package is built from."""

    kind: ClassVar = AxisKind.COMMIT

    git: RepositoryName = Field(
        description="Address of the repository, or path of a clone, relative to this file; it is read alone."
    )
    package: PackageName = Field(description="Name of the package that the repository builds.")
    from_: Revision = Field(alias="from", description="Older end: a tag, branch, hash, or day.")
    to: Revision = Field(default="HEAD", description="Newer end.")
    history: Literal["first-parent", "all"] = Field(
        default="first-parent",
        description="`first-parent` stops at the merge that brought the failure in, `all` goes on into it.",
    )
    subdirectory: Subdirectory = Field(
        default="", description="Where in the repository the package is built."
    )
    build: CommitBuild = Field(default_factory=CommitBuild, description="How commits are built.")

    @property
    def canonical_package(self) -> str:
        """Return the package's normalised name."""
        return str(canonicalize_name(self.package))


_TOLD_BY: dict[str, type[AxisModel]] = {
    "git": CommitAxis,
    "package": PackageAxis,
    "values": ValueAxis,
    "dates": DateAxis,
    "environments": EnvironmentAxis,
    "versions": PackageAxis,
}


def _axis_kind(value: Any) -> str:
    """Return the name of an axis's model, told by a key that only this kind of axis has; "" if none is."""
    if isinstance(value, BaseModel):
        return type(value).__name__
    keys = value if isinstance(value, Mapping) else {}
    return next((model.__name__ for key, model in _TOLD_BY.items() if key in keys), "")


Axis = Annotated[
    Annotated[PackageAxis, Tag(PackageAxis.__name__)]
    | Annotated[ValueAxis, Tag(ValueAxis.__name__)]
    | Annotated[DateAxis, Tag(DateAxis.__name__)]
    | Annotated[EnvironmentAxis, Tag(EnvironmentAxis.__name__)]
    | Annotated[CommitAxis, Tag(CommitAxis.__name__)],
    Discriminator(
        _axis_kind,
        custom_error_type="axis_kind",
        custom_error_message="an axis needs one of `package` with `versions`, `values`, `dates`, or "
        "`environments`, or `git`; add one",
    ),
]


# --------------------------------------------------------------------------------------------------
# What the matrix file says about one trial, and how its command is filled in. Pure.

TargetOutcome = Literal[
    "crash", "hang", "cuda-fault", "cuda-oom", "cuda-init", "import-error", "exit-fail", "host-oom"
]
"""The outcomes that may be what a study looks for. A pass, a skip and trouble of the machine may not."""

DEFAULT_TARGET: tuple[TargetOutcome, ...] = ("crash", "hang", "cuda-fault", "import-error", "exit-fail")

SKIP_EXIT_CODE = 125
"""git's convention: the script says that it can learn nothing here."""


class TargetRule(StrictModel):
    """The failures that a study looks for; every condition given must hold.

    `signals` narrows crashes, `exit_codes` narrows exit-fail and import-error, `output` and `signature`
    narrow all.
    """

    outcomes: Annotated[tuple[TargetOutcome, ...], Field(min_length=1)] = Field(
        default=DEFAULT_TARGET, description="The outcome is one of these."
    )
    signals: tuple[SignalNumber, ...] = Field(
        default=(), description="A crash counts only when it died by one of these signals (all, when empty)."
    )
    exit_codes: tuple[ExitStatus, ...] = Field(
        default=(), description="A failed exit counts only with one of these codes (all, when empty)."
    )
    output: tuple[Regex, ...] = Field(
        default=(),
        description="The failure counts only when stdout or stderr matches one of these regular expressions.",
    )

    signature: Text = Field(
        default="",
        description="The failure counts only when its signature matches this one, copied from a report; "
        "`from-bad-end`: that of the first failure at the known bad end (any, when empty).",
    )

    @field_validator("signature", mode="after")
    @classmethod
    def _of_this_version(cls, text: str) -> str:
        # Reports leave out the version where it is this one.
        known = text.partition(":")[0].partition(" ")[0] in get_args(TargetOutcome)
        return f"{text} (v{SIGNATURE_VERSION})" if known and not re.search(r" \(v\d+\)$", text) else text

    @model_validator(mode="after")
    def _signature_can_match(self) -> Self:
        if not self.signature or self.signature == FROM_BAD_END:
            return self
        try:
            parts = read_signature(self.signature)
        except ValueError:
            raise ValueError(
                f"{self.signature!r} is no signature; copy one from a report "
                f"(`crash:SIGSEGV in body, at a.py:f`), or say `{FROM_BAD_END}`"
            ) from None
        if parts.version != SIGNATURE_VERSION:
            raise ValueError(
                f"the signature is of version {parts.version}, and this release compares those of version "
                f"{SIGNATURE_VERSION}; copy it from a report of this release"
            )
        if parts.outcome not in self.outcomes:
            raise ValueError(
                f"the signature is of a {parts.outcome}, which `outcomes` lacks; add it, or correct it"
            )
        return self

    @model_validator(mode="after")
    def _codes_can_happen(self) -> Self:
        if SKIP_EXIT_CODE in self.exit_codes:
            raise ValueError(
                f"exit code {SKIP_EXIT_CODE} means 'skip this combination' and never counts; remove it"
            )
        if self.signals and "crash" not in self.outcomes:
            raise ValueError(
                "`signals` narrows crashes, and `outcomes` has no crash; add it or remove `signals`"
            )
        if self.exit_codes and not {"exit-fail", "import-error"} & set(self.outcomes):
            raise ValueError(
                "`exit_codes` narrows exit-fail, and `outcomes` lacks it; add it or remove `exit_codes`"
            )
        return self


def _split_command(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"the command cannot be split into words ({error}); close the quotes") from None


_MOST_ON_A_GPU = 32
SHARING_DISTURBS = frozenset({"cuda-oom", "cuda-init"})
"""Outcomes that trials beside others on one GPU can cause; they cannot be the target there."""


def _whole_or_share(value: float) -> float:
    """Return a number of GPUs; whole numbers as `int`, so that they are written as such."""
    if value >= 1 and value != int(value):
        raise ValueError(
            "a trial needs whole GPUs (1, 2, ...) or a share of one (0.5, 0.25, ...); write either"
        )
    if 0 < value < 1 / _MOST_ON_A_GPU:
        raise ValueError(f"at most {_MOST_ON_A_GPU} trials share a GPU; write {1 / _MOST_ON_A_GPU:g} or more")
    return int(value) if value == int(value) else value


class Trial(StrictModel):
    """Settings for one run of the script."""

    command: Annotated[
        tuple[str, ...],
        BeforeValidator(_split_command),
        WithJsonSchema({"type": ["string", "array"], "items": {"type": ["string", "number"]}}),
    ] = Field(
        default=(),
        description="Program and arguments, as one text (split as a shell would) or a list. "
        "`{axis}` stands for the axis's value, `{{` and `}}` for braces. Default: python and the first file.",
    )
    files: OneOrMany[Text] = Field(
        default=(),
        description="Files the script needs, relative to the matrix file; they keep their relative paths.",
    )
    timeout: Seconds = Field(
        default=60.0, description="Limit of wall-clock time: seconds, or a text like 90s or 2m."
    )
    concurrency: int = Field(
        default=1, ge=1, le=1024, description="Copies started at once on one worker; together one trial."
    )
    repeat_within: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="How often the script is run within one process, until it fails: for scripts that "
        "take longer to start than to run.",
    )
    env: dict[EnvName, Value] = Field(default_factory=dict, description="Environment variables to add.")
    gpus: Annotated[float, AfterValidator(_whole_or_share)] = Field(
        default=0,
        ge=0,
        le=64,
        description="GPUs that one trial needs; below 1, the share of one, such as 0.25 for four trials on "
        "each GPU at the same time. Nothing divides its memory among them.",
    )
    allow_host: OneOrMany[Text] = Field(
        default=(),
        description="Programs that are meant to be the host's, such as [make]: names or paths. Any other "
        "program of `command` has to be the environment's; shells may always be the host's.",
    )
    bad: TargetRule = Field(default_factory=TargetRule, description="Which failures count as bad.")

    @model_validator(mode="after")
    def _something_to_run(self) -> Self:
        if not self.command and not self.files:
            raise ValueError("the trial has nothing to run; add `command`, or `files` with the script first")
        disturbed = sorted(SHARING_DISTURBS & set(self.bad.outcomes))
        if 0 < self.gpus < 1 and disturbed:
            raise ValueError(
                f"with `gpus: {self.gpus:g}` trials share a GPU, and {', '.join(disturbed)} of one can be "
                "the doing of another; write `gpus: 1`, or leave it out of `bad.outcomes`"
            )
        if self.repeat_within > 1 and not can_repeat(self.effective_command):
            raise ValueError(
                "`repeat_within` runs a Python script again, and the command is none; "
                "write `python SCRIPT ...`, `python -m MODULE ...` or remove it"
            )
        return self

    @property
    def effective_command(self) -> tuple[str, ...]:
        """Return the command with its default filled in, placeholders as they are."""
        return self.command or ("python", braces_kept(self.files[0]))

    @property
    def scripts(self) -> tuple[str, ...]:
        """Return the arguments that name a script; they are copied even if `files` lacks them."""
        return tuple(
            word
            for word in self.effective_command
            if word.endswith((".py", ".sh"))
            and not word.startswith(("-", "/"))
            and not placeholders(word)
            and not any(character.isspace() for character in word)
        )

    @property
    def file_names(self) -> tuple[str, ...]:
        """Return every file to copy, `files` first, in normal form and without duplicates."""
        names = (*self.files, *(unbraced(script) for script in self.scripts))
        return tuple(dict.fromkeys(str(PurePosixPath(name)) for name in names))


def braces_kept(text: str) -> str:
    """Return a text with its braces doubled, so that none of them begins a placeholder."""
    return text.replace("{", "{{").replace("}", "}}")


def unbraced(word: str) -> str:
    """Return a word without placeholders as the script's command line will have it."""
    return word.replace("{{", "{").replace("}}", "}")


def placeholders(word: str) -> tuple[str, ...]:
    """Return the axis names between braces.

    Raises:
        ValueError: A brace stands alone, or more than a name stands between two; the message names a remedy.
    """
    refusal = f"{word!r} has a brace that is no placeholder; write {{axis}}, or {{{{ and }}}} for braces"
    try:
        fields = [field[1:] for field in string.Formatter().parse(word) if field[1] is not None]
    except ValueError:
        raise ValueError(refusal) from None
    names = []
    for name, spec, conversion in fields:
        if not name or spec or conversion:
            raise ValueError(refusal)
        names.append(name)
    return tuple(names)


def fill(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Put the values of a combination into a command; each word stays one word.

    Raises:
        KeyError: A placeholder names no axis (the loader has refused that).
    """
    filled = []
    for word in command:
        parts = []
        for literal, name, _, _ in string.Formatter().parse(word):
            parts.append(literal)
            if name is not None:
                parts.append(values[name])
        filled.append("".join(parts))
    return tuple(filled)


def variable(axis: str) -> str:
    """Return the environment variable that carries an axis's value: `cuda-arch` is `BISECT_ENV_CUDA_ARCH`."""
    return "BISECT_ENV_" + axis.upper().replace("-", "_")


# --------------------------------------------------------------------------------------------------
# The matrix file, version 1, as a whole.

Platform = Literal["linux-64", "linux-aarch64", "linux-ppc64le", "osx-64", "osx-arm64", "win-64"]


def _list_is_pypi(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"this should be a list, not {value!r}; write [{value}]")  # noqa: TRY004
    return {"pypi": value} if isinstance(value, list | tuple) else value


def _names_or_flag(value: Any) -> Any:
    """Refuse early what is neither, so that a union does not report one mistake twice."""
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if not isinstance(value, bool | list | tuple):
        raise ValueError(  # noqa: TRY004 -- pydantic turns ValueError alone into a finding
            f"{value!r} is neither true, false nor a list of package names; write one of them"
        )
    return value


class ContainerExecutor(StrictModel):
    """Settings for running trials in containers."""

    kind: Literal["container"] = Field(description="In containers of podman or docker.")
    image: ImageName = Field(
        description="Name of the image, such as 'rapidsai/base:{rapids}-cuda{cuda}-py{python}'; `{axis}` "
        "stands for the axis's value. Without package axes, dates and packages it is the environment; "
        "with them the locked environment is mounted into it."
    )
    network: bool = Field(default=False, description="Whether trials have a network.")


class _OrListOfRequirements:
    """Adds to the JSON schema the list that `_list_is_pypi` allows."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"type": "array", "items": {"type": "string"}}]}


class Solver(StrictModel):
    """Settings for solving the environment of a combination."""

    engine: Literal["rattler", "conda-lock"] = Field(
        default="rattler",
        description="What solves conda packages: rattler, or conda-lock with the conda or micromamba here.",
    )

    dependencies: Literal["resolve", "newest", "none"] = Field(
        default="resolve",
        description="`resolve` keeps what a neighbour has where that fits, `newest` solves each combination "
        "afresh, as an upgrade does, `none` installs the axes and `packages` alone, for combinations that "
        "metadata forbids.",
    )
    overrides: tuple[PypiRequirement, ...] = Field(
        default=(), description="Requirements that replace whatever packages ask for under the same name."
    )
    allow_source: Annotated[
        Annotated[bool, Tag("flag")] | Annotated[tuple[PackageName, ...], Tag("names")],
        Discriminator(lambda value: "flag" if isinstance(value, bool) else "names"),
        BeforeValidator(_names_or_flag),
        WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}]}),
    ] = Field(
        default=False,
        description="Whether source distributions may be built: for all packages, or for those listed.",
    )

    def allows_source(self, package: str) -> bool:
        """Return whether a source distribution of this package (normalised name) may be built."""
        if isinstance(self.allow_source, bool):
            return self.allow_source
        return package in {canonicalize_name(name) for name in self.allow_source}


class Rule(StrictModel):
    """A rule that excludes combinations, or includes them again."""

    when: Annotated[dict[str, Annotated[OneOrMany[Value], Field(min_length=1)]], Field(min_length=1)] = Field(
        description="Axis to a value, a list of values, or a comparison; all axes named must match."
    )
    why: Text = Field(description="The reason, shown wherever the combination is missing.")


class SearchLimits(StrictModel):
    """Settings of the search, and the limits at which it stops."""

    confidence: float = Field(
        default=0.95,
        gt=0.5,
        le=0.9999,
        description="Probability with which the verdict should be right: above 0.5 and up to 0.9999.",
    )
    min_crash_rate: float = Field(
        default=0.02,
        ge=0.0001,
        le=0.5,
        description="Failure rates below this need not be found: from 0.0001 to 0.5.",
    )
    clean_rate: float = Field(
        default=0.05,
        ge=0.0001,
        le=0.5,
        description="Once the answer stands, the last good combination is tried until a failure rate as high "
        "as this is excluded: from 0.0001 to 0.5.",
    )
    crash_rate: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="About how often it fails where it does, if that is known: 1 for always. The search "
        "starts from it, and goes by what it sees.",
    )
    max_trials: int = Field(default=5000, ge=1, description="Trials after which the search gives up.")
    budget: Seconds | None = Field(
        default=None,
        description="Wall-clock time after which it gives up, all commands that went on with the study "
        "together: seconds, or a text like 2h.",
    )
    amplify: bool = Field(
        default=False,
        description="Find first what makes the failure more frequent without changing the script's meaning "
        "(copies at once, load, allocators, ...), and run all trials under it.",
    )


def _known_version(value: Any) -> Any:
    if value in (1, "1") and not isinstance(value, bool):
        return 1
    raise ValueError(f"{value!r} is not a format that this release reads; write version: 1")


class FurtherIndex(StrictModel):
    """A package index that is asked beside the default one."""

    url: IndexUrl = Field(description="Its address.")
    explicit: bool = Field(
        default=False, description="Ask it only for the packages of axes that name it, as uv does."
    )


class MatrixFile(StrictModel):
    """A matrix file for bisect-env: which versions to combine, what to run, and what counts as bad."""

    version: Annotated[Literal[1], BeforeValidator(_known_version)] = Field(
        description="Version of this format."
    )
    name: Slug = Field(description="Names the study and its folder of locks.")
    description: str = Field(default="", description="What is being looked for, for people.")
    axes: Annotated[dict[AxisName, Axis], Field(min_length=1)] = Field(
        description="The axes in their order: name to package axis, value axis or date axis."
    )
    packages: Annotated[
        Packages,
        BeforeValidator(_list_is_pypi),
        _OrListOfRequirements(),
    ] = Field(
        default_factory=Packages,
        description="In every environment: a list of PyPI requirements, or {pypi: [...], conda: [...]}.",
    )
    solver: Solver = Field(default_factory=Solver, description="How environments are solved.")
    channels: tuple[ChannelName, ...] = Field(
        default=(), description="conda channels, most important first; a package comes from the first."
    )
    virtual_packages: dict[VirtualPackage, Value] = Field(
        default_factory=dict,
        description="What conda takes the hosts to have, such as {__glibc: 2.17}; `none` takes one away. "
        "Default: __cuda as the CUDA axis says, and a Linux of today.",
    )
    index: IndexUrl | None = Field(
        default=None, description="Address of the PyPI-like index; default: the one uv and pip use."
    )
    indexes: dict[IndexName, FurtherIndex] = Field(
        default_factory=dict,
        description="Further indexes: name to {url, explicit}. They come before `index`, and a package comes "
        "from the first that has it.",
    )
    find_links: tuple[FindLinks, ...] = Field(
        default=(),
        description="Folders (relative to this file) and pages with wheels, beside what indexes have.",
    )
    platform: Platform | None = Field(
        default=None, description="conda's name of the platform; default: this machine's."
    )
    exclude_newer: DateText | None = Field(
        default=None, description="Ignore what was uploaded later: a day (counted whole) or an instant."
    )
    exclude: tuple[Rule, ...] = Field(default=(), description="Combinations to leave out.")
    include: tuple[Rule, ...] = Field(
        default=(),
        description="Combinations to keep although `exclude` names them; without `exclude`, "
        "the only ones to keep.",
    )
    good: dict[str, Value] | None = Field(
        default=None, description="A combination known to be good; axes with one value may be left out."
    )
    bad: dict[str, Value] | None = Field(
        default=None, description="A combination known to be bad; axes with one value may be left out."
    )
    executor: ContainerExecutor | None = Field(
        default=None, description="Run trials in containers: {kind: container, image: NAME}."
    )
    trial: Trial = Field(description="How the script is run once.")
    search: SearchLimits = Field(default_factory=SearchLimits, description="When the search may stop.")

    @property
    def package_indexes(self) -> tuple[PackageIndex, ...]:
        """Return the further indexes."""
        return tuple(PackageIndex(name, one.url, one.explicit) for name, one in self.indexes.items())

    @property
    def image_is_environment(self) -> bool:
        """Return whether the image is the environment, so that no packages are locked."""
        return self.executor is not None and not (
            any(not isinstance(axis, ValueAxis) for axis in self.axes.values())
            or self.packages.pypi
            or self.packages.conda
        )

    @property
    def uses_conda(self) -> bool:
        """Return whether environments are conda's; Python then comes from a channel, too."""
        return bool(self.packages.conda) or any(axis.uses_conda for axis in self.axes.values())


# --------------------------------------------------------------------------------------------------
# The JSON schema of matrix files, for editors; `matrices/schema.json` is its committed form.


def matrix_json_schema() -> dict[str, Any]:
    """Return the schema of matrix file version 1 (JSON Schema, draft 2020-12)."""
    schema = MatrixFile.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """Return the schema as it is written to a file: the same bytes for the same schema."""
    return json.dumps(matrix_json_schema(), indent=2, ensure_ascii=False) + "\n"
