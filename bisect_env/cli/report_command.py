"""`bisect-env report`: show a study again."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bisect_env.cli.options import DatabaseOption
from bisect_env.cli.output import deliver, with_options
from bisect_env.errors import ExitCode
from bisect_env.report.build import load_report
from bisect_env.report.formats import formatted
from bisect_env.report.text import print_report
from bisect_env.storage.store import Store


class Format(StrEnum):
    """Formats of a report."""

    TEXT = "text"
    HTML = "html"
    MARKDOWN = "md"
    JSON = "json"
    JUNIT = "junit"
    CSV = "csv"


def report(
    study: Annotated[
        str | None,
        typer.Argument(help="Id, the beginning of one, or the matrix's name; default: the newest study."),
    ] = None,
    db: DatabaseOption = None,
    form: Annotated[Format, typer.Option("--format", "-f", help="Format of the report.")] = Format.TEXT,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file; default: stdout.")
    ] = None,
    details: Annotated[
        bool,
        typer.Option("--details", help="Show every combination, and everything that is known of the answer."),
    ] = False,
) -> None:
    """Show what a study found: verdict, rates, combinations and failures.

    Ends with 0 if there is a verdict, and with 1 if there is none yet.
    """
    on_terminal = form is Format.TEXT and output is None
    with Store.open(db, read_only=True) as store:
        found = load_report(store, store.study(study).id, posterior=not on_terminal)
    if on_terminal:
        print_report(found, details=details, completed=lambda text: with_options(text, sys.argv[1:]))
    else:
        deliver(formatted(found, form.value), output)
    raise typer.Exit(int(ExitCode.VERDICT if found.has_verdict else ExitCode.NO_VERDICT))
