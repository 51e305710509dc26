"""Options that several commands share, with the same names and the same meaning everywhere.

An option without a panel is one that most people need. Of a command with many options, `--help` shows those
alone, and `--help-all` the others, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bisect_env.errors import UsageError


def share(text: str | float) -> float:
    """Return a share of one, written as `0.01` or as `1%`.

    Raises:
        UsageError: It is neither.
    """
    try:
        digits = str(text).strip()
        number = float(digits.removesuffix("%"))
        return number / 100.0 if digits.endswith("%") else number
    except ValueError:
        raise UsageError(f"{text} is no share", remedy="write it as 0.01 or as 1%") from None


def opt(names: str, text: str, panel: str = "", **more: Any) -> Any:
    """Return the option of an annotation.

    Args:
        names: All of its names, separated by spaces.
        text: Its help.
        panel: Panel in which `--help-all` shows it; "" if `--help` shows it, too.
        more: What else typer knows of options.
    """
    return typer.Option(*names.split(), help=text, rich_help_panel=panel or None, show_envvar=False, **more)


WHERE = "Where trials run"
SHOWN = "What is shown"
STUDY = "The study"

TARGET_HELP = (
    "A matrix file; a study, by id or name (default: the latest); a report (HTML, JSON); or a question: a "
    "package with its range and the script that fails, or packages with `-p` and a command behind `--`."
)
TargetArgument = Annotated[
    list[str] | None, typer.Argument(metavar="TARGET", help=TARGET_HELP, show_default=False)
]
StudyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MATRIX | STUDY",
        help="A study, by id or name (default: the latest), or its matrix file.",
        show_default=False,
    ),
]
DatabaseOption = Annotated[
    str | None, opt("--db", "Results database: a file or a URL.", STUDY, envvar="BISECT_ENV_DB")
]
AtOption = Annotated[
    str | None,
    opt(
        "--at",
        "Combination: torch=2.3.1,cuml=24.04 (axes with one value may be left out); first-bad or "
        "last-good of an answered study; good or bad, as stated.",
    ),
]
JsonOption = Annotated[
    bool,
    opt("--json", "JSON on stdout, one object a line: events, rows, or the answer, last.", SHOWN),
]
CacheOption = Annotated[
    Path | None, opt("--cache", "Where environments are built.", WHERE, envvar="BISECT_ENV_CACHE")
]
SaveOption = Annotated[
    Path | None, opt("--save", "Write the question to this matrix file, with its scripts beside it.", STUDY)
]


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """The options that say where trials run and where results are; see `with_groups`."""

    db: DatabaseOption = None
    workers: Annotated[
        int | None,
        opt(
            "--workers",
            "Worker processes; default: one for each core, or for each trial's GPUs.",
            WHERE,
            min=1,
            max=10_000,
        ),
    ] = None
    devices: Annotated[
        str | None,
        opt("--devices", "GPUs to use, such as 0,2 (or UUIDs); default: all that are visible.", WHERE),
    ] = None
    scheduler: Annotated[
        str | None, opt("--scheduler", "Run trials on this Dask cluster, such as tcp://host:8786.", WHERE)
    ] = None
    scheduler_file: Annotated[
        Path | None,
        opt(
            "--scheduler-file",
            "Run trials on the Dask cluster of this file, which `dask scheduler` writes.",
            WHERE,
        ),
    ] = None
    cache: CacheOption = None
    cache_size: Annotated[
        str | None,
        opt(
            "--env-cache-size",
            "Remove what was used least recently when the cache grows above this; default: 50GB.",
            WHERE,
            envvar="BISECT_ENV_CACHE_SIZE",
        ),
    ] = None
    offline: Annotated[
        Path | None,
        opt(
            "--offline",
            "Use no network, only what `bisect-env env fetch` put into this directory.",
            WHERE,
            envvar="BISECT_ENV_OFFLINE",
        ),
    ] = None

    @property
    def starting(self) -> str:
        """Return the message before the executor is used for the first time, which may take seconds."""
        return "starting workers" if self.is_local else "connecting to the Dask cluster"

    @property
    def is_local(self) -> bool:
        """Return whether trials run on this host."""
        return self.scheduler is None and self.scheduler_file is None


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """The options of commands that run a whole study; see `with_groups`."""

    save: SaveOption = None
    skip: Annotated[
        list[str] | None,
        opt("--skip", "Do not try this value; may be given again.", STUDY, metavar="[AXIS=]VALUE"),
    ] = None
    fresh: Annotated[
        bool, opt("--fresh", "Begin a new study, and measure again what was measured before.", STUDY)
    ] = False
    only_mine: Annotated[
        bool, opt("--only-mine", "Use no trial that another user's study recorded.", STUDY)
    ] = False
    lockfiles: Annotated[
        Path | None,
        opt(
            "--lockfiles",
            "Write the locks below this directory, too; default for a matrix file: lockfiles.",
            STUDY,
            envvar="BISECT_ENV_LOCKFILES",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ShownOptions:
    """The options of what a command shows and logs; see `with_groups`."""

    as_json: JsonOption = False
    quiet: Annotated[bool, opt("--quiet -q", "Show only warnings and the answer.", SHOWN)] = False
    verbose: Annotated[bool, opt("--verbose -v", "Show on stderr what is logged, too.", SHOWN)] = False
    log_file: Annotated[
        Path | None,
        opt(
            "--log-file",
            "File of the log; default: a new file for each command.",
            SHOWN,
            envvar="BISECT_ENV_LOG",
        ),
    ] = None
