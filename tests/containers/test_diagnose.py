"""`diagnose` of what runs in a container: its core is in its directory, the host's tools see its threads."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from bisect_env.containers.trial import Inside
from bisect_env.engine.diagnose import diagnose
from bisect_env.engine.stored import LockedCombination
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import Prefix
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import load_matrix
from bisect_env.trials.records import Outcome
from tests.trials.test_stacks import DEADLOCK

pytestmark = [pytest.mark.slow, pytest.mark.integration]

MATRIX = """\
version: 1
name: inside
axes: {level: {values: [1, 2]}}
executor: {kind: container, image: any}
trial: {command: python script.py, files: [script.py], timeout: 4s}
"""


def found_in(inside: Inside, folder: Path, script: str):  # type: ignore[no-untyped-def]
    (folder / "script.py").write_text(textwrap.dedent(script))
    (folder / "m.yaml").write_text(MATRIX)
    single = LockedCombination(Combination.of({"level": "2"}), make_lock("", "linux-64", []))
    prefix = Prefix(Path("/"), Path("python"), inside=inside)
    return diagnose(load_matrix(folder / "m.yaml"), single, prefix, folder / "found", limit=1)


def test_a_deadlock_inside(inside: Inside, tmp_path: Path) -> None:
    found = found_in(inside, tmp_path, DEADLOCK)
    assert found.record.outcome is Outcome.HANG
    # Threads have other ids inside than out here.
    deadlock = found.findings[0]
    assert deadlock.startswith("deadlock: "), found.record.stack
    assert "(MainThread) waits for a mutex" in deadlock
    assert "(launcher) waits for the GIL" in deadlock
    assert any("call_with_callback" in line for line in found.findings)


def test_a_crash_inside(inside: Inside, tmp_path: Path) -> None:
    script = "import ctypes\ndef guilty(): ctypes.string_at(8)\nguilty()"
    found = found_in(inside, tmp_path, script)
    assert found.record.outcome is Outcome.CRASH
    assert found.findings or found.notes
    assert "guilty" in " ".join((*found.findings, found.record.stack))
