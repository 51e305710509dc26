"""Runs one process of a trial to its end, and ends every process that it leaves behind.

The calling process is the *supervisor* of the trial's process: a child subreaper, so that every process that
the script leaves behind, even a daemon or a process in another session, becomes its child. This is how the
supervisor finds and ends them. Call this module in a process that does nothing else, such as those of
`forks.py`: it changes signal handlers, limits and the CPUs of the whole process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import resource
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_env.containers.trial import ContainerCommands
from bisect_env.trials.classify import ExitRecord
from bisect_env.trials.head_tail import HeadTail
from bisect_env.trials.processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    child_signals,
    clear,
    end_descendants,
    first_child,
    is_stopped,
    oom_kills,
    prctl,
    tree_cpu_seconds,
)

LINGER = 0.2
"""Seconds to wait, after the main process has ended, for other processes to end by themselves. For example,
the resource tracker of multiprocessing frees shared memory only if it is not killed."""
ABORT_LINGER = 2.0
"""Seconds to wait instead of `LINGER` after an abort, because other processes are printing their stacks."""
FIRST_LINGER = 0.5
"""Seconds in which the main process can print its stacks before the rest of its group is aborted."""
ABORT_GRACE = 2.0
"""Seconds between SIGABRT and SIGKILL, in which a hanging process can print its stacks."""
ENGINE_LIMIT = 10.0
"""Time limit in seconds for each command of a container engine."""
CPU_WINDOW = 5.0
"""Seconds before the time limit over which CPU use is measured, to tell a busy loop from a deadlock."""
DRAIN_LIMIT = 8_000_000
"""Maximum number of bytes read from a pipe after the process has ended. It is more than a pipe holds, and it
ends the reading even if a surviving process still writes."""
LONGEST_POLL = 3600.0
"""Maximum seconds of one call of `poll`, whose argument is an integer of 32 bits."""
MAX_DELAY = 4.0
"""Seconds by which the supervisor may be late. If it is later, it was itself stopped, as by SIGSTOP."""


class TrialCancelledError(Exception):
    """An error that is raised when a trial was cancelled.

    All of its processes have been ended, and there is no record of it.
    """


class SupervisorError(Exception):
    """An error that is raised when the script interfered with the process that watches it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A request to run one process of a trial.

    Attributes:
        argv: Program and arguments; the program is a path, absolute or relative to `cwd`.
        env: Environment variables of the process.
        cwd: Working directory of the process.
        timeout: Limit of the run time in seconds.
        output_limit: Maximum number of bytes kept of each of stdout and stderr.
        patterns: Regular expressions to search for in output that is not kept.
        core: Whether the process may write a core file, up to the inherited hard limit.
        cpus: CPUs that the process may use; empty means those of the current process.
        nice: Amount added to the niceness of the process.
        elsewhere: Commands that control the container, if the process is the client of a container engine.
        contained: For a container: function that returns the id, on this host, of the first process in it, or
            None.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    timeout: float
    output_limit: int
    patterns: Sequence[str] = ()
    core: bool = False
    cpus: Sequence[int] = ()
    nice: int = 0
    elsewhere: ContainerCommands | None = None
    contained: Callable[[], int | None] | None = None


