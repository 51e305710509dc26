"""From a user's words to a SQLAlchemy engine whose every connection is set up in one place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event, insert, select
from sqlalchemy.exc import DBAPIError

from bisect_env.errors import StorageError
from bisect_env.storage import sqlite_file
from bisect_env.storage.failures import ANOTHER, speaking, storage_error
from bisect_env.storage.location import database_path
from bisect_env.storage.tables import APPLICATION_ID, METADATA, SCHEMA_VERSION, MetaRow

BUSY_SECONDS = 60.0
"""How long a writer waits for other writers; each holds the lock for milliseconds."""

READING = "bisect_env_reading"
"""Execution option of connections that only read: they take no write lock."""


@dataclass(frozen=True, slots=True)
class Database:
    """An open database.

    Attributes:
        engine: Its transactions write, and hold the write lock from their beginning.
        reader: The same pool; its transactions read one state and block nobody.
        shown: The database as messages name it, without a password.
    """

    engine: Engine
    reader: Engine
    shown: str


def open_database(reference: str | None, *, read_only: bool) -> Database:
    """Open the results database; make it first if it is to be written and is not there.

    Args:
        reference: As `database_path` takes it.
        read_only: Whether to open it for reading alone; it must exist then.

    Raises:
        UsageError: The reference cannot be understood.
        StorageError: There is no database that this release could use.
    """
    path = database_path(reference)
    sqlite_file.refuse_network(path)
    if sqlite_file.is_new(path, APPLICATION_ID):
        if read_only:
            raise StorageError(
                f"there are no results in {path}",
                remedy="start `bisect-env run MATRIX` first, or name another with `--db` or BISECT_ENV_DB",
            )
        sqlite_file.create(path, _fill, APPLICATION_ID)
    if not read_only:
        sqlite_file.check_writable(path)
    engine = _engine(path, read_only=read_only)
    database = Database(engine, engine.execution_options(**{READING: True}), str(path))
    try:
        with speaking(database.shown), database.reader.connect() as connection:
            check_version(_stored_version(connection, database.shown), database.shown)
    except StorageError:
        engine.dispose()
        raise
    return database


def check_version(found: int, shown: str) -> None:
    """Refuse another schema than ours; what to do depends on which is newer. Pure.

    Raises:
        StorageError: It is another one.
    """
    if found > SCHEMA_VERSION:
        raise StorageError(
            f"the database {shown} was written by a newer release (schema {found}; this one knows "
            f"{SCHEMA_VERSION})",
            remedy="install the newest release of bisect-env, or " + ANOTHER,
        )
    if found < SCHEMA_VERSION:
        raise StorageError(
            f"the database {shown} was written by an older release (schema {found}; this one needs "
            f"{SCHEMA_VERSION})",
            remedy="read it with the release that wrote it, or " + ANOTHER,
        )


def _stored_version(connection: Connection, shown: str) -> int:
    query = select(MetaRow.value).where(MetaRow.name == "schema")  # type: ignore[call-overload]
    try:
        value = connection.execute(query).scalar_one_or_none()
    except DBAPIError as error:
        raise storage_error(shown, error) from error
    if value is None or not str(value).isdecimal():
        raise StorageError(
            f"the database {shown} does not say which schema it has",
            remedy="another program changed it: take it from a backup, or " + ANOTHER,
        )
    return int(value)


def _fill(path: Path) -> None:
    engine = _engine(path, read_only=False)
    try:
        with speaking(str(path)), engine.begin() as connection:
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            METADATA.create_all(connection)
            facts = {"schema": str(SCHEMA_VERSION), "created_by": f"bisect-env {version('bisect-env')}"}
            rows = [{"name": name, "value": value} for name, value in facts.items()]
            connection.execute(insert(MetaRow), rows)
    finally:
        # The last connection to close writes the log back into the file and removes it.
        engine.dispose()


def _engine(path: Path, *, read_only: bool) -> Engine:
    engine = create_engine(
        "sqlite://",
        creator=sqlite_file.connector(path, read_only=read_only),
        poolclass=QueuePool,
        json_serializer=partial(json.dumps, ensure_ascii=False, allow_nan=False),
    )
    _set_up_sqlite(engine, str(path), read_only=read_only)
    return engine


def _set_up_sqlite(engine: Engine, shown: str, *, read_only: bool) -> None:
    """All that is peculiar to SQLite about connections and transactions."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        # The driver must not begin transactions of its own: it begins deferred ones, and a deferred
        # transaction that reads first and then writes fails at once when another wrote in between.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        connection.execute("PRAGMA foreign_keys = ON")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
            return
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageError(
                f"the file system of {shown} does not let processes share memory, which the database needs",
                remedy="name a file on a disk of this machine with `--db` or BISECT_ENV_DB",
            )

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        reading = read_only or connection.get_execution_options().get(READING, False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
