"""Defines what SQLite and PostgreSQL databases share: the schema, views, locations and error messages."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs
from sqlalchemy import URL, Connection, Engine, insert, inspect, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError

from bisect_env import __version__
from bisect_env.errors import StorageError, UsageError, expanded
from bisect_env.storage.tables import APPLICATION_ID, METADATA, SCHEMA_VERSION, MetaRow, TrialRow
from bisect_env.storage.values import ANOTHER, CHANGED, DamageError, read_json

# --------------------------------------------------------------------------------------------------
# Messages for errors of the database.

VARIABLE = "BISECT_ENV_DB"
"""Environment variable that names the database if the option `--db` is not given."""

_SERVER = "check that the server runs and that the URL names it, then start the same command again"
_NO_TEXT = "Could not decode to UTF-8"

# Beginnings of SQLite's error names (https://sqlite.org/rescode.html) and of PostgreSQL's SQLSTATEs
# (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_BY_CODE: tuple[tuple[str, str, str], ...] = (
    (
        "SQLITE_BUSY",
        "is held by another process for too long",
        "close what may hold it (a backup, a database browser), then start the same command again",
    ),
    ("SQLITE_LOCKED", "is held by another connection", "start the same command again"),
    ("SQLITE_NOTADB", "is not a SQLite database", ANOTHER),
    (
        "SQLITE_CORRUPT",
        "is damaged",
        "take it from a backup, rescue what is readable with `sqlite3 FILE .recover`, or " + ANOTHER,
    ),
    ("SQLITE_READONLY", "cannot be written", "make the file and its directory writable, or " + ANOTHER),
    ("SQLITE_PERM", "may not be accessed", "change its permissions, or " + ANOTHER),
    ("SQLITE_FULL", "cannot grow: the disk is full", "make room, then start the same command again"),
    ("SQLITE_CANTOPEN", "cannot be opened", "check the path and its permissions, or " + ANOTHER),
    ("SQLITE_IOERR", "cannot be read or written: the disk reports an error", "check the disk, or " + ANOTHER),
    (
        "55P03",
        "is held by another writer for too long",
        "look for it in pg_stat_activity, then start the same command again",
    ),
    ("28", "does not let this user in", "correct user and password, or keep them in ~/.pgpass"),
    ("3D000", "does not exist", "make it with `createdb`, or " + ANOTHER),
    ("25006", "cannot be written", "write to the server that is not a replica, or " + ANOTHER),
    ("42501", "may not be accessed by this user", "let the owner grant the rights, or " + ANOTHER),
    ("42P01", "lacks a part that it should have", CHANGED),
    ("42703", "lacks a part that it should have", CHANGED),
    ("53100", "cannot grow: the server's disk is full", "make room, then start the same command again"),
    ("53300", "has no connection left", "raise `max_connections` of the server, or use fewer processes"),
    ("57P", "was shut down", _SERVER),
    ("25P03", "gave up on this process, which paused for too long", "start the same command again"),
    ("08", "cannot be reached", _SERVER),
    (_NO_TEXT, "is damaged: it holds text that is not UTF-8", CHANGED),
    ("", "failed", ANOTHER),
)

# Words in errors that have no code of their own. libpq gives none for a connection that was refused.
_BY_WORDS: tuple[tuple[str, str], ...] = (
    (_NO_TEXT, _NO_TEXT),
    ("no such table", "42P01"),
    ("no such column", "42703"),
    ("password authentication failed", "28"),
    ("no password supplied", "28"),
    ("no pg_hba.conf entry", "28"),
    ('database "', "3D000"),
    ("too many clients", "53300"),
    ("connection", "08"),
    ("could not", "08"),
    ("failed to resolve", "08"),
)


def _storage_error(shown: str, text: str, code: str | None) -> StorageError:
    """Convert an error of the database driver to an error with a message and a remedy for the user.

    Args:
        shown: The database as messages name it, without a password.
        text: Message of the driver.
        code: SQLite's name of the error or PostgreSQL's SQLSTATE; None if there is none.
    """
    if code in (None, "SQLITE_ERROR"):
        code = next((known for words, known in _BY_WORDS if words in text), "")
    what, remedy = next((what, remedy) for known, what, remedy in _BY_CODE if str(code).startswith(known))
    return StorageError(f"the database {shown} {what}", tried=" ".join(text.split()), remedy=remedy)


@contextlib.contextmanager
def speaking(shown: str) -> Iterator[None]:
    """Convert errors of the database driver in the `with` block to errors with messages for users.

    Errors about violated constraints stay unchanged; callers explain them.

    Raises:
        StorageError: Instead of what the driver raised.
    """
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None)
        if code is None and not isinstance(error, OperationalError):
            code = ""  # a mistake in the URL may mention a connection, too
        raise _storage_error(shown, str(error.orig), code) from error
    except UnicodeDecodeError as error:
        # SQLite quotes a damaged schema in a message that Python's driver cannot read.
        raise _storage_error(shown, str(error), _NO_TEXT) from error
    except DamageError as damage:
        raise StorageError(
            f"the database {shown} is damaged: {damage.what}", remedy=damage.remedy
        ) from damage


# --------------------------------------------------------------------------------------------------
# Where the results are: what `--db` and `BISECT_ENV_DB` may say.

_REMEDY = (
    "name a file (`--db results.sqlite`) or a URL (`--db sqlite:////data/results.sqlite`, "
    "`--db postgresql+psycopg://USER@HOST/DATABASE`)"
)


def database_location(reference: str | None) -> Path | URL:
    """Return the path or URL of the results database that a user named, or of the default one.

    Args:
        reference: A path or a URL; if None, `BISECT_ENV_DB` is used, else a file in the user's data
            directory.

    Returns:
        The absolute path of a SQLite file, or the URL of a PostgreSQL database; nothing is opened.

    Raises:
        UsageError: The reference is empty, or a URL that this release does not support.
    """
    if reference is None:
        reference = os.environ.get(VARIABLE) or None
    if reference is None:
        return platformdirs.user_data_path("bisect-env") / "results.sqlite"
    if "\0" in reference or not reference.strip():
        raise UsageError("the database has no name", tried=repr(reference), remedy=_REMEDY)
    if "://" not in reference:
        return expanded(reference).absolute()
    try:
        url = make_url(reference)
    except (ArgumentError, ValueError):
        # The reference is not quoted, because it may contain a password.
        raise UsageError("the database URL cannot be read", remedy=_REMEDY) from None
    match url.get_backend_name():
        case "sqlite":
            return expanded(_file_of(url)).absolute()
        case "postgresql" | "postgres":
            return _server_of(url)
        case other:
            raise UsageError(
                f"{shown_url(url)}: this release keeps its results in SQLite or PostgreSQL, not in {other}",
                remedy=_REMEDY,
            )


def has_database(reference: str | None) -> bool:
    """Return whether the file of the results database exists. A database server is assumed to exist."""
    location = database_location(reference)
    return not isinstance(location, Path) or location.exists()


def shown_location(reference: str | None) -> str:
    """Return the path or URL of a user's database as text for messages, without a password.

    The database is not opened.

    Raises:
        UsageError: As for `database_location`.
    """
    location = database_location(reference)
    return str(location) if isinstance(location, Path) else shown_url(location)


def shown_url(url: URL) -> str:
    """Return the URL of a database as text for messages, without the password.

    The password becomes `***`. Query options are left out, because they may contain a password too.
    """
    return url.set(query={}).render_as_string(hide_password=True)


def _file_of(url: URL) -> str:
    shown = shown_url(url)
    if url.host or url.query or url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise UsageError(
            f"{shown}: the URL of a SQLite file has a path and nothing else (four slashes if absolute)",
            remedy=_REMEDY,
        )
    if url.database in (None, "", ":memory:"):
        raise UsageError(f"{shown}: a database in memory would forget every trial", remedy=_REMEDY)
    return str(url.database)


def _server_of(url: URL) -> URL:
    shown = shown_url(url)
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise UsageError(
            f"{shown}: PostgreSQL is reached through psycopg",
            remedy="begin the URL with `postgresql+psycopg://`",
        )
    if not url.database:
        raise UsageError(
            f"{shown}: the URL names no database", remedy="end it with `/DATABASE`; an empty one will do"
        )
    return url.set(drivername="postgresql+psycopg")


# --------------------------------------------------------------------------------------------------
# The views that people and other programs may rely on; `docs/reference/database.md` documents them.
#
# Columns may be added. No column is renamed, removed or given another meaning, even if the tables change.

_EVIDENCE = ("good", "bad", "other", "void", "skip")


def _count(evidence: str) -> str:
    # A subquery counts, with an index, only the requested combinations; a join would count all.
    return (
        "  (SELECT count(*) FROM study_trials m"
        f" WHERE m.combination_id = c.id AND m.evidence = '{evidence}') AS {evidence}"
    )


_COMBINATIONS = f"""
SELECT c.study_id, s.name AS study, c.key AS combination, c.status, c.reason, c.lock_hash,
{",".join(_count(evidence) for evidence in _EVIDENCE)},
  (SELECT count(*) FROM study_trials m WHERE m.combination_id = c.id AND m.reused) AS reused
