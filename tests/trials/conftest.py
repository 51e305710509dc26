from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bisect_env.trials.records import TrialRecord
from bisect_env.trials.run import run_trial
from tests.trials.trial_support import PREFIX, Living, make_spec, watched_trials


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def private_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Trials make their directories below this one, so that a test can see whether any is left."""
    directory = tmp_path / "t"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


@pytest.fixture
def living() -> Iterator[Living]:
    with watched_trials() as living:
        yield living


@pytest.fixture
def run(private_temp: Path, living: Living) -> Callable[..., TrialRecord]:
    """Run a script as a trial and check that it leaves nothing behind."""

    def run_script(
        code: str = "", *, prefix: Path = PREFIX, gpus: tuple[str, ...] = (), **changes: object
    ) -> TrialRecord:
        spec = make_spec(code, **changes)
        fds = open_files()
        record = run_trial(spec, prefix, gpus=gpus)
        assert living() == []
        assert list(private_temp.iterdir()) == []
        # The sockets to the server and to the process of the next trial appear with the first trial.
        assert open_files() <= fds + 2
        assert record.trial_id == spec.trial_id
        assert sum(record.copies.values()) == spec.concurrency
        return record

    return run_script
