"""Where the results are: what `--db` and `BISECT_ENV_DB` may say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs
from sqlalchemy import URL
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from bisect_env.errors import UsageError

VARIABLE = "BISECT_ENV_DB"
_REMEDY = (
    "name a file (`--db results.sqlite`) or a URL (`--db sqlite:////data/results.sqlite`, "
    "`--db postgresql+psycopg://USER@HOST/DATABASE`)"
)


def database_location(reference: str | None, environ: Mapping[str, str] | None = None) -> Path | URL:
    """The database that a user means.

    Args:
        reference: A path or a URL; None looks at `BISECT_ENV_DB`, then takes a file in the user's data
            directory.
        environ: Environment variables, `os.environ` if None.

    Returns:
        The absolute path of a SQLite file, or the URL of a PostgreSQL database; nothing is looked up.

    Raises:
        UsageError: It is a URL that this release cannot serve, or names nothing.
    """
    environ = os.environ if environ is None else environ
    if reference is None:
        reference = environ.get(VARIABLE) or None
    if reference is None:
        return platformdirs.user_data_path("bisect-env") / "results.sqlite"
    if "\0" in reference or not reference.strip():
        raise UsageError("the database has no name", tried=repr(reference), remedy=_REMEDY)
    if "://" not in reference:
        return Path(reference).expanduser().absolute()
    try:
        url = make_url(reference)
    except (ArgumentError, ValueError):
        # Not quoted: whatever this is, it may hold a password.
        raise UsageError("the database URL cannot be read", remedy=_REMEDY) from None
    match url.get_backend_name():
        case "sqlite":
            return Path(_file_of(url)).expanduser().absolute()
        case "postgresql" | "postgres":
            return _server_of(url)
        case other:
            raise UsageError(
                f"{shown_url(url)}: this release keeps its results in SQLite or PostgreSQL, not in {other}",
                remedy=_REMEDY,
            )


def shown_location(reference: str | None) -> str:
    """The database that a user means, as messages name it; nothing is opened.

    Raises:
        UsageError: As for `database_location`.
    """
    location = database_location(reference)
    return str(location) if isinstance(location, Path) else shown_url(location)


def shown_url(url: URL) -> str:
    """The URL as messages may quote it: `***` for the password, without options, which may hold another."""
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
