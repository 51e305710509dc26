"""Export, import and merge, from each back end to each."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.errors import StorageError, UsageError
from bisect_env.matrix.signatures import FROM_BAD_END
from bisect_env.storage import backend, maintenance, transfer, weighing
from bisect_env.storage.entries import AMPLIFIED, counts_of
from bisect_env.storage.query import ask
from bisect_env.storage.store import Store
from bisect_env.trials.judge import Target
from bisect_env.trials.records import Machine, Outcome
from tests.storage.postgres_server import Server
from tests.storage.samples import (
    combination,
    definition,
    lock,
    opened_study,
    record,
    record_trial,
    signature,
    states,
    whole_record,
)
from tests.storage.test_sqlite_store import noise

POSTGRES = pytest.param("postgresql", marks=pytest.mark.integration)


@pytest.fixture(params=["sqlite", POSTGRES])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path / "results.sqlite")


def fill(reference: str) -> tuple[str, str]:
    """Two studies, of which the second reuses trials of the first; a large log, and a small one."""
    with Store.open(reference) as store:
        first, second = opened_study(store, "first"), opened_study(store, "second")
        record_trial(store, first.id, whole_record())
        one = record("1.0", stdout=noise(1), machine=Machine("x86_64", "H100", "570.1"))
        record_trial(store, first.id, one, trial_key="k")
        record_trial(store, second.id, record("2.0", Outcome.CRASH, signature=signature("crash:SIGSEGV")))
        store.study_trials(second.id).reuse({"k": combination("1.0")}, [one.machine])
        store.set_combination(first.id, combination("1.1"), "env-unbuildable", "no compiler")
        store.record_decision(first.id, "ask", {"n": 1})
        store.claim(first.id, "me", {}, {}, lease=60)
        store.update_study(
            first.id, "finished", VerdictDocument(status="confirmed", first_bad={"orjson": "2.0"})
        )
        return first.id, second.id


def content(reference: str) -> dict[str, Any]:
    """Everything that a store tells, whatever its numbers and its order of studies."""

    def told(trial: Any) -> Any:
        return dataclasses.replace(trial, sequence=0)

    found: dict[str, Any] = {}
    with Store.open(reference, read_only=True) as store:
        for study in store.studies():
            trials = store.trials(study.id)
            found[study.id] = {
                "study": study,
                "combinations": store.combinations(study.id),
                "trials": [told(trial) for trial in trials],
                "whole": [store.trial(trial.trial_id) for trial in trials],
                "decisions": store.decisions(study.id),
                "origins": store.origins(study.id),
                "locks": [store.lock(trial.lock_hash) for trial in trials],
            }
    return found


@pytest.mark.slow
def test_what_was_exported_and_imported_is_the_same(db: str, tmp_path: Path) -> None:
    fill(db)
    file, other = tmp_path / "export.benv", tmp_path / "other" / "results.sqlite"
    done = transfer.export(db, file)
    assert (done.studies, done.trials, done.new_trials) == (2, 3, 3)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # One file is all: nothing lies beside it.
    assert [p.name for p in tmp_path.iterdir() if "export" in p.name] == [file.name]
    assert content(str(file)) == content(db)
    assert maintenance.problems(str(file))[1] == []
    assert transfer.merge_databases(str(other), str(file)).new_trials == 3
    assert content(str(other)) == content(db)
    before = file.read_bytes()
    again = transfer.merge_databases(str(other), str(file))
    assert (again.trials, again.new_trials, again.new_studies) == (3, 0, 0)
    assert content(str(other)) == content(db)
    assert file.read_bytes() == before


@pytest.mark.integration
def test_a_file_becomes_a_server_and_back(postgres: Server, postgres_url: str, tmp_path: Path) -> None:
    path = str(tmp_path / "results.sqlite")
    fill(path)
    assert transfer.merge_databases(postgres_url, path).new_trials == 3
    assert content(postgres_url) == content(path)
    assert transfer.merge_databases(str(tmp_path / "back.sqlite"), postgres_url).new_trials == 3
    assert content(str(tmp_path / "back.sqlite")) == content(path)


@pytest.mark.slow
def test_studies_that_went_on_in_two_places_get_the_trials_of_both(db: str, tmp_path: Path) -> None:
    first, _ = fill(db)
    other = str(tmp_path / "other.sqlite")
    transfer.merge_databases(other, db)
    for reference, outcome in ((db, Outcome.PASS), (other, Outcome.CRASH)):
        with Store.open(reference) as store:
            for _ in range(3):
                record_trial(store, first, record("2.0", outcome))
    with Store.open(other) as store:
        store.set_combination(first, combination("2.0"), "set-aside", "enough")
        store.update_study(first, "finished", VerdictDocument(status="likely"))
    transfer.merge_databases(db, other)
    transfer.merge_databases(other, db)
    with Store.open(db) as store:
        counts = counts_of(store.trials(first))[combination("2.0")]
        assert (counts.good, counts.bad) == (3, 4)
        assert store.study(first).verdict == VerdictDocument(status="likely")
        assert store.combinations(first)[2].status == "set-aside"
    with Store.open(other) as store:
        assert counts_of(store.trials(first))[combination("2.0")] == counts


def test_a_failure_that_only_the_copy_showed_is_the_target_of_both(db: str, tmp_path: Path) -> None:
    copy, meant = str(tmp_path / "copy.sqlite"), signature("crash:SIGSEGV", "a:b")
    another = signature("exit-fail:KeyError", "c:d")
    with Store.open(db) as store:
        settings = {"ends": {"good": {"orjson": "1.0"}, "bad": {"orjson": "2.0"}}}
        study = opened_study(store, settings=settings, target=Target(signature=FROM_BAD_END)).id
    transfer.merge_databases(copy, db)
    with Store.open(db) as store:
        record_trial(store, study, record("1.0", Outcome.CRASH, signature=meant))
        record_trial(store, study, record("1.0", Outcome.EXIT_FAIL, signature=another))
    with Store.open(copy) as store:
        record_trial(store, study, record("2.0", Outcome.CRASH, signature=meant))
    transfer.merge_databases(db, copy)
    with Store.open(db) as store:
        assert [trial.evidence for trial in store.trials(study)] == ["bad", "other", "bad"]
    with ask(db, "SELECT evidence FROM v_trials ORDER BY recorded_at") as (_, rows):
        assert [row[0] for row in rows] == ["bad", "other", "bad"]


def test_a_decision_that_only_the_copy_knows_changes_what_trials_mean_in_both(
    db: str, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy.sqlite")
    settings = {"ends": {"good": {"orjson": "1.0"}, "bad": {"orjson": "2.0"}}}
    meant, another = signature("crash:SIGSEGV", "a:b"), signature("exit-fail:KeyError", "c:d")
    with Store.open(db) as store:
        study = opened_study(store, settings=settings, target=Target(signature=FROM_BAD_END))
        record_trial(store, study.id, record("1.0", Outcome.CRASH, signature=meant))
        record_trial(store, study.id, record("2.0", Outcome.EXIT_FAIL, signature=another))
    transfer.merge_databases(copy, db)
    with Store.open(copy) as store:
        store.record_decision(study.id, AMPLIFIED, {"perturbation": {}, "signature": meant})
    transfer.merge_databases(db, copy)
    for place in (db, copy):
        with Store.open(place) as store:
            assert [trial.evidence for trial in store.trials(study.id)] == ["bad", "other"]
        with ask(place, "SELECT evidence FROM study_trials ORDER BY id") as (_, rows):
            assert [row[0] for row in rows] == ["bad", "other"]


def test_one_study_comes_with_those_whose_trials_it_reuses(db: str, tmp_path: Path) -> None:
    first, second = fill(db)
    with Store.open(db) as store:
        opened_study(store, "third")
    file = tmp_path / "one.sqlite"
    transfer.export(db, file, ["second"])
    assert set(content(str(file))) == {first, second}
    transfer.export(db, tmp_path / "other.sqlite", [first[:12]])
    assert set(content(str(tmp_path / "other.sqlite"))) == {first}
    with pytest.raises(UsageError, match="there is no study 'gone'"):
        transfer.export(db, tmp_path / "none.sqlite", ["gone"])
    assert not (tmp_path / "none.sqlite").exists()


def test_a_study_comes_with_the_origins_of_its_origins(db: str, tmp_path: Path) -> None:
    machine = Machine("x86_64", "H100", "570.1")
    with Store.open(db) as store:
        studies = [opened_study(store, name).id for name in ("third", "second", "first")]
        for own, origin, key in zip(studies, [None, *studies], ("c", "b", "a"), strict=False):
            record_trial(store, own, record("1.0", machine=machine), trial_key=key)
            if origin is not None:
                reused = chr(ord(key) + 1)
                assert store.study_trials(own).reuse({reused: combination("1.0")}, [machine])
    file = tmp_path / "one.sqlite"
    transfer.export(db, file, ["first"])
    assert set(content(str(file))) == set(studies)
    with Store.open(str(file)) as store:
        assert [len(store.trials(study_id)) for study_id in studies] == [1, 2, 2]


def test_what_a_copy_learnt_of_a_combination_is_taken_over(db: str, tmp_path: Path) -> None:
    with Store.open(db) as store:
        study = store.open_study(definition())
        store.save_combinations(
            study.id, [replace(one, status="unlocked", lock_hash=None) for one in states()]
        )
    copy = tmp_path / "copy.sqlite"
    transfer.export(db, copy)
    with Store.open(str(copy)) as store:
        store.save_locks([lock("1.0"), lock("2.0")])
        store.save_combinations(study.id, states())
    transfer.merge_databases(db, str(copy))
    with Store.open(db) as store:
        assert store.combinations(study.id) == states()


def test_a_trial_that_differs_stays_and_is_named(db: str, tmp_path: Path) -> None:
    first, _ = fill(db)
    other = tmp_path / "other.sqlite"
    transfer.merge_databases(str(other), db)
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("UPDATE trials SET outcome = 'hang' WHERE outcome = 'crash'")
        connection.commit()
    before = content(db)
    done = transfer.merge_databases(db, str(other))
    assert len(done.conflicts) == 2
    assert content(db)[first]["trials"] == before[first]["trials"]


@pytest.mark.slow
def test_a_wrong_column_of_evidence_is_computed_anew_by_whoever_merges_it(db: str, tmp_path: Path) -> None:
    fill(db)
    copy, target = tmp_path / "copy.sqlite", str(tmp_path / "target.sqlite")
    transfer.merge_databases(str(copy), db)
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        connection.execute("UPDATE study_trials SET evidence = 'nonsense'")
        connection.commit()
    assert transfer.merge_databases(target, str(copy)).damaged == []
    assert content(target) == content(db)
    with ask(target, "SELECT DISTINCT evidence FROM study_trials ORDER BY evidence") as (_, rows):
        assert [*map(tuple, rows)] == [("bad",), ("good",)]


@pytest.mark.slow
def test_collected_logs_stay_collected_and_come_back_from_who_has_them(db: str, tmp_path: Path) -> None:
    first, _ = fill(db)
    kept = str(tmp_path / "kept.sqlite")
    transfer.merge_databases(kept, db)
    with Store.open(db) as store:
        large = store.trials(first)[1].trial_id
        store.update_study(first, "finished", VerdictDocument())
        store.collect(0)
    transfer.export(db, tmp_path / "small.sqlite")
    with Store.open(str(tmp_path / "small.sqlite")) as store:
        found = store.trial(large)
        assert found is not None
        assert found.collected
    transfer.merge_databases(db, kept)
    with Store.open(db) as store:
        found = store.trial(large)
        assert found is not None
        assert found.collected, "the trial was there already, and its log was given up on purpose"


def test_what_cannot_be_exchanged(db: str, tmp_path: Path) -> None:
    fill(db)
    exists = tmp_path / "exists"
    exists.write_text("mine")
    with pytest.raises(UsageError, match=r"exists[^$]*name a new file"):
        transfer.export(db, exists)
    assert exists.read_text() == "mine"
    with pytest.raises(UsageError, match="there is no directory"):
        transfer.export(db, tmp_path / "gone" / "x.sqlite")
    with pytest.raises(StorageError, match="is not a SQLite database"):
        transfer.merge_databases(db, str(exists))
    with pytest.raises(StorageError, match="no results in"):
        transfer.merge_databases(db, str(tmp_path / "nowhere.sqlite"))
    with pytest.raises(UsageError, match="into itself"):
        transfer.merge_databases(db, db)


@pytest.mark.slow
def test_writers_go_on_while_a_database_is_merged(db: str, tmp_path: Path) -> None:
    first, second = fill(db)
    source = str(tmp_path / "source.sqlite")
    transfer.merge_databases(source, db)
    with Store.open(source) as store:
        for _ in range(400):
            record_trial(store, first, record("2.0"))
    written: list[str] = []
    with Store.open(db) as writer:
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                one = record("1.0")
                assert record_trial(writer, second, one)
                written.append(one.trial_id)

        thread = threading.Thread(target=write)
        thread.start()
        assert transfer.merge_databases(db, source).new_trials == 400
        stop.set()
        thread.join(timeout=60)
        assert written
        assert {t.trial_id for t in writer.trials(second)} >= set(written)


IMPORTING = """
import os, sys
from bisect_env.storage import transfer
# Imports everything first: the reader may not read the files of whoever runs the tests.
transfer.merge_databases(sys.argv[1] + "-before", sys.argv[3])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(transfer.merge_databases(sys.argv[1], sys.argv[2]).new_trials)
"""


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_in_a_folder_of_somebody_else_is_imported(tmp_path: Path) -> None:
    """Whoever reads it there cannot make the files that SQLite wants beside a database."""
    place, own = tmp_path / "shared", tmp_path / "own"
    place.mkdir(mode=0o755)
    own.mkdir()
    own.chmod(0o777)
    fill(str(place / "results.sqlite"))
    for path in place.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/tmp") and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    shutil.copytree(place, tmp_path / "copy")
    files = (own / "target.sqlite", place / "results.sqlite", tmp_path / "copy" / "results.sqlite")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, *map(str, files)],
        env={**os.environ, "HOME": str(own), "TMPDIR": str(own)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "3\n", done.stderr


def test_of_two_databases_the_one_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "BUSY_SECONDS", 0.1)
    source, target = tmp_path / "source.sqlite", tmp_path / "target.sqlite"
    with Store.open(str(source)) as store:
        opened_study(store)
    Store.open(str(target)).close()
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match=r"target\.sqlite is held by another process"):
            transfer.merge_databases(str(target), str(source))


# -- what is latest after a merge --------------------------------------------------------------------------


def two_copies(tmp_path: Path) -> tuple[Path, Path, str]:
    """Return two databases with the same study, and its id."""
    mine, other = tmp_path / "mine.sqlite", tmp_path / "other.sqlite"
    with Store.open(str(mine)) as store:
        study_id = opened_study(store).id
    transfer.export(str(mine), other)
    return mine, other, study_id


def test_the_verdict_that_knew_more_trials_stays_however_old_it_is(tmp_path: Path) -> None:
    mine, other, study_id = two_copies(tmp_path)
    for path, trials in ((mine, 10), (other, 3)):  # the poorer one is newer
        with Store.open(str(path)) as store:
            store.update_study(study_id, "finished", VerdictDocument(trials=trials))
    transfer.merge_databases(str(mine), str(other))
    with Store.open(str(mine)) as store:
        verdict = store.study(study_id).verdict
        assert verdict is not None
        assert verdict.trials == 10


def test_versions_that_either_copy_added_stay(tmp_path: Path) -> None:
    mine, other, study_id = two_copies(tmp_path)
    for path, added in ((mine, "1.0.5"), (other, "1.0.7")):
        with Store.open(str(path)) as store:
            (axis,) = store.study(study_id).definition.grid
            values = (axis.values[0], added, *axis.values[1:])
            store.update_study(study_id, grid=[axis.model_copy(update={"values": values})])
    transfer.merge_databases(str(mine), str(other))
    with Store.open(str(mine)) as store:
        (joined,) = store.study(study_id).definition.grid
        assert joined.values == (axis.values[0], "1.0.5", "1.0.7", *axis.values[1:])


def test_decisions_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    mine, other, study_id = two_copies(tmp_path)
    for path, number in ((other, 1), (mine, 2)):  # the copy's is older, and gets the later row
        with Store.open(str(path)) as store:
            store.record_decision(study_id, "ask", {"n": number})
    transfer.merge_databases(str(mine), str(other))
    with Store.open(str(mine)) as store:
        assert store.payloads(study_id, "ask") == [{"n": 1}, {"n": 2}]


def test_a_verdict_of_too_many_combinations_to_weigh_is_not_confirmed_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weighing, "_TOO_MANY", 1)
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        study_id = opened_study(store).id
        record_trial(store, study_id, record("1.0"))
        digest = weighing.digest_of(store.trials(study_id))
        document = VerdictDocument(status="confirmed", kind="all", trials=1, weighed=digest)
        store.update_study(study_id, "finished", document)
        assert weighing.weighed_study(store, store.study(study_id)).verdict == document
        record_trial(store, study_id, record("2.0", Outcome.CRASH))
        verdict = weighing.weighed_study(store, store.study(study_id)).verdict
        assert verdict is not None
        assert verdict.status == "none"
        assert "before 1 trial" in verdict.reason
