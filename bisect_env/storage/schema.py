"""Which schema a database has, and how a new one gets it."""

from __future__ import annotations

import shlex
from importlib.metadata import version

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import DBAPIError

from bisect_env.errors import StorageError
from bisect_env.storage.failures import ANOTHER, storage_error
from bisect_env.storage.tables import METADATA, SCHEMA_VERSION, MetaRow

CREATED_BY = "bisect-env"
"""Beginning of the fact that says whose tables these are."""


def make(connection: Connection) -> None:
    """Make every table and view in an empty database, in the transaction that is given."""
    # Here, because reading and going on need no Alembic.
    from bisect_env.storage import migrate, views

    METADATA.create_all(connection)
    views.make(connection)
    migrate.stamp(connection, SCHEMA_VERSION)
    facts = {"schema": str(SCHEMA_VERSION), "created_by": f"{CREATED_BY} {version('bisect-env')}"}
    connection.execute(insert(MetaRow), [{"name": name, "value": value} for name, value in facts.items()])


def fact(connection: Connection, name: str) -> str | None:
    """A fact that the database holds about itself."""
    query = select(MetaRow.value).where(MetaRow.name == name)  # type: ignore[call-overload]
    value = connection.execute(query).scalar_one_or_none()
    return None if value is None else str(value)


def stored_version(connection: Connection, shown: str) -> int:
    """The version of the schema that a database has.

    Raises:
        StorageError: It does not say.
    """
    try:
        value = fact(connection, "schema")
    except DBAPIError as error:
        raise storage_error(shown, error) from error
    if value is None or not value.isdecimal():
        raise StorageError(
            f"the database {shown} does not say which schema it has",
            remedy="another program changed it: take it from a backup, or " + ANOTHER,
        )
    return int(value)


def check_version(found: int, shown: str) -> None:
    """Refuse another schema than ours; what to do depends on which is newer. Pure.

    Raises:
        StorageError: It is another one.
    """
    if found > SCHEMA_VERSION:
        raise StorageError(
            f"the database {shown} was written by a newer release (schema {found}; this one knows "
            f"{SCHEMA_VERSION})",
            remedy="install the newest release of bisect-env, or " + ANOTHER,
        )
    if found < SCHEMA_VERSION:
        raise StorageError(
            f"the database {shown} was written by an older release (schema {found}; this one needs "
            f"{SCHEMA_VERSION})",
            remedy=f"bisect-env db upgrade --db {shlex.quote(shown)}",
        )


def check_upgradable(found: int, shown: str) -> None:
    """Refuse a schema from which no revision leads here. Pure.

    Raises:
        StorageError: It is newer than ours, or no release ever had it.
    """
    if found > SCHEMA_VERSION:
        check_version(found, shown)
    if found < 1:
        raise StorageError(
            f"the database {shown} says that it has schema {found}, which no release ever had",
            remedy="another program changed it: take it from a backup, or " + ANOTHER,
        )
