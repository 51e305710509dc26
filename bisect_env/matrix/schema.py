"""The pydantic models of a matrix file (version 1), and its JSON schema.

The models check each key on its own. The module `contradictions` finds keys that contradict each other.
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
from bisect_env.matrix.interpreter import can_repeat, check_build, script_place
from bisect_env.matrix.scalars import (
    AxisName,
    BuildPattern,
    Bytes,
    ChannelName,
    CommandWord,
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
    placeholders,
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
from bisect_env.secrets import without_passwords

# --------------------------------------------------------------------------------------------------
# The kinds of axes of a matrix file.


class StrictModel(BaseModel):
    """The base class of immutable models that reject unknown keys, such as misspelt ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


Versions = Annotated[
    Annotated[tuple[VersionText, ...], Field(min_length=1), Tag("list")] | Annotated[Text, Tag("range")],
    Discriminator(lambda value: "range" if isinstance(value, str) else "list"),
]


def _texts(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


_T = TypeVar("_T")
OneOrMany = Annotated[
    tuple[_T, ...],
    BeforeValidator(_texts),
    WithJsonSchema({"type": ["string", "number", "array"], "items": {"type": ["string", "number"]}}),
]
"""A list of texts, or a single text, which is read as a list with one item."""


def _refuse_twice(what: str, values: Iterable[str], key: Callable[[str], Any]) -> None:
    """Raise ValueError if the function `key` returns the same result for two of the values.

    `what` names the kind of the values in the message.
    """
    # Sorting is stable: of two equal values, the one that is written first in the file comes first.
    ordered = sorted(((key(value), value) for value in values), key=lambda pair: pair[0])
    for (known, earlier), (found, value) in itertools.pairwise(ordered):
        if found == known:
            same = "stands twice" if earlier == value else f"is the same as {earlier!r}"
            raise ValueError(f"{what} {value!r} {same}; remove one")


class AxisModel(StrictModel):
    """The base class of axes: the keys that all kinds of axes share."""

    kind: ClassVar[AxisKind]

    direction: Direction = Field(
        default=Direction.REGRESSION, description="Assumption about which values of the axis are bad."
    )
    skip: OneOrMany[Value] = Field(
        default=(),
        description="Values to leave out, such as ['3.1.2'] or '<3.2'. Trials already stored are still used.",
    )

    @property
    def listed(self) -> tuple[str, ...] | None:
        """Return the values of the axis in order, or None if they are known only after a look-up.

        The look-up asks a package index or a repository.
        """
        return None

    @property
    def uses_conda(self) -> bool:
        """Return whether the axis names conda packages."""
        return False


class PackageAxis(AxisModel):
    """An axis whose values are exact versions of one package."""

    kind: ClassVar = AxisKind.PACKAGE

    package: PackageName = Field(description="Name of the package; `python` is the interpreter itself.")
    manager: Manager = Field(default=Manager.PYPI, description="Package manager that installs the package.")
    build: BuildPattern | None = Field(
        default=None, description="Pattern for the build string, such as 'cuda*'; conda packages only."
    )
    versions: Versions = Field(
        description="A list of exact versions, which may include withdrawn ones, or a range such as "
        "'>=2.1,<2.6'."
    )
    index: IndexName | None = Field(
        default=None, description="Name of the index in `indexes` that the package comes from."
    )
    step: Step = Field(
        default=Step.MINOR,
        description="Which releases of a range to take: the newest of each major, minor or patch version, "
        "or all of them.",
    )
    refine: bool = Field(
        default=True,
        description="Whether to search the releases between last good and first bad that `step` left out; "
        "ranges only.",
    )
    prereleases: bool = Field(default=False, description="Whether a range includes pre-releases.")
    yanked: bool = Field(default=False, description="Whether a range includes withdrawn (yanked) releases.")

    @field_validator("versions")
    @classmethod
    def _versions_make_sense(cls, versions: tuple[str, ...] | str, info: ValidationInfo) -> Any:
        manager = info.data.get("manager", Manager.PYPI)
        if isinstance(versions, str):
            parse_range(versions)
            return versions
        if info.data.get("package", "").lower() == "python":
            for version in versions:
                check_build(version)
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
        """Return the versions that the file lists, in ascending order, or None if it names a range."""
        if isinstance(self.versions, str):
            return None
        return tuple(sorted(self.versions, key=lambda version: order_key(version, self.manager)))

    @property
    def uses_conda(self) -> bool:
        """Return whether the package is a conda package."""
        return self.manager is Manager.CONDA

    @property
    def is_python(self) -> bool:
        """Return whether the values of this axis are versions of the Python interpreter."""
        return self.canonical_package == "python"

    @property
    def canonical_package(self) -> str:
        """Return the package name, normalised by the rules of its package manager.

        PyPI treats `a_b` and `a-b` as the same name, conda does not.
        """
        return self.package.lower() if self.manager is Manager.CONDA else str(canonicalize_name(self.package))


class ValueAxis(AxisModel):
    """An axis whose values are passed to the script; the environment stays the same."""

    kind: ClassVar = AxisKind.VALUE

    values: Annotated[tuple[Value, ...], Field(min_length=1)] = Field(
        description="Values in order. The script receives one as the variable BISECT_ENV_<AXIS>; a "
        "command can use {axis}."
    )

    @field_validator("values")
    @classmethod
    def _no_duplicates(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        _refuse_twice("value", values, str)
        return values

    @field_validator("values")
    @classmethod
    def _no_passwords(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        # Values name combinations in the database and in reports, where no secret may stand.
        for value in values:
            if (shown := without_passwords(value)) != value:
                raise ValueError(
                    f"value {shown!r} holds a password, which would be stored and shown; leave it out, and "
                    "let the script read it from a file or a variable of its host"
                )
        return values

    @property
    def listed(self) -> tuple[str, ...]:
        """Return the values, in the order of the file."""
        return self.values


class DateRange(StrictModel):
    """A range of days, both ends included."""

    from_: DayText = Field(alias="from", description="First day.")
    to: DayText = Field(description="Last day; always included, even if `step` does not reach it.")
    step: StepText = Field(
        default="1d", description="Interval between two values: 1d, 2w, or a number of days."
    )

    @model_validator(mode="after")
    def _days_make_sense(self) -> Self:
        days_between(self.from_, self.to, self.step)
        return self

    @property
    def days(self) -> tuple[str, ...]:
        """Return all days of the range, such as `2026-01-31`, in ascending order."""
        return days_between(self.from_, self.to, self.step)


class DateAxis(AxisModel):
    """An axis whose values are days: packages are resolved as on that day, unless their version is pinned."""

    kind: ClassVar = AxisKind.DATE

    dates: Annotated[
        Annotated[tuple[DateText, ...], Field(min_length=1), Tag("list")]
        | Annotated[DateRange, Tag("range")],
        Discriminator(lambda value: "range" if isinstance(value, Mapping | BaseModel) else "list"),
    ] = Field(description="A list of days or instants, or {from, to, step}. A day includes all its uploads.")

    @field_validator("dates")
    @classmethod
    def _no_duplicates(cls, dates: tuple[str, ...] | DateRange) -> Any:
        if not isinstance(dates, DateRange):
            _refuse_twice("date", dates, cutoff)
        return dates

    @property
    def listed(self) -> tuple[str, ...]:
        """Return all dates of the axis, in ascending order."""
        if isinstance(self.dates, DateRange):
            return self.dates.days
        return tuple(sorted(self.dates, key=cutoff))


class Packages(StrictModel):
    """Packages of an environment, in addition to those of the axes."""

    pypi: tuple[PypiRequirement, ...] = Field(
        default=(),
        description="Requirements such as 'numpy<2'; of a package that an axis names, its "
        "extras alone ('dask[array]').",
    )
    conda: tuple[CondaSpec, ...] = Field(default=(), description="Specs such as 'cuda-version 12.8'.")


class WholeEnvironment(Packages):
    """A value of an environment axis: its packages, in addition to those of the key `packages`."""

    python: Annotated[VersionText, AfterValidator(check_build)] | None = Field(
        default=None, description="Version of Python; with conda, name it among the packages instead."
    )


class EnvironmentAxis(AxisModel):
    """An axis whose values are whole lists of packages, such as a lock that works and one that fails."""

    kind: ClassVar = AxisKind.ENVIRONMENT

    environments: Annotated[dict[Value, WholeEnvironment], Field(min_length=1)] = Field(
        description="Environments in order: name to {python, pypi, conda}. `bisect-env between` writes "
        "such an axis."
    )

    @property
    def listed(self) -> tuple[str, ...]:
        """Return the names of the environments, in the order of the file."""
        return tuple(self.environments)

    @property
    def uses_conda(self) -> bool:
        """Return whether at least one environment contains conda packages."""
        return any(one.conda for one in self.environments.values())


class CommitBuild(StrictModel):
    """Settings for building commits."""

    env: dict[EnvName, Value] = Field(
        default_factory=dict,
        description="Environment variables for the build, such as {CC: 'ccache gcc'}. Values of variables "
        "with names like secrets are not stored in locks or in the database.",
    )
    requires: tuple[PypiRequirement, ...] = Field(
        default=(), description="Build requirements, which replace those that each commit declares."
    )
    exclude_newer: DateText | None = Field(
        default=None,
        description="Ignore build requirements that were uploaded later. Default: the day of the commit, "
        "or the release day of the building Python, whichever is later.",
    )
    time_limit: Seconds = Field(
        default=1800.0,
        description="Time limit for one build: seconds, or a text like 20m. A build that takes longer fails.",
    )
    memory: Bytes | None = Field(
        default=None, description="Memory limit for each process of a build: bytes, or a text like 8GB."
    )
    partial: bool = Field(
        default=False,
        description="Whether to build commits that use submodules or git-lfs. Neither is fetched.",
    )
    ahead: bool = Field(
        default=False,
        description="Whether to build likely next commits in advance. This is faster if cores are idle, "
        "but makes up to twice as many builds.",
    )


class CommitAxis(AxisModel):
    """An axis whose values are commits of a repository, from which one package is built."""

    kind: ClassVar = AxisKind.COMMIT

    git: RepositoryName = Field(
        description="Address of the repository, or path of a clone relative to this file. The repository "
        "is never changed."
    )
    package: PackageName = Field(description="Name of the package that the repository builds.")
    from_: Revision = Field(
        alias="from", description="Older end of the history: a tag, branch, hash, or day."
    )
    to: Revision = Field(default="HEAD", description="Newer end of the history: a tag, branch, hash, or day.")
    history: Literal["first-parent", "all"] = Field(
        default="first-parent",
        description="`first-parent` stops at the merge that introduced the failure; `all` also searches "
        "the merged commits.",
    )
    subdirectory: Subdirectory = Field(
        default="", description="Directory of the package within the repository."
    )
    build: CommitBuild = Field(default_factory=CommitBuild, description="Settings for building commits.")

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
    """Find out which kind of axis an entry of a matrix file describes; return the name of its model class.

    The kind is recognised by a key that only this kind of axis has. Return "" if the axis has no such key.
    """
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
        custom_error_type="no_kind",
        custom_error_message="an axis needs one of `package` with `versions`, `values`, `dates`, or "
        "`environments`, or `git`; add one",
    ),
]


# --------------------------------------------------------------------------------------------------
# The settings of one trial in a matrix file, and the placeholders in its command. Pure.

TargetOutcome = Literal[
    "crash",
    "hang",
    "cuda-fault",
    "cuda-oom",
    "cuda-init",
    "runner-error",
    "import-error",
    "exit-fail",
    "host-oom",
]
"""The outcomes that a study can look for. Passes, skips and failures of the machine are not among them."""

DEFAULT_TARGET: tuple[TargetOutcome, ...] = ("crash", "hang", "cuda-fault", "import-error", "exit-fail")

SKIP_EXIT_CODE = 125
"""Exit code with which a script asks to skip the combination, as in `git bisect run`."""


class TargetRule(StrictModel):
    """The failures that a study looks for; every condition given must hold.

    `signals` narrows crashes, `exit_codes` narrows exit-fail and import-error, `output`, `signature` and
    `kinds` narrow all.
    """

    outcomes: Annotated[tuple[TargetOutcome, ...], Field(min_length=1)] = Field(
        default=DEFAULT_TARGET, description="Outcomes that count as bad."
    )
    signals: tuple[SignalNumber, ...] = Field(
        default=(), description="Signals whose crashes count as bad; empty means every signal."
    )
    exit_codes: tuple[ExitStatus, ...] = Field(
        default=(), description="Exit codes that count as bad; empty means every code."
    )
    output: tuple[Regex, ...] = Field(
        default=(),
        description="Regular expressions. If there are any, a failure counts only if stdout or stderr "
        "matches one of them.",
    )

    signature: Text = Field(
        default="",
        description="Signature that a failure must match, copied from a report. `from-bad-end` takes it "
        "from the first failure at the known bad end. Empty means any failure.",
    )
    kinds: tuple[Text, ...] = Field(
        default=(),
        description="Kinds of failure that count as bad, as signatures begin with them: `crash`, "
        "`exit-fail:ValueError`. Empty means every kind.",
    )

    @field_validator("signature", mode="after")
    @classmethod
    def _of_this_version(cls, text: str) -> str:
        # Reports show a signature of the current version without its version, so add it here.
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
                "`exit_codes` narrows exit-fail and import-error, and `outcomes` lacks both; add one or "
                "remove `exit_codes`"
            )
        return self


