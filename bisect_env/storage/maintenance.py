"""Upgrades, checks and measures a database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, inspect, select, update
from sqlmodel import Session
from sqlmodel import select as select_rows

from bisect_env.errors import StorageError
from bisect_env.storage import backend, rows
from bisect_env.storage.backend import ANOTHER, open_any_schema, open_database, speaking
from bisect_env.storage.tables import (
    METADATA,
    SCHEMA_VERSION,
    CombinationRow,
    DecisionRow,
    LockRow,
    MetaRow,
    PackageRow,
    StudyRow,
    TrialRow,
)
from bisect_env.storage.values import DamageError


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The result of an upgrade.

    Attributes:
        shown: The database, without a password.
        before: Its schema before.
        after: Its schema now; the same when there was nothing to do.
    """

    shown: str
    before: int
    after: int


def upgrade(reference: str | None) -> Upgrade:
    """Bring a database to this release's schema, as a whole or not at all.

    Args:
        reference: As `Store.open` takes it.

    Raises:
        StorageError: It was written by a newer release, or cannot be upgraded; it is as before.
    """
    # Opening for writing would make a database where there is none.
    open_any_schema(reference, read_only=True).engine.dispose()
    database = open_any_schema(reference)
    try:
        with speaking(database.shown), database.engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                # Making a table anew would delete the rows that refer to it; and inside a transaction this
                # setting is not heeded.
                driver: Any = connection.connection.driver_connection
                driver.execute("PRAGMA foreign_keys = OFF")
            with connection.begin():
                before = backend.stored_version(connection, database.shown)
                if before == SCHEMA_VERSION:
                    return Upgrade(database.shown, before, before)
                backend.check_upgradable(before, database.shown)
                _refuse_other_revision(connection, before, database.shown)
                backend.drop(connection)
                backend.to_head(connection)
                backend.make_views(connection)
                connection.execute(
                    update(MetaRow)
                    .where(MetaRow.name == "schema")  # type: ignore[arg-type]
                    .values(value=str(SCHEMA_VERSION))
                )
                _refuse_dangling(connection, database.shown)
            return Upgrade(database.shown, before, SCHEMA_VERSION)
    finally:
        database.engine.dispose()


def _refuse_other_revision(connection: Connection, version: int, shown: str) -> None:
    wanted, found = backend.revision_of(version), backend.revisions(connection)
    if found != [wanted]:
        raise StorageError(
            f"the database {shown} says that it has schema {version}, and its version table names "
            f"{' and '.join(map(ascii, found)) or 'no revision'}; it was not upgraded",
            remedy="another program changed it: take it from a backup, or " + ANOTHER,
        )


def _refuse_dangling(connection: Connection, shown: str) -> None:
    if connection.dialect.name == "sqlite" and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
        raise StorageError(
            f"the database {shown} holds rows that refer to nothing; it was not upgraded",
            remedy="another program changed it: take it from a backup, or " + ANOTHER,
        )


def problems(reference: str | None) -> tuple[str, list[str]]:
    """The database as messages name it, and what is wrong with it, a sentence each.

    Raises:
        StorageError: It cannot be opened, or has another schema.
    """
    database = open_database(reference, read_only=True)
    try:
        with speaking(database.shown), database.reader.connect() as connection:
            found = _problems(connection)
            return database.shown, found or _damages(connection)
    finally:
        database.engine.dispose()


def _problems(connection: Connection) -> list[str]:
    found: list[str] = []
    if connection.dialect.name == "sqlite":
        lines = [str(line) for (line,) in connection.exec_driver_sql("PRAGMA integrity_check(10)")]
        found += [f"damaged: {line}" for line in lines if line != "ok"]
        dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(10)
        found += [
            f"a row of {table} refers to a row of {parent} that is gone" for table, _, parent, _ in dangling
        ]
    here = inspect(connection)
    schema = backend.schema_name(connection)
    missing = sorted(set(METADATA.tables) - set(here.get_table_names(schema)))
    missing += sorted(set(backend.NAMES) - set(here.get_view_names(schema)))
    found += [f"{name} is missing" for name in missing]
    revisions, wanted = backend.revisions(connection), backend.revision_of(SCHEMA_VERSION)
    if revisions != [wanted]:
        named = " and ".join(ascii(revision) for revision in revisions) or "no revision"
        found.append(f"the version table names {named}, not {wanted}")
    return found


_NAMED = 10
"""Damaged rows of a table that are named."""


def _damages(connection: Connection) -> list[str]:
    """Rows that do not hold what we write; logs are not read."""
    found: list[str] = []
    with Session(connection) as session:
        keys = {row.id: row.key for row in session.exec(select_rows(CombinationRow))}
        packages: defaultdict[str, list[PackageRow]] = defaultdict(list)
        for package in session.exec(select_rows(PackageRow)):
            packages[package.lock_hash].append(package)
        looks: list[tuple[Any, Callable[[Any], object]]] = [
            (StudyRow, rows.study_of),
            (LockRow, lambda row: rows.lock_of(row, packages[row.content_hash])),
            (CombinationRow, rows.combination_of),
            (TrialRow, lambda row: rows.stored_trial(row, keys.get(row.combination_id, ""))),
            (DecisionRow, rows.decision_of),
        ]
        for table, look in looks:
            damaged: list[str] = []
            for row in session.exec(select_rows(table).execution_options(yield_per=1000)):
                try:
                    look(row)
                except DamageError as damage:
                    damaged.append(f"damaged: {damage.where}, column {damage.column}: {damage.why}")
                except StorageError as error:
                    damaged.append(f"damaged: {error.what}")
                if len(damaged) >= _NAMED:
                    damaged.append(f"and perhaps more of {table.__tablename__}")
                    break
            found += damaged
    return found


def stats(reference: str | None) -> tuple[str, dict[str, int | str]]:
    """The database as messages name it, and its measures: schema, rows of each table, size in bytes.

    Raises:
        StorageError: It cannot be opened, or has another schema.
    """
    database = open_database(reference, read_only=True)
    try:
        with speaking(database.shown), database.reader.connect() as connection:
            measured: dict[str, int | str] = {
                "back end": connection.dialect.name,
                "schema": backend.stored_version(connection, database.shown),
                "written by": backend.fact(connection, "created_by") or "",
            }
            for name, table in METADATA.tables.items():
                if name != "meta":
                    query = select(func.count()).select_from(table)
                    measured[name] = int(connection.execute(query).scalar_one())
            measured["bytes"] = _size(connection)
            return database.shown, measured
    finally:
        database.engine.dispose()


def _size(connection: Connection) -> int:
    query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    if connection.dialect.name != "sqlite":
        query = "SELECT pg_database_size(current_database())"
    return int(connection.exec_driver_sql(query).scalar_one())
