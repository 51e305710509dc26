"""Starts the script of a trial in a process of its own, and ends every process that the script leaves behind.

This file is run as a script, in isolated mode and only with the standard library, so that it starts fast and
brings no threads, Dask or CUDA of the worker into a trial. Each worker process has one *server*, which waits
for requests. For each process of a trial, the server forks one *supervisor*. Forking this small process with
one thread takes about a millisecond; starting a new interpreter would take as long as a short trial.

The supervisor is a child subreaper: every process that the script leaves behind, even a daemon or a process
in another session, becomes a child of the supervisor, which can so find and end it. When the worker dies, for
whatever reason, the control socket is closed, and the supervisor ends the trial.

Protocol on the control socket: the worker sends a length (4 bytes, network order) and a request in JSON, then
the single bytes `A` (abort) and `K` (kill). The supervisor sends one JSON object per line: `started` and then
`exited`, or `failed`.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINGER = 0.2
"""Seconds to wait, after the main process has ended, for other processes to end by themselves. For example,
the resource tracker of multiprocessing frees shared memory only if it is not killed."""
ABORT_LINGER = 2.0
"""Seconds to wait instead of `LINGER` after an abort, because other processes are printing their stacks."""
END_GRACE = 10.0
"""Seconds to wait for killed processes to end. A process that is blocked in a driver may never end."""
ENGINE_LIMIT = 10.0
"""Time limit in seconds for each command of a container engine."""

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def _wakeup() -> int:
    """Return a file descriptor that becomes readable when a child process ends.

    The signal SIGCHLD makes it readable, so `poll` can wait for children.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        pass  # the pipe is empty


def _parents() -> dict[int, int]:
    """Map the id of every process in `/proc` to the id of its parent."""
    parents = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - as cheap as can be, it may run often
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_bytes()
            except OSError:  # it ended between the listing and here
                continue
            # The name of the program, in parentheses, may contain spaces and parentheses itself.
            parents[int(entry)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return parents


def _descendants() -> set[int]:
    """Return the ids of all descendants of the current process."""
    parents = _parents()
    found: set[int] = set()
    frontier = {os.getpid()}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier and pid not in found}
        found |= frontier
    return found


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        # The process has ended, or is a setuid program, which will be counted as a survivor.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class ContainerHold:
    """The supervisor's hold on one container: it can stop and remove the container.

    While this process lives, it holds a lock on a file that the container watches; see `containers/trial.py`.

    Args:
        commands: Purpose (`abort`, `kill`, `state`, `remove`) to a command of the engine, and under `hold`
            the path of the file to lock.
        env: Environment variables of the commands.
    """

    def __init__(self, commands: dict[str, Any], env: dict[str, str]) -> None:
        self._commands = commands
        self._env = env
        # Never closed: the kernel releases the lock when this process ends, for whatever reason.
        self._held = os.open(commands["hold"], os.O_RDONLY)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._is_sure = True
        self.state = ""

    def close(self, *, kill: bool) -> None:
        """Kill the container if `kill` is set, store its final state in `state`, and remove it."""
        if kill:
            # This fails if the engine is still creating the container, or if the container has ended.
            self._is_sure = self.call("kill")[0] == 0
        self.state = self.call("state")[1]
        self._is_sure &= self.call("remove")[0] == 0

    def close_again(self) -> None:
        """Try once more to remove the container, if `close` could not.

        Call this after the engine's client has ended, so that it cannot create the container afterwards.
        """
        if not self._is_sure:
            self.call("remove")

    def call(self, name: str) -> tuple[int | None, str]:
        """Run the engine's command called `name`; return the exit code and the output.

        The exit code is None if the command timed out.
        """
        output = os.memfd_create("answer")
        try:
            done = subprocess.run(
                self._commands[name],
                env=self._env,
                stdin=subprocess.DEVNULL,
                # A file, because a daemon that the engine leaves behind would keep a pipe open.
                stdout=output,
                stderr=subprocess.DEVNULL,
                timeout=ENGINE_LIMIT,
                check=False,
                start_new_session=True,
            )
            os.lseek(output, 0, os.SEEK_SET)
            return done.returncode, os.read(output, 1_000_000).decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            return None, ""  # the engine hangs
        except OSError:  # the engine was uninstalled meanwhile
            return 127, ""
        finally:
            os.close(output)


