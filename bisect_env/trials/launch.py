"""Runs one process of a trial through a supervisor, and returns what was observed as an `ExitRecord`.

The *supervisor* (see `supervisor.py`) is a small process between the worker and the script; it ends every
process that the script leaves behind.
"""

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bisect_env.containers.trial import ContainerCommands
from bisect_env.secrets import left_out
from bisect_env.trials.classify import ExitRecord

# --------------------------------------------------------------------------------------------------
# The beginning and the end of an output of any length, kept within a limit.

HEAD_SHARE = 4
"""The kept part of an output has 1/4 from its beginning; the rest is its end, where stacks and errors are."""


class HeadTail:
    """A buffer that keeps the beginning and the end of a stream, up to a total number of bytes."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // HEAD_SHARE
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Append the next piece of the stream."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Trim seldom, because each time the kept bytes are moved.
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: len(self._tail) - self._tail_limit]

    def text(self) -> str:
        """Return the kept bytes as text.

        If bytes are missing, a line in the middle states how many. Invalid UTF-8 becomes replacement
        characters, and so does NUL, which databases cannot store in text.
        """
        tail = bytes(self._tail[max(0, len(self._tail) - self._tail_limit) :])
        missing = self.total - len(self._head) - len(tail)
        gap = left_out(missing).encode() if missing else b""
        return (bytes(self._head) + gap + tail).decode("utf-8", "replace").replace("\0", "\ufffd")


# --------------------------------------------------------------------------------------------------
# Measurements of a trial on this host: kills for lack of memory, and the CPU time of a process tree.

_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes in this process's cgroup the kernel has killed for lack of memory.

    In the root cgroup, which has no counter, the kills on the whole host are returned. The counter starts at
    an arbitrary time, so compare two readings.

    Args:
        root: Directory that contains `proc` and `sys`; tests pass a copy.

    Returns:
        The number of kills; 0 if there is no counter.
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
    """Return the paths of the files that count kills for lack of memory in the cgroups of this process."""
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
    """Return the CPU time in seconds (user and system) that all living descendants of `pid` have used.

    Return 0.0 if the process `pid` does not exist.
    """
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
    """Return the id of the oldest living child of process `pid`; None if `pid` is None or has no child."""
    try:
        children = psutil.Process(pid).children() if pid else []
        return min(children, key=lambda child: child.create_time()).pid if children else None
    except psutil.Error:
        return None


# --------------------------------------------------------------------------------------------------
# The client of the supervisor server. The server is started when first needed and shared by all threads.

SUPERVISOR = Path(__file__).with_name("supervisor.py")


END_GRACE = 3.0
"""Seconds to wait for the server to end. After that it continues to end its trials in the background."""


class LaunchError(Exception):
    """An error that is raised when a process could not be started or its supervisor was lost."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A request to start one process of a trial, which `Launcher.start` sends to a supervisor.

    Attributes:
        argv: Program and arguments; the program is a path, absolute or relative to `cwd`.
        env: Environment variables of the process.
        cwd: Working directory of the process.
        core: Whether the process may write a core file, up to the inherited hard limit.
        cpus: CPUs that the process may use; empty means those of the current process.
        nice: Amount added to the niceness of the process.
        scratch: Directory that the supervisor removes if the current process dies before the trial ends.
        elsewhere: Commands that control the container, if the process is the client of a container engine.
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
    """A client of the supervisor server, which is a separate process that starts all trials.

    It is safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def start(self, launch: Launch, stdout: int, stderr: int) -> socket.socket:
        """Start a process under a new supervisor.

        Args:
            launch: What to start.
            stdout: Write end of a pipe for standard output. The caller must close its own copy.
            stderr: Write end of a pipe for standard error. The caller must close its own copy.

        Returns:
            The control socket of the supervisor. When it is closed, or when the current process dies, the
            supervisor ends everything that the process started.

        Raises:
            LaunchError: The server could not be started or reached.
        """
        body = json.dumps(asdict(launch), default=str).encode()  # `str` for paths
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
        """Start the server before it is first needed.

        An error is ignored here; the first `start` will report it.
        """
        with self._lock, contextlib.suppress(OSError):
            if self.process is None:
                self._start_server()

    def _start_server(self) -> None:
        self._discard()
        # Packets, so that one receive is one request with its descriptors.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # The server gets its own session, so that Ctrl-C in the terminal reaches only the command.
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
        """Send SIGCONT to the server, in case a script has stopped it with SIGSTOP."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def _discard(self) -> None:
        if self._requests is not None:
            self._requests.close()
        if self.process is not None:
            self._wake()
            # The server ends after its socket is closed and the last trial has ended; `wait` reaps it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_GRACE)
        self._requests = self.process = None

    def kill(self, supervisor: int | None) -> None:
        """Kill a supervisor that does not answer.

        Its script is killed with it by the kernel; the server kills the remaining processes.

        Args:
            supervisor: Process id of the supervisor; None if it is not known.
        """
        with self._lock:
            if supervisor is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGKILL)
            self._wake()

    def close(self) -> None:
        """End the server. The next call of `start` starts a new one."""
        with self._lock:
            self._discard()


