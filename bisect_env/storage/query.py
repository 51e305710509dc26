"""Runs SQL queries that users write, on connections that cannot change the database."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import text as sql
from sqlalchemy.exc import DBAPIError

from bisect_env.errors import UsageError
from bisect_env.storage.backend import (
    NAMES,
    PUBLIC,
    TRIAL_COLUMNS,
    Database,
    name_public,
    speaking,
)
from bisect_env.storage.store import Store
from bisect_env.storage.tables import METADATA
from bisect_env.trials.records import Evidence

# --------------------------------------------------------------------------------------------------
# From what a person types to a condition in SQL on `v_trials`. Pure.

_NUMBERS = {"returncode", "duration"}
_SHORT = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(=|!=|<=|>=|<|>|~)\s*([^\s'\"()=~<>][^'\"()=~<>]*?)\s*")
_SQL_WORDS = re.compile(r"\b(and|or|like|in|is|not|between)\b", re.IGNORECASE)


def condition(text: str) -> str:
    """Translate the value of `--where`, such as `outcome=crash`, into an SQL condition on trials.

    `outcome=crash`, `gpu_model~H100` (contains), `python=3.1*` and `duration>5` are short forms; a name that
    is no column is an axis (`torch=2.4.1`, `torch=2.4.*`). Any other text is returned as SQL, in parentheses.
    With `~` and `*`, and in values of axes, case is ignored.

    Raises:
        UsageError: A `*` stands before the end of an axis value.
    """
    short = _short_form(text)
    if short is None:
        return f"({text})"
    name, operator, value = short
    if name in _NUMBERS and re.fullmatch(r"-?\d+(\.\d+)?", value) and operator != "~":
        return f"({name} {operator} {value})"
    if name in TRIAL_COLUMNS:
        return f"({_compared(name, operator, value)})"
    if operator in ("=", "!="):
        if "*" in value.rstrip("*"):
            # A wildcard there could match text of the next axis.
            raise UsageError(
                f"{text.strip()}: `*` can stand only at the end of an axis's value",
                remedy="write SQL on `combination`, or several conditions",
            )
        pair = json.dumps([name, value], separators=(",", ":"), ensure_ascii=False)
        return f"({_like('combination', operator, pair, around='%')})"
    return f"({text})"


def evidence_condition(text: str) -> frozenset[Evidence] | None:
    """Return the evidence values (good, bad, ...) that a `--where` condition such as `evidence=bad` accepts.

    Return None for a condition on anything else. Evidence is computed when trials are read, so the caller
    must compare it. In SQL that a user writes, `evidence` is the column of the view.
    """
    short = _short_form(text)
    if short is None or short[0] != "evidence" or short[1] not in ("=", "!=", "~"):
        return None
    _, operator, value = short
    pattern = f"*{value}*" if operator == "~" else value
    found = frozenset(one for one in Evidence if fnmatchcase(one, pattern.lower()))
    return frozenset(Evidence) - found if operator == "!=" else found


def _short_form(text: str) -> tuple[str, str, str] | None:
    """Split a short condition, such as `outcome=crash`, into name, operator and value.

    Return None if the condition is SQL.
    """
    short = _SHORT.fullmatch(text)
    if short is None or _SQL_WORDS.search(short[3]):
        return None
    return short[1], short[2], short[3]


def package_condition(text: str) -> str:
    """Translate a value of `--installed`, such as `cuml=24.4.*`, to an SQL condition on the lock of a trial.

    Raises:
        UsageError: The requirement cannot be read.
    """
    short = re.fullmatch(r"\s*([\w.-]+)\s*(?:==?\s*([\w.*+!-]+))?\s*", text)
    if short is None:
        raise UsageError(f"--installed: {text!r} names no package", remedy="write it like cuml=24.4.*")
    name = re.sub(r"[-_.]+", "-", short[1]).lower()
    version = "" if short[2] is None else f" AND {_compared('p.version', '=', short[2])}"
    return f"lock_hash IN (SELECT p.lock_hash FROM v_packages p WHERE p.name = {_literal(name)}{version})"


def _compared(name: str, operator: str, value: str) -> str:
    if operator == "~":
        return _like(name, operator, value, around="%")
    if "*" in value and operator in ("=", "!="):
        return _like(name, operator, value)
    return f"{name} {operator} {_literal(value)}"


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _like(column: str, operator: str, value: str, around: str = "") -> str:
    """Return an SQL condition that compares a column with a pattern such as `2.4.*`, ignoring case.

    For the operator `!=`, the condition is negated. In the value `*` matches anything. PostgreSQL compares
    only text with a pattern, so numbers and times are converted to text. Both sides are converted by the
    database, since only PostgreSQL's LIKE is case-sensitive, and databases differ in the letters that they
    convert.
    """
    escaped = value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    pattern = _literal(around + escaped + around)
    negation = "NOT " if operator == "!=" else ""
    return f"lower(CAST({column} AS text)) {negation}LIKE lower({pattern}) ESCAPE '\\'"


# --------------------------------------------------------------------------------------------------
# Running SQL questions read-only and with limits, both enforced by the database itself.

TIMEOUT = 30.0
"""Default time limit of a query, in seconds."""
MEMORY = 256 * 2**20
"""Memory limit in bytes of SQLite during a query, and of the rows that the query returns."""
_LONGEST_VALUE = 64 * 2**20
"""Maximum size of a value in bytes. SQLite computes `zeroblob(1e9)` in one step, without interruption."""
_STEPS = 10_000
"""Number of steps of SQLite's virtual machine between two checks of the time: about a millisecond."""