FROM combinations c
JOIN studies s ON s.id = c.study_id
"""

# A subquery costs nothing if its column is not requested, while a join would run for every counted row. The
# study is joined because users select by its name. LEFT allows PostgreSQL to drop an unused join; every trial
# has a study, so the result is the same.
_OF_MEMBER = "FROM study_trials m WHERE m.study_id = t.study_id AND m.trial_sequence = t.sequence"
_LOCK_OF_TRIAL = "FROM locks l WHERE l.content_hash = t.lock_hash"
_HIDDEN = {"sequence", "hash_seed", "copies", "iterations"}
TRIAL_COLUMNS = {
    **{name: f"t.{name}" for name in TrialRow.model_fields if name not in _HIDDEN},
    "study": "s.name",
    "username": "s.username",
    "combination": f"(SELECT c.key FROM combinations c WHERE c.id = (SELECT m.combination_id {_OF_MEMBER}))",
    "evidence": f"(SELECT m.evidence {_OF_MEMBER})",
    "python": f"(SELECT l.python {_LOCK_OF_TRIAL})",
    "platform": f"(SELECT l.platform {_LOCK_OF_TRIAL})",
}
"""Maps each column of the view `v_trials` to the SQL expression that computes it."""
_TRIALS = f"""
SELECT {", ".join(f"{sql} AS {name}" for name, sql in TRIAL_COLUMNS.items())}
FROM trials t
LEFT JOIN studies s ON s.id = t.study_id
"""

_PACKAGES = """
SELECT p.lock_hash, p.manager, p.name, p.version, p.build, p.url, p.sha256,
  (SELECT l.python FROM locks l WHERE l.content_hash = p.lock_hash) AS python,
  (SELECT l.platform FROM locks l WHERE l.content_hash = p.lock_hash) AS platform
