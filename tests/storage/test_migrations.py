"""Databases of older schemas, upgraded and then used, on both back ends."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import zlib
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from bisect_env.errors import StorageError
from bisect_env.storage import backend, maintenance
from bisect_env.storage.connect import open_any_schema
from bisect_env.storage.store import Store
from bisect_env.storage.tables import METADATA, SCHEMA_VERSION
from bisect_env.trials.records import UNKNOWN_MACHINE, Evidence
from tests.storage.postgres_server import Server
from tests.storage.samples import combination, lock, opened_study, record, whole_record

FROZEN = Path(__file__).parent / "frozen"
"""A database of each schema, as the release that had it wrote it."""


BACK_ENDS = ["sqlite", pytest.param("sql", marks=pytest.mark.integration)]


def thaw(request: pytest.FixtureRequest, number: int, kind: str, folder: Path) -> str:
    """A copy of a frozen database, as `--db` names it."""
    frozen = FROZEN / f"schema-{number}.{kind}"
    if kind == "sqlite":
        return str(shutil.copy(frozen, folder / "old.sqlite"))
    url = str(request.getfixturevalue("postgres_url"))
    server: Server = request.getfixturevalue("postgres")
    server.run(frozen.read_text("utf-8"), database=url.rpartition("/")[2])
    return url


@pytest.fixture(params=range(1, SCHEMA_VERSION))
def schema_number(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=BACK_ENDS)
def old(request: pytest.FixtureRequest, schema_number: int, tmp_path: Path) -> str:
    return thaw(request, schema_number, request.param, tmp_path)


@pytest.fixture
def old_file(request: pytest.FixtureRequest, schema_number: int, tmp_path: Path) -> Path:
    return Path(thaw(request, schema_number, "sqlite", tmp_path))


def differences(reference: str) -> list[object]:
    """What Alembic would change to make the database what `tables` says, and views that are missing."""
    database = open_any_schema(reference, read_only=True)
    try:
        with database.reader.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            missing = set(backend.NAMES) - set(inspect(connection).get_view_names())
            return [*compare_metadata(context, METADATA), *missing]
    finally:
        database.engine.dispose()


def test_every_schema_has_a_revision_and_its_frozen_database() -> None:
    scripts = ScriptDirectory(str(Path(backend.__file__).parent / "migrations"))
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert revisions == [backend.revision_of(number) for number in range(SCHEMA_VERSION, 0, -1)]
    frozen = {path.name for path in FROZEN.iterdir()}
    assert frozen == {f"schema-{n}.{kind}" for n in range(1, SCHEMA_VERSION) for kind in ("sql", "sqlite")}


def test_an_old_database_names_the_command_that_mends_it(old: str) -> None:
    before = Path(old).read_bytes() if Path(old).exists() else None
    for read_only in (False, True):
        with pytest.raises(StorageError, match="older release") as caught:
            Store.open(old, read_only=read_only)
        named = old if before else old.replace(old.split(":")[2].split("@")[0], "***")
        assert caught.value.remedy in (
            f"bisect-env db upgrade --db {named}",
            f"bisect-env db upgrade --db '{named}'",
        )
    assert before is None or Path(old).read_bytes() == before


def test_an_old_database_is_upgraded_and_then_used(old: str) -> None:
    done = maintenance.upgrade(old)
    assert (done.before < done.after, done.after) == (True, SCHEMA_VERSION)
    assert maintenance.problems(old) == (done.shown, [])
    assert differences(old) == []
    with Store.open(old) as store:
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
        assert store.counts(study.id)[combination("2.0")].bad == 1
        assert store.reused(study.id) == []
        # Trials of then have no key: nothing says under what they were measured.
        assert store.measured("another", [""], [UNKNOWN_MACHINE], logs=True) == {}
        assert store.collect(0).logs == 0
    again = maintenance.upgrade(old)
    assert (again.before, again.after) == (SCHEMA_VERSION, SCHEMA_VERSION)


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(
    old_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content() -> list[str]:
        with contextlib.closing(sqlite3.connect(old_file)) as connection:
            return list(connection.iterdump())

    before = content()

    def fail(_connection: object) -> None:
        raise RuntimeError("the machine went down")

    monkeypatch.setattr(backend, "make_views", fail)
    with pytest.raises(RuntimeError, match="went down"):
        maintenance.upgrade(str(old_file))
    assert content() == before
    monkeypatch.undo()
    assert maintenance.upgrade(str(old_file)).after == SCHEMA_VERSION


def test_rows_that_refer_to_nothing_are_not_upgraded(old_file: Path) -> None:
    with contextlib.closing(sqlite3.connect(old_file)) as connection:
        connection.execute("DELETE FROM locks")
        connection.commit()
    with pytest.raises(StorageError, match="refer to nothing; it was not upgraded"):
        maintenance.upgrade(str(old_file))


def test_upgrading_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there are no results"):
        maintenance.upgrade(str(tmp_path / "gone.sqlite"))
    assert list(tmp_path.iterdir()) == []


def test_a_new_database_is_what_the_revisions_make(tmp_path: Path) -> None:
    path = str(tmp_path / "new.sqlite")
    Store.open(path).close()
    assert differences(path) == []
    assert maintenance.problems(path) == (path, [])


def test_passwords_of_older_releases_go(old_file: Path) -> None:
    url = "https://me:hunter2@index.example/simple"
    with contextlib.closing(sqlite3.connect(old_file)) as connection:
        connection.execute("UPDATE studies SET matrix_text = ?", [f"# {url}\nname: x\n"])
        connection.execute("UPDATE combinations SET reason = ?", [url])
        connection.execute("UPDATE packages SET url = ?", [url])
        connection.execute("UPDATE logs SET stderr = ?", [zlib.compress(url.encode())])
        connection.commit()
    maintenance.upgrade(str(old_file))
    with contextlib.closing(sqlite3.connect(old_file)) as connection:
        assert "hunter2" not in "".join(connection.iterdump())
        blobs = connection.execute("SELECT data FROM blobs").fetchall()
    assert "hunter2" not in "".join(zlib.decompress(data).decode("utf-8", "replace") for (data,) in blobs)


@pytest.mark.integration
def test_the_revisions_alone_make_every_table_on_a_server(postgres_url: str) -> None:
    database = open_any_schema(postgres_url)
    try:
        with database.engine.begin() as connection:
            backend.drop(connection)
            METADATA.drop_all(connection)
            connection.exec_driver_sql("DROP TABLE alembic_version")
            backend.to_head(connection, 0)
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, METADATA) == []
    finally:
        database.engine.dispose()


@pytest.mark.parametrize(
    ("version", "match"), [(SCHEMA_VERSION + 1, "newer release"), (0, "no release ever had")]
)
def test_what_cannot_be_upgraded(version: int, match: str) -> None:
    with pytest.raises(StorageError, match=match):
        backend.check_upgradable(version, "results.sqlite")


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