_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)


def _only_reading(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    # Beyond `mode=ro`: ATTACH and VACUUM INTO write other files, and a PRAGMA can lift `query_only`.
    allowed = action in _ALLOWED and no_leaks(action, first, second) == sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def no_leaks(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Deny SQLite actions that load code or expose memory addresses or paths.

    SQLite calls this function as an authorizer.
    """
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if second in ("load_extension", "fts3_tokenizer") else sqlite3.SQLITE_OK
    is_listed = action == sqlite3.SQLITE_READ and (first or "").lower() == "pragma_database_list"
    return sqlite3.SQLITE_DENY if is_listed else sqlite3.SQLITE_OK


@contextmanager
def ask(
    reference: str | None, question: str, *, timeout: float = TIMEOUT
) -> Iterator[tuple[list[str], Iterator[Sequence[Any]]]]:
    """Run one SELECT that a user wrote. Yield the column names and an iterator over the rows.

    SQLite opens the file read-only and allows no other kind of statement; PostgreSQL answers through a
    cursor, which accepts only a query, in a READ ONLY transaction that is always rolled back. Functions with
    side effects are refused, because READ ONLY does not stop all of them.

    Args:
        reference: The database, as for `Store.open`.
        question: The SQL text.
        timeout: Time limit in seconds, until the last row was read.

    Raises:
        UsageError: The text is not a single query, names unknown tables or columns, or needs too much time or
            memory.
        StorageError: There is no database that this release can use, or the database fails.
    """
    limit = _Limit(timeout)
    with Store.open(reference, read_only=True) as store, speaking(store.shown):
        database = store.database
        try:
            with database.reader.connect() as connection, _held_back(connection, limit, question):
                options = {"stream_results": True, "no_parameters": True}
                result = connection.execution_options(**options).exec_driver_sql(question)
                try:
                    if not result.returns_rows:
                        raise _no_answer("it is no query")
                    yield list(result.keys()), (limit.count(tuple(row)) for row in result)
                finally:
                    result.close()
        except MemoryError as error:
            raise limit.too_large() from error
        except DBAPIError as error:
            if limit.is_over or _is_interrupted(error):
                raise limit.too_long() from error
            if isinstance(error.orig, sqlite3.DataError):
                raise limit.too_large() from error
            if _is_the_questions(error):
                raise _no_answer(
                    " ".join(str(error.orig).split()), _known_names(database, question, error)
                ) from error
            raise


class _Limit:
    """The time and memory limit of one query, and the amount of memory that its rows took so far.

    Args:
        timeout: Time limit in seconds, counted from now.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._taken = 0

    @property
    def is_over(self) -> bool:
        """Return whether the time limit has passed."""
        return time.monotonic() > self._deadline

    def count(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Add the size of a row to the memory used so far, and return the row unchanged.

        Raises:
            UsageError: The rows so far take too much memory, or the time limit has passed.
        """
        self._taken += sys.getsizeof(row) + sum(map(sys.getsizeof, row))
        if self._taken > MEMORY:
            raise self.too_large()
        if self.is_over:
            raise self.too_long()
        return row

    def too_long(self) -> UsageError:
        """Return the error for a query that exceeded its time limit."""
        return UsageError(
            f"the question was not answered within {self.timeout:g} s",
            remedy="ask for less, or give it more time with `--time-limit SECONDS`",
        )

    def too_large(self) -> UsageError:
        """Return the error for a query whose rows take more memory than allowed."""
        return UsageError(
            f"the answer takes more than {MEMORY // 2**20} MiB",
            remedy="ask for fewer rows (`LIMIT 1000`) or columns, or let the database count",
        )


@contextmanager
def _held_back(connection: Connection, limit: _Limit, question: str) -> Iterator[None]:
    """Make a connection read-only, with limits of time and memory, inside the `with` block."""
    # Begin the transaction before SQLite refuses such statements. It is rolled back with the connection.
    connection.begin()
    if connection.dialect.name != "sqlite":
        milliseconds = max(1, int(limit.timeout * 1000))
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {milliseconds}")
        _refuse_effects(connection, question)
        name_public(connection)
        yield
        return
    driver: Any = connection.connection.driver_connection
    limit_memory(driver)
    # SQLite's own `lower` converts only ASCII letters; PostgreSQL's converts all.
    driver.create_function(
        "lower", 1, lambda value: None if value is None else str(value).lower(), deterministic=True
    )
    driver.set_progress_handler(lambda: limit.is_over, _STEPS)
    driver.set_authorizer(_only_reading)
    try:
        yield
    finally:
        # Lift the restriction before the pool takes the connection back, because the pool rolls back.
        driver.set_authorizer(None)
        driver.set_progress_handler(None, 0)


_HARMLESS = ("clock_timestamp", "gen_random_uuid", "random", "timeofday")
"""Functions of PostgreSQL that are marked as volatile although they change nothing. Queries may use them."""
_CALLED = re.compile(r"""([\w$]+)"?\s*(?=\(|/\*|--)""")
_FOREIGN = sql(
    """
    SELECT 'the function ' || p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE CASE WHEN n.nspname = 'pg_catalog'
      THEN p.provolatile = 'v' AND p.proname = ANY(:called) AND p.proname <> ALL(:harmless)
      ELSE (n.nspname = :schema OR strpos(:question, lower(n.nspname)) > 0)
        AND strpos(:question, lower(p.proname)) > 0 END
    UNION ALL
    SELECT 'the operator ' || o.oprname FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace
    WHERE n.nspname = :schema
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = o.oid AND d.deptype = 'e')
    UNION ALL
    SELECT 'the table or view ' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
      AND (n.nspname <> :schema OR c.relname <> ALL(:ours))
      AND (n.nspname = :schema OR strpos(:question, lower(n.nspname)) > 0)
      AND strpos(:question, lower(c.relname)) > 0
    LIMIT 1
    """
)


def _refuse_effects(connection: Connection, question: str) -> None:
    """Raise an error for a PostgreSQL query that could have side effects or run code of other users.

    PostgreSQL's own functions are refused if they are volatile (`lo_create`, `pg_read_file`, `set_config`),
    other functions and relations if the query contains their name. If our schema has an operator of its own,
    every query is refused, since `=` could mean that operator. Names are found without parsing SQL, which
    refuses too much rather than too little.

    Raises:
        UsageError: The query is refused.
    """
    lowered = question.lower()
    if 'u&"' in lowered:
        raise _no_answer('names in the form U&"…" are not taken')
    names = {
        "question": lowered,
        "called": _CALLED.findall(lowered),
        "harmless": list(_HARMLESS),
        "schema": PUBLIC,
        "ours": [*METADATA.tables, *NAMES],
    }
    found = connection.execute(_FOREIGN, names).scalar()
    if found is not None:
        raise _no_answer(f"{found} may have effects, or is not one of bisect-env's")


def limit_memory(connection: sqlite3.Connection) -> None:
    """Limit SQLite's memory to `MEMORY` in this process, and keep temporary data in memory."""
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA soft_heap_limit = {MEMORY}")
    connection.execute(f"PRAGMA hard_heap_limit = {MEMORY}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)


def _is_interrupted(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None)
    return state == "57014" or getattr(error.orig, "sqlite_errorname", "") == "SQLITE_INTERRUPT"


def _is_the_questions(error: DBAPIError) -> bool:
    name = str(getattr(error.orig, "sqlite_errorname", "SQLITE_ERROR"))
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        # Classes: syntax and rights, data, features, cardinality, transaction state (a write while reading),
        # limits such as that of `chr(0)`.
        return str(state)[:2] in {"42", "22", "0A", "21", "25", "54"}
    return name in {"SQLITE_ERROR", "SQLITE_AUTH", "SQLITE_READONLY"}


def _known_names(database: Database, question: str, error: DBAPIError) -> str:
    """Return a hint for a failed query: the tables that exist, or the columns of the tables that it names.

    All tables are listed if the query names an unknown one. Otherwise the columns of each table and view in
    the query are listed.
    """
    if "no such table" in str(error.orig) or getattr(error.orig, "sqlstate", None) == _UNKNOWN_TABLE:
        return f"the tables behind these views are {', '.join(METADATA.tables)}"
    texts = []
    with contextlib.suppress(DBAPIError), database.reader.connect() as connection:
        if connection.dialect.name != "sqlite":
            name_public(connection)
        for name in (*NAMES, *METADATA.tables):
            if re.search(rf"\b{name}\b", question, re.IGNORECASE):
                columns = connection.execute(sql(f"SELECT * FROM {name} LIMIT 0")).keys()
                texts.append(f"{name} has {', '.join(columns)}")
    return "; ".join(texts)


_UNKNOWN_TABLE = "42P01"
"""PostgreSQL's SQLSTATE for a table that does not exist."""


def _no_answer(why: str, names: str = "") -> UsageError:
    return UsageError(
        "the question cannot be answered",
        tried=why,
        remedy=f"ask one SELECT over {', '.join(NAMES)}" + (f"; {names}" if names else ""),
    )
