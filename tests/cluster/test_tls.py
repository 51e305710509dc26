"""A cluster that speaks TLS only, with certificates made on the spot, reached through Dask's own settings."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import dask.config as dask_config
import pytest

from bisect_env.cluster import remote
from bisect_env.cluster.remote import RemoteExecutor
from bisect_env.errors import ExitCode, InfrastructureError
from tests.cli.test_run import COMMAND
from tests.cluster.dask_processes import DaskProcesses
from tests.cluster.executor_contract import build
from tests.engine.studies import Studies

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]

TLS = "DASK_DISTRIBUTED__COMM__TLS__"
CRASH_FROM_SIX = "import os, sys\nif int(sys.argv[1]) >= 6: os.abort()"


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=30)


def make_certificates(folder: Path) -> dict[str, str]:
    """A certificate authority and one key that it signed; what tells Dask to use them and nothing else."""
    folder.mkdir()
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    authority = ["-x509", "-subj", "/CN=authority", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem"]
    openssl(folder, "req", *new_key, *authority)
    openssl(folder, "req", *new_key, "-subj", "/CN=cluster", "-keyout", "me.key", "-out", "me.csr")
    by_authority = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
    openssl(folder, "x509", "-req", "-in", "me.csr", *by_authority, "-out", "me.pem")
    settings = {
        "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true",
        f"{TLS}CA_FILE": str(folder / "ca.pem"),
    }
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        settings[f"{TLS}{role}__CERT"] = str(folder / "me.pem")
        settings[f"{TLS}{role}__KEY"] = str(folder / "me.key")
    return settings


def run(
    folder: Path, matrix: Path, address: str, settings: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "run", str(matrix), "--scheduler", address],
        cwd=folder,
        env={
            **os.environ,
            "BISECT_ENV_DB": str(folder / "results.sqlite"),
            "BISECT_ENV_CACHE": str(folder / "cache"),
            "BISECT_ENV_LOCKFILES": str(folder / "lockfiles"),
            **settings,
        },
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_a_study_runs_over_tls_and_only_with_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CONNECT_TIMEOUT", 3.0)
    matrix = Studies(tmp_path).matrix(CRASH_FROM_SIX)
    ours = make_certificates(tmp_path / "ours")
    theirs = make_certificates(tmp_path / "theirs")
    cluster = {**ours, "BISECT_ENV_CACHE": str(tmp_path / "worker-cache")}
    with DaskProcesses(tmp_path, env=cluster) as dask:
        dask.scheduler("--protocol", "tls")
        dask.worker("--nthreads", "2")
        assert dask.address.startswith("tls://")
        plain = dask.address.replace("tls://", "tcp://")
        refused = run(tmp_path, matrix, dask.address, {})
        assert refused.returncode == ExitCode.INFRASTRUCTURE, refused.stderr
        assert "Traceback" not in refused.stderr
        assert "names no certificate" in refused.stderr
        assert f"{TLS}CA_FILE" in refused.stderr
        refused = run(tmp_path, matrix, dask.address, {**ours, f"{TLS}CA_FILE": str(tmp_path / "none.pem")})
        assert refused.returncode == ExitCode.INFRASTRUCTURE, refused.stderr
        assert "Traceback" not in refused.stderr
        assert "cannot be used" in refused.stderr
        with (
            dask_config.set(
                {
                    "distributed.comm.require-encryption": True,
                    "distributed.comm.tls.ca-file": theirs[f"{TLS}CA_FILE"],
                    "distributed.comm.tls.client.cert": theirs[f"{TLS}CLIENT__CERT"],
                    "distributed.comm.tls.client.key": theirs[f"{TLS}CLIENT__KEY"],
                }
            ),
            pytest.raises(InfrastructureError, match="cannot be reached") as error,
        ):
            RemoteExecutor(build, scheduler=dask.address)
        assert "certificates" in str(error.value)
        with pytest.raises(InfrastructureError, match="cannot be reached"):
            RemoteExecutor(build, scheduler=plain)
        done = run(tmp_path, matrix, dask.address, ours)
        assert done.returncode == 0, done.stderr
        assert "level 6" in done.stdout.splitlines()[0]
