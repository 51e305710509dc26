"""A SLURM cluster of two nodes with two GPUs each on this machine, its daemons in a folder of their own.

The nodes are daemons of one host, and their GPUs are files that nothing reads: what is real is how SLURM
starts, places and ends jobs and steps.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
KillWait=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=64000 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 RealMemory=64000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no cluster here, or nothing."""
    if os.geteuid() != 0:
        return "SLURM's daemons run as root"
    absent = [name for name in DAEMONS if _path(name) is None]
    return f"{', '.join(absent)} not installed (apt: slurm-wlm)" if absent else ""


def _path(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class NoSlurmError(Exception):
    """The daemons do not come up on this machine."""


class Slurm:
    """Starts the daemons; ends them and all jobs on exit.

    Args:
        folder: For everything they write; its path is at most 80 characters long, for the socket.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for job in self.jobs():
            self.call("scancel", "--signal=KILL", job)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self) -> None:
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        for name in ("gpu0", "gpu1"):
            (self.folder / name).touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-1]\n")
        host = socket.gethostname().partition(".")[0]
        text = _CONF.format(folder=self.folder, host=host, ports=_free_ports(3))
        (self.folder / "slurm.conf").write_text(text)
        files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid"}
        options = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._daemon("munged", "--foreground", "--force", f"--seed-file={self.folder}/munge.seed", *options)
        self._wait(lambda: (self.folder / "munge.sock").exists())
        self._daemon("slurmctld", "-D")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        self._wait(lambda: self.call("sinfo", "-h", "-o", "%D %t").split() == ["2", "idle"])

    def _daemon(self, name: str, *options: str) -> None:
        path = _path(name)
        assert path is not None
        log = self.folder / f"{name}-{len(self._daemons)}.out"
        with log.open("wb") as stream:
            self._daemons.append(
                subprocess.Popen([path, *options], env=self.env, stdout=stream, stderr=subprocess.STDOUT)
            )

    def _wait(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 40
        while not is_so():
            ended = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = [*self.folder.glob("*.out"), *self.folder.glob("*.log")]
                texts = "\n".join(f"{path.name}: {path.read_text()[-1000:]}" for path in logs)
                raise NoSlurmError(f"ended: {ended}\n{texts}")
            time.sleep(0.2)

    def call(self, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """What one of SLURM's commands prints; nothing if it fails."""
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout if done.returncode == 0 else ""

    def submit(self, *words: str, cwd: Path, env: Mapping[str, str]) -> str:
        """Send a batch script off; the job's number."""
        job = self.call("sbatch", "--parsable", *words, cwd=cwd, env=env).strip()
        assert job, "the script was refused"
        return job

    def jobs(self) -> list[str]:
        """Numbers of the jobs that wait or run."""
        return self.call("squeue", "-h", "-o", "%i").split()
