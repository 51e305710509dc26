"""What a value must look like before any database takes it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import DateTime
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from bisect_env.errors import StorageError
from bisect_env.matrix.secrets import without_passwords

_Member = TypeVar("_Member", bound=StrEnum)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment with a time zone, kept in UTC.

    SQLite stores no time zone: a naive time would mean another moment on another host, and is refused.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC.

        Raises:
            ValueError: The time has no time zone.
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """With the time zone that SQLite forgot."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def clean(text: str) -> str:
    """Text that every database takes: PostgreSQL refuses NUL, and UTF-8 has no lone surrogates.

    Texts come from crashing processes and undecodable file names; a trial must not be lost over one.
    """
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def public(text: str) -> str:
    """The same for texts of solvers, installers and scripts, which quote addresses: without passwords."""
    return clean(without_passwords(text))


def jsonable(value: Any) -> Any:
    """The value as JSON can say it: numbers that are not finite become null, texts are cleaned.

    Raises:
        TypeError: It holds something that is no JSON value.
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


def member(enum: type[_Member], text: str, where: str) -> _Member:
    """The member of an enumeration that a stored text means.

    Raises:
        StorageError: There is none: somebody else wrote this, or a newer release.
    """
    try:
        return enum(text)
    except ValueError:
        raise StorageError(
            f"{where} holds {text!r}, which this release does not know",
            tried=f"one of {', '.join(enum)}",
            remedy="use the newest release of bisect-env, or name another database with `--db`",
        ) from None
