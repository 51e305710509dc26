"""Run one process to its end, by itself or by our hand, and say what was seen."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bisect_env.trials.capture import HeadTail
from bisect_env.trials.exit_record import ExitRecord
from bisect_env.trials.host import first_child, oom_kills, tree_cpu_seconds
from bisect_env.trials.launcher import LAUNCHER, Launch, LaunchError

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
    """The trial was cancelled and its processes are ended; it has no record."""


@dataclass
class _Watch:
    """One process under way: the state that the loop of `run_process` moves."""

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
        """Do what the clock or the cancel flag asks for."""
        now = time.monotonic()
        if self.killed_at is not None:
            if now > self.killed_at + KILL_GRACE + (ENGINE_GRACE if self.contained else 0.0):
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

    def hear(self) -> bool:
        """Read the supervisor's messages; True when there will be no more."""
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
    """Start a process, wait for it and for nothing else, and end all it left behind.

    Its end is the end of the process itself, not of its pipes: a daemonised grandchild that keeps them open
    makes nobody wait. When the deadline passes, the stacks are taken, the group gets SIGABRT (on which
    faulthandler prints every Python stack), and two seconds later SIGKILL.

    Args:
        launch: What to start.
        timeout: Wall-clock limit in seconds.
        output_limit: Bytes kept of each of stdout and stderr.
        cancelled: Looked at ten times a second.
        on_deadline: Called with the process's id before it is aborted; its text is kept as the stacks.
        contained: For a container: finds the first process in it, by its id on this host.

    Raises:
        TrialCancelledError: `cancelled` said so; every process is ended.
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
            watch = _Watch(control, streams, timeout, on_deadline, contained)
            _pump(watch, cancelled)
        for reader in readers:
            _drain(reader, streams[reader])
    finally:
        for reader in readers:
            os.close(reader)
    if watch.cancelled:
        raise TrialCancelledError
    return _exit_record(watch, [streams[reader].text() for reader in readers], oom_kills() - kills_before)


def _pump(watch: _Watch, cancelled: Callable[[], bool]) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(watch.control, selectors.EVENT_READ)
        for reader in watch.streams:
            os.set_blocking(reader, False)
            selector.register(reader, selectors.EVENT_READ)
        while True:
            watch.act(cancelled)
            over = False
            for key, _ in selector.select(TICK):
                if key.fileobj is watch.control:
                    over = watch.hear()
                elif not _read(key.fd, watch.streams[key.fd]):
                    selector.unregister(key.fd)
            if over:
                return


def _read(fd: int, sink: HeadTail) -> int:
    """Bytes taken from a pipe; 0 at its end."""
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


def _exit_record(watch: _Watch, output: list[str], kills: int) -> ExitRecord:
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
        strays=exited["strays"],
        unended=exited["left"],
        duration=exited["wall"],
        peak=exited["peak"],
        stdout=stdout,
        stderr=stderr,
        stacks=watch.stacks,
        pid=watch.events["started"]["pid"],
        state=exited["state"],
    )
