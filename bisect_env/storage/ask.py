"""Questions in SQL, which the database itself keeps from writing anything."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy.exc import DBAPIError

from bisect_env.errors import UsageError
from bisect_env.storage.connect import open_database
from bisect_env.storage.failures import storage_error

_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)


def _only_reading(action: int, _first: str | None, second: str | None, *_: str | None) -> int:
    # Beyond `mode=ro`: ATTACH and VACUUM INTO write other files, and a PRAGMA can lift `query_only`.
    allowed = action in _ALLOWED and not (action == sqlite3.SQLITE_FUNCTION and second == "load_extension")
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


@contextmanager
def ask(reference: str | None, question: str) -> Iterator[tuple[list[str], Iterator[Sequence[Any]]]]:
    """Ask one SELECT; gives the names of the columns, and the rows one by one.

    SQLite opens the file for reading and allows a statement nothing else; PostgreSQL answers through a
    cursor, which takes nothing but a query, in a transaction that is READ ONLY.

    Args:
        reference: As `Store.open` takes it.
        question: The statement.

    Raises:
        UsageError: It is no single query, or names what is not there.
        StorageError: There is no database that this release could use, or it fails.
    """
    database = open_database(reference, read_only=True)
    try:
        with database.reader.connect() as connection, connection.begin():
            driver: Any = connection.connection.driver_connection
            if connection.dialect.name == "sqlite":
                driver.set_authorizer(_only_reading)
            options = {"stream_results": True, "no_parameters": True}
            result = connection.execution_options(**options).exec_driver_sql(question)
            try:
                if not result.returns_rows:
                    raise _no_answer("it is no query")
                yield list(result.keys()), (tuple(row) for row in result)
            finally:
                result.close()
                if connection.dialect.name == "sqlite":
                    driver.set_authorizer(None)
    except DBAPIError as error:
        if _is_the_questions(error):
            raise _no_answer(" ".join(str(error.orig).split())) from error
        raise storage_error(database.shown, error) from error
    finally:
        database.engine.dispose()


def _is_the_questions(error: DBAPIError) -> bool:
    name = str(getattr(error.orig, "sqlite_errorname", "SQLITE_ERROR"))
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        # Syntax and rights, data, features, cardinality, transaction state (writing in a reading one).
        return str(state)[:2] in {"42", "22", "0A", "21", "25"}
    return name in {"SQLITE_ERROR", "SQLITE_AUTH", "SQLITE_READONLY"}


def _no_answer(why: str) -> UsageError:
    return UsageError(
        "the question cannot be answered",
        tried=why,
        remedy="ask one SELECT over v_trials, v_combinations, v_verdicts or v_packages",
    )
