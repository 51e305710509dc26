"""This process's side of the supervisor: one server, started when first needed, shared by all threads."""

from __future__ import annotations

import atexit
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SUPERVISOR = Path(__file__).with_name("supervisor.py")


class LaunchError(Exception):
    """A process could not be started, or its supervisor was lost: a failure of ours, not of the script."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """How a supervisor reaches a process that does not run below the client which it started: a container.

    Attributes:
        abort: Command that has it print its stacks and end.
        kill: Command that ends it at once.
        state: Command whose output, once it has ended, is reported.
        remove: Command that leaves nothing of it.
        hold: File that the supervisor keeps locked as long as it lives: whoever runs elsewhere sees by that
            whether anybody still waits, even when everything here was killed.
    """

    abort: Sequence[str]
    kill: Sequence[str]
    state: Sequence[str]
    remove: Sequence[str]
    hold: Path


@dataclass(frozen=True, slots=True)
class Launch:
    """What a supervisor is asked to start.

    Attributes:
        argv: `argv[0]` is a path, absolute or relative to `cwd`.
        env: The whole environment.
        cwd: Working directory.
        core: Whether a core file may be written (the limit itself is inherited).
        cpus: CPUs that the process may use; empty means those of this process.
        nice: Added to its niceness.
        scratch: Directory that the supervisor removes if this process dies, since nobody else will then.
        elsewhere: Set where what is started is but a client of what runs.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    core: bool = False
    cpus: Sequence[int] = ()
    nice: int = 0
    scratch: Path | None = None
    elsewhere: Elsewhere | None = None


def _as_json(elsewhere: Elsewhere | None) -> dict[str, object] | None:
    if elsewhere is None:
        return None
    return {
        "abort": list(elsewhere.abort),
        "kill": list(elsewhere.kill),
        "state": list(elsewhere.state),
        "remove": list(elsewhere.remove),
        "hold": str(elsewhere.hold),
    }


class Launcher:
    """Starts supervisors; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def start(self, launch: Launch, stdout: int, stderr: int) -> socket.socket:
        """Have a process started.

        Args:
            launch: What to start.
            stdout: Write end for its standard output; the caller closes its own copy.
            stderr: Likewise.

        Returns:
            The control socket. Closing it, or the death of this process, ends everything that was started.

        Raises:
            LaunchError: The server could not be started or reached.
        """
        request = {
            "argv": list(launch.argv),
            "env": dict(launch.env),
            "cwd": str(launch.cwd),
            "core": launch.core,
            "cpus": list(launch.cpus),
            "nice": launch.nice,
            "scratch": str(launch.scratch or ""),
            "elsewhere": _as_json(launch.elsewhere),
        }
        body = json.dumps(request).encode()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._send([theirs.fileno(), stdout, stderr])
            ours.sendall(struct.pack("!I", len(body)) + body)
        except OSError as error:
            ours.close()
            raise LaunchError(f"the trial supervisor cannot be reached: {error}") from error
        return ours

    def _send(self, fds: list[int]) -> None:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start_server()
            assert self._requests is not None
            socket.send_fds(self._requests, [b"+"], fds)

    def _start_server(self) -> None:
        self._discard()
        # Packets, so that one receive is one request with its descriptors.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Its own session: a Ctrl-C in the terminal is for the command to handle, not for trials.
            # -S and -I: no site packages, no variables of the worker's environment.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        self._requests = ours

    def _discard(self) -> None:
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            # The server ends when its socket does; the wait reaps it.
            self._process.wait()
        self._requests = self._process = None

    def close(self) -> None:
        """End the server; the next `start` makes a new one."""
        with self._lock:
            self._discard()

    def forget(self) -> None:
        """In a forked child: the server and its socket belong to the parent."""
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            self._process.returncode = 0  # else its destructor warns of a child that is not ours
        self.__init__()  # type: ignore[misc]  # a lock that another thread held stays locked for ever


LAUNCHER = Launcher()
"""The launcher of this process."""

atexit.register(LAUNCHER.close)
os.register_at_fork(after_in_child=LAUNCHER.forget)
