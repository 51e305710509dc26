"""Where the results are: what `--db` and `BISECT_ENV_DB` may say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from bisect_env.errors import UsageError

VARIABLE = "BISECT_ENV_DB"
_REMEDY = "name a file (`--db results.sqlite`) or a URL (`--db sqlite:////data/results.sqlite`)"


def database_path(reference: str | None, environ: Mapping[str, str] | None = None) -> Path:
    """The SQLite file that a user means.

    Args:
        reference: A path or a URL; None looks at `BISECT_ENV_DB`, then takes a file in the user's data
            directory.
        environ: Environment variables, `os.environ` if None.

    Returns:
        An absolute path; nothing is looked up on disk.

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
    if "://" in reference:
        reference = _path_of_url(reference)
    return Path(reference).expanduser().absolute()


def _path_of_url(text: str) -> str:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # Not quoted: whatever this is, it may hold a password.
        raise UsageError("the database URL cannot be read", remedy=_REMEDY) from None
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() != "sqlite":
        raise UsageError(
            f"{shown}: this release keeps its results in SQLite, not in {url.get_backend_name()}",
            remedy=_REMEDY,
        )
    if url.host or url.query or url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise UsageError(
            f"{shown}: the URL of a SQLite file has a path and nothing else (four slashes if absolute)",
            remedy=_REMEDY,
        )
    if url.database in (None, "", ":memory:"):
        raise UsageError(f"{shown}: a database in memory would forget every trial", remedy=_REMEDY)
    return str(url.database)
