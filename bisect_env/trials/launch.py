"""Runs one process of a trial until it ends or is ended, and says what was seen."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bisect_env.containers.trial import ContainerCommands
from bisect_env.trials.classify import ExitRecord

# --------------------------------------------------------------------------------------------------
# Keeping the telling part of an output of any length: its beginning and, above all, its end.

HEAD_SHARE = 4
"""One part in so many is kept from the beginning; stacks and last words are at the end."""


class HeadTail:
    """The beginning and the end of a stream, limited to a total number of bytes."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // HEAD_SHARE
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        """Append the next piece of the stream."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._tail_limit:
            self._tail_size -= len(self._tail.popleft())

    def text(self) -> str:
        """Return the bytes that were kept, decoded, with a line that says how many are missing, if any.

        Invalid UTF-8 and NUL, which no database stores as text, become replacement characters.
        """
        tail = b"".join(self._tail)
        tail = tail[max(0, len(tail) - self._tail_limit) :]
        missing = self.total - len(self._head) - len(tail)
        gap = f"\n[… {missing} bytes left out …]\n".encode() if missing else b""
        return (bytes(self._head) + gap + tail).decode("utf-8", "replace").replace("\0", "\ufffd")


# --------------------------------------------------------------------------------------------------
# What the host can say about a trial: memory kills that the kernel counted, CPU time of a process tree.

_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> int:
    """Return how often the kernel has killed for lack of memory in this process's memory cgroup.

    The root cgroup has no such counter; there the host's counter is returned. Only differences are
    meaningful.

    Args:
        root: Directory that holds `proc` and `sys`; tests pass a copy.

    Returns:
        The counter; 0 if the host has none.
    """
    for path in (*_cgroup_counters(root), f"{root}/proc/vmstat"):
        try:
            match = _OOM_KILL.search(Path(path).read_text("utf-8", "replace"))
        except OSError:  # another cgroup version, or hidden in a container
            continue
        if match:
            return int(match[1])
    return 0


def _cgroup_counters(root: Path) -> tuple[str, ...]:
    """Return the files that count memory kills in this process's cgroups."""
    try:
        lines = Path(f"{root}/proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ()
    paths = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            paths.append(f"{root}/sys/fs/cgroup/{path.lstrip('/')}/memory.events")
        elif "memory" in controllers.split(","):
            paths.append(f"{root}/sys/fs/cgroup/memory/{path.lstrip('/')}/memory.oom_control")
    return tuple(paths)


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds, user and system, that the living processes below `pid` have used."""
    total = 0.0
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return 0.0
    for process in children:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def first_child(pid: int | None) -> int | None:
    """Return the oldest living child of a process; None when there is none."""
    try:
        children = psutil.Process(pid).children() if pid else []
        return min(children, key=lambda child: child.create_time()).pid if children else None
    except psutil.Error:
        return None


# --------------------------------------------------------------------------------------------------
# This process's side of the supervisor: one server, started when first needed, shared by all threads.

SUPERVISOR = Path(__file__).with_name("supervisor.py")


END_GRACE = 3.0
"""Seconds that a server gets to end; it then goes on ending trials without being waited for."""


class LaunchError(Exception):
    """An error of ours: a process could not be started, or its supervisor was lost."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A request to a supervisor to start a process.

    Attributes:
        argv: `argv[0]` is a path, absolute or relative to `cwd`.
        core: Whether a core file may be written (the limit itself is inherited).
        cpus: CPUs that the process may use; empty means those of this process.
        nice: Amount added to its niceness.
        scratch: Directory that the supervisor removes if this process dies.
        elsewhere: The container, if the process is only the client of an engine.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    core: bool = False
    cpus: Sequence[int] = ()
    nice: int = 0
    scratch: Path | None = None
    elsewhere: ContainerCommands | None = None


class Launcher:
    """A starter of supervisors, safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def start(self, launch: Launch, stdout: int, stderr: int) -> socket.socket:
        """Start a process with the given write ends as its output; the caller closes its own copies.

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
            "elsewhere": None if launch.elsewhere is None else launch.elsewhere.as_json(),
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
            if self.process is None or self.process.poll() is not None:
                self._start_server()
            assert self._requests is not None
            socket.send_fds(self._requests, [b"+"], fds)

    def prepare(self) -> None:
        """Start the server before it is needed; errors are reported by the first `start`."""
        with self._lock, contextlib.suppress(OSError):
            if self.process is None:
                self._start_server()

    def _start_server(self) -> None:
        self._discard()
        # Packets, so that one receive is one request with its descriptors.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Its own session: a Ctrl-C in the terminal is for the command to handle, not for trials.
            # -S and -I: no site packages, no variables of the worker's environment.
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        self._requests = ours

    def _wake(self) -> None:
        """Continue the server, in case a script has stopped it as well."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def _discard(self) -> None:
        if self._requests is not None:
            self._requests.close()
        if self.process is not None:
            self._wake()
            # The server ends when its socket does and the last trial has ended; the wait reaps it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_GRACE)
        self._requests = self.process = None

    def kill(self, supervisor: int | None) -> None:
        """Kill a supervisor that does not answer; its command ends with it, and the server ends the rest.

        Args:
            supervisor: Its process id, None if none was started.
        """
        with self._lock:
            if supervisor is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGKILL)
            self._wake()

    def close(self) -> None:
        """End the server; the next `start` makes a new one."""
        with self._lock:
            self._discard()

    def forget(self) -> None:
        """Close this forked child's copies of the server's handles, which belong to the parent."""
        if self._requests is not None:
            self._requests.close()
        if self.process is not None:
            self.process.returncode = 0  # else its destructor warns of a child that is not ours
        self.__init__()  # type: ignore[misc]  # a lock that another thread held stays locked for ever


LAUNCHER = Launcher()
"""The launcher of this process."""

atexit.register(LAUNCHER.close)
os.register_at_fork(after_in_child=LAUNCHER.forget)


# --------------------------------------------------------------------------------------------------
# Run one process to its end, by itself or by our hand, and say what was seen.

TICK = 0.1
"""Seconds between two looks at the cancel flag."""
ABORT_GRACE = 2.0
"""Seconds that a hanging process gets to print its stacks."""
KILL_GRACE = 15.0
"""Seconds after which a supervisor that does not answer is given up; longer than its own patience."""
ENGINE_GRACE = 40.0
"""The same where it has to have a container engine answer first, four times at most."""
CPU_WINDOW = 5.0
"""Seconds before the deadline over which CPU use tells a busy loop from a deadlock."""
DRAIN_LIMIT = 8_000_000
"""Bytes read at most after the end: more than any pipe holds, yet an end even if someone still writes."""


class TrialCancelledError(Exception):
    """An error raised when a trial was cancelled: its processes have ended, and it has no record."""


@dataclass
class _Process:
    """A running process: the state that the loop of `run_process` updates."""

    control: socket.socket
    streams: dict[int, HeadTail]
    timeout: float
    on_deadline: Callable[[int], str]
    contained: Callable[[], int | None] | None = None
    started: float = field(default_factory=time.monotonic)
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    pending: bytes = b""
    sampled: tuple[float, float] | None = None
    cpu_rate: float | None = None
    stacks: str = ""
    aborted_at: float | None = None
    killed_at: float | None = None
    cancelled: bool = False

    def act(self, cancelled: Callable[[], bool]) -> None:
        """Kill or abort the process if it was cancelled or a deadline has passed."""
        now = time.monotonic()
        if self.killed_at is not None:
            if now > self.killed_at + KILL_GRACE + (ENGINE_GRACE if self.contained else 0.0):
                LAUNCHER.kill(self.events.get("started", {}).get("supervisor"))
                raise LaunchError("the trial's supervisor did not answer after the trial was killed")
            return
        if cancelled():
            self.cancelled = True
            self._kill(now)
        elif self.aborted_at is not None:
            if now > self.aborted_at + ABORT_GRACE:
                self._kill(now)
        elif now > self.started + self.timeout:
            self._abort()
        elif self.sampled is None and now > self.started + self.timeout - min(CPU_WINDOW, self.timeout / 2):
            self.sampled = (now, self._cpu_seconds())

    def _abort(self) -> None:
        now = time.monotonic()
        if self.sampled is not None:
            then, used = self.sampled
            self.cpu_rate = (self._cpu_seconds() - used) / (now - then)
        pid = self.events.get("started", {}).get("pid")
        if self.contained is not None:
            pid = first_child(self.contained())
        if pid is not None:
            self.stacks = self.on_deadline(pid)
        self._order(b"A")
        self.aborted_at = time.monotonic()

    def _kill(self, now: float) -> None:
        self._order(b"K")
        self.killed_at = now

    def _order(self, letter: bytes) -> None:
        # When it has just ended by itself, its last words are still to be read.
        with contextlib.suppress(OSError):
            self.control.send(letter)

    def _cpu_seconds(self) -> float:
        # A container's processes need not be below its client.
        top = self.contained() if self.contained else self.events.get("started", {}).get("supervisor")
        return 0.0 if top is None else tree_cpu_seconds(top)

    def receive(self) -> bool:
        """Read the supervisor's messages; return true if it will send no more."""
        data = self.control.recv(65536)
        if not data:
            if "exited" not in self.events and "failed" not in self.events:
                raise LaunchError("the trial's supervisor died")
            return True
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self.events[event["event"]] = event
        return "exited" in self.events or "failed" in self.events


def run_process(
    launch: Launch,
    *,
    timeout: float,
    output_limit: int,
    cancelled: Callable[[], bool] = lambda: False,
    on_deadline: Callable[[int], str] = lambda _pid: "",
    contained: Callable[[], int | None] | None = None,
) -> ExitRecord:
    """Start a process, wait until it ends, and end all processes that it left behind.

    Only the end of the process itself counts: a daemonised grandchild that keeps its pipes open delays
    nothing. When the deadline passes, the stacks are recorded, the group gets SIGABRT (on which
    faulthandler prints every Python stack), and two seconds later SIGKILL.

    Args:
        launch: What to start.
        timeout: Wall-clock limit in seconds.
        output_limit: Bytes kept of each of stdout and stderr.
        cancelled: Called ten times a second; returns whether to cancel.
        on_deadline: Called with the process's id before it is aborted; its text is kept as the stacks.
        contained: For a container: finds the first process in it, by its id on this host.

    Raises:
        TrialCancelledError: `cancelled` returned true; every process is ended.
        LaunchError: A failure of ours.
    """
    kills_before = oom_kills()
    pipes = [os.pipe() for _ in range(2)]
    readers = [reader for reader, _ in pipes]
    try:
        try:
            control = LAUNCHER.start(launch, pipes[0][1], pipes[1][1])
        finally:
            for _, writer in pipes:
                os.close(writer)
        streams = {reader: HeadTail(output_limit) for reader in readers}
        with control:
            watch = _Process(control, streams, timeout, on_deadline, contained)
            _pump(watch, cancelled)
        for reader in readers:
            _drain(reader, streams[reader])
    finally:
        for reader in readers:
            os.close(reader)
    if watch.cancelled:
        raise TrialCancelledError
    return _exit_record(watch, [streams[reader].text() for reader in readers], oom_kills() - kills_before)


def _pump(watch: _Process, cancelled: Callable[[], bool]) -> None:
    # Not epoll, where each of these takes a system call, and each of those a turn of the thread.
    with selectors.PollSelector() as selector:
        selector.register(watch.control, selectors.EVENT_READ)
        for reader in watch.streams:
            os.set_blocking(reader, False)
            selector.register(reader, selectors.EVENT_READ)
        while True:
            watch.act(cancelled)
            over = False
            for key, _ in selector.select(TICK):
                if key.fileobj is watch.control:
                    over = watch.receive()
                elif not _read(key.fd, watch.streams[key.fd]):
                    selector.unregister(key.fd)
            if over:
                return


def _read(fd: int, sink: HeadTail) -> int:
    """Read from a pipe and return the number of bytes, 0 at its end."""
    data = os.read(fd, 65536)
    sink.add(data)
    return len(data)


def _drain(fd: int, sink: HeadTail) -> None:
    left = DRAIN_LIMIT
    try:
        while left > 0 and (count := _read(fd, sink)):
            left -= count
    except BlockingIOError:  # a process that even SIGKILL could not end still holds the pipe
        pass


def _exit_record(watch: _Process, output: list[str], kills: int) -> ExitRecord:
    stdout, stderr = output
    failed = watch.events.get("failed")
    if failed is not None:
        if "text" in failed:
            raise LaunchError(f"the trial's supervisor failed:\n{failed['text']}")
        return ExitRecord(returncode=None, stage=failed["stage"], errno=failed["errno"])
    exited = watch.events["exited"]
    return ExitRecord(
        returncode=exited["returncode"],
        timed_out="A" in exited["sent"],
        killed_by_us=bool(exited["sent"]),
        cpu_rate=watch.cpu_rate,
        oom_kills=kills,
        left_over=exited["left_over"],
        unended=exited["left"],
        duration=exited["wall"],
        peak=exited["peak"],
        stdout=stdout,
        stderr=stderr,
        stacks=watch.stacks,
        pid=watch.events["started"]["pid"],
        state=exited["state"],
    )
