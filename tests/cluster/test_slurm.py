"""The examples of the page on SLURM, on a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bisect_env.storage.store import Store
from tests.cluster.dask_processes import ROOT, end_tree
from tests.cluster.executor_contract import wait_until
from tests.cluster.extra import install
from tests.cluster.slurm import NoSlurmError, Slurm, missing
from tests.engine.studies import PYTHON

EXAMPLES = ROOT / "docs" / "examples"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    # Not in pytest's folder: the path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        try:
            cluster = Slurm(Path(name)).__enter__()
        except NoSlurmError as error:
            pytest.skip(f"SLURM's daemons do not come up here: {error}")
        try:
            yield cluster
        finally:
            cluster.__exit__()


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "INTERFACE": "lo",
        "TMPDIR": str(tmp_path),
        "BISECT_ENV_CACHE": str(tmp_path / "cache"),
        "BISECT_ENV_DB": str(tmp_path / "results.sqlite"),
        "DASK_DISTRIBUTED__SCHEDULER__DASHBOARD__ENABLED": "False",
    }


def write_matrix(folder: Path, seconds: float) -> None:
    (folder / "script.py").write_text(
        f"import sys, time\ntime.sleep({seconds})\nsys.exit(int(sys.argv[1]) >= 5)\n"
    )
    (folder / "matrix.yaml").write_text(
        f"""\
version: 1
name: slurm
axes:
  level: {{values: [0, 1, 2, 3, 4, 5, 6, 7]}}
  python: {{package: python, versions: ["{PYTHON}"]}}
trial: {{command: "python script.py {{level}}", files: [script.py]}}
"""
    )


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def trials(db: str) -> list[str]:
    if not Path(db).exists():
        return []
    with Store.open(db) as store:
        return [trial.trial_id for study in store.studies() for trial in store.trials(study.id)]


def test_the_batch_script_gives_an_answer_and_goes_on_when_it_is_submitted_again(
    slurm: Slurm, tmp_path: Path, env: dict[str, str]
) -> None:
    write_matrix(tmp_path, 1.0)
    words = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--output=job-%j.out")
    script = (str(EXAMPLES / "bisect.sbatch"), "matrix.yaml")
    first = slurm.submit(*words, *script, cwd=tmp_path, env=env)
    log = tmp_path / f"job-{first}.out"
    wait_until(lambda: len(trials(env["BISECT_ENV_DB"])) >= 2, 120, lambda: text_of(log))
    # As at the end of the time limit: a signal to all of its processes, and soon after that SIGKILL.
    slurm.call("scancel", first)
    wait_until(lambda: first not in slurm.jobs(), 60)
    before = trials(env["BISECT_ENV_DB"])
    second = slurm.submit(*words, *script, cwd=tmp_path, env=env)
    wait_until(lambda: second not in slurm.jobs(), 200)
    said = (tmp_path / f"job-{second}.out").read_text()
    assert "the first bad value (last good 4)" in said
    assert "level 5 is " in said
    assert set(before) < set(trials(env["BISECT_ENV_DB"]))
    # The script tidied up.
    assert not list(tmp_path.glob("scheduler-*.json"))


@pytest.mark.heavy
@pytest.mark.network
def test_the_example_of_dask_jobqueue(slurm: Slurm, tmp_path: Path, env: dict[str, str]) -> None:
    packages = install(tmp_path / "packages", "--no-deps", "dask-jobqueue==0.9.0")
    env["PYTHONPATH"] += f":{packages}"
    write_matrix(tmp_path, 0.1)
    log = tmp_path / "cluster.log"
    with log.open("wb") as stream:
        cluster = subprocess.Popen(
            [sys.executable, EXAMPLES / "slurm_cluster.py"],
            cwd=tmp_path,
            env={**slurm.env, **env},
            stdout=stream,
            stderr=stream,
        )
    try:
        wait_until(lambda: "tcp://" in log.read_text(), 60, log.read_text)
        address = log.read_text().strip().splitlines()[0]
        done = subprocess.run(
            [sys.executable, "-m", "bisect_env", "run", "matrix.yaml", "--scheduler", address, "--json"],
            cwd=tmp_path,
            env={**os.environ, **env},
            capture_output=True,
            timeout=200,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + log.read_text()
        last = json.loads(done.stdout.splitlines()[-1])
        assert last["verdict"]["first_bad"]["level"] == "5"
        assert slurm.jobs(), "the workers are jobs"
    finally:
        end_tree(cluster.pid)
        cluster.wait()
