"""What several tests of trials need."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import psutil

from bisect_env.matrix.grid import Combination
from bisect_env.trials.records import TrialFile, TrialSpec
from bisect_env.trials.workdir import TRIAL_ID

PREFIX = Path(sys.prefix)


def make_spec(code: str = "", **changes: object) -> TrialSpec:
    values: dict[str, object] = {
        "trial_id": f"trial-{os.urandom(6).hex()}",
        "combination": Combination.of({"numpy": "1.0"}),
        "lock_hash": "0" * 64,
        "command": ("python", "main.py"),
        "files": (TrialFile("main.py", textwrap.dedent(code).encode()),),
        "timeout": 30.0,
    }
    return TrialSpec(**{**values, **changes})  # type: ignore[arg-type]


def trial_processes(trial_id: str) -> list[int]:
    """Living processes that belong to a trial, wherever they went."""
    return living({trial_id})


def living(trial_ids: set[str]) -> list[int]:
    """Living processes that belong to any of these trials."""
    found = []
    for process in psutil.process_iter():
        try:
            is_one = process.environ().get(TRIAL_ID) in trial_ids
            if is_one and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found
