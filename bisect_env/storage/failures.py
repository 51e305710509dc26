"""What goes wrong with a database, in words for people."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError, IntegrityError

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
