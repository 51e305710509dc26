"""Questions of people in SQL, which the database itself keeps from writing anything."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy.exc import DBAPIError

from bisect_env.errors import UsageError
from bisect_env.storage.backend import storage_error
from bisect_env.storage.connect import open_database

# --------------------------------------------------------------------------------------------------
# From what a person types to a condition in SQL on `v_trials`. Pure.

COLUMNS = (
    *("trial_id", "study_id", "study", "combination", "lock_hash", "python", "platform", "outcome"),
    *("evidence", "returncode", "phase", "signature", "detail", "started_at", "recorded_at", "duration"),
    *("host", "worker", "gpu", "username", "cpu", "gpu_model", "driver", "trial_key"),
)
"""Of `v_trials`."""
_NUMBERS = {"returncode", "duration"}
_SHORT = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(=|!=|<=|>=|<|>|~)\s*([^\s'\"()=~<>][^'\"()=~<>]*?)\s*")
_SQL_WORDS = re.compile(r"\b(and|or|like|in|is|not|between)\b", re.IGNORECASE)


def condition(text: str) -> str:
    """A condition in SQL.

    `outcome=crash`, `gpu_model~H100` (contains), `python=3.1*` and `duration>5` are short forms; a name that
    is no column is an axis (`torch=2.4.1`). Everything else is SQL as it stands.
    """
    short = _SHORT.fullmatch(text)
    if short is None or _SQL_WORDS.search(short[3]):
        return f"({text})"
    name, operator, value = short.groups()
    if name in _NUMBERS and re.fullmatch(r"-?\d+(\.\d+)?", value) and operator != "~":
        return f"({name} {operator} {value})"
    if name in COLUMNS:
        return f"({_compared(name, operator, value)})"
    if operator in ("=", "!="):
        negation = "NOT " if operator == "!=" else ""
        pair = _pattern(f'%["{name}","{value}"]%')
        return f"(combination {negation}LIKE {pair} ESCAPE '\\')"
    return f"({text})"


def package_condition(text: str) -> str | None:
    """The condition that a lock holds a package, such as `cuml=24.4.*`; None if it cannot be read."""
    short = re.fullmatch(r"\s*([\w.-]+)\s*(?:==?\s*([\w.*+!-]+))?\s*", text)
    if short is None:
        return None
    name = re.sub(r"[-_.]+", "-", short[1]).lower()
    version = "" if short[2] is None else f" AND {_compared('p.version', '=', short[2])}"
    return f"lock_hash IN (SELECT p.lock_hash FROM v_packages p WHERE p.name = {_literal(name)}{version})"


def _compared(name: str, operator: str, value: str) -> str:
    if operator == "~":
        return f"{name} LIKE {_pattern(f'%{value}%')} ESCAPE '\\'"
    if "*" in value and operator in ("=", "!="):
        negation = "NOT " if operator == "!=" else ""
        return f"{name} {negation}LIKE {_pattern(value)} ESCAPE '\\'"
    return f"{name} {operator} {_literal(value)}"


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _pattern(value: str) -> str:
    """A LIKE pattern in which `*` stands for anything, and `%` at the ends as well."""
    inner = value.strip("%")
    escaped = inner.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    return _literal(value.replace(inner, escaped, 1) if inner else value)


# --------------------------------------------------------------------------------------------------
# Questions in SQL, which the database itself keeps from writing anything.

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
