"""Two `run` commands on one matrix at the same time, as two people start them, on each back end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from bisect_env.storage.store import Store
from bisect_env.storage.tables import ClaimRow
from tests.engine.studies import Studies, crash_from_six, pause_while
from tests.storage.conftest import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]

pytestmark = [pytest.mark.slow, pytest.mark.integration]
PATIENCE = 200.0

# A short lease, so that the tests need not wait for a minute until the claims of the dead lapse.
COMMAND = (
    "import sys\n"
    "from bisect_env.engine import sharing\n"
    "sharing.LEASE, sharing.RENEW_EVERY = 4.0, 1.0\n"
    "from bisect_env.cli import main\n"
    "main()\n"
)


def begins(folder: Path) -> str:
    """Lines of a script that leave a file for each trial that has begun."""
    return f"begun = {str(folder)!r}\nopen(os.path.join(begun, str(os.getpid())), 'w').close()"


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, studies: Studies) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return str(studies.db)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(studies: Studies, db: str) -> Iterator[Start]:
    begun: list[subprocess.Popen[str]] = []
    (studies.folder / "temp").mkdir()
    env = {
        **os.environ,
        "TMPDIR": str(studies.folder / "temp"),  # what a killed command leaves goes with the test's folder
        "BISECT_ENV_DB": db,
        "BISECT_ENV_CACHE": str(studies.folder / "cache"),
        "BISECT_ENV_LOCKFILES": str(studies.folder / "lockfiles"),
    }

    def command(matrix: Path, *options: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", COMMAND, "run", str(matrix), "--json", "--workers", "1", *options]
        # A session of its own: killed, it takes its workers along.
        process = subprocess.Popen(
            words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        begun.append(process)
        return process

    yield command
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ended(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "locked" not in err
    return [json.loads(line) for line in out.splitlines()]


def claims(db: str) -> int:
    with Store.open(db, read_only=True) as store, store.reading() as session:
        return len(session.exec(select(ClaimRow)).all())


def test_two_commands_share_the_trials_of_a_study(studies: Studies, db: str, start: Start) -> None:
    begun = studies.folder / "begun"
    begun.mkdir()
    # No trial ends before both commands have begun one: the first may be done before the second is there.
    together = "while len(os.listdir(begun)) < 2: time.sleep(0.02)"
    slow = studies.folder / "slow"
    slow.touch()
    path = studies.matrix(crash_from_six(f"{begins(begun)}\n{together}\n{pause_while(slow, 0.4)}"))
    path.write_text(path.read_text().replace("20s", "100s"))
    told = [ended(process) for process in [start(path), start(path)]]
    with Store.open(db, read_only=True) as store:
        (study,) = store.studies()
        trials = store.trials(study.id)
    own = [{e["trial"] for e in events if e["event"] == "trial"} for events in told]
    assert own[0]
    assert own[1]
    assert not own[0] & own[1]
    assert own[0] | own[1] == {trial.trial_id for trial in trials}
    for events in told:
        assert events[-1]["verdict"]["first_bad"]["level"] == "6"
    assert claims(db) == 0
    slow.unlink()
    # One command with two workers needs as many: what both would have done alone is not done twice.
    alone = studies.run(renamed(path), slots=2).report["trials"]
    # On a busy machine each sees the other's trials late, and begins some that it would not have begun.
    assert len(trials) <= 1.5 * alone, Counter(trial.combination for trial in trials)


def renamed(path: Path) -> Path:
    """The same question in another database and study, with nothing to reuse."""
    other = path.with_name("alone.yaml")
    other.write_text(path.read_text().replace("name: planted", "name: alone").replace("100s", "99s"))
    return other


def test_what_a_killed_command_had_claimed_is_done_by_the_other(
    studies: Studies, db: str, start: Start
) -> None:
    begun, may_end = studies.folder / "begun", studies.folder / "may-end"
    begun.mkdir()
    # From the second trial on each is held until it may end.
    held = f"while len(os.listdir(begun)) > 1 and not os.path.exists({str(may_end)!r}): time.sleep(0.02)"
    path = studies.matrix(crash_from_six(f"{begins(begun)}\n{held}"))
    dead = start(path)
    assert dead.stdout is not None
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["event"] != "trial":
        seen.append(json.loads(dead.stdout.readline()))
    while seen[-1]["event"] != "started":
        seen.append(json.loads(dead.stdout.readline()))
    os.killpg(dead.pid, signal.SIGKILL)
    dead.communicate(timeout=PATIENCE)
    may_end.touch()
    recorded = {event["trial"] for event in seen if event["event"] == "trial"}
    assert claims(db) >= 1
    killed_at = time.monotonic()
    told = ended(start(path))
    assert told[-1]["verdict"]["first_bad"]["level"] == "6"
    with Store.open(db, read_only=True) as store:
        (study,) = store.studies()
        stored = {trial.trial_id for trial in store.trials(study.id)}
    # Nothing that was told is lost, and what was only claimed is not there.
    assert recorded <= stored
    assert stored - recorded >= {event["trial"] for event in told if event["event"] == "trial"}
    time.sleep(max(0.0, killed_at + 5 - time.monotonic()))
    with Store.open(db) as store:
        assert store.claim(study.id, "somebody", {}, {}, lease=1) == []
    assert claims(db) == 0


def test_a_reader_who_has_seen_enough_interrupts_the_study(studies: Studies, start: Start, db: str) -> None:
    process = start(studies.matrix(crash_from_six("time.sleep(0.4)")))
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        told = process.stderr.read()
    assert process.wait(PATIENCE) == 130
    assert "has ended; every trial that ended is stored" in told
    assert "goes on from here" in told
    with Store.open(db, read_only=True) as store:
        assert store.study().status == "interrupted"
