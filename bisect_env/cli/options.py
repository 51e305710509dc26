"""Options that several commands share, with the same names and help everywhere, and where trials run."""

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


MatrixArgument = Annotated[Path, typer.Argument(help="Matrix file, such as matrices/quickstart.yaml.")]
DatabaseOption = Annotated[
    str | None, typer.Option("--db", envvar="BISECT_ENV_DB", help="Results database: a file or a URL.")
]
StudyOption = Annotated[
    str | None,
    typer.Option(
        "--study", help="Id, the beginning of one, or the matrix's name; default: the newest study."
    ),
]
StudyArgument = Annotated[
    str | None,
    typer.Argument(help="Id, the beginning of one, or the matrix's name; default: the newest study."),
]
AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        help="Combination: torch=2.3.1,cuml=24.04 (axes with one value may be left out), or first-bad, "
        "last-good of an answered study, or good, bad as the matrix states them.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as JSON on stdout.")]
CacheOption = Annotated[
    Path | None, typer.Option("--cache", envvar="BISECT_ENV_CACHE", help="Where environments are built.")
]
CacheSizeOption = Annotated[
    str | None,
    typer.Option(
        "--env-cache-size",
        envvar="BISECT_ENV_CACHE_SIZE",
        help="Take away what was used least recently when the cache grows above this; default: 50GB.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        max=10_000,
        help="Worker processes; default: one for each core, or for each trial's GPUs.",
    ),
]


GpusOption = Annotated[
    str | None,
    typer.Option("--gpus", help="GPUs to use, such as 0,2 (or UUIDs); default: all that are visible."),
]
SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", help="Run trials on this Dask cluster, such as tcp://host:8786."),
]
SchedulerFileOption = Annotated[
    Path | None,
    typer.Option("--scheduler-file", help="The same, by the file that `dask scheduler` writes."),
]
OfflineOption = Annotated[
    Path | None,
    typer.Option(
        "--offline",
        envvar="BISECT_ENV_OFFLINE",
        help="Use no network, but what `bisect-env fetch` put into this directory.",
    ),
]


# --------------------------------------------------------------------------------------------------
# The options that say where a command runs its trials and how it makes its environments.


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """The options of a command that runs trials, as the user gave them; a group, see `with_groups`."""

    workers: WorkersOption = None
    gpus: GpusOption = None
    scheduler: SchedulerOption = None
    scheduler_file: SchedulerFileOption = None
    cache: CacheOption = None
    cache_size: CacheSizeOption = None
    offline: OfflineOption = None

    @property
    def starting(self) -> str:
        """The message before the executor is used for the first time, which may take seconds."""
        return "starting workers" if self.is_local else "connecting to the Dask cluster"

    @property
    def is_local(self) -> bool:
        """Whether trials run on this host."""
        return self.scheduler is None and self.scheduler_file is None
