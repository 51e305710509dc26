"""`bisect-env db`: look after the results database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_env.answers.untrusted import clean
from bisect_env.cli.commands import Command, Group
from bisect_env.cli.options import DatabaseOption, JsonOption, opt
from bisect_env.cli.output import deliver, emit, tell
from bisect_env.environments.settings import parse_size
from bisect_env.errors import StorageError
from bisect_env.storage.backend import database_location, shown_location
from bisect_env.storage.maintenance import problems
from bisect_env.storage.maintenance import stats as measure
from bisect_env.storage.store import Store
from bisect_env.storage.transfer import Merged, merge_databases
from bisect_env.storage.transfer import export as export_database

db_app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Look after the results database: info, export, merge, gc."
)


@db_app.command(cls=Command)
def info(
    check: Annotated[bool, opt("--check", "Look for damage, too; ends with 6 if there is any.")] = False,
    as_json: JsonOption = False,
    db: DatabaseOption = None,
) -> None:
    """Show where the results are, without a password, and how many there are."""
    if check:
        shown, found = problems(db)
        if found:
            raise StorageError(
                f"the database {shown} is not whole",
                tried="; ".join(found),
                remedy="take it from a backup, or name another database with `--db` or BISECT_ENV_DB",
            )
        tell(f"{shown} is whole")
    place = database_location(db)
    if isinstance(place, Path) and not place.exists():
        facts: dict[str, object] = {"database": shown_location(db), "studies": 0, "trials": 0}
    else:
        shown, measured = measure(db)
        facts = {"database": shown, **measured}
    if as_json:
        emit(facts)
    else:
        deliver("".join(f"{name:<13}{value}\n" for name, value in facts.items()))


@db_app.command(cls=Command)
def export(
    file: Annotated[Path, typer.Argument(help="New SQLite file.")],
    study: Annotated[list[str] | None, opt("--study", "Only this study; may be given several times.")] = None,
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
        opt("--limit", "Bytes that logs may take, such as 5GB; kept for later. Default: the one kept."),
    ] = None,
    dry_run: Annotated[bool, opt("--dry-run", "Change nothing.")] = False,
    db: DatabaseOption = None,
) -> None:
    """Drop the oldest logs beyond a limit, never what a verdict cites, and never a trial."""
    bytes_allowed = None if limit is None else parse_size(limit, "--limit")
    # A database that is not there has no logs to drop: opening it for writing would make one.
    Store.open(db, read_only=True).close()
    with Store.open(db, read_only=dry_run) as store:
        done = store.collect(bytes_allowed, dry=dry_run)
    verb = "would be dropped" if dry_run else "dropped"
    tell(f"{done.logs} logs {verb}: {done.before} bytes became {done.after}, of {done.limit} allowed")
    if done.after > done.limit:
        tell(f"verdicts cite {done.cited} bytes, which stay")


_DAMAGED = 10
"""Damaged rows that are named."""


def _tell_merged(what: str, merged: Merged) -> None:

    tell(
        f"{what} {merged.studies} studies ({merged.new_studies} new) "
        f"and {merged.trials} trials ({merged.new_trials} new)"
    )
    for text in merged.damaged[:_DAMAGED]:
        tell(f"warning: damaged, and left out: {clean(text)}")
    if len(merged.damaged) > _DAMAGED:
        tell(f"warning: and {len(merged.damaged) - _DAMAGED} more")
    if merged.conflicts:
        tell(
            f"warning: {len(merged.conflicts)} trials differ from those of the same id here, which stayed; "
            f"the first is {merged.conflicts[0]}"
        )