class ContainerHold:
    """The supervisor's hold on one container: it can stop and remove the container.

    While this process lives, it holds a lock on a file that the container watches; see `containers/trial.py`.

    Args:
        commands: Commands of the engine, and the file to lock.
        env: Environment variables of the commands.
    """

    def __init__(self, commands: ContainerCommands, env: Mapping[str, str]) -> None:
        self._commands = commands
        self._env = env
        # The kernel releases the lock also when this process ends, for whatever reason.
        self._held = os.open(commands.hold, os.O_RDONLY)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._is_sure = True
        self.state = ""

    def close(self, *, kill: bool) -> None:
        """Kill the container if `kill` is set, store its final state in `state`, and remove it."""
        if kill:
            # This fails if the engine is still creating the container, or if the container has ended.
            self._is_sure = self.call(self._commands.kill)[0] == 0
        self.state = self.call(self._commands.state)[1]
        self._is_sure &= self.call(self._commands.remove)[0] == 0

    def close_again(self) -> None:
        """Try once more to remove the container, if `close` could not.

        Call this after the engine's client has ended, so that it cannot create the container afterwards.
        """
        if not self._is_sure:
            self.call(self._commands.remove)

    def release(self) -> None:
        """Release the lock; a container that still runs then ends by itself."""
        os.close(self._held)

    def abort(self) -> bool:
        """Send SIGABRT to the script in the container, and return whether the engine could do so."""
        return self.call(self._commands.abort)[0] == 0

    def call(self, command: Sequence[str]) -> tuple[int | None, str]:
        """Run a command of the engine, and return its exit code and its output.

        The exit code is None if the command timed out.
        """
        # A file, because a daemon that the engine leaves behind would keep a pipe open.
        with tempfile.TemporaryFile() as output:
            try:
                done = subprocess.run(
                    command,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    timeout=ENGINE_LIMIT,
                    check=False,
                    start_new_session=True,
                )
            except subprocess.TimeoutExpired:
                return None, ""  # the engine hangs
            except OSError:  # the engine was uninstalled meanwhile
                return 127, ""
            output.seek(0)
            return done.returncode, output.read(1_000_000).decode("utf-8", "replace")


