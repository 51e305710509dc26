"""`bisect-env run` and `map`: answer a matrix, or a question in the words of the command line."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bisect_env.answers.untrusted import command_line
from bisect_env.cli import views
from bisect_env.cli.asking import (
    Flags,
    SaveOption,
    ask,
    devices,
)
from bisect_env.cli.grouping import with_groups
from bisect_env.cli.options import DatabaseOption, ExecutionOptions
from bisect_env.cli.output import deliver, with_options
from bisect_env.cli.places import open_place
from bisect_env.cli.report_command import Format
from bisect_env.cli.signals import stop_on_signals
from bisect_env.cli.views import ShownOptions, View, log_event, start_log
from bisect_env.cluster.pool import default_workers
from bisect_env.engine import events
from bisect_env.engine.missing import MissingModules, package_of_module
from bisect_env.engine.study import Conclusion, StudyRun
from bisect_env.environments.cache import free_bytes, growth
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.environments.settings import default_cache_dir
from bisect_env.environments.uv_tool import end_running
from bisect_env.errors import (
    BisectEnvError,
    EndsNotAsStatedError,
    ExitCode,
    StudyInterruptedError,
    UsageError,
)
from bisect_env.matrix.load import Matrix, load_matrix, skipping
from bisect_env.matrix.schema import CommitAxis, PackageAxis
from bisect_env.matrix.versions import Manager
from bisect_env.report.formats import formatted
from bisect_env.report.model import Report
from bisect_env.report.text import print_report
from bisect_env.search.goals import Goal
from bisect_env.storage.store import Store

WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MATRIX | RANGE SCRIPT | -- COMMAND",
        help="Matrix file; or a package with its range and the script that fails; or, with `-p`, a command.",
        show_default=False,
    ),
]
LockfilesOption = Annotated[
    Path | None,
    typer.Option(
        envvar="BISECT_ENV_LOCKFILES",
        help="Write the locks below this directory, too; the database has them in any case.",
    ),
]
SkipOption = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="[AXIS=]VALUE", help="Do not try this value; may be given again."),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Begin a new study, and measure anew what was measured before.")
]
OnlyMineOption = Annotated[
    bool, typer.Option("--only-mine", help="Use no trial that another user's study recorded.")
]


@with_groups(without=("as_json",))
def run(
    words: WordsArgument = None,
    *,
    flags: Flags,
    save: SaveOption = None,
    db: DatabaseOption = None,
    where: ExecutionOptions,
    json_output: Annotated[
        bool, typer.Option("--json", help="Events as JSON lines on stdout; the last one is the verdict.")
    ] = False,
    shown: ShownOptions,
    lockfiles: LockfilesOption = None,
    every_configuration: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Find every failing configuration: call each combination good or bad, as `map` does.",
        ),
    ] = False,
    fresh: FreshOption = False,
    only_mine: OnlyMineOption = False,
    skip: SkipOption = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="End as soon as the answer stands, without checking it further.")
    ] = False,
    sure: Annotated[
        bool, typer.Option("--sure", help="Check the answer for as long as its checks take.")
    ] = False,
    lock_all: Annotated[
        bool, typer.Option("--lock-all", help="Lock every combination before the first trial.")
    ] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Show at the end when the command reached what.")
    ] = False,
) -> None:
    """Find the first bad combination of a matrix, or of what the command line asks.

    `bisect-env run "orjson>=3.8" repro.py` asks which release of orjson broke a script. With several
    packages, `-p` names each, and the command stands behind `--`. With `--git PATH --from v1 --to v2` it
    asks for the commit. The same command after an interruption goes on where it stopped.
    """
    if quick and sure:
        raise UsageError(
            "--quick leaves checks out, and --sure asks for all of them",
            remedy="give one of the two",
        )
    flags = replace(flags, words=words or (), gpus=where.gpus)
    conclusion = conduct(
        "run",
        flags,
        where=replace(where, gpus=devices(flags)),
        db=db,
        goal="every-configuration" if every_configuration else "first-bad",
        save=save,
        skip=skip or (),
        lockfiles=lockfiles,
        fresh=fresh,
        only_mine=only_mine,
        quick=quick,
        sure=sure,
        every_lock=lock_all,
        timings=timings,
        shown=replace(shown, as_json=json_output),
    )
    if not json_output:
        show(conclusion)
    raise typer.Exit(int(conclusion.exit_code))


@with_groups(without=("as_json", "since", "git", "first", "last", "merges", "subdirectory"))
def map(  # noqa: A001 - so is the command called
    words: WordsArgument = None,
    *,
    flags: Flags,
    save: SaveOption = None,
    skip: SkipOption = None,
    form: Annotated[
        Format, typer.Option("--format", "-f", help="Format of the table that is printed at the end.")
    ] = Format.TEXT,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it to this file; default: stdout.")
    ] = None,
    db: DatabaseOption = None,
    where: ExecutionOptions,
    json_output: Annotated[
        bool, typer.Option("--json", help="Events as JSON lines on stdout; the last one is the table.")
    ] = False,
    shown: ShownOptions,
    lockfiles: LockfilesOption = None,
    fresh: FreshOption = False,
    only_mine: OnlyMineOption = False,
) -> None:
    """Call every combination of a matrix good or bad, with as few environments as that takes.

    `bisect-env map -p "attrs>=22" -p "pytest>=7" --step minor -- pytest -q` prints which releases of both go
    together. Where the table has frontiers only some combinations are tried; the others are told apart in it.
    The same command after an interruption goes on where it stopped.
    """
    flags = replace(flags, words=words or (), gpus=where.gpus)
    conclusion = conduct(
        "map",
        flags,
        where=replace(where, gpus=devices(flags)),
        db=db,
        goal="table",
        save=save,
        skip=skip or (),
        lockfiles=lockfiles,
        fresh=fresh,
        only_mine=only_mine,
        shown=replace(shown, as_json=json_output),
    )
    if form is Format.TEXT and output is None:
        if not json_output:
            show(conclusion)
    elif output is not None or not json_output:
        deliver(formatted(Report.read(conclusion.report), form.value), output)
    raise typer.Exit(int(conclusion.exit_code))


def show(conclusion: Conclusion) -> None:
    """Print the report; commands that it names carry the options that this one was given."""
    print_report(conclusion.report, completed=lambda text: with_options(text, sys.argv[1:]))


def conduct(
    command: str,
    flags: Flags,
    *,
    where: ExecutionOptions,
    db: str | None,
    goal: str,
    shown: ShownOptions,
    save: Path | None = None,
    skip: Sequence[str] = (),
    lockfiles: Path | None = None,
    fresh: bool = False,
    only_mine: bool = False,
    quick: bool = False,
    sure: bool = False,
    every_lock: bool = False,
    timings: bool = False,
) -> Conclusion:
    """Run the study of a matrix, or of a question, and show how it goes on.

    Args:
        command: What was called: `run` or `map`.
        flags: The matrix, or what is asked instead.
        where: Trials run.
        db: Results database.
        goal: What is asked, as `search/goals.py` calls it.
        shown: With JSON, events as JSON lines; `verbose` shows plain lines, and logs more.
        save: Where the matrix of a question is kept.
        skip: Values that are not tried.
        lockfiles: Where locks are written; None for where they belong.
        fresh: Begin a new study.
        only_mine: Use no trial that another user's study recorded.
        quick: End as soon as the answer stands.
        sure: Check the answer for as long as its checks take.
        every_lock: Lock every combination before the first trial.
        timings: Show at the end when the command reached what.

    Raises:
        BisectEnvError: Whatever a user can mend.
    """
    start_log(command, shown)
    stopped = stop_on_signals()
    view = views.choose(as_json=shown.as_json, quiet=shown.quiet, plain=shown.verbose)
    told = False
    taken = views.Timings()
    missing: MissingModules | None = None

    def notify(event: events.Event) -> None:
        nonlocal told
        if isinstance(event, events.Failed) and missing is not None and lacked(missing, event.exit_code):
            return  # said in words of its own
        told = told or isinstance(event, events.Failed)
        log_event(event)
        view(event)
        taken.heard(event)
        if missing is not None:
            missing.on_event(event)

    matrix = Path(flags.words[0]) if flags.words else Path()
    try:
        if flags.asks:
            matrix = ask(flags, save, quiet=shown.quiet or shown.as_json)
            lockfiles = lockfiles or matrix.absolute().parent / "lockfiles"
        else:
            flags.refuse_beside_matrix()
        loaded = _load(matrix, skip)
        if flags.asks:
            missing = MissingModules(_axis_packages(loaded))
        conclusion = answer(
            loaded,
            where=where,
            db=db,
            view=view,
            notify=notify,
            stopped=stopped,
            lockfiles=lockfiles or Path("lockfiles"),
            fresh=fresh,
            only_mine=only_mine,
            goal=goal,
            every_lock=every_lock,
            quick=quick,
            sure=sure,
            posterior=shown.as_json,
            missing=missing,
        )
    except KeyboardInterrupt:
        raise StudyInterruptedError(
            "interrupted; every trial that ended is stored",
            remedy=f"{command_line('bisect-env', command, str(matrix))}   goes on from here",
        ) from None
    except BisectEnvError as error:
        if not told:  # it failed before there was a study
            log_event(events.Failed.of(error))
            view(events.Failed.of(error))
        raise
    taken.end()
    if timings and shown.as_json:
        typer.echo(json.dumps({"event": "timings", "seconds": taken.seconds}))
    elif timings:
        typer.echo("\n".join(taken.lines()), err=True)
    return conclusion


def answer(
    loaded: Matrix,
    *,
    where: ExecutionOptions,
    db: str | None,
    view: View,
    notify: Callable[[events.Event], None],
    stopped: threading.Event,
    lockfiles: Path,
    fresh: bool = False,
    only_mine: bool = False,
    goal: str = "first-bad",
    every_lock: bool = False,
    quick: bool = False,
    sure: bool = False,
    posterior: bool = True,
    missing: MissingModules | None = None,
) -> Conclusion:
    """Answer a matrix, with everything that is needed opened before and closed after.

    Args:
        loaded: The matrix.
        where: Trials run.
        db: Results database.
        view: Shown while it goes on.
        notify: Hears of everything.
        stopped: Set when the user wants to stop.
        lockfiles: Where locks are written.
        fresh: Begin a new study.
        only_mine: Use no trial that another user's study recorded.
        goal: What is asked, as `search/goals.py` calls it.
        every_lock: Lock every combination before the first trial.
        quick: End as soon as the answer stands.
        sure: Check the answer for as long as its checks take.
        posterior: Whether the report follows the answers through all trials.
        missing: Listens for a module that was forgotten, which ends the study.

    Raises:
        BisectEnvError: Whatever a user can mend.
    """
    place, provider = open_place(where, loaded)
    ask_index(loaded, provider)
    cache = (where.cache or default_cache_dir()).absolute()
    free = free_bytes(cache)

    def enough() -> bool:
        return stopped.is_set() or (missing is not None and missing.module is not None)

    with contextlib.ExitStack() as stack:
        stack.callback(end_running)  # what is made ahead may not be wanted
        stack.enter_context(closing(place))
        store = stack.enter_context(Store.open(db))
        stack.enter_context(view)
        try:
            study = StudyRun(
                loaded,
                store=store,
                provider=provider,
                place=place,
                lockfiles=lockfiles,
                notify=notify,
                stopped=enough,
                workers=default_workers(),
                fresh=fresh,
                only_mine=only_mine,
                goal=Goal(goal),
                every_lock=every_lock,
                quick=quick,
                sure=sure,
                posterior=posterior,
            )
            conclusion = study.run()
            if text := growth(cache, free):
                notify(events.Said(text))
            return conclusion
        except (StudyInterruptedError, EndsNotAsStatedError) as error:
            if missing is not None and not stopped.is_set() and (module := lacked(missing, error.exit_code)):
                raise forgotten(module, everywhere=missing.module is not None) from None
            raise


def lacked(missing: MissingModules, exit_code: int) -> str | None:
    """Return the module for want of which a study ended, None if that is not why."""
    return missing.module or (missing.suspect if exit_code == ExitCode.ENDS_NOT_AS_STATED else None)


def ask_index(loaded: Matrix, provider: EnvironmentProvider) -> None:
    """Ask the index for the releases of each axis's package in a thread; later calls wait for its answers."""

    # An error is reported where the answer is needed.
    def ask(name: str, index: str | None) -> None:
        with contextlib.suppress(Exception):
            provider.catalogue.versions(name, manager=Manager.PYPI, index=index)

    for axis in loaded.file.axes.values():
        if isinstance(axis, PackageAxis) and not axis.is_python and axis.manager is Manager.PYPI:
            asked = (axis.canonical_package, loaded.index_of(axis))
            threading.Thread(target=ask, args=asked, name="index", daemon=True).start()


def forgotten(module: str, *, everywhere: bool) -> Exception:
    """Return the warning about environments that lack a module which the command imports.

    Args:
        module: Its name.
        everywhere: Whether all environments lack it, as far as is known; else the one that should work does.
    """
    what = f"no environment has the module {module!r}, which the command imports: it fails everywhere alike"
    if not everywhere:
        what = f"the environment that should work lacks the module {module!r}, which the command imports"
    return UsageError(
        what,
        tried="several environments, before anything was searched" if everywhere else None,
        remedy=f"add the package that brings it: --with {package_of_module(module)}",
    )


def _load(path: Path, skip: Sequence[str]) -> Matrix:

    return skipping(load_matrix(path), skip)


def _axis_packages(matrix: Matrix) -> list[str]:

    axes = matrix.file.axes.values()
    return [axis.canonical_package for axis in axes if isinstance(axis, PackageAxis | CommitAxis)]
