"""`bisect-env map`: the whole table, every combination called good or bad."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_env.cli.asking import (
    AlwaysOption,
    BadOption,
    ChannelOption,
    ConfidenceOption,
    EnvOption,
    FilesOption,
    Flags,
    GoodOption,
    IndexOption,
    NameOption,
    PackagesOption,
    PreOption,
    PythonOption,
    RateOption,
    SaveOption,
    StepOption,
    TimeoutOption,
    WithOption,
    devices,
)
from bisect_env.cli.execution_options import ExecutionOptions
from bisect_env.cli.options import (
    CacheOption,
    CacheSizeOption,
    Cluster,
    ClusterOption,
    DatabaseOption,
    GpusOption,
    OfflineOption,
    QuietOption,
    SchedulerFileOption,
    SchedulerOption,
    WorkersOption,
)
from bisect_env.cli.report_command import Format
from bisect_env.cli.run_command import WordsArgument, conduct, show
from bisect_env.cli.views import LogFileOption, VerboseOption


def map(  # noqa: A001 - so is the command called
    words: WordsArgument = None,
    packages: PackagesOption = None,
    with_packages: WithOption = None,
    python: PythonOption = None,
    good: GoodOption = None,
    bad: BadOption = None,
    rate: RateOption = None,
    always: AlwaysOption = False,
    files: FilesOption = None,
    pre: PreOption = False,
    step: StepOption = "",
    channel: ChannelOption = None,
    timeout: TimeoutOption = "",
    env: EnvOption = None,
    confidence: ConfidenceOption = None,
    name: NameOption = "",
    index: IndexOption = "",
    save: SaveOption = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="[AXIS=]VALUE", help="Do not try this value; may be given again."),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", "-f", help="Format of the table that is printed at the end.")
    ] = Format.TEXT,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it to this file; default: stdout.")
    ] = None,
    db: DatabaseOption = None,
    workers: WorkersOption = None,
    gpus: GpusOption = None,
    scheduler: SchedulerOption = None,
    scheduler_file: SchedulerFileOption = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Events as JSON lines on stdout; the last one is the table.")
    ] = False,
    quiet: QuietOption = False,
    lockfiles: Annotated[
        Path | None,
        typer.Option(
            envvar="BISECT_ENV_LOCKFILES",
            help="Write the locks below this directory, too; the database has them in any case.",
        ),
    ] = None,
    cache: CacheOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin a new study, and measure anew what was measured before.")
    ] = False,
    cache_size: CacheSizeOption = None,
    offline: OfflineOption = None,
    cluster: ClusterOption = Cluster.THREADS,
    verbose: VerboseOption = False,
    log_file: LogFileOption = None,
) -> None:
    """Call every combination of a matrix good or bad, with as few environments as that takes.

    `bisect-env map -p "attrs>=22" -p "pytest>=7" --step minor -- pytest -q` prints which releases of both go
    together. Where the table has frontiers only some combinations are tried; the others are told apart in it.
    The same command after an interruption goes on where it stopped.
    """
    flags = Flags(
        words=words or (),
        packages=packages or (),
        with_packages=with_packages or (),
        python=python or (),
        good=good or (),
        bad=bad or (),
        rate=rate,
        always=always,
        files=files or (),
        pre=pre,
        step=step,
        channel=channel or (),
        timeout=timeout,
        env=env or (),
        confidence=confidence,
        name=name,
        index=index,
        gpus=gpus,
    )
    dask = cluster is Cluster.LOCAL
    conclusion = conduct(
        "map",
        flags,
        where=ExecutionOptions(
            workers, devices(flags), scheduler, scheduler_file, cache, cache_size, offline, dask
        ),
        db=db,
        goal="table",
        save=save,
        skip=skip or (),
        lockfiles=lockfiles,
        fresh=fresh,
        json_output=json_output,
        quiet=quiet,
        verbose=verbose,
        log_file=log_file,
    )
    if form is Format.TEXT and output is None:
        if not json_output:
            show(conclusion)
    elif output is not None or not json_output:
        from bisect_env.cli.output import deliver
        from bisect_env.report.formats import formatted
        from bisect_env.report.model import Report

        deliver(formatted(Report.read(conclusion.report), form.value), output)
    raise typer.Exit(int(conclusion.exit_code))
