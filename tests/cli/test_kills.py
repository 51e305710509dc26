"""The command killed with SIGKILL at random instants of its life, and started again until it is done."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.processes import Command
from tests.engine.studies import crash_from_six

pytestmark = [pytest.mark.slow, pytest.mark.integration]

SLOW_CRASH = crash_from_six("time.sleep(0.2)")


def kill_and_start_again(folder: Path, kills: int) -> None:
    """Kill commands until so many were killed; studies that end before are followed by new ones.

    At each kill: what the database had, and what was told, is still there and once; then at the end of each
    study: the verdict is that of a command nobody killed.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    killed, studies, at = 0, 0, []
    while killed < kills:
        studies += 1
        home = folder / str(studies)
        home.mkdir()
        command = Command(home, SLOW_CRASH)
        known: set[str] = set()
        ended = False
        while not ended:
            process = command.start("--json", "--workers", "2", start_new_session=True)
            family: list[psutil.Process] = []
            after = rng.uniform(0.0, 9.0) if killed < kills else 150.0
            until = time.monotonic() + after
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            if process.poll() is None:
                family = psutil.Process(process.pid).children(recursive=True)
                os.killpg(process.pid, signal.SIGKILL)
                killed += 1
                at.append(round(after, 2))
            out, err = process.communicate(timeout=60)
            ended = process.returncode == 0
            assert ended or process.returncode == -signal.SIGKILL, err
            told = [json.loads(line) for line in out.splitlines(keepends=True) if line.endswith("\n")]
            trials = [event["trial"] for event in told if event["event"] == "trial"]
            stored = command.stored() if (home / "results.sqlite").exists() and has_study(command) else []
            assert len(stored) == len(set(stored)), "a trial is there twice"
            assert known <= set(stored), "a trial is lost"
            assert set(trials) <= set(stored), "a trial was told and is not there"
            assert not known & set(trials), "a trial was run again"
            known = set(stored)
            deadline = time.monotonic() + 30
            while any(process.is_running() for process in family):
                assert time.monotonic() < deadline, family
                time.sleep(0.02)
            if ended:
                assert told[-1]["verdict"]["first_bad"]["level"] == "6"
                assert told[-1]["verdict"]["trials"] == len(stored)
    print(f"{killed} kills in {studies} studies, after {at} s")


def has_study(command: Command) -> bool:
    from bisect_env.errors import BisectEnvError

    try:
        command.stored()
    except BisectEnvError:  # killed before it had written its first row
        return False
    return True


def test_nothing_is_lost_or_doubled_by_kills_at_random_instants(tmp_path: Path) -> None:
    kill_and_start_again(tmp_path, 3)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_nothing_is_lost_or_doubled_by_fifty_kills_at_random_instants(tmp_path: Path) -> None:
    kill_and_start_again(tmp_path, 50)