class Supervisor:
    """A process that starts one process of a trial, and later ends all processes left behind.

    See the docstring of this module.

    Args:
        control: Control socket, connected to the worker.
        stdout: Write end of the pipe for the script's standard output.
        stderr: Write end of the pipe for the script's standard error.
    """

    def __init__(self, control: socket.socket, stdout: int, stderr: int) -> None:
        self.control = control
        self.stdout = stdout
        self.stderr = stderr
        self.main = 0
        self.status: int | None = None
        self.sent: list[str] = []
        self.started, self.ended = 0.0, 0.0
        self.peak = 0
        self.elsewhere: ContainerHold | None = None

    def run(self) -> bool:
        """Start the script that the worker requests, wait for its end, and end all remaining processes.

        Return False if processes are left that survived SIGKILL.
        """
        request = self._read_request()
        self.wakeup = _wakeup()
        _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if request["elsewhere"]:
            self.elsewhere = ContainerHold(request["elsewhere"], request["env"])
        if not self._start(request):
            return True
        reported = self._watch()
        if self.elsewhere is not None:
            self.elsewhere.close(kill=not reported or bool(self.sent))
        elif reported and "K" not in self.sent:
            self._linger(ABORT_LINGER if "A" in self.sent else LINGER)
        left_over, left = self.end_all()
        if self.elsewhere is not None:
            self.elsewhere.close_again()
        if reported:
            self._tell_exit(left_over, left)
        elif request["scratch"]:
            import shutil  # rarely needed, and the server is to start fast

            shutil.rmtree(request["scratch"], ignore_errors=True)
        return left == 0

    def _read_request(self) -> dict[str, Any]:
        (length,) = struct.unpack("!I", self._read_exactly(4))
        request: dict[str, Any] = json.loads(self._read_exactly(length))
        return request

    def _read_exactly(self, length: int) -> bytes:
        data = self.control.recv(length, socket.MSG_WAITALL)
        if len(data) < length:
            raise EOFError("the worker went away before it had sent its request")
        return data

    def tell(self, event: dict[str, Any]) -> None:
        """Send an event to the worker as a line of JSON; do nothing if the worker has died."""
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps(event).encode() + b"\n")

    def _tell_exit(self, left_over: int, unended: int) -> None:
        # Names as in `ExitRecord`.
        self.tell(
            {
                "event": "exited",
                "pid": self.main,
                "returncode": None if self.status is None else os.waitstatus_to_exitcode(self.status),
                "timed_out": "A" in self.sent,
                "killed_by_us": bool(self.sent),
                "duration": (self.ended or time.monotonic()) - self.started,
                "peak": self.peak,
                "left_over": left_over,
                "unended": unended,
                "state": "" if self.elsewhere is None else self.elsewhere.state,
            }
        )

    def _start(self, request: dict[str, Any]) -> bool:
        """Start the script and return True; if that fails, tell the worker the reason and return False."""
        supervisor = os.getpid()
        stage = "setup"
        try:
            # The script inherits both.
            _limit_core(wanted=request["core"])
            if request["cpus"]:
                os.sched_setaffinity(0, request["cpus"])
            stage = "exec"
            self._process = subprocess.Popen(
                request["argv"],
                env=request["env"],
                cwd=request["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=self.stdout,
                stderr=self.stderr,
                start_new_session=True,
                preexec_fn=lambda: _become(supervisor, request["nice"]),
            )
        except OSError as error:
            if stage == "exec" and error.filename == request["cwd"]:
                stage = "chdir"
            self.tell({"event": "failed", "stage": stage, "errno": error.errno})
            return False
        except ValueError:  # a NUL byte in an argument or in the environment
            self.tell({"event": "failed", "stage": stage, "errno": errno.EINVAL})
            return False
        self.started = time.monotonic()
        self.main = self._process.pid
        for fd in (self.stdout, self.stderr):
            os.close(fd)
        self.tell({"event": "started", "pid": self.main, "supervisor": supervisor})
        return True

    def _watch(self) -> bool:
        """Carry out the worker's orders until the main process ends.

        Return True when it has ended or after an order to kill, and False if the worker dies first.
        """
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wakeup, select.POLLIN)
        while True:
            self._reap()
            if self._over():
                return True
            for fd, _ in poll.poll():
                if fd == self.wakeup:
                    _drain(fd)
                    continue
                try:
                    orders = self.control.recv(16)
                except ConnectionResetError:  # the worker died; an orderly end is an empty answer
                    orders = b""
                if not orders:
                    return False
                # Check before each order whether the process has just ended by itself.
                self._reap()
                for order in orders.decode():
                    if not self._over() and self._obey(order):
                        return True

    def _over(self) -> bool:
        return self.status is not None

    def _obey(self, order: str) -> bool:
        """Carry out an order of the worker: `A` (abort) or `K` (kill).

        Return True for a kill: the caller then need not wait for the process any more.
        """
        self.sent.append(order)
        if order == "A":
            if self.elsewhere is not None and self.elsewhere.call("abort")[0] == 0:
                return False
            # Signal the whole group: if a wrapper script was started, the process that hangs is its child. A
            # stopped process handles a signal only after it is continued.
            for number in (signal.SIGABRT, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError):  # the group has ended meanwhile
                    os.killpg(self.main, number)
            return False
        return True

    def _reap(self) -> bool:
        """Collect the exit status of all children that have ended; return False if no children are left."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:  # there is no child
                return False
            if pid == 0:
                return True
            if pid == self.main:
                self.status, self.ended, self.peak = status, time.monotonic(), used.ru_maxrss * 1024

    def _linger(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = 0.001
        while self._reap() and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 2, 0.02)

    def end_all(self) -> tuple[int, int]:
        """Kill and reap all descendants of this process.

        Returns:
            The number of processes, other than the main process, that were still running, and the number that
            survived SIGKILL.
        """
        if not self._reap():
            return 0, 0
        # Stop all processes before killing them: a fork bomb could otherwise create processes faster than
        # they are killed.
        deadline = time.monotonic() + END_GRACE
        stopped: set[int] = set()
        while new := _descendants() - stopped:
            _signal_all(new, signal.SIGSTOP)
            stopped |= new
            if time.monotonic() > deadline:
                break
        left_over = len(stopped - {self.main})
        pause = 0.0005
        while self._reap() and time.monotonic() < deadline:
            _signal_all(_descendants(), signal.SIGKILL)
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return left_over, len(_descendants())


def _become(parent: int, nice: int) -> None:
    """Prepare a forked process to execute the script: set its signals and its niceness.

    Args:
        parent: Process id of the supervisor.
        nice: Amount added to the niceness.
    """
    # The kernel kills this process if the supervisor is killed. This depends on the parent *thread*, so a
    # thread of a worker's pool could not be the parent; the supervisor has only one thread.
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
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
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard if wanted else 0, hard))
    # The limit does not apply if the kernel pipes cores to a program (systemd-coredump, apport). Writing the
    # core of a process of 30 GB takes so long that its crash looks like a hang, so an unwanted core gets no
    # memory mappings. A wanted core gets private memory and the headers of libraries; memory that is shared
    # with a GPU would make it huge. The file does not exist in every container.
    with contextlib.suppress(OSError):
        Path("/proc/self/coredump_filter").write_text("0x11" if wanted else "0")


def serve(requests: socket.socket) -> None:
    """Wait for requests on a socket and fork one supervisor for each, until the worker dies."""
    wakeup = _wakeup()
    # If a supervisor is killed, the processes of its trial become children of this process, not of init.
    _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisors: set[int] = set()
    orphaned = False
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    while True:
        for fd, _ in poll.poll(1000 if orphaned else None):
            if fd == wakeup:
                _drain(fd)
                continue
            message, fds, _, _ = socket.recv_fds(requests, 1, 3)
            if not message:
                _end_last(supervisors)
                return
            for received in fds:
                os.set_inheritable(received, False)  # descriptors from recvmsg would stay open after exec
            pid = os.fork()
            if pid == 0:
                requests.close()
                _supervise(fds)
            supervisors.add(pid)
            for received in fds:
                os.close(received)
        orphaned = _bury(supervisors) or orphaned
        if orphaned:
            orphaned = _end_orphans(supervisors)


def _end_last(supervisors: set[int]) -> None:
    """Wait until all supervisors have ended after the worker's death; kill those that do not end."""
    deadline = time.monotonic() + 2 * END_GRACE
    while supervisors and time.monotonic() < deadline:
        _bury(supervisors)
        time.sleep(0.02)
    _signal_all(supervisors, signal.SIGKILL)
    while (_bury(supervisors) or _end_orphans(supervisors)) and time.monotonic() < deadline + END_GRACE:
        time.sleep(0.02)


