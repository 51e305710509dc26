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
from bisect_env.secrets import without_passwords

_Member = TypeVar("_Member", bound=StrEnum)


class DamageError(Exception):
    """An error about a stored value with invalid content; `backend.speaking` adds the database's name.

    Args:
        where: The row, in words: `study 1f0c…`.
        column: The column, and the place in it.
        why: What is wrong.
    """

    def __init__(self, where: str, column: str, why: str) -> None:
        super().__init__(where, column, why)
        self.where = where
        self.column = column
        self.why = why


def shortened(value: object) -> str:
    """Return a stored value, quoted and shortened for a message."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:50]}… ({len(text)} characters)"


def read_json(text: object) -> Any:
    """Parse JSON from a database; return the text itself if it is invalid or cannot be written again.

    It does not raise an error because the damaged row could not be named here: `rows.check_row` finds the
    text.
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
    """A column type for binary data.

    SQLite stores any type in any column: with SQLAlchemy's type, `bytes(10**12)` would fill the memory.
    """

    impl = LargeBinary
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return a function that returns bytes unchanged."""
        return lambda value: bytes(value) if isinstance(value, memoryview | bytearray) else value


class UtcDateTime(TypeDecorator[datetime]):
    """A column type for moments with a time zone, stored in UTC.

    SQLite stores no time zone. A naive time would mean another moment on another host, so it is refused.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the moment in UTC.

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
        """Return a function that adds the time zone to moments; other values stay unchanged."""

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
    """Return a text without NUL and lone surrogates, which databases refuse.

    Texts come from crashing processes and undecodable file names; a trial must not be lost because of one.
    """
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def public(text: str) -> str:
    """Return a cleaned text without the passwords of addresses in it."""
    return clean(without_passwords(text))


def jsonable(value: Any) -> Any:
    """Return a value for JSON: infinite and NaN numbers become null, texts are cleaned.

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
    """Return the member of an enumeration with a stored value.

    Raises:
        StorageError: There is none: another program wrote it, or a newer release.
    """
    try:
        return enum(text)
    except (ValueError, TypeError):
        raise StorageError(
            f"{where} holds {shortened(text)}, which this release does not know",
            tried=f"one of {', '.join(enum)}",
            remedy="use the newest release of bisect-env, or name another database with `--db`",
        ) from None