def _split_command(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # Without the line breaks, a command that a shell would continue in the next line is several lines, too.
    text = value.strip().replace("\\\n", "\n")
    in_one_line = shlex.shlex(text, posix=True)
    in_one_line.whitespace, in_one_line.commenters, in_one_line.whitespace_split = " \t", "", True
    try:
        words = tuple(shlex.split(value))
        if shlex.split(text) == list(in_one_line):
            return words
    except ValueError as error:
        raise ValueError(f"the command cannot be split into words ({error}); close the quotes") from None
    raise ValueError(
        "the command has several lines, and a trial starts one program; write it in one line, or as a list "
        "such as [bash, -c, '...']"
    )


def _names_a_program(command: tuple[str, ...]) -> tuple[str, ...]:
    if command and not command[0].strip():
        raise ValueError("the command begins with an empty word; write the program first")
    return command


_MOST_ON_A_GPU = 32
SHARING_DISTURBS = frozenset({"cuda-oom", "cuda-init"})
"""Outcomes that other trials on the same GPU can cause. They cannot be the target if trials share a GPU."""


def _whole_or_share(value: float) -> float:
    """Check and return the number of GPUs of a trial, which must be whole or a share of one GPU.

    A whole number is returned as `int`, so that it is shown as `1`.

    Raises:
        ValueError: The number is above 1 and not whole, or the share of a GPU is too small.
    """
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
        tuple[CommandWord, ...],
        Field(min_length=1),
        BeforeValidator(_split_command),
        AfterValidator(_names_a_program),
        WithJsonSchema({"type": ["string", "array"], "items": {"type": ["string", "number"]}}),
    ] = Field(
        description="Program and arguments, as a list or as one text that is split like a shell command. "
        "`{axis}` is replaced by the value of the axis; write `{{` and `}}` for braces.",
    )
    files: OneOrMany[Text] = Field(
        default=(),
        description="Files the script needs, relative to the matrix file; they keep their relative paths.",
    )
    timeout: Seconds = Field(
        default=60.0,
        description="Wall-clock limit per trial: seconds, or a text like 90s or 2m. A longer trial counts "
        "as a hang.",
    )
    concurrency: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Number of copies of the script that one trial runs at the same time.",
    )
    repeat_within: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="Maximum number of times to run the script within one process; stops at the first "
        "failure. Saves time if the script takes longer to start than to run.",
    )
    env: dict[EnvName, Value] = Field(
        default_factory=dict,
        description="Environment variables to add. `{axis}` stands for the value of an axis.",
    )
    gpus: Annotated[float, AfterValidator(_whole_or_share)] = Field(
        default=0,
        ge=0,
        le=64,
        description="Number of GPUs per trial. A number below 1 is a share: 0.25 runs four trials on each "
        "GPU at the same time. GPU memory is not divided.",
    )
    allow_host: OneOrMany[Text] = Field(
        default=(),
        description="Names or paths of programs that `command` may take from the host, such as [make]. "
        "All other programs must come from the environment, except shells.",
    )
    bad: TargetRule = Field(default_factory=TargetRule, description="Which failures count as bad.")

    @model_validator(mode="after")
    def _outcomes_and_command_fit(self) -> Self:
        disturbed = sorted(SHARING_DISTURBS & set(self.bad.outcomes))
        if 0 < self.gpus < 1 and disturbed:
            raise ValueError(
                f"with `gpus: {self.gpus:g}` trials share a GPU, and {', '.join(disturbed)} of one can be "
                "the doing of another; write `gpus: 1`, or leave it out of `bad.outcomes`"
            )
        if self.repeat_within > 1 and not can_repeat(self.command):
            raise ValueError(
                "`repeat_within` runs a Python script again, and the command is none; "
                "write `python SCRIPT ...`, `python -m MODULE ...` or remove it"
            )
        return self

    @property
    def scripts(self) -> tuple[str, ...]:
        """Return the words of the command that look like paths of scripts.

        Files with these names are copied into trials, too.
        """
        return tuple(
            word
            for word in self.command
            if word.endswith((".py", ".sh"))
            and not word.startswith(("-", "/"))
            and not placeholders(word)
            and not any(character.isspace() for character in word)
        )

    @property
    def perhaps_files(self) -> frozenset[str]:
        """Return those of `scripts` that need not exist, because they do not stand where a script must.

        They may be patterns (`-p "test*.py"`), or files that the command writes.
        """
        place = script_place(self.command)
        needed = {*self.files, *(self.command[place : place + 1] if place is not None else ())}
        names = (unbraced(word) for word in self.scripts if word not in needed)
        return frozenset(str(PurePosixPath(name)) for name in names)

    @property
    def file_names(self) -> tuple[str, ...]:
        """Return the paths of all files to copy into trials, without duplicates.

        `files` come first, then `scripts`.
        """
        names = (*self.files, *(unbraced(script) for script in self.scripts))
        return tuple(dict.fromkeys(str(PurePosixPath(name)) for name in names))


