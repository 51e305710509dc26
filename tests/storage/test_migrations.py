"""Databases of older schemas, upgraded and then used, on both back ends."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from bisect_env.errors import StorageError
from bisect_env.storage import maintenance, migrate, schema, views
from bisect_env.storage.connect import open_any_schema
from bisect_env.storage.store import Store
from bisect_env.storage.tables import METADATA, SCHEMA_VERSION
from bisect_env.trials.records import Evidence
from tests.storage.postgres_server import Server
from tests.storage.samples import lock, opened_study, record, whole_record

FROZEN = Path(__file__).parent / "frozen"
"""A database of each schema, as the release that had it wrote it."""


@pytest.fixture(params=range(1, SCHEMA_VERSION))
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "old.sqlite"
    shutil.copy(FROZEN / f"schema-{request.param}.sqlite", path)
    return path


def differences(reference: str) -> list[object]:
    """What Alembic would change to make the database what `tables` says, and views that are missing."""
    database = open_any_schema(reference, read_only=True)
    try:
        with database.reader.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            missing = set(views.NAMES) - set(inspect(connection).get_view_names())
            return [*compare_metadata(context, METADATA), *missing]
    finally:
        database.engine.dispose()


def test_every_schema_has_a_revision_and_its_frozen_database() -> None:
    scripts = ScriptDirectory(str(Path(migrate.__file__).parent / "migrations"))
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert revisions == [migrate.revision_of(number) for number in range(SCHEMA_VERSION, 0, -1)]
    frozen = {path.name for path in FROZEN.iterdir()}
    assert frozen == {f"schema-{number}.sqlite" for number in range(1, SCHEMA_VERSION)}


def test_an_old_database_names_the_command_that_mends_it(old: Path) -> None:
    before = old.read_bytes()
    for read_only in (False, True):
        with pytest.raises(
            StorageError, match=rf"older release[^$]*remedy: bisect-env db upgrade --db {old}"
        ):
            Store.open(str(old), read_only=read_only)
    assert old.read_bytes() == before


def test_an_old_database_is_upgraded_and_then_used(old: Path) -> None:
    done = maintenance.upgrade(str(old))
    assert (done.before < done.after, done.after) == (True, SCHEMA_VERSION)
    assert maintenance.problems(str(old)) == (str(old), [])
    assert differences(str(old)) == []
    with Store.open(str(old)) as store:
        study = store.study("orjson")
        assert study.status == "finished"
        assert study.verdict is not None
        assert study.verdict["first_bad"] == {"orjson": "2.0"}
        trials = store.trials(study.id)
        assert [trial.evidence for trial in trials] == [Evidence.BAD, *[Evidence.GOOD] * 3]
        whole = store.trial(trials[0].trial_id)
        assert whole is not None
        assert (whole.record.stdout, whole.record.copies) == (whole_record().stdout, whole_record().copies)
        assert store.lock(lock("2.0").content_hash) == lock("2.0")
        assert len(store.decisions(study.id)) == 1
        assert opened_study(store).id == study.id
        assert store.record_trial(study.id, record(), Evidence.GOOD)
        assert len(store.trials(study.id)) == 5
    again = maintenance.upgrade(str(old))
    assert (again.before, again.after) == (SCHEMA_VERSION, SCHEMA_VERSION)


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content() -> list[str]:
        with contextlib.closing(sqlite3.connect(old)) as connection:
            return list(connection.iterdump())

    before = content()

    def fail(_connection: object) -> None:
        raise RuntimeError("the machine went down")

    monkeypatch.setattr(views, "make", fail)
    with pytest.raises(RuntimeError, match="went down"):
        maintenance.upgrade(str(old))
    assert content() == before
    monkeypatch.undo()
    assert maintenance.upgrade(str(old)).after == SCHEMA_VERSION


def test_rows_that_refer_to_nothing_are_not_upgraded(old: Path) -> None:
    with contextlib.closing(sqlite3.connect(old)) as connection:
        connection.execute("DELETE FROM locks")
        connection.commit()
    with pytest.raises(StorageError, match="refer to nothing; it was not upgraded"):
        maintenance.upgrade(str(old))


def test_upgrading_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there are no results"):
        maintenance.upgrade(str(tmp_path / "gone.sqlite"))
    assert list(tmp_path.iterdir()) == []


def test_a_new_database_is_what_the_revisions_make(tmp_path: Path) -> None:
    path = str(tmp_path / "new.sqlite")
    Store.open(path).close()
    assert differences(path) == []
    assert maintenance.problems(path) == (path, [])


@pytest.mark.integration
def test_on_a_server(postgres: Server, postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    with Store.open(postgres_url) as store:
        study = opened_study(store)
        store.record_trial(study.id, whole_record(), Evidence.BAD)
    assert differences(postgres_url) == []
    assert maintenance.problems(postgres_url)[1] == []
    # The first schema: without views and without a version table.
    postgres.run(
        *(f"DROP VIEW {view}" for view in views.NAMES),
        "DROP TABLE alembic_version",
        "UPDATE meta SET value = '1' WHERE name = 'schema'",
        database=name,
    )
    with pytest.raises(
        StorageError, match=r"bisect-env db upgrade --db '?postgresql\+psycopg://owner:\*\*\*@"
    ):
        Store.open(postgres_url)
    assert maintenance.upgrade(postgres_url).before == 1
    assert differences(postgres_url) == []
    assert maintenance.problems(postgres_url)[1] == []
    with Store.open(postgres_url) as store:
        assert len(store.trials(study.id)) == 1


@pytest.mark.integration
def test_the_revisions_alone_make_every_table_on_a_server(postgres_url: str) -> None:
    database = open_any_schema(postgres_url)
    try:
        with database.engine.begin() as connection:
            views.drop(connection)
            METADATA.drop_all(connection)
            connection.exec_driver_sql("DROP TABLE alembic_version")
            migrate.to_head(connection, 0)
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, METADATA) == []
    finally:
        database.engine.dispose()


@pytest.mark.parametrize(
    ("version", "match"), [(SCHEMA_VERSION + 1, "newer release"), (0, "no release ever had")]
)
def test_what_cannot_be_upgraded(version: int, match: str) -> None:
    with pytest.raises(StorageError, match=match):
        schema.check_upgradable(version, "results.sqlite")


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DROP VIEW v_trials", "v_trials is missing"),
        ("DROP TABLE decisions", "decisions is missing"),
        ("DELETE FROM locks", "a row of packages refers to a row of locks that is gone"),
        ("DELETE FROM alembic_version", "the version table names revision None"),
        ("DROP INDEX ix_trials_lock_hash", None),
    ],
)
def test_what_a_check_finds(tmp_path: Path, statement: str, problem: str | None) -> None:
    path = str(tmp_path / "results.sqlite")
    with Store.open(path) as store:
        opened_study(store)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()
    found = " ".join(maintenance.problems(path)[1])
    assert (problem in found) if problem else not found
