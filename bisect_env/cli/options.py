"""Options that several commands share, with the same names and the same meaning everywhere.

In commands with many options, `--help` shows only options without a panel, which most people need;
`--help-all` shows all options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bisect_env.answers.phrases import enumerated
from bisect_env.errors import UsageError


def share_of(option: str) -> Callable[[str | float], float]:
    """Return a function that parses an option's value written as a fraction or percentage (`0.01` or `1%`).

    The function raises `UsageError` if the value is not a number.
    """

    def share(text: str | float) -> float:
        try:
            digits = str(text).strip()
            number = float(digits.removesuffix("%"))
            return number / 100.0 if digits.endswith("%") else number
        except ValueError:
            raise UsageError(f"{option} {text} is no share", remedy="write it as 0.01 or as 1%") from None

    return share


def opt(names: str, text: str, panel: str = "", **more: Any) -> Any:
    """Return a typer option with the given names and help text, for use in `Annotated`.

    Args:
        names: Names of the option and the words for its value, separated by spaces: `--output -o FILE`.
        text: Help of the option.
        panel: Panel in which `--help-all` shows the option; "" if `--help` also shows it.
        more: Further arguments of `typer.Option`.
    """
    words = names.split()
    options = [word for word in words if word.startswith("-")]
    value = " ".join(words[len(options) :]) or None
    return typer.Option(
        *options, metavar=value, help=text, rich_help_panel=panel or None, show_envvar=False, **more
    )


def refuse_others(mode: str, given: Iterable[str], used: Collection[str] = ()) -> None:
    """Raise an error if options were given that have no effect in a mode of a command.

    Args:
        mode: The option that chooses the mode, such as `--list`.
        given: Names of the options that were given. `--db` is accepted in every mode.
        used: Names of the options that have an effect in this mode.

    Raises:
        UsageError: An option without effect was given.
    """
    others = [name for name in given if name not in (mode, "--db", *used)]
    if others:
        raise UsageError(f"{mode} does not use {enumerated(others)}", remedy="leave one or the other out")


def output_option(panel: str = "") -> Any:
    """Return the typer option `--output`, for use in `Annotated`. See `opt` for the panel."""
    where = (
        "Where to write: a file for `report`, a directory for `reproduce`, `trial --debug` and `env fetch`."
    )
    return opt("--output -o PATH", where, panel)


QUESTION = "The question"
WHERE = "Where trials run"
FAILURE = "The failure and the answer"
SHOWN = "What is shown"
STUDY = "The study"

TARGET_HELP = (
    "A matrix file; a study, by id or name (default: the latest); a report (HTML, JSON); or a question: a "
    "package with its range and the script that fails, or packages with `-p` and a command behind `--`."
)
TargetArgument = Annotated[
    list[str] | None, typer.Argument(metavar="TARGET", help=TARGET_HELP, show_default=False)
]
DatabaseOption = Annotated[
    str | None, opt("--db DB", "Results database: a file or a URL.", STUDY, envvar="BISECT_ENV_DB")
]
AT = opt(
    "--at COMBINATION",
    "Combination: torch=2.3.1,cuml=24.04 (axes with one value may be left out); first-bad or "
    "last-good of an answered study (of a fix last-bad or first-good); good or bad, as stated.",
)
AtOption = Annotated[str | None, AT]
JsonOption = Annotated[
    bool,
    opt("--json", "Print JSON on stdout, one object a line: events or rows; the answer is the last.", SHOWN),
]
CacheOption = Annotated[
    Path | None, opt("--cache DIR", "Where environments are built.", WHERE, envvar="BISECT_ENV_CACHE")
]
CheckOption = Annotated[bool, opt("--check", "Look for damage; exit code 6 if there is any.")]
CsvOption = Annotated[bool, opt("--csv", "Print rows as comma-separated values.", SHOWN)]
DryRunOption = Annotated[bool, opt("--dry-run", "Only print what would be removed.")]
PYTHON = opt("--python VERSION", "Version of Python: 3.12; several make an axis, but not in `between`.")
SchemaOption = Annotated[
    bool,
    opt("--schema", "Only print the JSON schema: of matrix files (`plan`) or of reports (`report`).", SHOWN),
]
SizeOption = Annotated[
    str | None, opt("--size SIZE", "Remove the oldest until this size is left, such as 20GB.")
]
FreshOption = Annotated[bool, opt("--fresh", "Begin anew, without the trials of earlier commands.", STUDY)]
SaveOption = Annotated[
    Path | None,
    opt("--save FILE", "Write the question to this matrix file, with its scripts beside it.", STUDY),
]


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """The values of the options that say where trials run and where results are stored.

    `with_groups` adds these options to a command.
    """

    db: DatabaseOption = None
    workers: Annotated[
        int | None,
        opt(
            "--workers N",
            "Worker processes; default: one for each core, or for each trial's GPUs.",
            WHERE,
            min=1,
            max=10_000,
        ),
    ] = None
    devices: Annotated[
        str | None,
        opt(
            "--devices DEVICES", "GPUs to use, such as 0,2 (or UUIDs); default: all that are visible.", WHERE
        ),
    ] = None
    scheduler: Annotated[
        str | None,
        opt("--scheduler ADDRESS", "Run trials on this Dask cluster, such as tcp://host:8786.", WHERE),
    ] = None
    scheduler_file: Annotated[
        Path | None,
        opt(
            "--scheduler-file FILE",
            "Run trials on the Dask cluster of this file, which `dask scheduler` writes.",
            WHERE,
        ),
    ] = None
    cache: CacheOption = None
    cache_size: Annotated[
        str | None,
        opt(
            "--env-cache-size SIZE",
            "Remove what was used least recently when the cache grows above this; default: 50GB.",
            WHERE,
            envvar="BISECT_ENV_CACHE_SIZE",
        ),
    ] = None
    offline: Annotated[
        Path | None,
        opt(
            "--offline DIR",
            "Use no network, only what `bisect-env env fetch` put into this directory.",
            WHERE,
            envvar="BISECT_ENV_OFFLINE",
        ),
    ] = None

    @property
    def is_local(self) -> bool:
        """Return whether trials run on this host, and not on a Dask cluster that exists already."""
        return self.scheduler is None and self.scheduler_file is None

    @property
    def starting(self) -> str:
        """Return the message to show while workers start or the Dask cluster is being connected."""
        return "starting workers" if self.is_local else "connecting to the Dask cluster"


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """The values of the options that commands for running a whole study share.

    `with_groups` adds these options to a command.
    """

    quick: Annotated[
        bool, opt("--quick", "End at the first answer, without checking it further.", FAILURE)
    ] = False
    sure: Annotated[
        bool, opt("--sure", "Finish all checks of the answer, however long they take.", FAILURE)
    ] = False
    save: SaveOption = None
    skip: Annotated[
        list[str] | None,
        opt("--skip [AXIS=]VALUE", "Do not try this value; may be given again.", STUDY),
    ] = None
    fresh: FreshOption = False
    only_mine: Annotated[bool, opt("--only-mine", "Do not reuse trials of other users' studies.", STUDY)] = (
        False
    )
    lockfiles: Annotated[
        Path | None,
        opt(
            "--lockfiles DIR",
            "Write the locks below this directory, too; default for a matrix file: lockfiles.",
            STUDY,
            envvar="BISECT_ENV_LOCKFILES",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The values of the options that say in which form rows are printed: as a table, as JSON, or as CSV.

    `with_groups` adds these options to a command.
    """

    as_json: JsonOption = False
    as_csv: CsvOption = False

    def __post_init__(self) -> None:
        if self.as_json and self.as_csv:
            raise UsageError("`--json` and `--csv` exclude each other", remedy="give one of them")


@dataclass(frozen=True, slots=True)
class ShownOptions:
    """The values of the options for the output and the log of a command.

    `with_groups` adds these options to a command.
    """

    as_json: JsonOption = False
    quiet: Annotated[bool, opt("--quiet -q", "Show only warnings and the answer.", SHOWN)] = False
    log_file: Annotated[
        Path | None,
        opt(
            "--log-file FILE",
            "File of the log, or /dev/stderr; default: a new file for each command.",
            SHOWN,
            envvar="BISECT_ENV_LOG",
        ),
    ] = None
