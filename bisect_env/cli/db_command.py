"""`bisect-env db`, `query` and `serve`: look after the results database, ask it, and show it in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bisect_env.answers.untrusted import clean
from bisect_env.cli.grouping import Command, Group
from bisect_env.cli.options import DatabaseOption
from bisect_env.cli.output import as_text, deliver
from bisect_env.environments.settings import parse_size
from bisect_env.errors import StorageError
from bisect_env.storage.backend import shown_location
from bisect_env.storage.maintenance import problems
from bisect_env.storage.maintenance import stats as measure
from bisect_env.storage.query import ask
from bisect_env.storage.store import Store
from bisect_env.storage.transfer import Merged, merge_databases
from bisect_env.storage.transfer import export as export_database
from bisect_env.web.serve import serve as serve_database

db_app = typer.Typer(cls=Group, no_args_is_help=True, help="Look after the results database.")


@db_app.command(cls=Command)
def path(db: DatabaseOption = None) -> None:
    """Print where the results are, without a password; nothing is opened."""
    deliver(f"{shown_location(db)}\n", None)


@db_app.command(cls=Command)
def check(db: DatabaseOption = None) -> None:
    """Look for damage; ends with 6 if there is any."""
    shown, found = problems(db)
    if found:
        raise StorageError(
            f"the database {shown} is not whole",
            tried="; ".join(found),
            remedy="take it from a backup, or name another database with `--db` or BISECT_ENV_DB",
        )
    typer.echo(f"{shown} is whole", err=True)


@db_app.command(cls=Command)
def stats(
    db: DatabaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON object.")] = False,
) -> None:
    """Count what is in the database."""
    shown, measured = measure(db)
    if as_json:
        deliver(json.dumps({"database": shown, **measured}) + "\n", None)
        return
    lines = [f"{name:<13}{value}\n" for name, value in {"database": shown, **measured}.items()]
    deliver("".join(lines), None)


@db_app.command(cls=Command)
def export(
    file: Annotated[Path, typer.Argument(help="New SQLite file.")],
    study: Annotated[
        list[str] | None, typer.Option("--study", help="Only this study; may be given several times.")
    ] = None,
    db: DatabaseOption = None,
) -> None:
    """Write the database, or some studies, into one file, logs and all."""
    _tell_merged(f"{file} has", export_database(db, file, study or ()))


@db_app.command(cls=Command)
def merge(
    other: Annotated[str, typer.Argument(help="Exported file or other database: a path or a URL.")],
    db: DatabaseOption = None,
) -> None:
    """Add the studies and trials of an exported file or of another database, which is only read."""
    _tell_merged("read", merge_databases(db, other))


@db_app.command(cls=Command)
def gc(
    limit: Annotated[
        str | None,
        typer.Option(help="Bytes that logs may take, such as 5GB; kept for later. Default: the one kept."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
    db: DatabaseOption = None,
) -> None:
    """Drop the oldest logs beyond a limit, never what a verdict cites, and never a trial."""
    bytes_allowed = None if limit is None else parse_size(limit, "--limit")
    # A database that is not there has no logs to drop: opening it for writing would make one.
    Store.open(db, read_only=True).close()
    with Store.open(db, read_only=dry_run) as store:
        done = store.collect(bytes_allowed, dry=dry_run)
    verb = "would be dropped" if dry_run else "dropped"
    typer.echo(
        f"{done.logs} logs {verb}: {done.before} bytes became {done.after}, of {done.limit} allowed",
        err=True,
    )
    if done.after > done.limit:
        typer.echo(f"verdicts cite {done.cited} bytes, which stay", err=True)


_DAMAGED = 10
"""Damaged rows that are named."""


def _tell_merged(what: str, merged: Merged) -> None:

    typer.echo(
        f"{what} {merged.studies} studies ({merged.new_studies} new) "
        f"and {merged.trials} trials ({merged.new_trials} new)",
        err=True,
    )
    for text in merged.damaged[:_DAMAGED]:
        typer.echo(f"warning: damaged, and left out: {clean(text)}", err=True)
    if len(merged.damaged) > _DAMAGED:
        typer.echo(f"warning: and {len(merged.damaged) - _DAMAGED} more", err=True)
    if merged.conflicts:
        typer.echo(
            f"warning: {len(merged.conflicts)} trials differ from those of the same id here, which stayed; "
            f"the first is {merged.conflicts[0]}",
            err=True,
        )


def query(
    question: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT.")],
    db: DatabaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of objects.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.01, max=86400.0, metavar="SECONDS", help="How long the answer may take.")
    ] = 30.0,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False,
) -> None:
    """Ask the results database in SQL; nothing can be changed this way."""
    with ask(db, question, timeout=timeout) as (names, found):
        rows = list(found)
    deliver(as_text(names, rows, as_json=as_json, as_csv=as_csv), None)


def serve(
    db: DatabaseOption = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8001,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let in every user of this machine, without a token.")
    ] = False,
) -> None:
    """Open the results database in a browser, for reading, for this machine alone.

    Needs the extra `web`. Prints the address, with a token that others do not know; Ctrl-C ends it.
    """

    def tell(address: str, note: str | None) -> None:
        if note is not None:
            typer.echo(note, err=True)
        typer.echo("Ctrl-C ends it", err=True)
        deliver(f"{address}\n", None)

    serve_database(db, port, tell=tell, with_token=not no_token)
