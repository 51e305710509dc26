"""Opens PostgreSQL databases, and sets up their connections and transactions."""

from __future__ import annotations

import importlib.util
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

from bisect_env.errors import UsageError
from bisect_env.storage import backend
from bisect_env.storage.backend import READING, Database, shown_url
from bisect_env.storage.tables import APPLICATION_ID

_CONNECT_SECONDS = 15


def open_server(url: URL, *, read_only: bool) -> Database:
    """Open the PostgreSQL database at a URL. The first transaction connects to the server.

    Raises:
        UsageError: The driver is not installed.
    """
    shown = shown_url(url)
    if importlib.util.find_spec("psycopg") is None:
        raise UsageError(
            f"{shown}: the driver of PostgreSQL is not installed",
            remedy="pip install 'bisect-env[postgres]'",
        )
    return Database(_engine(url, read_only=read_only), shown)


def _engine(url: URL, *, read_only: bool) -> Engine:
    engine = create_engine(
        url,
        # Check pooled connections: the server may have been restarted since the last trial.
        pool_pre_ping=True,
        connect_args={"connect_timeout": _CONNECT_SECONDS, "application_name": "bisect-env"},
        hide_parameters=True,
        execution_options={"schema_translate_map": {None: backend.PUBLIC}},
        **backend.ENGINE_OPTIONS,
    )

    # Registered first, because SQLAlchemy runs its own statements on the first connection.
    @event.listens_for(engine, "connect", insert=True)
    def connected(connection: Any, _record: Any) -> None:
        milliseconds = int(backend.BUSY_SECONDS * 1000)
        with connection.cursor() as cursor:
            # Search names in `pg_catalog` alone. By default a schema with the user's name comes first, then
            # `public`: other users' tables, functions and operators would run with this user's rights.
            cursor.execute("SET search_path = ''")
            cursor.execute(f"SET lock_timeout = {milliseconds}")
            cursor.execute("SET TimeZone = 'UTC'")
            # Under a stricter isolation level, a transaction that waited for the lock would see old tables.
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.commit()

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        if read_only or connection.get_execution_options().get(READING, False):
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return
        # Without a limit, a writer that was suspended or lost its host would keep the lock forever.
        seconds = int(backend.BUSY_SECONDS)
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{seconds}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({APPLICATION_ID})")

    return engine
