"""Opens PostgreSQL databases, and sets up their connections and transactions."""

from __future__ import annotations

import importlib.util
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect

from bisect_env.errors import StorageError, UsageError
from bisect_env.storage import backend
from bisect_env.storage.backend import ANOTHER, READING, Database, shown_url, speaking
from bisect_env.storage.tables import APPLICATION_ID, METADATA

_CONNECT_SECONDS = 15


def open_server(url: URL, *, read_only: bool) -> Database:
    """Open a PostgreSQL database; make our tables first if it is to be written and has none.

    Raises:
        UsageError: The driver is not installed.
        StorageError: The server cannot be reached, or the database is another program's.
    """
    shown = shown_url(url)
    if importlib.util.find_spec("psycopg") is None:
        raise UsageError(
            f"{shown}: the driver of PostgreSQL is not installed",
            remedy="pip install 'bisect-env[postgres]'",
        )
    database = Database.of(_engine(url, read_only=read_only), shown)
    try:
        with speaking(shown):
            _find_or_make(database, read_only=read_only)
    except BaseException:
        database.engine.dispose()
        raise
    return database


def _find_or_make(database: Database, *, read_only: bool) -> None:
    with database.reader.connect() as connection:
        if _is_ours(connection, database.shown):
            return
    if read_only:
        raise StorageError(
            f"there are no results in {database.shown}",
            remedy="start `bisect-env run MATRIX` first, or name another with `--db` or BISECT_ENV_DB",
        )
    with database.engine.begin() as connection:
        # Whoever held the lock before us may have made the tables.
        if not _is_ours(connection, database.shown):
            backend.make_schema(connection)


def _is_ours(connection: Connection, shown: str) -> bool:
    """Whether our tables are here; False where there is none of their names.

    Raises:
        StorageError: There are tables of those names that are not ours.
    """
    here = set(inspect(connection).get_table_names(backend.PUBLIC)) & set(METADATA.tables)
    if not here:
        return False
    if "meta" in here:
        columns = {column["name"] for column in inspect(connection).get_columns("meta", backend.PUBLIC)}
        if {"name", "value"} <= columns:
            created_by = backend.fact(connection, "created_by")
            if created_by is not None and created_by.startswith(backend.CREATED_BY):
                return True
    raise StorageError(
        f"the database {shown} holds tables of another program ({', '.join(sorted(here))}); "
        "it was left as it is",
        remedy="make a database of its own for bisect-env, or " + ANOTHER,
    )


def _engine(url: URL, *, read_only: bool) -> Engine:
    engine = create_engine(
        url,
        # A server may have been restarted since the last trial, hours ago.
        pool_pre_ping=True,
        connect_args={"connect_timeout": _CONNECT_SECONDS, "application_name": "bisect-env"},
        hide_parameters=True,
        execution_options={"schema_translate_map": {None: backend.PUBLIC}},
        **backend.ENGINE_OPTIONS,
    )

    # First, because SQLAlchemy runs statements of its own on the first connection.
    @event.listens_for(engine, "connect", insert=True)
    def connected(connection: Any, _record: Any) -> None:
        milliseconds = int(backend.BUSY_SECONDS * 1000)
        with connection.cursor() as cursor:
            # Search names in `pg_catalog` alone. By default a schema with the user's name comes first, then
            # `public`: other users' tables, functions and operators would run with this user's rights.
            cursor.execute("SET search_path = ''")
            cursor.execute(f"SET lock_timeout = {milliseconds}")
            cursor.execute("SET TimeZone = 'UTC'")
            # Under a stricter level the lock would be waited for with yesterday's view of the tables.
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.commit()

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        if read_only or connection.get_execution_options().get(READING, False):
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return
        # A writer whose host vanished, or that was stopped, must not keep the lock for ever.
        seconds = int(backend.BUSY_SECONDS)
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{seconds}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({APPLICATION_ID})")

    return engine
