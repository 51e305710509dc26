from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bisect_env.cluster.choose import executor_maker, tls_warning
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.remote import RemoteExecutor
from bisect_env.environments.image_lock import ensure_environment
from bisect_env.errors import ExitCode, InfrastructureError, UsageError


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"scheduler": "tcp://h:1", "scheduler_file": Path("f")}, "name two clusters"),
        ({"scheduler": "tcp://h:1", "workers": 2}, "--workers starts workers on this machine"),
        ({"scheduler_file": Path("f"), "gpus": "0"}, "--devices starts workers on this machine"),
        ({"gpus": "0"}, "use no GPU"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as error:
        executor_maker(**options)
    assert error.value.remedy


def test_workers_of_a_cluster_use_their_own_caches_unless_one_is_named(tmp_path: Path) -> None:
    maker = executor_maker(scheduler="tcp://h:1", gpus_per_trial=2)
    assert isinstance(maker, partial)
    assert maker.func is RemoteExecutor
    assert maker.args[0].func is ensure_environment
    assert maker.args[0].keywords == {}
    assert maker.keywords["gpus_per_trial"] == 2
    named = executor_maker(scheduler="tcp://h:1", cache=tmp_path)
    assert isinstance(named, partial)
    assert named.args[0].keywords == {"cache_dir": tmp_path}


def test_cpu_trials_run_in_threads_of_the_command(tmp_path: Path) -> None:
    maker = executor_maker(workers=3, cache=tmp_path)
    assert isinstance(maker, partial)
    assert maker.func is PoolExecutor
    assert maker.args[1] == 3


def test_without_the_extra_the_message_names_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name == "pynvml":
            raise ModuleNotFoundError("No module named 'pynvml'")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InfrastructureError, match="need GPUs") as error:
        executor_maker(gpus_per_trial=1)
    assert error.value.exit_code is ExitCode.INFRASTRUCTURE
    for word in ("--scheduler", "trial.gpus: 0", "gpu-cu13"):
        assert word in str(error.value)


def test_an_address_that_cannot_be_read_is_a_mistake_of_the_user() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        tls_warning("tcp://[::1", None)
