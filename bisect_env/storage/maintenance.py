"""Checks a results database for damage, and counts its rows and bytes, for `bisect-env db info`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, func, inspect, select
from sqlmodel import Session
from sqlmodel import select as select_rows

from bisect_env.errors import StorageError
from bisect_env.storage import backend, rows
from bisect_env.storage.store import Store
from bisect_env.storage.tables import (
    METADATA,
    SCHEMA_VERSION,
    ChangedRow,
    CombinationRow,
    DecisionRow,
    LockRow,
    MemberRow,
    StudyRow,
    TrialRow,
)


def problems(reference: str | None) -> tuple[str, list[str]]:
    """Check a database for damage; return its name for messages, and one sentence for each problem.

    Raises:
        StorageError: The database cannot be opened, or has another schema.
    """
    with Store.open(reference, read_only=True) as store, store.reading() as session:
        found = _problems(session.connection())
        return store.shown, found or _damages(store, session)


def _problems(connection: Connection) -> list[str]:
    found: list[str] = []
    if connection.dialect.name == "sqlite":
        lines = [str(line) for (line,) in connection.exec_driver_sql("PRAGMA integrity_check(10)")]
        found += [f"damaged: {line}" for line in lines if line != "ok"]
        dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(10)
        found += [
            f"a row of {table} refers to a row of {parent} that is gone" for table, _, parent, _ in dangling
        ]
    here = inspect(connection)
    schema = backend.schema_name(connection)
    missing = sorted(set(METADATA.tables) - set(here.get_table_names(schema)))
    missing += sorted(set(backend.NAMES) - set(here.get_view_names(schema)))
    found += [f"{name} is missing" for name in missing]
    return found


_NAMED = 10
"""Maximum number of damaged rows that are named for each table."""


def _damages(store: Store, session: Session) -> list[str]:
    """Check the rows of all tables, and return a description of each damaged row.

    Logs are not read.
    """
    found: list[str] = []
    looks: list[tuple[Any, Callable[[Any], object]]] = [
        (StudyRow, rows.study_of),
        (LockRow, lambda row: store.lock(row.content_hash)),
        (CombinationRow, rows.combination_of),
        (TrialRow, rows.checked),
        (MemberRow, rows.checked),
        (ChangedRow, rows.change_of),
        (DecisionRow, rows.decision_of),
    ]
    for table, look in looks:
        damaged: list[str] = []
        for row in session.exec(select_rows(table).execution_options(yield_per=1000)):
            try:
                look(row)
            except StorageError as error:
                damaged.append(f"damaged: {error.what}")
            if len(damaged) >= _NAMED:
                damaged.append(f"and perhaps more of {table.__tablename__}")
                break
        found += damaged
    return found


def stats(reference: str | None) -> tuple[str, dict[str, int | str]]:
    """Return the database's name for messages, and its schema version, row counts and size in bytes.

    Raises:
        StorageError: The database cannot be opened, or has another schema.
    """
    with Store.open(reference, read_only=True) as store, store.reading() as session:
        connection = session.connection()
        measured: dict[str, int | str] = {
            "back end": connection.dialect.name,
            "schema": SCHEMA_VERSION,
            "written by": backend.fact(connection, "created_by") or "",
        }
        for name, table in METADATA.tables.items():
            if name != "meta":
                query = select(func.count()).select_from(table)
                measured[name] = int(connection.execute(query).scalar_one())
        measured["bytes"] = _size(connection)
        return store.shown, measured


def _size(connection: Connection) -> int:
    query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    if connection.dialect.name != "sqlite":
        query = "SELECT pg_database_size(current_database())"
    return int(connection.exec_driver_sql(query).scalar_one())
