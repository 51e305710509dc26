"""Opens the database that a user names."""

from __future__ import annotations

from pathlib import Path

from bisect_env.errors import StorageError
from bisect_env.storage import backend
from bisect_env.storage.backend import Database, database_location, speaking
from bisect_env.storage.postgres import open_server
from bisect_env.storage.sqlite import open_file


def open_database(reference: str | None, *, read_only: bool) -> Database:
    """Open the results database; make it first if it is to be written and is not there.

    Args:
        reference: As `database_location` takes it.
        read_only: Whether to open it for reading alone; it must exist then.

    Raises:
        UsageError: The reference cannot be understood.
        StorageError: There is no database that this release could use.
    """
    database = open_any_schema(reference, read_only=read_only)
    try:
        with speaking(database.shown), database.reader.connect() as connection:
            backend.check_version(backend.stored_version(connection, database.shown), database.shown)
    except StorageError:
        database.engine.dispose()
        raise
    return database


def open_any_schema(reference: str | None, *, read_only: bool = False) -> Database:
    """Open a database of any schema, for `maintenance` alone.

    Raises:
        UsageError: The reference cannot be understood.
        StorageError: There is no database of ours.
    """
    location = database_location(reference)
    if isinstance(location, Path):
        return open_file(location, read_only=read_only)
    return open_server(location, read_only=read_only)
