"""What goes wrong with a database, in words for people."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from bisect_env.errors import StorageError

ANOTHER = "name another database with `--db` or BISECT_ENV_DB"

# Beginnings of SQLite's own error names (https://sqlite.org/rescode.html).
_BY_NAME: tuple[tuple[str, str, str], ...] = (
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
)

_SERVER = "check that the server runs and that the URL names it, then start the same command again"

# Beginnings of PostgreSQL's SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_BY_STATE: tuple[tuple[str, str, str], ...] = (
    (
        "55P03",
        "is held by another writer for too long",
        "look for it in pg_stat_activity, then start the same command again",
    ),
    ("28", "does not let this user in", "correct user and password, or keep them in ~/.pgpass"),
    ("3D000", "does not exist", "make it with `createdb`, or " + ANOTHER),
    ("25006", "cannot be written", "write to the server that is not a replica, or " + ANOTHER),
    ("42501", "may not be accessed by this user", "let the owner grant the rights, or " + ANOTHER),
    ("42P01", "lacks a part that it should have", "take it from a backup, or " + ANOTHER),
    ("42703", "lacks a part that it should have", "take it from a backup, or " + ANOTHER),
    ("53100", "cannot grow: the server's disk is full", "make room, then start the same command again"),
    ("53300", "has no connection left", "raise `max_connections` of the server, or use fewer processes"),
    ("57P", "was shut down", _SERVER),
    ("25P03", "gave up on this process, which paused for too long", "start the same command again"),
    ("08", "cannot be reached", _SERVER),
)

# libpq reports a connection that was refused without a SQLSTATE.
_BY_WORDS: tuple[tuple[str, str], ...] = (
    ("password authentication failed", "28"),
    ("no password supplied", "28"),
    ("no pg_hba.conf entry", "28"),
    ('database "', "3D000"),
    ("too many clients", "53300"),
    ("connection", "08"),
    ("could not", "08"),
    ("failed to resolve", "08"),
)


def _of_server(shown: str, error: DBAPIError) -> StorageError | None:
    if not hasattr(error.orig, "sqlstate"):
        return None
    text, state = " ".join(str(error.orig).split()), getattr(error.orig, "sqlstate", None)
    if state is None and isinstance(error, OperationalError):
        state = next((code for words, code in _BY_WORDS if words in text), None)
    for beginning, what, remedy in _BY_STATE:
        if state is not None and state.startswith(beginning):
            return StorageError(f"the database {shown} {what}", tried=text, remedy=remedy)
    return None


def storage_error(shown: str, error: DBAPIError) -> StorageError:
    """The message for a driver's error.

    Args:
        shown: The database as the user knows it, without a password.
        error: As SQLAlchemy raised it.
    """
    name = str(getattr(error.orig, "sqlite_errorname", ""))
    for beginning, what, remedy in _BY_NAME:
        if name.startswith(beginning):
            return StorageError(f"the database {shown} {what}", tried=f"{error.orig}", remedy=remedy)
    if found := _of_server(shown, error):
        return found
    if "no such table" in str(error.orig) or "no such column" in str(error.orig):
        return StorageError(
            f"the database {shown} lacks a part that it should have",
            tried=f"{error.orig}",
            remedy="another program changed it: take it from a backup, or " + ANOTHER,
        )
    return StorageError(f"the database {shown} failed", tried=f"{error.orig}", remedy=ANOTHER)


@contextlib.contextmanager
def speaking(shown: str) -> Iterator[None]:
    """Turn the driver's errors into messages; broken constraints are for the caller to explain.

    Raises:
        StorageError: Instead of what the driver raised.
    """
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise storage_error(shown, error) from error
    except json.JSONDecodeError as error:
        raise StorageError(
            f"the database {shown} holds JSON that cannot be read ({error})",
            remedy="another program changed it: take it from a backup, or " + ANOTHER,
        ) from error
