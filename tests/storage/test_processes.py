"""Many processes on one database, some of them killed."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bisect_env.storage import maintenance
from bisect_env.storage.store import Store
from tests.storage.samples import opened_study, record, record_trial
from tests.storage.writer import LOG_SIZE

PATIENCE = 100.0
"""Seconds after which a writer is given up: a guard against hanging, not a measure."""

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def writer(path: Path | str, study_id: str, number: int, shared: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.storage.writer", str(path), study_id, str(number), str(shared)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def integrity(path: Path) -> list[tuple[str]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database on each back end, as `--db` names it."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path / "results.sqlite")


def write_at_once(reference: str, processes: int, number: int, shared: int) -> None:
    with Store.open(reference) as store:
        study = opened_study(store)
        writers = [writer(reference, study.id, number, shared) for _ in range(processes)]
        acknowledged: list[str] = []
        for process in writers:
            out, err = process.communicate(timeout=PATIENCE * max(1, number // 50))
            assert (process.returncode, err) == (0, "")
            acknowledged += out.split()[1:]
        trials = store.trials(study.id)
        stored = [trial.trial_id for trial in trials]
        assert len(set(stored)) == len(stored)
        assert sorted(stored) == sorted(acknowledged)
        assert len(stored) == shared + processes * (number - shared)
        assert len(store.decisions(study.id)) == processes * number
        # Every log is there too: it is written in the transaction of its trial.
        assert all(store.trial(trial_id) is not None for trial_id in stored[:: max(1, len(stored) // 100)])
        sequences = [trial.sequence for trial in trials]
        assert sequences == sorted(sequences)


def test_sixteen_processes_write_at_once_and_nothing_is_lost_or_doubled(reference: str) -> None:
    write_at_once(reference, 16, number=12, shared=4)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_sixteen_processes_write_500_trials_each(reference: str) -> None:
    write_at_once(reference, 16, number=500, shared=20)


def test_a_new_database_made_by_many_at_once_is_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.sqlite"
    code = (
        "import sys\n"
        "from bisect_env.storage.store import Store\n"
        "from tests.storage.samples import opened_study\n"
        "with Store.open(sys.argv[1]) as store: print(opened_study(store).id)"
    )
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    answers = [process.communicate(timeout=PATIENCE) for process in makers]
    assert [err for _, err in answers] == [""] * 4
    assert len({out for out, _ in answers}) == 1
    assert integrity(path) == [("ok",)]


def kill_writers(path: Path, kills: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Store.open(str(path)) as store:
        study_id = opened_study(store).id
    acknowledged: list[str] = []
    for number in range(kills):
        process = writer(path, study_id, 0)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.0, 0.25))
        process.kill()
        out, err = process.communicate(timeout=PATIENCE)
        assert err == ""
        # A last line without its end was not yet acknowledged to anybody.
        acknowledged += [line.strip() for line in out.splitlines(keepends=True) if line.endswith("\n")]
        assert integrity(path) == [("ok",)]
        with Store.open(str(path)) as store:
            stored = {trial.trial_id for trial in store.trials(study_id)}
            assert stored.issuperset(acknowledged)
            # What was in flight may have been committed before its acknowledgement.
            assert len(stored) <= len(acknowledged) + number + 1
            after = f"after-{number}"
            assert record_trial(store, study_id, record(trial_id=after))
            acknowledged.append(after)
    with Store.open(str(path)) as store:
        # Every trial is whole: its logs are there, those that lie beside the database as well.
        for trial in store.trials(study_id):
            found = store.trial(trial.trial_id)
            assert found is not None
            if not trial.trial_id.startswith("after"):
                assert len(found.record.stderr) == LOG_SIZE
        store.collect()
        kept = len(list(Path(f"{path}.artefacts").rglob("*.z")))
        assert kept <= len(store.trials(study_id))
    assert maintenance.problems(str(path))[1] == []
    assert len(acknowledged) > kills + kills // 4


def test_kill_at_random_instants_loses_no_acknowledged_trial(tmp_path: Path) -> None:
    kill_writers(tmp_path / "results.sqlite", 6)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_kill_at_100_random_instants_loses_no_acknowledged_trial(tmp_path: Path) -> None:
    kill_writers(tmp_path / "results.sqlite", 100)


def test_a_reader_does_not_slow_a_running_writer_to_a_halt(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with Store.open(str(path)) as store:
        study_id = opened_study(store).id
    with Store.open(str(path), read_only=True) as reader, reader.reading():
        assert reader.trials(study_id) == []
        process = writer(path, study_id, 30)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, err) == (0, "")
        assert len(out.split()) == 31
        assert reader.trials(study_id) == []
