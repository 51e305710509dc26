"""A disk that is full where environments are built: said, nothing lost, gone on with once there is room."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bisect_env.engine import events
from bisect_env.errors import InfrastructureError
from bisect_env.storage.store import Store
from tests.engine.studies import Studies

SCRIPT = "import sys; sys.exit(int(sys.argv[1]) >= 6)"


@pytest.fixture
def small_cache(studies: Studies) -> Iterator[Path]:
    place = studies.folder / "cache"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here ({done.stderr.strip()}; user {os.geteuid()})")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def filled(place: Path) -> Path:
    filler = place / "filler"
    with filler.open("wb", buffering=0) as stream:
        for size in (1 << 16, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(b"x" * size)
    return filler


@pytest.mark.integration
def test_a_full_disk_below_the_cache(studies: Studies, small_cache: Path) -> None:
    matrix = studies.matrix(SCRIPT)
    fillers: list[Path] = []

    def fill_once_locked() -> bool:
        if not fillers and any(isinstance(event, events.Locked) for event in studies.events):
            fillers.append(filled(small_cache))
        return False

    with pytest.raises(InfrastructureError) as refused:
        studies.run(matrix, stopped=fill_once_locked)
    # The system says so, or we do, with the place that is full.
    ours = f"no space left on the file system of {small_cache}"
    assert "No space left on device" in str(refused.value) or ours in str(refused.value)
    assert refused.value.remedy
    with Store.open(str(studies.db)) as store:
        study = store.study(None)
        # No combination is held against its package, and no trial was invented.
        assert {state.status for state in store.combinations(study.id)} <= {"solvable", "unlocked"}
        assert store.trials(study.id) == []
        assert study.status == "failed"
    fillers[0].unlink()
    report = studies.run(matrix).report
    assert report["study"]["id"] == study.id
    assert report["verdict"]["first_bad"]["level"] == "6"
