"""`bisect-env map`: the whole table, every combination called good or bad."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bisect_env.cli.asking import (
    Flags,
    SaveOption,
    devices,
)
from bisect_env.cli.execution_options import ExecutionOptions
from bisect_env.cli.options import (
    DatabaseOption,
    QuietOption,
    with_groups,
)
from bisect_env.cli.report_command import Format
from bisect_env.cli.run_command import FreshOption, LockfilesOption, SkipOption, WordsArgument, conduct, show
from bisect_env.cli.views import LogFileOption, VerboseOption


@with_groups(without=("since", "git", "first", "last", "merges", "subdirectory"))
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
    quiet: QuietOption = False,
    lockfiles: LockfilesOption = None,
    fresh: FreshOption = False,
    verbose: VerboseOption = False,
    log_file: LogFileOption = None,
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
