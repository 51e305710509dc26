"""Options that several commands share, with the same names and the same meaning everywhere.

An option without a panel is one that most people need. Of a command with many options, `--help` shows those
alone, and `--help-all` the others, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

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


WHERE = "Where trials run"
SHOWN = "What is shown"
STUDY = "The study"

TARGET_HELP = (
    "A matrix file; a study, by id or name (default: the latest); or a question: a package with its "
    "range and the script that fails, or packages with `-p` and a command behind `--`."
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
    str | None,
    typer.Option(
        "--db",
        envvar="BISECT_ENV_DB",
        show_envvar=False,
        help="Results database: a file or a URL.",
        rich_help_panel=STUDY,
    ),
]
AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        help="Combination: torch=2.3.1,cuml=24.04 (axes with one value may be left out); first-bad or "
        "last-good of an answered study; good or bad, as stated.",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="JSON on stdout, one object a line; the last one is the answer.",
        rich_help_panel=SHOWN,
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        envvar="BISECT_ENV_CACHE",
        show_envvar=False,
        help="Where environments are built.",
        rich_help_panel=WHERE,
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option(
        "--save",
        help="Write the question to this matrix file, with its scripts beside it.",
        rich_help_panel=STUDY,
    ),
]


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """The options that say where a command runs trials and how it makes environments; see `with_groups`."""

    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            max=10_000,
            help="Worker processes; default: one for each core, or for each trial's GPUs.",
            rich_help_panel=WHERE,
        ),
    ] = None
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            help="GPUs to use, such as 0,2 (or UUIDs); default: all that are visible.",
            rich_help_panel=WHERE,
        ),
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            help="Run trials on this Dask cluster, such as tcp://host:8786.",
            rich_help_panel=WHERE,
        ),
    ] = None
    scheduler_file: Annotated[
        Path | None,
        typer.Option(
            "--scheduler-file",
            help="Run trials on the Dask cluster of this file, which `dask scheduler` writes.",
            rich_help_panel=WHERE,
        ),
    ] = None
    cache: CacheOption = None
    cache_size: Annotated[
        str | None,
        typer.Option(
            "--env-cache-size",
            envvar="BISECT_ENV_CACHE_SIZE",
            show_envvar=False,
            help="Remove what was used least recently when the cache grows above this; default: 50GB.",
            rich_help_panel=WHERE,
        ),
    ] = None
    offline: Annotated[
        Path | None,
        typer.Option(
            "--offline",
            envvar="BISECT_ENV_OFFLINE",
            show_envvar=False,
            help="Use no network, only what `bisect-env env fetch` put into this directory.",
            rich_help_panel=WHERE,
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
class ShownOptions:
    """The options of what a command shows and logs; see `with_groups`."""

    as_json: JsonOption = False
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Show only warnings and the answer.", rich_help_panel=SHOWN),
    ] = False
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Show on stderr what is logged, too.", rich_help_panel=SHOWN),
    ] = False
    log_file: Annotated[
        Path | None,
        typer.Option(
            "--log-file",
            envvar="BISECT_ENV_LOG",
            show_envvar=False,
            help="File of the log; default: a new file for each command.",
            rich_help_panel=SHOWN,
        ),
    ] = None
