"""Revisions make what the tables say, upgrades are whole or nothing, and checks find what is missing."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from bisect_env.errors import StorageError
from bisect_env.storage import backend, maintenance
from bisect_env.storage.backend import open_any_schema
from bisect_env.storage.store import Store
from bisect_env.storage.tables import METADATA, SCHEMA_VERSION
from tests.storage.samples import opened_study

REVISIONS = Path(backend.__file__).parent / "migrations"

LATER = """
import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"


def upgrade() -> None:
    with op.batch_alter_table("studies") as batch:
        batch.add_column(sa.Column("later", sa.String(), nullable=False, server_default="yes"))
    {then}
"""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "results.sqlite")
    return str(request.getfixturevalue("postgres_url"))


def differences(reference: str) -> list[object]:
    """What Alembic would change to make the database what `tables` says, and views that are missing."""
    database = open_any_schema(reference, read_only=True)
    try:
        with database.reader.begin() as connection:
            backend.name_public(connection)
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            missing = set(backend.NAMES) - set(inspect(connection).get_view_names())
            return [*compare_metadata(context, METADATA), *missing]
    finally:
        database.engine.dispose()


def test_every_schema_has_a_revision() -> None:
    revisions = [script.revision for script in ScriptDirectory(str(REVISIONS)).walk_revisions()]
    assert revisions == [backend.revision_of(number) for number in range(SCHEMA_VERSION, 0, -1)]


def test_a_new_database_is_what_the_tables_say(reference: str) -> None:
    Store.open(reference).close()
    assert differences(reference) == []
    assert maintenance.problems(reference)[1] == []


def test_the_revisions_alone_make_every_table(reference: str) -> None:
    Store.open(reference).close()
    database = open_any_schema(reference)
    try:
        with database.engine.begin() as connection:
            backend.drop(connection)
            METADATA.drop_all(connection)
            backend.VERSIONS.drop(connection)
            backend.to_head(connection)
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, METADATA) == []
            assert backend.revisions(connection) == [backend.revision_of(SCHEMA_VERSION)]
    finally:
        database.engine.dispose()


def later_release(folder: Path, monkeypatch: pytest.MonkeyPatch, then: str = "pass") -> None:
    """From now on this is a release with one more schema."""
    scripts = folder / "migrations"
    if scripts.exists():
        shutil.rmtree(scripts)
    shutil.copytree(REVISIONS, scripts)
    before, revision = backend.revision_of(SCHEMA_VERSION), backend.revision_of(SCHEMA_VERSION + 1)
    text = LATER.format(revision=revision, before=before, then=then)
    (scripts / "versions" / f"{revision}_later.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(backend, "MIGRATIONS", str(scripts))
    for module in (backend, maintenance):
        monkeypatch.setattr(module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)


def test_an_older_database_is_left_alone_until_it_is_upgraded(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(reference) as store:
        study = opened_study(store)
    later_release(tmp_path, monkeypatch)
    for read_only in (False, True):
        with pytest.raises(StorageError, match="older release") as caught:
            Store.open(reference, read_only=read_only)
        remedy = str(caught.value.remedy)
        assert remedy.startswith("bisect-env db upgrade")
        # A password is not shown, and `***` in its place would not let anybody in.
        assert ("--db " in remedy, "***" in remedy) == ("://" not in reference, False)
    done = maintenance.upgrade(reference)
    assert (done.before, done.after) == (SCHEMA_VERSION, SCHEMA_VERSION + 1)
    with Store.open(reference) as store:
        assert store.study("orjson").id == study.id
    again = maintenance.upgrade(reference)
    assert (again.before, again.after) == (SCHEMA_VERSION + 1, SCHEMA_VERSION + 1)


def content(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def changed(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.sqlite"
    with Store.open(str(path)) as store:
        opened_study(store)
    before = content(path)
    later_release(tmp_path, monkeypatch, then='raise RuntimeError("the machine went down")')
    with pytest.raises(RuntimeError, match="went down"):
        maintenance.upgrade(str(path))
    assert content(path) == before
    later_release(tmp_path, monkeypatch)
    assert maintenance.upgrade(str(path)).after == SCHEMA_VERSION + 1


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("DELETE FROM locks", "refer to nothing; it was not upgraded"),
        ("INSERT INTO alembic_version VALUES ('beef')", "names '0001' and 'beef'; it was not upgraded"),
        ("DELETE FROM alembic_version", "names no revision; it was not upgraded"),
    ],
)
def test_what_somebody_changed_is_not_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, match: str
) -> None:
    path = tmp_path / "results.sqlite"
    with Store.open(str(path)) as store:
        opened_study(store)
    changed(path, statement)
    before = content(path)
    later_release(tmp_path, monkeypatch)
    with pytest.raises(StorageError, match=match):
        maintenance.upgrade(str(path))
    assert content(path) == before


def test_upgrading_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there are no results"):
        maintenance.upgrade(str(tmp_path / "gone.sqlite"))
    assert list(tmp_path.iterdir()) == []


def test_making_and_opening_a_database_needs_no_alembic(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom bisect_env.storage.store import Store\nfrom bisect_env.storage import maintenance\n"
        "for _ in range(2): Store.open(sys.argv[1]).close()\n"
        "assert maintenance.problems(sys.argv[1])[1] == []\nprint('alembic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "results.sqlite")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


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
        ("DELETE FROM alembic_version", "the version table names no revision, not 0001"),
        ("DROP TABLE alembic_version", "the version table names no revision, not 0001"),
        ("INSERT INTO alembic_version VALUES ('beef')", "names '0001' and 'beef', not 0001"),
        ("UPDATE studies SET grid = 'null'", "damaged: study"),
        ("UPDATE packages SET url = 'https://else.example/zipp.whl' WHERE name = 'zipp'", "damaged: lock"),
        ("DROP INDEX ix_trials_lock_hash", None),
    ],
)
def test_what_a_check_finds(tmp_path: Path, statement: str, problem: str | None) -> None:
    path = tmp_path / "results.sqlite"
    with Store.open(str(path)) as store:
        opened_study(store)
    changed(path, statement)
    found = " ".join(maintenance.problems(str(path))[1])
    assert (problem in found) if problem else not found
