"""`bisect-env db`: look after the results database."""

from __future__ import annotations

from typing import Annotated

import typer

DatabaseOption = Annotated[
    str | None,
    typer.Option("--db", envvar="BISECT_ENV_DB", help="Results database: a file or a URL."),
]

db_app = typer.Typer(no_args_is_help=True, help="Look after the results database.")


@db_app.command()
def path(db: DatabaseOption = None) -> None:
    """Print where the results are, without a password; nothing is opened."""
    from bisect_env.cli.output import deliver
    from bisect_env.storage.location import shown_location

    deliver(f"{shown_location(db)}\n", None)


@db_app.command()
def upgrade(db: DatabaseOption = None) -> None:
    """Bring a database that an older release wrote to this release's schema."""
    from bisect_env.storage.maintenance import upgrade as upgrade_database

    done = upgrade_database(db)
    if done.before == done.after:
        typer.echo(f"{done.shown} has schema {done.after}: nothing to do", err=True)
    else:
        typer.echo(f"{done.shown}: schema {done.before} became {done.after}", err=True)


@db_app.command()
def check(db: DatabaseOption = None) -> None:
    """Look for damage; ends with 6 if there is any."""
    from bisect_env.errors import StorageError
    from bisect_env.storage.maintenance import problems

    shown, found = problems(db)
    if found:
        raise StorageError(
            f"the database {shown} is not whole",
            tried="; ".join(found),
            remedy="take it from a backup, or name another database with `--db` or BISECT_ENV_DB",
        )
    typer.echo(f"{shown} is whole", err=True)


@db_app.command()
def stats(
    db: DatabaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON object.")] = False,
) -> None:
    """Count what is in the database."""
    import json

    from bisect_env.cli.output import deliver
    from bisect_env.storage.maintenance import stats as measure

    shown, measured = measure(db)
    if as_json:
        deliver(json.dumps({"database": shown, **measured}) + "\n", None)
        return
    lines = [f"{name:<13}{value}\n" for name, value in {"database": shown, **measured}.items()]
    deliver("".join(lines), None)
