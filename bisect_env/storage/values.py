"""Checks values before they are stored and after they are read. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from sqlalchemy import DateTime, LargeBinary
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from bisect_env.errors import StorageError
from bisect_env.matrix.secrets import without_passwords

_Member = TypeVar("_Member", bound=StrEnum)


class DamageError(Exception):
    """A stored value is not what we store there; `backend.speaking` adds which database it is in.

    Args:
        where: Which row, in words: `study 1f0c…`.
        column: Which column, and where in it.
        why: What is wrong.
    """

    def __init__(self, where: str, column: str, why: str) -> None:
        super().__init__(where, column, why)
        self.where = where
        self.column = column
        self.why = why


def shortened(value: object) -> str:
    """Return a stored value as a message may quote it."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:50]}… ({len(text)} characters)"


def read_json(text: object) -> Any:
    """Parse JSON that a database gives back; return the text if it is none, or cannot be written again.

    If this raised, nobody could name the row that is damaged: `rows.check_row` sees that there is a text.
    """
    try:
        if not isinstance(text, str | bytes | bytearray):
            return text
        value = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return text
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


class Bytes(TypeDecorator[bytes]):
    """Binary data. SQLite stores anything anywhere: SQLAlchemy's `bytes(10**12)` would fill the memory."""

    impl = LargeBinary
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return bytes as they are."""
        return lambda value: bytes(value) if isinstance(value, memoryview | bytearray) else value


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

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return moments with the time zone that SQLite forgot; what is no moment stays as it is."""

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
    """Text that every database takes: PostgreSQL refuses NUL, and UTF-8 has no lone surrogates.

    Texts come from crashing processes and undecodable file names; a trial must not be lost over one.
    """
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def public(text: str) -> str:
    """Texts of solvers, installers and scripts without the passwords in addresses that they quote."""
    return clean(without_passwords(text))


def jsonable(value: Any) -> Any:
    """Return the value as JSON can say it: numbers that are not finite become null, texts are cleaned.

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
    """Return the member of an enumeration that a stored text means.

    Raises:
        StorageError: There is none: somebody else wrote this, or a newer release.
    """
    try:
        return enum(text)
    except (ValueError, TypeError):
        raise StorageError(
            f"{where} holds {shortened(text)}, which this release does not know",
            tried=f"one of {', '.join(enum)}",
            remedy="use the newest release of bisect-env, or name another database with `--db`",
        ) from None