FROM packages p
"""

_VERDICT_KEYS = ("status", "sentence", "reason", "kind", "first_bad", "last_good", "culprit_axes")


def _verdicts(dialect: str) -> str:
    if dialect == "sqlite":
        keys = [f"json_extract(s.verdict, '$.{key}') AS {key}" for key in _VERDICT_KEYS]
        probability = "json_extract(s.verdict, '$.probability')"
    else:
        keys = [f"s.verdict ->> '{key}' AS {key}" for key in _VERDICT_KEYS]
        probability = "CAST(s.verdict ->> 'probability' AS double precision)"
    return f"""
SELECT s.id AS study_id, s.name AS study, s.status AS study_status, {", ".join(keys)},
  {probability} AS probability, s.created_at, s.finished_at, s.host, s.username
FROM studies s
WHERE s.verdict IS NOT NULL
"""


PUBLIC = "public"
"""Schema with our tables in PostgreSQL. Connections have an empty `search_path`, so SQL must name it."""

NAMES = ("v_combinations", "v_trials", "v_verdicts", "v_packages")
ONE_ROW = {
    "v_trials": "a trial",
    "v_combinations": "a combination of a study, with its trials, `reused` ones included",
    "v_verdicts": "a study with a verdict",
    "v_packages": "a package of a lock",
}
"""Maps the name of each view to a description of one of its rows."""


def make_views(connection: Connection) -> None:
    """Create all views in the database."""
    bodies = (_COMBINATIONS, _TRIALS, _verdicts(connection.dialect.name), _PACKAGES)
    schema = f"{PUBLIC}." if schema_name(connection) else ""
    for name, body in zip(NAMES, bodies, strict=True):
        qualified = re.sub(r"\b(FROM|JOIN) (?=\w)", rf"\1 {schema}", body)
        connection.exec_driver_sql(f"CREATE VIEW {schema}{name} AS {qualified}")


def schema_name(connection: Connection) -> str | None:
    """Return the name of the schema that holds our tables: `public` in PostgreSQL, None in SQLite."""
    return PUBLIC if connection.dialect.name == "postgresql" else None


def name_public(connection: Connection) -> None:
    """Make unqualified table names in SQL that users write refer to our tables.

    The setting ends with the transaction. SQLite needs none.
    """
    if schema_name(connection) is not None:
        connection.exec_driver_sql(f"SET LOCAL search_path = pg_catalog, {PUBLIC}, pg_temp")


# --------------------------------------------------------------------------------------------------
# Which schema a database has, and how a new one gets it.

CREATED_BY = "bisect-env"
"""Start of the stored property `created_by`, by which a database of bisect-env is recognised."""
LOG_LIMIT = "log_limit"
"""Name of the stored property with the maximum total size of all logs in bytes; "" means the default."""


def make_schema(connection: Connection) -> None:
    """Create all tables and views of an empty database in the given transaction."""
    METADATA.create_all(connection)
    make_views(connection)
    # Store an empty limit at once. Otherwise a user who may only insert rows could set the limit, and the
    # owner's next collection would drop other users' logs.
    facts = {"schema": str(SCHEMA_VERSION), "created_by": f"{CREATED_BY} {__version__}", LOG_LIMIT: ""}
    connection.execute(insert(MetaRow), [{"name": name, "value": value} for name, value in facts.items()])
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")


def has_schema(connection: Connection, shown: str) -> bool:
    """Return whether a database contains the tables of bisect-env. Return False if it has no tables at all.

    Raises:
        StorageError: The database contains tables of another program.
    """
    schema = schema_name(connection)
    here = set(inspect(connection).get_table_names(schema))
    if connection.dialect.name == "sqlite":
        if connection.exec_driver_sql("PRAGMA application_id").scalar_one() == APPLICATION_ID:
            return True
    else:
        # A database on a server may also contain tables of other programs.
        here &= set(METADATA.tables)
        found = inspect(connection).get_columns("meta", schema) if "meta" in here else []
        columns = {column["name"] for column in found}
        if {"name", "value"} <= columns and (fact(connection, "created_by") or "").startswith(CREATED_BY):
            return True
    if not here:
        return False
    raise StorageError(
        f"the database {shown} holds tables of another program ({', '.join(sorted(here)[:5])}); "
        "it was left as it is",
        remedy="make a database of its own for bisect-env, or " + ANOTHER,
    )


def no_results(shown: str) -> StorageError:
    """Build the error for a command that should read a database that does not exist."""
    return StorageError(
        f"there are no results in {shown}",
        remedy="start `bisect-env run MATRIX` first, or name another with `--db` or BISECT_ENV_DB",
    )


def fact(connection: Connection, name: str) -> str | None:
    """Return a stored property of the database, such as its schema version, or None if it is missing."""
    query = select(MetaRow.value).where(MetaRow.name == name)  # type: ignore[call-overload]
    value = connection.execute(query).scalar_one_or_none()
    return None if value is None else str(value)


def check_version(connection: Connection, shown: str) -> None:
    """Raise an error if the schema version of a database is not that of this release.

    Raises:
        StorageError: The version is different, or the database does not state its version.
    """
    value = fact(connection, "schema")
    if value is None or not re.fullmatch(r"[0-9]{1,9}", value):
        raise StorageError(
            f"the database {shown} does not say which schema it has",
            remedy=CHANGED,
        )
    if (found := int(value)) != SCHEMA_VERSION:
        is_newer = found > SCHEMA_VERSION
        which = "a newer" if is_newer else "an older"
        remedy = "install the newest release of bisect-env" if is_newer else "use the release that wrote it"
        raise StorageError(
            f"the database {shown} was written by {which} release (schema {found}; this one knows "
            f"{SCHEMA_VERSION})",
            remedy=f"{remedy}, or {ANOTHER}",
        )


# --------------------------------------------------------------------------------------------------
# Shared by both back ends: an open database, and its two kinds of transactions.

BUSY_SECONDS = 60.0
"""Seconds that a writer waits for other writers, each of which holds the lock only for milliseconds."""

READING = "bisect_env_reading"
"""Name of the execution option for connections that only read and therefore take no write lock."""

ENGINE_OPTIONS: dict[str, Any] = {
    "json_serializer": partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":")),
    "json_deserializer": read_json,
}


@dataclass(frozen=True, slots=True)
class Database:
    """An open results database (SQLite or PostgreSQL), with engines for writing and for reading.

    Attributes:
        engine: Engine for writing; its transactions hold the write lock from their beginning.
        shown: The database as messages name it, without a password.
    """

    engine: Engine
    shown: str

    @property
    def reader(self) -> Engine:
        """Return an engine for reading, whose transactions see one state of the database and block nobody."""
        return self.engine.execution_options(**{READING: True})
