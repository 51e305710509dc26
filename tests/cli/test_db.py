"""`bisect-env db` as people and programs meet it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from bisect_env.storage.store import Store
from tests.cli.calls import RunCommand
from tests.storage.samples import opened_study, record, record_trial
from tests.storage.test_sqlite_store import noise


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "results.sqlite"
    monkeypatch.setenv("BISECT_ENV_DB", str(path))
    with Store.open() as store:
        opened_study(store)
    return path


def test_a_database_that_is_not_there_yet_is_named_and_not_made(tmp_path: Path, run: RunCommand) -> None:
    path = tmp_path / "new.sqlite"
    code, out, _ = run("db", "info", "--db", str(path))
    assert (code, out.splitlines()[0].split()) == (0, ["database", str(path)])
    assert not path.exists()


def test_a_password_of_the_database_is_not_shown(run: RunCommand) -> None:
    _, out, err = run("db", "info", "--db", "postgresql://me:hunter2@127.0.0.1:1/r")
    assert "me:***@127.0.0.1" in err
    assert "hunter2" not in out + err


def test_check(db: Path, run: RunCommand) -> None:
    code, _, err = run("db", "info", "--check")
    assert (code, err) == (0, f"{db} is undamaged\n")
    connection = sqlite3.connect(db)
    connection.execute("DELETE FROM locks")
    connection.commit()
    connection.close()
    code, _, err = run("db", "info", "--check")
    assert code == 6
    assert "is damaged" in err
    assert "restore it from a backup" in err


def test_stats(db: Path, run: RunCommand) -> None:
    code, out, err = run("db", "info", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["studies"], found["combinations"], found["trials"]) == (1, 3, 0)
    assert found["bytes"] > 10_000
    lines = run("db", "info")[1].splitlines()
    assert "combinations          3" in lines
    assert "changed_environments  0" in lines


@pytest.mark.parametrize("words", [[], ["--check"]])
def test_a_file_that_is_no_database(tmp_path: Path, run: RunCommand, words: list[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n")
    code, _, err = run("db", "info", *words, "--db", str(path))
    assert code == 6
    assert "is not a SQLite database" in err
    assert path.read_text() == "remember the milk\n"


def test_export_and_merge(db: Path, tmp_path: Path, run: RunCommand) -> None:
    file, other = tmp_path / "export.benv", str(tmp_path / "other.sqlite")
    with Store.open() as store:
        study = store.study()
        record_trial(store, study.id, record())
    assert run("db", "export", str(file)) == (
        0,
        "",
        f"{file} has 1 study (1 new) and 1 trial (1 new)\n",
    )
    assert run("db", "export", str(file))[0] == 2
    told = "read 1 study (1 new) and 1 trial (1 new)\n"
    assert run("db", "merge", str(file), "--db", other) == (0, "", told)
    assert run("db", "merge", str(db), "--db", other) == (0, "", told.replace("1 new", "0 new"))
    assert run("db", "export", str(tmp_path / "x"), "--study", "gone")[0] == 2
    assert run("db", "info", "--check", "--db", other)[0] == 0
    assert run("db", "merge", str(tmp_path / "nowhere"), "--db", other)[0] == 6


def test_gc(db: Path, tmp_path: Path, run: RunCommand) -> None:
    with Store.open() as store:
        study = store.study()
        one = record(stdout=noise(1))
        record_trial(store, study.id, one)
    code, out, err = run("db", "gc", "--size", "1KB", "--dry-run")
    assert (code, out) == (0, "")
    assert "1 logs would be dropped" in err
    assert "1 logs dropped" in run("db", "gc", "--size", "1KB")[2]
    assert "0 logs dropped: 0 bytes became 0, of 1000 allowed" in run("db", "gc")[2]
    assert run("db", "gc", "--size", "much")[0] == 2
    nowhere = str(tmp_path / "nowhere.sqlite")
    assert run("db", "gc", "--db", nowhere)[0] == 6
    assert not Path(nowhere).exists()
