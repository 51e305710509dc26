"""All that is peculiar to SQLite about opening, connections and transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event

from bisect_env.errors import StorageError
from bisect_env.storage import backend, schema, sqlite_file
from bisect_env.storage.backend import READING, Database
from bisect_env.storage.blobs import SUFFIX
from bisect_env.storage.failures import speaking
from bisect_env.storage.tables import APPLICATION_ID


def open_file(path: Path, *, read_only: bool) -> Database:
    """Open a SQLite file; make it first if it is to be written and is not there.

    Raises:
        StorageError: It is not ours, not whole, cannot be reached, or lies where it would be destroyed.
    """
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
    # A link to the database leads to its logs, too.
    folder = Path(f"{path.resolve()}{SUFFIX}")
    return Database.of(_engine(path, read_only=read_only), str(path), folder)


def _fill(path: Path) -> None:
    engine = _engine(path, read_only=False)
    try:
        with speaking(str(path)), engine.begin() as connection:
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            schema.make(connection)
    finally:
        # The last connection to close writes the log back into the file and removes it.
        engine.dispose()


def _engine(path: Path, *, read_only: bool) -> Engine:
    engine = create_engine(
        "sqlite://",
        creator=sqlite_file.connector(path, read_only=read_only),
        poolclass=QueuePool,
        **backend.ENGINE_OPTIONS,
    )
    _set_up(engine, str(path), read_only=read_only)
    return engine


def _set_up(engine: Engine, shown: str, *, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        # The driver must not begin transactions of its own: it begins deferred ones, and a deferred
        # transaction that reads first and then writes fails at once when another wrote in between.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(backend.BUSY_SECONDS * 1000)}")
        connection.execute("PRAGMA foreign_keys = ON")
        # KiB, taken as they are needed; the default of 2 MiB reads large databases again and again.
        connection.execute("PRAGMA cache_size = -65536")
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