def _bury(supervisors: set[int]) -> bool:
    """Remove ended supervisors from the set; return whether one of them failed.

    A supervisor that failed may have left processes behind.
    """
    orphaned = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # there is no child
            return orphaned
        if pid == 0:
            return orphaned
        if pid in supervisors:
            supervisors.remove(pid)
            orphaned = orphaned or status != 0


def _end_orphans(supervisors: set[int]) -> bool:
    """Kill the processes that ended supervisors left behind; return whether there were any."""
    me = os.getpid()
    orphans = {pid for pid, parent in _parents().items() if parent == me} - supervisors
    _signal_all(orphans, signal.SIGKILL)
    return bool(orphans)


def _supervise(fds: list[int]) -> NoReturn:
    control, stdout, stderr = fds
    supervisor = Supervisor(socket.socket(fileno=control), stdout, stderr)
    clean = False
    try:
        clean = supervisor.run()
    except EOFError:
        # The worker died before it had sent its request. Nothing was started, and nobody waits for a result.
        # If trials of that worker are still wanted, its executor reports them as lost.
        clean = True
    except Exception:  # noqa: BLE001
        # This is the outermost frame of the process. The worker reports the error as a fault of the harness,
        # so that it does not count against the script.
        supervisor.tell({"event": "failed", "stage": "supervisor", "text": traceback.format_exc()})
        supervisor.end_all()
    finally:
        os._exit(0 if clean else 1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
