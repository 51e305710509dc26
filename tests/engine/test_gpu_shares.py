"""Studies whose trials share GPUs, on a Dask worker that promises one; no GPU is touched."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bisect_env.cluster.remote import RemoteExecutor
from bisect_env.engine import events
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.errors import MatrixError
from bisect_env.matrix.load import load_matrix
from bisect_env.storage.store import Store
from tests.cluster.dask_processes import DaskProcesses
from tests.engine.studies import Studies

pytestmark = [pytest.mark.slow, pytest.mark.integration]

GPU = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
NEIGHBOURS = """
import os, sys, time
place = {place!r}
own = os.path.join(place, str(os.getpid()))
open(own, "w").close()
time.sleep(0.3)
most = sum(os.path.exists(f"/proc/{{pid}}") for pid in os.listdir(place))
time.sleep(0.1)
os.remove(own)
level = int(sys.argv[1])
"""
SHARED = "gpus: 0.25"
SEARCH = "search: {confidence: 0.9, min_crash_rate: 0.5, max_trials: 60}"


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[DaskProcesses]:
    if importlib.util.find_spec("pynvml") is not None:
        pytest.skip("with NVML, GPUs that are not there are refused")
    with DaskProcesses(tmp_path) as processes:
        processes.scheduler()
        processes.worker("--nthreads", "4", "--resources", "GPU=1", env={"CUDA_VISIBLE_DEVICES": GPU})
        yield processes


class Shared:
    """A study on that worker."""

    def __init__(self, folder: Path, dask: DaskProcesses, script: str) -> None:
        place = folder / "meet"
        place.mkdir()
        self.studies = Studies(folder)
        self.path = self.studies.matrix(
            NEIGHBOURS.format(place=str(place)) + script,
            axes="level: {values: [0, 1, 2, 3]}",
            trial=SHARED,
            rest=SEARCH,
        )
        build = partial(ensure_prefix, cache_dir=folder / "cache")
        self.make = lambda: RemoteExecutor(build, scheduler=dask.address, gpus_per_trial=0.25)

    def run(self) -> dict[str, object]:
        verdict: dict[str, object] = self.studies.run(self.path, make_executor=self.make).report["verdict"]
        return verdict

    @property
    def warnings(self) -> list[str]:
        return [event.text for event in self.studies.events if isinstance(event, events.Warned)]

    def alone(self) -> list[tuple[str, str]]:
        with Store.open(str(self.studies.db)) as store:
            (study,) = store.studies()
            decisions = [one.payload for one in store.decisions(study.id) if one.kind == "alone"]
            evidence = {trial.trial_id: trial.evidence.value for trial in store.trials(study.id)}
        return [(str(one["combination"]["level"]), evidence[str(one["trial"])]) for one in decisions]


def test_an_answer_is_confirmed_once_both_sides_were_tried_without_neighbours(
    tmp_path: Path, dask: DaskProcesses
) -> None:
    shared = Shared(tmp_path, dask, "sys.exit(level >= 2)")
    verdict = shared.run()
    assert (verdict["status"] != "none", verdict["first_bad"]) == (True, {"python": "3.11", "level": "2"})
    assert sorted(shared.alone()) == [("1", "good"), ("2", "bad")]


def test_a_failure_that_only_neighbours_bring_about_is_not_confirmed(
    tmp_path: Path, dask: DaskProcesses
) -> None:
    shared = Shared(tmp_path, dask, "sys.exit(level >= 2 and most > 1)")
    verdict = shared.run()
    assert verdict["status"] != "confirmed"
    assert ("2", "bad") not in shared.alone()


def test_running_out_of_memory_beside_others_counts_nowhere_and_ends_with_fewer_neighbours(
    tmp_path: Path, dask: DaskProcesses
) -> None:
    script = """
if most > 2:
    raise RuntimeError("CUDA error: out of memory")
sys.exit(level >= 2)
"""
    shared = Shared(tmp_path, dask, script)
    verdict = shared.run()
    assert (verdict["status"] != "none", verdict["first_bad"]) == (True, {"python": "3.11", "level": "2"})
    assert [text for text in shared.warnings if "2 trials share a GPU from now on" in text]
    assert not [text for text in shared.warnings if "GPU each" in text]


@pytest.mark.parametrize(
    ("trial", "problem"),
    [
        ("gpus: 0.25\nbad: {outcomes: [cuda-oom]}", "cuda-oom of one can be the doing of another"),
        ("gpus: 1.5", "whole GPUs"),
        ("gpus: 0.01", "at most 32 trials share a GPU"),
        ("gpus: -1", "out of range"),
    ],
)
def test_what_cannot_be_shared_is_refused(tmp_path: Path, trial: str, problem: str) -> None:
    path = Studies(tmp_path).matrix("pass", trial=trial)
    with pytest.raises(MatrixError, match=problem):
        load_matrix(path)