def run_process(
    launch: Launch, caller: int, on_deadline: Callable[[int], str] = lambda _pid: ""
) -> ExitRecord:
    """Run a process until it ends, then end all processes that it left behind.

    The function waits only for the process itself, not for descendants that keep its pipes open. When the
    time limit passes, `on_deadline` records the stacks. Then the process, and after it the rest of its
    group, gets SIGABRT, on which `faulthandler` prints the Python stacks, and two seconds later SIGKILL.

    Args:
        launch: What to run.
        caller: Descriptor that becomes readable when the trial is cancelled, or when nobody waits for it any
            more.
        on_deadline: Function that returns the stacks of a process id; called before the process is aborted.

    Returns:
        What was observed of the process.

    Raises:
        TrialCancelledError: The trial was cancelled; all processes have been ended.
        SupervisorError: This process was stopped meanwhile.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with child_signals() as child_ended:
        supervision = _Supervision(launch, on_deadline)
        try:
            failed = supervision.start((caller, child_ended))
            if failed is not None:
                return failed
            supervision.watch()
        finally:
            supervision.close()
    return supervision.record()


class _Supervision:
    """The state of a process that `run_process` has started and watches.

    Args:
        launch: What to run.
        on_deadline: Function that returns the stacks of a process id; called when the time limit has passed.
    """

    def __init__(self, launch: Launch, on_deadline: Callable[[int], str]) -> None:
        self._launch = launch
        self._on_deadline = on_deadline
        # First, because it can fail.
        self._hold = None if launch.elsewhere is None else ContainerHold(launch.elsewhere, launch.env)
        self._pipes = [os.pipe() for _ in range(2)]
        self._streams = {r: HeadTail(launch.output_limit, launch.patterns) for r, _ in self._pipes}
        self._poll = select.poll()
        self._main = 0
        self._status: int | None = None
        self._started, self._ended = 0.0, 0.0
        self._peak = 0
        self._kills_before = 0
        self._sampled: tuple[float, float] | None = None
        self._cpu_rate: float | None = None
        self._stopped = False
        self._stacks = ""
        self._aborted_at: float | None = None
        self._signalled = self._cancelled = False
        self._left_over, self._unended = 0, 0

    def start(self, sources: tuple[int, int]) -> ExitRecord | None:
        """Start the process. If that fails, return an exit record that states the reason, else None.

        Args:
            sources: Descriptors of the caller and of `child_signals`, for which to wait beside the output.
        """
        self._caller, self._child_ended = sources
        launch = self._launch
        self._kills_before = oom_kills()
        stage = "setup"
        cpus = os.sched_getaffinity(0)
        try:
            # The script inherits both.
            _limit_core(wanted=launch.core)
            os.sched_setaffinity(0, launch.cpus or cpus)
            stage = "exec"
            supervisor = os.getpid()
            # Referenced until the end, because subprocess would otherwise wait for the process, too.
            self._process = subprocess.Popen(
                launch.argv,
                env=launch.env,
                cwd=launch.cwd,
                stdin=subprocess.DEVNULL,
                stdout=self._pipes[0][1],
                stderr=self._pipes[1][1],
                start_new_session=True,
                preexec_fn=lambda: before_exec(supervisor, launch.nice),
            )
        except OSError as error:
            if stage == "exec" and str(error.filename) == str(launch.cwd):
                stage = "chdir"
            return ExitRecord(returncode=None, stage=stage, errno=error.errno or 0)
        except ValueError:  # a NUL byte in an argument or in the environment
            return ExitRecord(returncode=None, stage=stage, errno=errno.EINVAL)
        finally:
            os.sched_setaffinity(0, cpus)
            for _, writer in self._pipes:
                os.close(writer)
        self._started = time.monotonic()
        self._main = self._process.pid
        for reader in self._streams:
            os.set_blocking(reader, False)
        for fd in (*sources, *self._streams):
            self._poll.register(fd, select.POLLIN)
        return None

    def watch(self) -> None:
        """Wait until the process ends or must be killed, and end all processes that are left.

        Raises:
            TrialCancelledError: The trial was cancelled.
            SupervisorError: This process was stopped meanwhile.
        """
        try:
            self._wait()
        finally:
            has_ended = self._status is not None
            if self._hold is not None:
                self._hold.close(kill=self._signalled or not has_ended)
            elif has_ended:
                self._linger(ABORT_LINGER if self._signalled else LINGER)
            self._left_over, self._unended = end_descendants(self._main, self._reap)
            if self._hold is not None:
                self._hold.close_again()
        if self._cancelled:
            raise TrialCancelledError
        for reader, stream in self._streams.items():
            _drain(reader, stream)

    def _wait(self) -> None:
        launch = self._launch
        deadline = self._started + launch.timeout
        sample_at = deadline - min(CPU_WINDOW, launch.timeout / 2)
        while True:
            self._reap()
            now = time.monotonic()
            if self._status is not None:
                return
            if self._aborted_at is not None:
                until = self._aborted_at + ABORT_GRACE
                if now >= until:
                    return
            elif now >= deadline:
                self._abort()
                continue
            elif self._sampled is None and now >= sample_at:
                self._sampled = (now, self._cpu_seconds())
                continue
            else:
                until = deadline if self._sampled is not None else sample_at
            self._pump(until - now)
            if self._cancelled:
                return
            if time.monotonic() > until + MAX_DELAY:
                raise SupervisorError(
                    "the trial's supervisor was stopped; does the script stop its parent processes?"
                )

    def _pump(self, seconds: float) -> None:
        """Read output for at most `seconds`, or until a child process ends or the trial is cancelled."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for fd, _ in self._poll.poll(math.ceil(1000 * min(left, LONGEST_POLL))):
                if fd == self._child_ended:
                    clear(fd)
                    deadline = 0.0
                elif fd == self._caller:
                    self._cancelled = True
                    self._poll.unregister(fd)
                    deadline = 0.0
                elif not _read(fd, self._streams[fd]):
                    self._poll.unregister(fd)

    def _abort(self) -> None:
        """Record the stacks of a process that has reached its time limit, and tell it to end."""
        launch = self._launch
        if self._sampled is not None:
            then, used = self._sampled
            self._cpu_rate = (self._cpu_seconds() - used) / (time.monotonic() - then)
        pid = self._main if launch.contained is None else first_child(launch.contained())
        if pid is not None:
            self._stopped = is_stopped(pid)
            self._stacks = self._on_deadline(pid)
        self._aborted_at = time.monotonic()
        self._reap()
        if self._status is not None:
            return  # it has ended by itself meanwhile
        self._signalled = True
        if self._hold is not None and self._hold.abort():
            return
        # Signal the whole group: if a wrapper script was started, the process that hangs is its child.
        # The main process is first, so that its stack is the first in the output, not mixed with others.
        self._signal(os.kill)
        deadline = time.monotonic() + FIRST_LINGER
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, self._main, ended) is None and time.monotonic() < deadline:
            self._pump(deadline - time.monotonic())
        self._signal(os.killpg)

    def _signal(self, send: Callable[[int, int], None]) -> None:
        # A stopped process handles a signal only after it is continued.
        for number in (signal.SIGABRT, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):  # the group has ended meanwhile
                send(self._main, number)

    def _cpu_seconds(self) -> float:
        # The processes of a container need not be descendants of the engine's client.
        top = os.getpid() if self._launch.contained is None else self._launch.contained()
        return 0.0 if top is None else tree_cpu_seconds(top)

    def _reap(self) -> bool:
        """Collect the exit status of all children that have ended; return False if no children are left."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:  # there is no child
                return False
            if pid == 0:
                return True
            if pid == self._main:
                self._status, self._ended, self._peak = status, time.monotonic(), used.ru_maxrss * 1024

    def _linger(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._reap() and (left := deadline - time.monotonic()) > 0:
            self._pump(left)

    def close(self) -> None:
        """Close the pipes of the process's output, and release the container."""
        for reader in self._streams:
            os.close(reader)
        if self._hold is not None:
            self._hold.release()

    def record(self) -> ExitRecord:
        """Return what was observed of the process after it has ended."""
        stdout, stderr = (stream.text() for stream in self._streams.values())
        matched_in_gap = {one for stream in self._streams.values() for one in stream.found}
        return ExitRecord(
            returncode=None if self._status is None else os.waitstatus_to_exitcode(self._status),
            timed_out=self._signalled,
            killed_by_us=self._signalled,
            stopped=self._stopped,
            cpu_rate=self._cpu_rate,
            oom_kills=oom_kills() - self._kills_before,
            left_over=self._left_over,
            unended=self._unended,
            duration=(self._ended or time.monotonic()) - self._started,
            peak=self._peak,
            stdout=stdout,
            stderr=stderr,
            stacks=self._stacks,
            matched_in_gap=tuple(sorted(matched_in_gap)),
            pid=self._main,
            state="" if self._hold is None else self._hold.state,
        )


