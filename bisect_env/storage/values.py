"""Checks values before they are stored and after they are read. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, LargeBinary
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from bisect_env.errors import StorageError
from bisect_env.secrets import without_passwords

ANOTHER = "name another database with `--db` or BISECT_ENV_DB"
CHANGED = f"another program changed it: take it from a backup, or {ANOTHER}"
"""Remedy for rows that another program has changed."""


class DamageError(StorageError):
    """An error that is raised when a stored value has invalid content.

    `backend.speaking` adds the name of the database.

    Args:
        where: Name of the row, such as `row '1f0c' of studies`.
        column: Name of the column, and the place inside its value.
        why: What is wrong with the value.
    """

    def __init__(self, where: str, column: str, why: str) -> None:
        super().__init__(f"{where}, column {column}: {why}", remedy=CHANGED)


def shortened(value: object) -> str:
    """Return a stored value as quoted text for an error message, shortened if it is long."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:50]}… ({len(text)} characters)"


def read_json(text: object) -> Any:
    """Parse JSON from a database; return the text itself if it is invalid.

    JSON that could not be written again is invalid, too. The function does not raise an error because the
    damaged row could not be named here: `rows.checked` finds the text.
    """
    try:
        if not isinstance(text, str | bytes | bytearray):
            return text
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return text
    return value


class Bytes(TypeDecorator[bytes]):
    """A column type for binary data.

    SQLite stores any type in any column: with SQLAlchemy's type, `bytes(10**12)` would fill the memory.
    """

    impl = LargeBinary
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return a function that converts a value from the database to `bytes`.

        Values that are no binary data stay unchanged.
        """
        return lambda value: bytes(value) if isinstance(value, memoryview | bytearray) else value


class UtcDateTime(TypeDecorator[datetime]):
    """A column type for times with a time zone, which are stored in UTC.

    SQLite stores no time zone. A naive time would mean another moment on another host, so it is refused.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a moment to UTC, the form in which the database stores it.

        Raises:
            ValueError: The moment has no time zone.
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return a function that adds the time zone to a moment from the database.

        Other values stay unchanged.
        """

        def process(value: object) -> object:
            if value is None:
                return None
            try:
                moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)  # type: ignore[arg-type]
                return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
            except (TypeError, ValueError, OverflowError):
                return value

        return process


def clean(text: str) -> str:
    """Return a text in which characters that databases refuse are replaced.

    These characters are NUL and lone surrogates. Texts come from crashing processes and undecodable file
    names; a trial must not be lost because of one.
    """
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def public(text: str) -> str:
    """Return a text in the form in which it may be stored: without passwords in addresses.

    Characters that databases refuse are replaced, as by `clean`.
    """
    return clean(without_passwords(text))


def jsonable(value: Any) -> Any:
    """Convert a value to types that JSON can represent.

    Infinite and NaN numbers become None. Texts are cleaned, and passwords in addresses are removed.

    Raises:
        TypeError: The value contains an object that JSON cannot represent.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return public(str(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {clean(str(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")
