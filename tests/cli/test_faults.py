"""Faults under a running study, with real processes: a nanny killed and storage that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bisect_env.storage.store import Store
from tests.cli.processes import Command, lines, trials_below, wait_for
from tests.cluster.dask_processes import DaskProcesses
from tests.engine.studies import CRASH_FROM_SIX, crash_from_six, pause_while, wait_while

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def is_gone(process: psutil.Process) -> bool:
    """Whether a process runs no more; its parent may be slow to take note of it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def test_a_killed_nanny_costs_one_void_trial_and_leaves_no_process(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    # No trial ends before the nanny is dead: a kill between two trials would cost none.
    command = Command(tmp_path, crash_from_six(wait_while(hold)))
    cluster = {"BISECT_ENV_CACHE": str(tmp_path / "worker-cache")}
    with DaskProcesses(tmp_path, env=cluster) as dask:
        dask.scheduler()
        nannies = [dask.worker() for _ in range(2)]
        process = command.start("--json", "--scheduler", dask.address)
        wait_for(lambda: bool(trials_below(nannies[0].pid)))
        family = psutil.Process(nannies[0].pid).children(recursive=True)
        nannies[0].kill()
        wait_for(lambda: all(is_gone(child) for child in family))
        hold.unlink()
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        assert "Traceback" not in err
    events = [json.loads(line) for line in out.splitlines()]
    void = [event for event in events if event["event"] == "trial" and event["evidence"] == "void"]
    assert [event["outcome"] for event in void] == ["worker-lost"]
    assert events[-1]["verdict"]["first_bad"]["level"] == "6"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)],
            check=True,
            capture_output=True,
            timeout=20,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True, timeout=20)


def fill(place: Path) -> Path:
    filler = place / "filler"
    with filler.open("wb", buffering=0) as stream:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    stream.write(b"x" * size)
            except OSError:
                continue
    return filler


def test_a_full_disk_under_the_database_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    command = Command(tmp_path, crash_from_six(pause_while(slow, 1.0)))
    command.env["BISECT_ENV_DB"] = str(small_disk / "results.sqlite")
    process = command.start("--json", "--workers", "2")
    told = []
    filler = None
    for event in lines(process):
        told.append(event)
        if event["event"] == "trial" and filler is None:
            filler = fill(small_disk)
    _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, 70), err
    assert "Traceback" not in err
    assert "full" in err
    assert filler is not None
    filler.unlink()
    slow.unlink()
    again = [json.loads(line) for line in command.run("--json", "--workers", "2").stdout.splitlines()]
    assert again[-1]["verdict"]["first_bad"]["level"] == "6"
    first = {event["trial"] for event in told if event["event"] == "trial"}
    second = {event["trial"] for event in again if event["event"] == "trial"}
    assert first
    assert not first & second
    assert again[-1]["verdict"]["trials"] >= len(first | second)


def test_a_cache_that_goes_bad_under_a_study_is_no_evidence(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    command = Command(tmp_path, crash_from_six(pause_while(slow, 1.0)))
    cache = tmp_path / "cache"
    process = command.start("--json", "--workers", "2")
    told = []
    for event in lines(process):
        told.append(event)
        if event["event"] == "trial" and not cache.is_file():
            # Permissions do not bind root: a file in its place does.
            cache.rename(tmp_path / "away")
            cache.write_text("in the way")
    _, err = process.communicate(timeout=120)
    assert process.returncode not in (0, 70), err
    assert "Traceback" not in err
    assert str(cache) in err
    for event in told:
        if event["event"] == "trial" and int(event["combination"]["level"]) < 6:
            assert event["evidence"] in ("good", "void"), event
    cache.unlink()
    slow.unlink()
    (tmp_path / "away").rename(cache)
    again = [json.loads(line) for line in command.run("--json", "--workers", "2").stdout.splitlines()]
    assert again[-1]["verdict"]["first_bad"]["level"] == "6"
    known = {event["trial"] for event in told if event["event"] == "trial"}
    assert not known & {event["trial"] for event in again if event["event"] == "trial"}


def test_workers_join_and_leave_while_a_study_runs(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    command = Command(tmp_path, crash_from_six(wait_while(hold)))
    cluster = {"BISECT_ENV_CACHE": str(tmp_path / "worker-cache")}
    with DaskProcesses(tmp_path, env=cluster) as dask:
        dask.scheduler()
        first = dask.worker("--name", "first")
        process = command.start("--json", "--scheduler", dask.address)
        next(event for event in lines(process) if event["event"] == "trial")
        hold.touch()
        second = dask.worker("--name", "second")
        wait_for(lambda: bool(trials_below(first.pid) and trials_below(second.pid)))
        first.terminate()
        first.wait(60)
        hold.unlink()
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
    last = json.loads(out.splitlines()[-1])
    assert last["verdict"]["first_bad"]["level"] == "6"
    # What the first one was doing when it left was done again by the second.
    assert last["trial_counts"]["void"] <= 2
    with Store.open(str(tmp_path / "results.sqlite"), read_only=True) as store:
        ran = {trial.worker for trial in store.trials(store.study(None).id) if trial.worker}
    assert len(ran) == 2


ON_A_FULL_DISK = """
import sys, tempfile
from bisect_env.cli import main
tempfile.tempdir = sys.argv.pop(1)  # Python itself would take another place that has room
main()
"""


def test_a_full_place_for_temporary_files_is_named(tmp_path: Path, small_disk: Path) -> None:
    command = Command(tmp_path, CRASH_FROM_SIX)
    filler = fill(small_disk)
    done = subprocess.run(
        [sys.executable, "-c", ON_A_FULL_DISK, str(small_disk), "run", str(command.matrix)],
        env=command.env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 6, done.stderr
    assert str(small_disk) in done.stderr
    assert "pace left on" in done.stderr  # "No space left on device" or our own words
    assert "install bisect-env again" not in done.stderr
    assert "Traceback" not in done.stderr
    filler.unlink()
    assert command.run("--workers", "2").returncode == 0
