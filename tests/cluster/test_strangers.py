"""Who may speak to a local cluster: its own processes, and nobody else on this host or another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bisect_env.cluster.choose import tls_warning
from tests.cluster.cores import cores_executor
from tests.cluster.executor_contract import build, collect, request
from tests.elsewhere import other_host

ROOT = Path(__file__).parents[2]
# Imports first: the stranger may not read the files of whoever runs the tests.
STRANGER = """
import os, signal, sys
import distributed
from distributed.security import Security
import distributed.client, distributed.comm.tcp, distributed.protocol
certificate = Security.temporary()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for address in sys.argv[1:]:
    for security in (None, certificate):
        for scheme in ("tcp", "tls"):
            target = scheme + "://" + address
            # In a process each: a client may wait longer than it is told, which is not to be let in, and an
            # exception that a signal raises may be lost in whatever runs at that moment.
            child = os.fork()
            if not child:
                signal.alarm(15)
                try:
                    client = distributed.Client(target, timeout=3, security=security, set_as_default=False)
                    print(target, "let in:", client.run_on_scheduler(os.getuid), flush=True)
                    os._exit(1)
                except Exception:
                    os._exit(0)
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print(target, "refused" if ended in (0, -signal.SIGALRM) else f"ended with {ended}", flush=True)
"""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_of_this_host_is_not_let_in() -> None:
    executor = cores_executor(build, 1)
    try:
        info = executor.client.scheduler_info()
        addresses = [info["address"], *(a for w in info["workers"].items() for a in (w[0], w[1]["nanny"]))]
        assert all(address.startswith("tls://127.0.0.1:") for address in addresses)
        # From another host, or another network namespace, there is nothing to connect to.
        ours = [psutil.Process(), *psutil.Process().children(recursive=True)]
        listening = {
            (one.laddr.ip, one.laddr.port)
            for process in ours
            for one in process.net_connections("inet")
            if one.status == psutil.CONN_LISTEN
        }
        assert {ip for ip, _ in listening} == {"127.0.0.1"}
        assert {int(address.rpartition(":")[2]) for address in addresses} <= {port for _, port in listening}
        tried = subprocess.run(
            [sys.executable, "-c", STRANGER, *(address.partition("://")[2] for address in addresses)],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        lines = tried.stdout.splitlines()
        assert len(lines) == 4 * len(addresses), tried.stderr
        assert all(line.endswith(" refused") for line in lines), lines
        # Those who belong to it go on working.
        executor.submit(request("print('fine')"))
        (done,) = collect(executor, 1)
        assert done.record is not None
        assert done.record.stdout == "fine\n"
    finally:
        executor.close()


def listening_ports() -> set[int]:
    """Ports that this process and those below it listen on, on whatever address."""
    ours = [psutil.Process(), *psutil.Process().children(recursive=True)]
    connections = [one for process in ours for one in process.net_connections("inet")]
    return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}


@pytest.mark.integration
@pytest.mark.slow
def test_another_host_finds_no_port_of_a_local_cluster() -> None:
    with other_host() as elsewhere:
        before = listening_ports()
        executor = cores_executor(build, 2)
        try:
            opened = listening_ports() - before
            assert len(opened) >= 5  # a scheduler, two workers and two nannies
            assert elsewhere.reaches(sorted(opened)) == set()
        finally:
            executor.close()


def test_a_scheduler_elsewhere_without_tls_is_warned_of(tmp_path: Path) -> None:
    for here in ("tcp://127.0.0.1:8786", "127.0.0.1:8786", "tcp://localhost:8786", "tcp://[::1]:8786"):
        assert tls_warning(here, None) is None
    for safe in ("tls://192.0.2.1:8786", None):
        assert tls_warning(safe, None) is None
    for open_one in ("tcp://192.0.2.1:8786", "192.0.2.1:8786", "tcp://[2001:db8::1]:8786"):
        warning = tls_warning(open_one, None)
        assert warning is not None
        assert "without TLS" in warning
        assert "docs/how-to/clusters.md" in warning
    file = tmp_path / "scheduler.json"
    file.write_text('{"address": "tcp://192.0.2.1:8786"}')
    assert "192.0.2.1" in (tls_warning(None, file) or "")
    for broken in ("", "[]", "{}"):
        file.write_text(broken)
        assert tls_warning(None, file) is None