LAUNCHER = Launcher()
"""The launcher of this process."""

atexit.register(LAUNCHER.close)


# --------------------------------------------------------------------------------------------------
# Running one process until it ends or is killed, and recording what was observed.

TICK = 0.1
"""Seconds between two checks whether the trial was cancelled or its time limit has passed."""
ABORT_GRACE = 2.0
"""Seconds between SIGABRT and SIGKILL, in which a hanging process can print its stacks."""
KILL_GRACE = 15.0
"""Seconds to wait for a supervisor after ordering a kill; longer than it waits for killed processes."""
ENGINE_GRACE = 40.0
"""Additional seconds for the supervisor of a container, which may run up to four commands of the engine."""
CPU_WINDOW = 5.0
"""Seconds before the time limit over which CPU use is measured, to tell a busy loop from a deadlock."""
DRAIN_LIMIT = 8_000_000
"""Maximum number of bytes read from a pipe after the process has ended. It is more than a pipe holds, and it
ends the reading even if a surviving process still writes."""


class TrialCancelledError(Exception):
    """An error that is raised when a trial was cancelled.

    All of its processes have been ended, and there is no record of it.
    """


@dataclass
class _Process:
    """The state of a process that `run_process` has started and watches.

    Attributes:
        control: Control socket of the supervisor.
        streams: Read end of each output pipe to the output kept so far.
        timeout: Limit of the run time in seconds.
        on_deadline: Function that returns the stacks of a process id; called when the time limit has passed.
        contained: For a container: function that returns the id of the first process in it, else None.
        started: Time of the start, by the monotonic clock.
        events: Messages of the supervisor, by name (`started`, `exited`, `failed`).
        pending: Incomplete last line of the supervisor's messages.
        sampled: Time and CPU seconds at the beginning of the CPU measurement; None before it.
        cpu_rate: Average number of CPUs in use just before the time limit; None if not measured.
        stacks: Stacks that `on_deadline` returned.
        aborted_at: Time when the abort was ordered; None before.
        killed_at: Time when the kill was ordered; None before.
        cancelled: Whether the trial was cancelled.
    """

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
        """Abort or kill the process if the trial was cancelled or its time limit has passed.

        Raises:
            LaunchError: The supervisor did not answer after the kill was ordered.
        """
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
        # If the process has just ended by itself, sending fails, but its last output is still to be read.
        with contextlib.suppress(OSError):
            self.control.send(letter)

    def _cpu_seconds(self) -> float:
        # The processes of a container need not be descendants of the engine's client.
        top = self.contained() if self.contained else self.events.get("started", {}).get("supervisor")
        return 0.0 if top is None else tree_cpu_seconds(top)

    def receive(self) -> bool:
        """Read messages of the supervisor into `events`; return whether the last message has arrived.

        Raises:
            LaunchError: The supervisor died.
        """
        data = self.control.recv(65536)
        if not data:
            if "exited" not in self.events and "failed" not in self.events:
                raise LaunchError(
                    "the trial's supervisor was killed; does the script kill its parent processes?"
                )
            return True
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self.events[event.pop("event")] = event
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
    """Run a process until it ends, then end all processes that it left behind.

    The function waits only for the process itself, not for descendants that keep its pipes open. When the
    time limit passes, `on_deadline` records the stacks. Then the process group gets SIGABRT, on which
    `faulthandler` prints the Python stacks, and two seconds later SIGKILL.

    Args:
        launch: What to start.
        timeout: Limit of the run time in seconds.
        output_limit: Maximum number of bytes kept of each of stdout and stderr.
        cancelled: Function that returns whether to cancel; called ten times a second.
        on_deadline: Function that returns the stacks of a process id; called before the process is aborted.
        contained: For a container: function that returns the id, on this host, of the first process in it, or
            None.

    Returns:
        What was observed of the process.

    Raises:
        TrialCancelledError: `cancelled` returned True; all processes have been ended.
        LaunchError: The process could not be started, or its supervisor was lost.
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
    # `epoll` would be slower here: registering each descriptor would take a system call.
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
    """Read once from pipe `fd`, add the bytes to `sink`, and return their number (0 at the end)."""
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
        return ExitRecord(returncode=None, **failed)
    return ExitRecord(
        **watch.events["exited"],
        cpu_rate=watch.cpu_rate,
        oom_kills=kills,
        stdout=stdout,
        stderr=stderr,
        stacks=watch.stacks,
    )
