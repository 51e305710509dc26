"""Options that several commands share, with the same names and help everywhere, and where trials run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from bisect_env.cli.signals import is_stopping

if TYPE_CHECKING:
    from bisect_env.cluster.choose import LazyExecutor
    from bisect_env.environments.provider import EnvironmentProvider
    from bisect_env.matrix.load import Matrix


def share(text: str | float) -> float:
    """Return a share of one, written as `0.01` or as `1%`.

    Raises:
        UsageError: It is neither.
    """
    from bisect_env.errors import UsageError

    try:
        digits = str(text).strip()
        number = float(digits.removesuffix("%"))
        return number / 100.0 if digits.endswith("%") else number
    except ValueError:
        raise UsageError(f"{text} is no share", remedy="write it as 0.01 or as 1%") from None


_WORDS = {
    "at": "COMBINATION",
    "cache": "DIR",
    "db": "DB",
    "end": "VERSION",
    "env": "NAME=VALUE",
    "env_cache_size": "SIZE",
    "files": "FILE",
    "from": "COMMIT",
    "git": "REPOSITORY",
    "gpus": "GPUS",
    "exclude_newer": "DAY",
    "extra_index": "[NAME=]URL",
    "find_links": "DIR|URL",
    "index": "URL",
    "lockfiles": "DIR",
    "offline": "DIR",
    "scheduler": "ADDRESS",
    "since": "DAY",
    "start": "VERSION",
    "subdirectory": "DIR",
    "timeout": "TIME",
    "to": "COMMIT",
    "where": "CONDITION",
    "with": "PACKAGE",
}
_WORD_OF_TYPE = {int: "N", float: "NUMBER", Path: "FILE"}


def _in_words(parameters: list[Any]) -> None:
    """Call the values of options by words (`--workers N`), not by types; flags and arguments by none."""
    for one in parameters:
        if one.param_type_name == "argument":
            one.metavar = one.metavar or str(one.name).upper()
            one.display_type_rich = lambda ctx: None
            continue
        kind = one.type_descriptor.annotation
        if one.metavar is not None or (isinstance(kind, type) and issubclass(kind, Enum)):
            continue
        if getattr(one, "is_flag", False):
            one.metavar = ""
        else:
            name = max(one.opts, key=len).lstrip("-").replace("-", "_")
            one.metavar = _WORDS.get(name) or _WORD_OF_TYPE.get(kind) or name.rpartition("_")[2].upper()


class Command(TyperCommand):
    """A command whose help calls values by words."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options and arguments, `--help` among them."""
        parameters: list[Any] = super().get_params(ctx)
        _in_words(parameters)
        return parameters


class Group(TyperGroup):
    """A group of subcommands whose help calls values by words."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, `--help` among them."""
        parameters: list[Any] = super().get_params(ctx)
        _in_words(parameters)
        return parameters


def with_groups(*, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take groups of options, each by one parameter.

    A group is a dataclass. Those of its fields that are annotated as options become options of the command,
    where the parameter stands; the others are for the command to fill in.

    Args:
        without: Fields that this command has no option for, and that keep their defaults.
    """

    def grouped(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        options: dict[str, list[str]] = {}
        parameters = []
        for one in inspect.signature(command).parameters.values():
            kind = hints[one.name]
            if not is_dataclass(kind):
                parameters.append(one.replace(kind=one.KEYWORD_ONLY, annotation=kind))
                continue
            annotated = get_type_hints(kind, include_extras=True)
            defaults = {field.name: field.default for field in fields(kind)}
            # A group's own first, then those of the group that it extends.
            names = [
                name for level in hints[one.name].__mro__ for name in vars(level).get("__annotations__", ())
            ]
            found = [
                name for name in names if get_origin(annotated[name]) is Annotated and name not in without
            ]
            options[one.name] = found
            parameters += [
                inspect.Parameter(name, one.KEYWORD_ONLY, default=defaults[name], annotation=annotated[name])
                for name in found
            ]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            groups = {
                name: hints[name](**{field: given.pop(field) for field in names})
                for name, names in options.items()
            }
            command(**given, **groups)

        # What typer looks at.
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        return called

    return grouped


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


class Cluster(StrEnum):
    """The kinds of local executors that `--cluster` can name."""

    THREADS = "threads"
    LOCAL = "local"


ClusterOption = Annotated[
    Cluster,
    typer.Option(
        "--cluster",
        help="What runs trials on the cores of this host: threads of this command, or a local Dask cluster.",
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
    cluster: ClusterOption = Cluster.THREADS

    @property
    def starting(self) -> str:
        """The message before the executor is used for the first time, which may take seconds."""
        return "starting workers" if self._is_local else "connecting to the Dask cluster"

    @property
    def _is_local(self) -> bool:
        return self.scheduler is None and self.scheduler_file is None

    def open(self, matrix: Matrix) -> tuple[LazyExecutor, EnvironmentProvider]:
        """Return the place for trials of a matrix, to be closed by the caller, and who makes environments.

        Raises:
            UsageError: Options that exclude each other, or a size that is none.
        """
        # Imported here, so that `bisect-env --help` need not wait for Dask.
        from bisect_env.cluster.choose import LazyExecutor, executor_maker, unprotected
        from bisect_env.environments.provider import Environments, OfflineEnvironments
        from bisect_env.environments.settings import default_cache_dir, parse_size

        if warning := unprotected(self.scheduler, self.scheduler_file):
            typer.echo(f"warning: {warning}", err=True)
        offline = None if self.offline is None else self.offline.absolute()
        start = executor_maker(
            gpus_per_trial=matrix.file.trial.gpus,
            workers=self.workers,
            gpus=self.gpus,
            scheduler=self.scheduler,
            scheduler_file=self.scheduler_file,
            cache=self.cache,
            cache_limit=None if self.cache_size is None else parse_size(self.cache_size, "--env-cache-size"),
            offline=offline,
            dask=self.cluster is Cluster.LOCAL,
        )
        cache_dir = (self.cache or default_cache_dir()).absolute()
        provider: EnvironmentProvider
        if offline is None:
            provider = Environments.of(matrix, cache_dir)
        else:
            provider = OfflineEnvironments(offline, matrix.name, cache_dir)
        place = LazyExecutor(
            start,
            gpus_per_trial=matrix.file.trial.gpus,
            gpus=self.gpus,
            is_remote=not self._is_local,
            stopped=is_stopping,
        )
        return place, provider
