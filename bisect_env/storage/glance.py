"""Looks whether a SQLite file may know something of a study, without the libraries that open a database.

Those take longer to load than a first trial takes to run. A file in which nothing is found may hold it a
moment later: what is decided by a glance must be right in either case.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import platformdirs

VARIABLE = "BISECT_ENV_DB"


class Glance:
    """What a database may know, as far as that can be seen from outside.

    Args:
        reference: A path or a URL; None is `BISECT_ENV_DB`, or else the user's own database.
        environ: Environment variables, `os.environ` if None.
    """

    def __init__(self, reference: str | None, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        named = reference or environ.get(VARIABLE) or None
        # Whatever is no plain path is not looked at.
        self._path = None if named and ("://" in named or "\0" in named) else _path(named)

    def may_know_study(self, name: str, digest: str) -> bool:
        """Whether a study of this name and matrix may be there."""
        return self._finds("SELECT 1 FROM studies WHERE name = ? AND digest = ? LIMIT 1", name, digest)

    def may_know_trials(self, lock_hash: str) -> bool:
        """Whether trials in an environment may be there, of whatever study."""
        return self._finds("SELECT 1 FROM trials WHERE lock_hash = ? LIMIT 1", lock_hash)

    def _finds(self, query: str, *values: str) -> bool:
        if self._path is None:
            return True
        try:
            if not self._path.exists() or not self._path.stat().st_size:
                return False
            address = f"{self._path.as_uri()}?mode=ro"
            with contextlib.closing(sqlite3.connect(address, uri=True, timeout=0.1)) as connection:
                return connection.execute(query, values).fetchone() is not None
        except (OSError, sqlite3.Error):
            return True


def _path(named: str | None) -> Path:
    if named is None:
        return platformdirs.user_data_path("bisect-env") / "results.sqlite"
    return Path(named).expanduser().absolute()
