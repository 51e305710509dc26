"""Alembic, driven from inside: the connection and its transaction are the caller's."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from bisect_env.storage.tables import SCHEMA_VERSION


def revision_of(version: int) -> str:
    """The revision that makes a schema: its number, in four digits."""
    return f"{version:04d}"


def current(connection: Connection) -> str | None:
    """The revision that the version table names; None without one."""
    return MigrationContext.configure(connection).get_current_revision()


def stamp(connection: Connection, version: int) -> None:
    """Write down that a database has a schema, without doing anything else."""
    command.stamp(_config(connection), revision_of(version))


def to_head(connection: Connection, version: int) -> None:
    """Run every revision after a schema; the first schema had no version table."""
    if current(connection) is None and version:
        stamp(connection, version)
    command.upgrade(_config(connection), revision_of(SCHEMA_VERSION))


def _config(connection: Connection) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "bisect_env.storage:migrations")
    return config
