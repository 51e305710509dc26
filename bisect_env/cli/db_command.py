"""`bisect-env db`: manage the results database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_env.answers.phrases import aligned, first_few, how_many
from bisect_env.answers.untrusted import clean
from bisect_env.cli.commands import Command, Group, with_groups
from bisect_env.cli.options import CheckOption, DatabaseOption, DryRunOption, JsonOption, SizeOption, opt
from bisect_env.cli.output import deliver, emit, tell
from bisect_env.environments.settings import parse_size
from bisect_env.errors import StorageError
from bisect_env.storage.backend import has_database, shown_location
from bisect_env.storage.maintenance import problems
from bisect_env.storage.maintenance import stats as measure
from bisect_env.storage.store import Store
from bisect_env.storage.transfer import Merged, merge_databases
from bisect_env.storage.transfer import export as export_database

db_app = typer.Typer(cls=Group, no_args_is_help=True)


@db_app.callback()
@with_groups()
def db() -> None:
    """Manage the results database: info, export, merge, gc."""


@db_app.command(cls=Command)
@with_groups()
def info(
    check: CheckOption = False,
    as_json: JsonOption = False,
    db: DatabaseOption = None,
) -> None:
    """Show where the results are, and how many studies and trials there are."""
    if check:
        shown, found = problems(db)
        if found:
            raise StorageError(
                f"the database {shown} is damaged",
                tried="; ".join(found),
                remedy="restore it from a backup, or name another database with `--db` or BISECT_ENV_DB",
            )
        tell(f"{shown} is undamaged")
    if not has_database(db):
        facts: dict[str, object] = {"database": shown_location(db), "studies": 0, "trials": 0}
    else:
        shown, measured = measure(db)
        facts = {"database": shown, **measured}
    if as_json:
        emit(facts)
    else:
        lines = aligned([[name, str(value)] for name, value in facts.items()])
        deliver("".join(f"{line}\n" for line in lines))


@db_app.command(cls=Command)
@with_groups()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New SQLite file.")],
    study: Annotated[
        list[str] | None, opt("--study STUDY", "Only this study; may be given several times.")
    ] = None,
    db: DatabaseOption = None,
) -> None:
    """Write the database, or only some studies, into one SQLite file, with all logs."""
    _tell_merged(f"{file} has", export_database(db, file, study or ()))


@db_app.command(cls=Command)
@with_groups()
def merge(
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="Exported file or other database: a path or a URL.")
    ],
    db: DatabaseOption = None,
) -> None:
    """Add the studies and trials of an exported file or of another database, which is only read."""
    _tell_merged("read", merge_databases(db, other))


@db_app.command(cls=Command)
@with_groups()
def gc(
    size: SizeOption = None,
    dry_run: DryRunOption = False,
    db: DatabaseOption = None,
) -> None:
    """Delete the oldest logs beyond a size limit; trials and logs that verdicts cite stay.

    The limit of `--size` stays in the database, for this command and for `run`.
    """
    bytes_allowed = None if size is None else parse_size(size, "--size")
    # Opening for writing would create a missing database; opening for reading reports it.
    with Store.open(db, read_only=dry_run or not has_database(db)) as store:
        done = store.collect(bytes_allowed, dry=dry_run)
    verb = "would be dropped" if dry_run else "dropped"
    tell(f"{done.logs} logs {verb}: {done.before} bytes became {done.after}, of {done.limit} allowed")
    if done.after > done.limit:
        tell(f"verdicts cite {done.cited} bytes, which stay")


_DAMAGED = 10
"""Maximum number of damaged rows that are named."""


def _tell_merged(what: str, merged: Merged) -> None:
    tell(
        f"{what} {how_many(merged.studies, 'study')} ({merged.new_studies} new) "
        f"and {how_many(merged.trials, 'trial')} ({merged.new_trials} new)"
    )
    for text in first_few([f"damaged, and left out: {clean(text)}" for text in merged.damaged], _DAMAGED):
        tell(f"warning: {text}")
    if merged.conflicts:
        tell(
            f"warning: {len(merged.conflicts)} trials differ from those of the same id here, which stayed; "
            f"the first is {merged.conflicts[0]}"
        )