def _read(fd: int, sink: HeadTail) -> int:
    """Read once from pipe `fd`, add the bytes to `sink`, and return their number (0 at the end)."""
    data = os.read(fd, 65536)
    sink.add(data)
    return len(data)


def _drain(fd: int, sink: HeadTail) -> None:
    left = DRAIN_LIMIT
    # The pipe blocks if a process that even SIGKILL could not end still holds it.
    with contextlib.suppress(BlockingIOError):
        while left > 0 and (count := _read(fd, sink)):
            left -= count


def before_exec(parent: int, nice: int = 0) -> None:
    """Prepare a forked process to execute a program: set its signals and its niceness.

    Args:
        parent: Process id of the supervisor; if it is killed, the kernel kills the new process, too.
        nice: Amount added to the niceness.
    """
    # This depends on the parent *thread*, so a thread of a worker's pool could not be the parent.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # The C library reserves some real-time signals.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.nice(nice)


def _limit_core(*, wanted: bool) -> None:
    # Sandboxes may refuse it. Then the script has the limit of this command.
    with contextlib.suppress(OSError):
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard if wanted else 0, hard))
    # The limit does not apply if the kernel pipes cores to a program (systemd-coredump, apport). Writing the
    # core of a process of 30 GB takes so long that its crash looks like a hang, so an unwanted core gets no
    # memory mappings. A wanted core gets private memory and the headers of libraries; memory that is shared
    # with a GPU would make it huge. The file does not exist in every container.
    with contextlib.suppress(OSError):
        Path("/proc/self/coredump_filter").write_text("0x11" if wanted else "0")
