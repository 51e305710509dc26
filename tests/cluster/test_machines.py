"""On which class of machines trials run: known before they do, and stored with each."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from bisect_env.cluster.choose import Place
from bisect_env.cluster.gpus import Nvml, Reading
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.remote import RemoteExecutor
from bisect_env.cluster.worker import HostGpus
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.matrix.grid import Combination
from bisect_env.storage.entries import machines_of
from bisect_env.storage.store import Store
from bisect_env.trials.records import Machine, Outcome, TrialSpec
from tests.cluster.cores import cores_executor
from tests.cluster.dask_processes import DaskProcesses
from tests.cluster.test_gpu_health import ends
from tests.engine.studies import Studies

HERE = Machine(platform.machine())
MODELS = {"GPU-a": "NVIDIA H100", "GPU-b": "NVIDIA H100", "GPU-c": "NVIDIA A100"}


class Monitor:
    """Two models of GPUs that are always well."""

    def read(self, uuid: str) -> Reading:
        return Reading(uuid, 0, len(MODELS))

    @contextmanager
    def watch(self, _uuids: Sequence[str]) -> Iterator[Monitor]:
        yield self

    def xids(self, _uuid: str) -> list[int]:
        return []

    def reported(self) -> list[int]:
        return []

    def describe(self, uuids: Sequence[str]) -> tuple[str, str]:
        return ",".join(sorted({MODELS[uuid] for uuid in uuids})), "570.1"


def test_the_gpus_that_a_trial_saw_are_recorded() -> None:
    gpus = HostGpus((tuple(MODELS), Monitor()))
    spec = TrialSpec("t", Combination.of({"a": "1"}), "lock", ("python",), gpus=1)
    record = gpus.run(spec, ends(Outcome.PASS))
    assert (record.machine.gpu_model, record.machine.driver) == ("NVIDIA H100", "570.1")
    assert gpus.describe(1) == {("NVIDIA H100", "570.1"), ("NVIDIA A100", "570.1")}
    assert gpus.describe(3) == {("NVIDIA A100,NVIDIA H100", "570.1")}
    assert gpus.describe(4) == set()
    assert HostGpus((("GPU-a",), None)).describe(1) == set()


class Library:
    """As much of `pynvml` as describing needs; a GPU named `lost` has fallen off the bus."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid == "lost":
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return MODELS[handle]

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.1"


def test_what_nvml_says() -> None:
    nvml = Nvml(Library())
    assert nvml.describe(["GPU-a", "GPU-c"]) == ("NVIDIA A100,NVIDIA H100", "570.1")
    assert nvml.describe(["lost"]) == ("", "")


def test_a_place_starts_its_executor_once(tmp_path: Path) -> None:
    started: list[PoolExecutor] = []

    def start() -> PoolExecutor:
        started.append(PoolExecutor(partial(ensure_prefix, cache_dir=tmp_path)))
        return started[-1]

    with closing(Place(start)) as place:
        assert place.executor().machines() == {HERE}
        assert place.executor() is place.executor()
    assert len(started) == 1


@pytest.mark.slow
@pytest.mark.integration
def test_the_workers_of_a_cluster_tell(tmp_path: Path) -> None:
    with closing(cores_executor(partial(ensure_prefix, cache_dir=tmp_path), workers=2)) as executor:
        assert executor.machines() == {HERE}


NVML = """
class NVMLError(Exception):
    pass

def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return f"GPU-{index}"
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceGetUUID(handle): return handle
def nvmlDeviceGetName(handle): return "NVIDIA H100"
def nvmlSystemGetDriverVersion(): return "570.1"
"""


@pytest.mark.slow
@pytest.mark.integration
def test_the_workers_of_a_cluster_tell_which_gpus_they_lend(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(NVML)
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler()
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        # Dask itself would ask NVML for more than this has.
        env = {"PYTHONPATH": path, "DASK_DISTRIBUTED__DIAGNOSTICS__NVML": "False"}
        dask.worker("--resources", "GPU=2", env=env)
        build = partial(ensure_prefix, cache_dir=tmp_path)
        with closing(RemoteExecutor(build, scheduler=dask.address, gpus_per_trial=1)) as executor:
            assert executor.machines() == {Machine(HERE.cpu, "NVIDIA H100", "570.1")}


@pytest.mark.integration
def test_every_trial_is_stored_with_its_machine(studies: Studies) -> None:
    studies.run(studies.matrix("pass", rest="search: {max_trials: 2}"))
    with Store.open(str(studies.db), read_only=True) as store:
        study = store.study()
        assert {trial.machine for trial in store.trials(study.id)} == {HERE}
        assert machines_of(store.trials(study.id)) == [HERE]


@pytest.fixture
def studies(tmp_path: Path) -> Studies:
    return Studies(tmp_path)


def test_a_machine_in_words() -> None:
    assert str(Machine("x86_64")) == "x86_64"
    assert str(Machine("x86_64", "NVIDIA H100", "570.1")) == "x86_64 with NVIDIA H100, driver 570.1"