def braces_kept(text: str) -> str:
    """Double the braces in a text, so that they are not taken for placeholders in a command."""
    return text.replace("{", "{{").replace("}", "}}")


def unbraced(word: str) -> str:
    """Replace doubled braces in a word by single ones, the reverse of `braces_kept`."""
    return word.replace("{{", "{").replace("}}", "}")


def fill(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command with its placeholders, such as `{cuda}`, replaced with the values of a combination.

    Args:
        command: Program and arguments with placeholders.
        values: Axis name to value.

    Raises:
        KeyError: A placeholder names no axis. A loaded matrix has no such placeholder.
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


_IN_VARIABLE = re.compile(r"\{\{(?P<literal>[A-Za-z][\w-]*)\}\}|\{(?P<axis>[A-Za-z][\w-]*)\}")
"""A name in braces in the value of an environment variable; other braces, as of JSON, have no meaning."""


def axes_in_variable(text: str) -> tuple[str, ...]:
    """Return the names between braces in the value of an environment variable: `("cuda",)` for `v{cuda}`."""
    return tuple(match["axis"] for match in _IN_VARIABLE.finditer(text) if match["axis"])


def fill_variable(text: str, values: Mapping[str, str]) -> str:
    """Replace names of axes in braces by their values, and names in doubled braces by names in braces.

    Args:
        text: Value of an environment variable.
        values: Axis name to value.

    Raises:
        KeyError: A name is no axis. A loaded matrix has no such name.
    """
    return _IN_VARIABLE.sub(
        lambda match: values[match["axis"]] if match["axis"] else f"{{{match['literal']}}}", text
    )


def variable(axis: str) -> str:
    """Return the name of the environment variable for an axis: `BISECT_ENV_CUDA_ARCH` for `cuda-arch`."""
    return "BISECT_ENV_" + axis.upper().replace("-", "_")


# --------------------------------------------------------------------------------------------------
# The matrix file, version 1, as a whole.

Platform = Literal["linux-64", "linux-aarch64", "linux-ppc64le", "osx-64", "osx-arm64", "win-64"]


def _list_is_pypi(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"this should be a list, not {value[:60]!r}; write [{value[:60]}]")  # noqa: TRY004
    return {"pypi": value} if isinstance(value, list | tuple) else value


def _flag_or_names(value: Any) -> str | None:
    """Return whether a value is a boolean (`flag`) or a list (`names`), or None if it is neither."""
    if isinstance(value, list | tuple):
        return "names"
    return "flag" if str(value).lower() in ("true", "false") else None


class ContainerExecutor(StrictModel):
    """Settings for running trials in containers."""

    kind: Literal["container"] = Field(description="`container` runs trials with podman or docker.")
    image: ImageName = Field(
        description="Name of the image, such as 'rapidsai/base:{rapids}-cuda{cuda}-py{python}'; `{axis}` "
        "is replaced by the value of the axis. If the matrix names packages or dates, the "
        "locked environment is mounted into the image; otherwise the image is the "
        "environment."
    )
    network: bool = Field(default=False, description="Whether trials have network access.")


class _OrListOfRequirements:
    """An annotation that makes the JSON schema of the key `packages` accept a list of texts, too."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"type": "array", "items": {"type": "string"}}]}


class Solver(StrictModel):
    """Settings for solving the environment of a combination."""

    engine: Literal["rattler", "conda-lock"] = Field(
        default="rattler",
        description="Solver for conda packages: rattler, or conda-lock with this host's conda or micromamba.",
    )

    dependencies: Literal["resolve", "newest", "none"] = Field(
        default="resolve",
        description="How dependencies are chosen. `resolve` prefers the versions of a combination that is "
        "already locked, `newest` solves each combination independently, and `none` installs "
        "only the axes and `packages`, for combinations that package metadata forbids.",
    )
    overrides: tuple[PypiRequirement, ...] = Field(
        default=(), description="Requirements that replace those which packages declare for the same name."
    )
    allow_source: Annotated[
        Annotated[bool, Tag("flag")] | Annotated[tuple[PackageName, ...], Tag("names")],
        Discriminator(
            _flag_or_names,
            custom_error_type="no_kind",
            custom_error_message="this is neither true, false nor a list of package names; write one of them",
        ),
        WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}]}),
    ] = Field(
        default=False,
        description="Whether source distributions may be built: for all packages, or for those listed.",
    )


class Rule(StrictModel):
    """A rule that excludes combinations, or includes them again."""

    when: Annotated[dict[str, Annotated[OneOrMany[Value], Field(min_length=1)]], Field(min_length=1)] = Field(
        description="Axis name to a value, a list of values, or a comparison. A combination matches if "
        "all named axes match."
    )
    why: Text = Field(description="Reason for the exclusion; shown for each combination left out.")


LEAST_RATE = 0.0001
"""Lowest failure rate that a search can look for."""


class SearchLimits(StrictModel):
    """Settings of the search, and the limits at which it stops."""

    confidence: float = Field(
        default=0.95,
        gt=0.5,
        le=0.9999,
        description="Required probability that the verdict is right: above 0.5 and up to 0.9999.",
    )
    min_crash_rate: float = Field(
        default=0.02,
        ge=LEAST_RATE,
        le=0.5,
        description="Lowest failure rate that the search must find: from 0.0001 to 0.5.",
    )
    clean_rate: float = Field(
        default=0.05,
        ge=LEAST_RATE,
        le=0.5,
        description="Failure rate to rule out at the last good combination, which is tried until that is "
        "done: from 0.0001 to 0.5.",
    )
    crash_rate: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Expected failure rate of bad combinations, if known; 1 means always. The search "
        "starts from this rate and adjusts it to the trials.",
    )
    max_trials: int = Field(
        default=5000, ge=1, description="Maximum number of trials, after which the search stops."
    )
    budget: Seconds | None = Field(
        default=None,
        description="Wall-clock limit for the study, summed over all commands that continued it: seconds, "
        "or a text like 2h.",
    )
    amplify: bool = Field(
        default=False,
        description="Whether to look first for circumstances that make the failure more frequent "
        "(simultaneous copies, load, allocators, ...), and then run all trials under the best "
        "one.",
    )


def _known_version(value: Any) -> Any:
    if value in (1, "1") and not isinstance(value, bool):
        return 1
    raise ValueError(f"{value!r} is not a format that this release reads; write version: 1")


class FurtherIndex(StrictModel):
    """A package index that is used in addition to the default one."""

    url: IndexUrl = Field(description="Address of the index.")
    explicit: bool = Field(
        default=False,
        description="Whether only packages of axes that name this index come from it, as with uv's "
        "`explicit`.",
    )


class MatrixFile(StrictModel):
    """A matrix file for bisect-env: which versions to combine, what to run, and what counts as bad."""

    version: Annotated[Literal[1], BeforeValidator(_known_version)] = Field(
        description="Version of the matrix format."
    )
    name: Slug = Field(description="Name of the study and of its lock directory.")
    description: str = Field(default="", description="Free text about the question; shown in reports.")
    axes: Annotated[dict[AxisName, Axis], Field(min_length=1)] = Field(
        description="Axes in order: name to a package, value, date, environment or commit axis."
    )
    packages: Annotated[
        Packages,
        BeforeValidator(_list_is_pypi),
        _OrListOfRequirements(),
    ] = Field(
        default_factory=Packages,
        description="Additional packages to install in every environment: a list of PyPI requirements, or "
        "{pypi: [...], conda: [...]}.",
    )
    solver: Solver = Field(default_factory=Solver, description="How environments are solved.")
    channels: tuple[ChannelName, ...] = Field(
        default=(),
        description="conda channels by priority; a package comes from the first channel that has it.",
    )
    virtual_packages: dict[VirtualPackage, Value] = Field(
        default_factory=dict,
        description="Virtual packages that conda assumes, such as {__glibc: 2.17}; `none` removes one. "
        "Default: __cuda from the CUDA axis, and a current Linux.",
    )
    index: IndexUrl | None = Field(
        default=None, description="Address of the package index; default: the index configured for uv or pip."
    )
    indexes: dict[IndexName, FurtherIndex] = Field(
        default_factory=dict,
        description="Additional indexes: name to {url, explicit}. They are asked in order, before "
        "`index`; a package comes from the first that has it.",
    )
    find_links: tuple[FindLinks, ...] = Field(
        default=(),
        description="Additional folders (relative to this file) and web pages with wheels.",
    )
    platform: Platform | None = Field(
        default=None, description="Platform, as conda names it; default: the platform of this machine."
    )
    exclude_newer: DateText | None = Field(
        default=None,
        description="Ignore packages uploaded later: a day, including all its uploads, or an instant.",
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
        default=None, description="Settings for trials in containers: {kind: container, image: NAME}."
    )
    trial: Trial = Field(description="How one trial runs the script.")
    search: SearchLimits = Field(default_factory=SearchLimits, description="When the search may stop.")

    @property
    def package_indexes(self) -> tuple[PackageIndex, ...]:
        """Return the indexes of the key `indexes`, which are used in addition to the default index."""
        return tuple(PackageIndex(name, one.url, one.explicit) for name, one in self.indexes.items())

    @property
    def image_is_environment(self) -> bool:
        """Return whether trials use the packages in a container image instead of locked environments."""
        return self.executor is not None and not (
            any(not isinstance(axis, ValueAxis) for axis in self.axes.values())
            or self.packages.pypi
            or self.packages.conda
        )

    @property
    def uses_conda(self) -> bool:
        """Return whether any environment of the matrix contains conda packages.

        Then Python comes from a conda channel, too.
        """
        return bool(self.packages.conda) or any(axis.uses_conda for axis in self.axes.values())


# --------------------------------------------------------------------------------------------------
# The JSON schema of matrix files, for editors; it is committed as `matrices/schema.json`.


def matrix_json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of matrix files, version 1."""
    schema = MatrixFile.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """Return the JSON schema of matrix files as text, in the form in which it is committed.

    Equal schemas give equal text.
    """
    return json.dumps(matrix_json_schema(), indent=2, ensure_ascii=False) + "\n"
