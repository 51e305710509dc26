"""The example of the page on Kubernetes: what Dask's operator makes of it, run as processes of this machine.

No Kubernetes is here. The operator's own code checks the cluster against its schema and makes the pods; their
commands and environments then run as they would there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.cluster.dask_processes import ROOT, DaskProcesses
from tests.cluster.extra import install
from tests.cluster.test_slurm import write_matrix

pytestmark = pytest.mark.integration

EXAMPLE = ROOT / "docs" / "examples" / "dask_cluster.yaml"
CRD = "dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator/crds/daskcluster.yaml"
MAKE_PODS = """
import json, sys
from dask_kubernetes.operator.controller import controller
cluster = json.load(sys.stdin)
spec, name = cluster["spec"], cluster["metadata"]["name"]
scheduler = controller.build_scheduler_deployment_spec(name, spec["scheduler"]["spec"], {}, {})
group = controller.build_default_worker_group_spec(name, spec["worker"], {}, {})
workers = [
    controller.build_worker_deployment_spec(
        group["metadata"]["name"], "default", name, str(n), group["spec"]["worker"]["spec"], {}, {}
    )
    for n in range(2)
]
service = controller.build_scheduler_service_spec(name, spec["scheduler"]["service"], {}, {})
json.dump({"scheduler": scheduler, "workers": workers, "service": service}, sys.stdout)
"""


def container_of(deployment: dict[str, Any]) -> dict[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


def command_of(container: dict[str, Any]) -> list[str]:
    """The command, with `$(NAME)` filled in from the container's variables as Kubernetes does."""
    env = {one["name"]: one["value"] for one in container.get("env", [])}
    return [re.sub(r"\$\((\w+)\)", lambda m: env.get(m[1], m[0]), word) for word in container["command"]]


@pytest.mark.heavy
@pytest.mark.network
def test_what_the_operator_makes_of_the_example_runs_a_study(tmp_path: Path) -> None:
    packages = install(tmp_path / "packages", "dask-kubernetes==2026.3.0")
    cluster = yaml.safe_load(EXAMPLE.read_text())
    (version,) = yaml.safe_load((tmp_path / "packages" / CRD).read_text())["spec"]["versions"]
    jsonschema.validate(cluster, version["schema"]["openAPIV3Schema"])
    made = subprocess.run(
        [sys.executable, "-c", MAKE_PODS],
        input=json.dumps(cluster),
        env={**os.environ, "PYTHONPATH": packages},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    pods = json.loads(made.stdout)
    # The service leads to the scheduler's pod.
    labels = pods["scheduler"]["spec"]["template"]["metadata"]["labels"]
    assert pods["service"]["spec"]["selector"].items() <= labels.items()
    scheduler, workers = container_of(pods["scheduler"]), [container_of(one) for one in pods["workers"]]
    assert command_of(scheduler)[:2] == ["dask", "scheduler"]
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler(*command_of(scheduler)[2:])
        for worker in workers:
            words = command_of(worker)
            assert words[:2] == ["dask", "worker"]
            env = {one["name"]: one["value"] for one in worker["env"]}
            # Neither the cluster's names nor its volumes are here.
            env |= {"DASK_SCHEDULER_ADDRESS": dask.address, "BISECT_ENV_CACHE": str(tmp_path / "cache")}
            dask.run(*words[1:], env=env)
        write_matrix(tmp_path, 0.1)
        done = subprocess.run(
            [*(sys.executable, "-m", "bisect_env", "run", "matrix.yaml"), "--scheduler", dask.address],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "BISECT_ENV_DB": str(tmp_path / "results.sqlite")},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr + dask.logs()
        assert "level 5 is the first bad value (last good 4)" in done.stdout
        assert "bisect-default-worker-1" in dask.logs()


def test_pods_start_what_the_image_holds() -> None:
    """The image's entry point is the command: a pod that only gave arguments would call that."""
    spec = yaml.safe_load(EXAMPLE.read_text())["spec"]
    for part in ("scheduler", "worker"):
        (container,) = spec[part]["spec"]["containers"]
        assert container["command"][:2] == ["dask", part]
        assert "args" not in container
