"""`dask ssh`, as the page on clusters shows it, through a real SSH server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.dask_processes import DASK, ROOT, end_tree
from tests.cluster.executor_contract import wait_until
from tests.cluster.extra import install
from tests.cluster.test_slurm import write_matrix

pytestmark = [pytest.mark.slow, pytest.mark.integration]
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
HOSTS = ("127.0.0.1", "127.0.0.2")


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOSTS[0], 0))
        return int(one.getsockname()[1])


@pytest.mark.heavy
@pytest.mark.network
@pytest.mark.skipif(SSHD is None or os.geteuid() != 0, reason="needs sshd (apt: openssh-server) and root")
def test_two_hosts_through_ssh(tmp_path: Path) -> None:
    packages = install(tmp_path / "packages", "paramiko==4.0.0")
    port, scheduler_port = free_port(), free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\n"
        + "".join(f"ListenAddress {host}\n" for host in HOSTS)
        + f"HostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\n"
        f"PidFile {tmp_path}/sshd.pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
    )
    (tmp_path / "hosts.txt").write_text("\n".join(HOSTS) + "\n")
    Path("/run/sshd").mkdir(exist_ok=True)
    assert SSHD is not None
    log = tmp_path / "ssh.log"
    address = f"tcp://{HOSTS[0]}:{scheduler_port}"
    with (
        log.open("wb") as stream,
        subprocess.Popen([SSHD, "-D", "-f", tmp_path / "sshd_config", "-E", tmp_path / "sshd.log"]) as server,
        subprocess.Popen(
            [
                *(DASK, "ssh", "--hostfile", "hosts.txt", "--nworkers", "1", "--nthreads", "1"),
                *("--memory-limit", "0", "--scheduler-port", str(scheduler_port), "--ssh-port", str(port)),
                *("--ssh-username", "root", "--ssh-private-key", str(tmp_path / "user")),
                *("--remote-python", sys.executable),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": packages},
            stdout=stream,
            stderr=stream,
        ) as dask,
    ):
        try:
            wait_until(lambda: log.read_text().count("Register worker addr") == len(HOSTS), 90, log.read_text)
            write_matrix(tmp_path, 0.1)
            done = subprocess.run(
                [sys.executable, "-m", "bisect_env", "run", "matrix.yaml", "--scheduler", address],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "BISECT_ENV_DB": str(tmp_path / "results.sqlite"),
                },
                capture_output=True,
                text=True,
                timeout=150,
                check=False,
            )
            assert done.returncode == 0, done.stderr + log.read_text()
            assert "level 5 is the first bad value (last good 4)" in done.stdout
        finally:
            # What it started hangs on the server.
            for process in (dask, server):
                end_tree(process.pid)
