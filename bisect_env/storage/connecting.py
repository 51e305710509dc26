"""Opens the database that a user names, on the back end to which it belongs."""

from __future__ import annotations

from pathlib import Path

from bisect_env.storage.backend import (
    Database,
    check_version,
    database_location,
    has_schema,
    make_schema,
    no_results,
    speaking,
)
from bisect_env.storage.postgres import open_server
from bisect_env.storage.sqlite import open_file


def has_database(reference: str | None) -> bool:
    """Return whether the file of the results database exists. A database server is assumed to exist."""
    location = database_location(reference)
    return not isinstance(location, Path) or location.exists()


def open_database(reference: str | None, *, read_only: bool) -> Database:
    """Open the results database. A missing database is created unless `read_only` is set.

    Args:
        reference: As `database_location` takes it.
        read_only: Whether to open it for reading only; it must exist then.

    Raises:
        UsageError: The reference cannot be understood.
        StorageError: There is no database that this release can use.
    """
    location = database_location(reference)
    if isinstance(location, Path):
        database = open_file(location, read_only=read_only)
    else:
        database = open_server(location, read_only=read_only)
    try:
        with speaking(database.shown):
            _find_or_make(database, read_only=read_only)
            with database.reader.connect() as connection:
                check_version(connection, database.shown)
    except BaseException:
        database.engine.dispose()
        raise
    return database


def _find_or_make(database: Database, *, read_only: bool) -> None:
    with database.reader.connect() as connection:
        if has_schema(connection, database.shown):
            return
    if read_only:
        raise no_results(database.shown)
    with database.engine.begin() as connection:
        # Another process may have created the tables while this one waited for the write lock.
        if not has_schema(connection, database.shown):
            make_schema(connection)
