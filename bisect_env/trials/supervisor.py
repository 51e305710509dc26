"""The process between a worker and a trial: it starts the trial and ends everything that it leaves behind.

Run as a script by path, in isolated mode, with nothing but the standard library: it must start fast and
never carry the worker's threads, Dask or CUDA into a trial. One *server* per worker process waits for
requests and forks one *supervisor* for each process of a trial; forking this small single-threaded
process costs about a millisecond, a new interpreter would cost as much as a short trial itself.

The supervisor is a child subreaper: whatever the script leaves behind, daemonised or in another session,
becomes a child of the supervisor and can be found without guessing whose it is. Its control socket ends
when the worker dies, however it dies, and that ends the trial.

Protocol on the control socket. In: a length (4 bytes, network order) and a JSON request, then single
bytes `A` (abort) and `K` (kill). Out: one JSON object a line, `started` then `exited`,
or `failed`.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINGER = 0.2
"""Seconds in which what outlives the main process may end by itself: multiprocessing's resource tracker
gives back shared memory only if it is not killed first."""
ABORT_LINGER = 2.0
"""The same after an abort: grandchildren are printing their stacks."""
END_GRACE = 10.0
"""Seconds to wait for killed processes to go; one that a driver holds may never."""
ENGINE_LIMIT = 10.0
"""Seconds for each command of a container engine."""

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def _wakeup() -> int:
    """Return a descriptor that is readable after SIGCHLD, so that `poll` waits for children and messages."""
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
        pass


def _parents() -> dict[int, int]:
    """Map every process visible in /proc to its parent."""
    parents = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - as cheap as can be, it may run often
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_bytes()
            except OSError:  # it ended between the listing and here
                continue
            # The name, in parentheses, may itself hold spaces and parentheses.
            parents[int(entry)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return parents


def _descendants() -> set[int]:
    """Return every process below this one, direct children included."""
    parents = _parents()
    found: set[int] = set()
    frontier = {os.getpid()}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier and pid not in found}
        found |= frontier
    return found


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        # Gone already, or a setuid program: that one is left to the count of survivors.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class ContainerHold:
    """A lock on a running container, with the commands that end it; see `containers/trial.py`.

    Args:
        commands: Commands of the engine by purpose, and the file to lock.
        env: Environment of the commands.
    """

    def __init__(self, commands: dict[str, Any], env: dict[str, str]) -> None:
        self._commands = commands
        self._env = env
        # Never closed: the kernel gives the lock back when this process ends, however it ends.
        self._held = os.open(commands["hold"], os.O_RDONLY)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._is_sure = True
        self.state = ""

    def close(self, *, kill: bool) -> None:
        """End the container, read its final state, and remove it."""
        if kill:
            # It fails when the engine is still making the container, and when that has ended by itself.
            self._is_sure = self.call("kill")[0] == 0
        self.state = self.call("state")[1]
        self._is_sure &= self.call("remove")[0] == 0

    def close_again(self) -> None:
        """Remove the container again if its removal was uncertain; by now no client can create it."""
        if not self._is_sure:
            self.call("remove")

    def call(self, name: str) -> tuple[int | None, str]:
        """Run one of the commands and return its exit code (None if it took too long) and its output."""
        argv = self._commands[name]
        output = os.memfd_create("answer")
        try:
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ]
            pid = os.posix_spawn(argv[0], argv, self._env, file_actions=actions, setsid=True)
            code = self._wait(pid)
            os.lseek(output, 0, os.SEEK_SET)
            return code, os.read(output, 1_000_000).decode("utf-8", "replace")
        except OSError:  # the engine was uninstalled meanwhile
            return 127, ""
        finally:
            os.close(output)

    def _wait(self, pid: int) -> int | None:
        deadline = time.monotonic() + ENGINE_LIMIT
        pause = 0.002
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return None


class Supervisor:
    """A supervisor of one process of a trial; see the module's text."""

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
        """Serve one request from start to end; return false if processes are left that cannot be ended."""
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
        data = b""
        while len(data) < length:
            piece = self.control.recv(length - len(data))
            if not piece:
                raise EOFError("the worker went away before it had sent its request")
            data += piece
        return data

    def tell(self, event: dict[str, Any]) -> None:
        """Send an event to the worker; do nothing if the worker is gone."""
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps(event).encode() + b"\n")

    def _tell_exit(self, left_over: int, left: int) -> None:
        self.tell(
            {
                "event": "exited",
                "returncode": None if self.status is None else os.waitstatus_to_exitcode(self.status),
                "sent": self.sent,
                "wall": (self.ended or time.monotonic()) - self.started,
                "peak": self.peak,
                "left_over": left_over,
                "left": left,
                "state": "" if self.elsewhere is None else self.elsewhere.state,
            }
        )

    def _start(self, request: dict[str, Any]) -> bool:
        reader, writer = os.pipe()  # close-on-exec: it ends by itself when the exec succeeds
        supervisor = os.getpid()
        self.main = os.fork()
        if self.main == 0:
            _become(request, self.stdout, self.stderr, writer, supervisor)
        for fd in (writer, self.stdout, self.stderr):
            os.close(fd)
        with os.fdopen(reader, "rb") as stream:
            problem = stream.read()
        if problem:
            os.waitpid(self.main, 0)
            stage, number = problem.decode().split(":")
            self.tell({"event": "failed", "stage": stage, "errno": int(number)})
            return False
        self.started = time.monotonic()
        self.tell({"event": "started", "pid": self.main, "supervisor": supervisor})
        return True

    def _watch(self) -> bool:
        """Wait for the main process; return false if the worker went away first."""
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
                except ConnectionResetError:
                    orders = b""
                if not orders:
                    return False
                # A process that ended in the same instant was not ended by us: look before each order.
                self._reap()
                for order in orders.decode():
                    if not self._over() and self._obey(order):
                        return True

    def _over(self) -> bool:
        return self.status is not None

    def _obey(self, order: str) -> bool:
        """Carry out an order; return true if nothing is left to watch."""
        self.sent.append(order)
        if order == "A":
            if self.elsewhere is not None and self.elsewhere.call("abort")[0] == 0:
                return False
            # The whole group: behind a wrapper script, the interpreter that hangs is a grandchild. A stopped
            # process takes no signal until it goes on.
            for number in (signal.SIGABRT, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.main, number)
            return False
        return True

    def _reap(self) -> bool:
        """Reap every ended child; return false if there are no children at all."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
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
        """Kill and reap all descendants.

        Return how many outlived the main process, and how many still live.
        """
        if not self._reap():
            return 0, 0
        # Stop before killing: a fork bomb makes new processes faster than they can be killed one by one,
        # but a stopped one makes none.
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


def _become(request: dict[str, Any], stdout: int, stderr: int, report: int, parent: int) -> NoReturn:
    """Turn this forked process into the trial; report a failure as `stage:errno`."""
    stage = "setup"
    try:
        os.setsid()
        # In case the supervisor itself is killed. The signal is tied to the parent
        # *thread*, which is why a worker's thread pool could not do this; the supervisor has but one.
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            # The C library keeps some real-time signals for itself.
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _limit_core(wanted=request["core"])
        if request["cpus"]:
            os.sched_setaffinity(0, request["cpus"])
        if request["nice"]:
            os.nice(request["nice"])
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        stage = "chdir"
        os.chdir(request["cwd"])
        stage = "exec"
        argv = [os.fsencode(arg) for arg in request["argv"]]
        os.execve(argv[0], argv, {os.fsencode(k): os.fsencode(v) for k, v in request["env"].items()})
    except OSError as error:
        os.write(report, f"{stage}:{error.errno}".encode())
    except ValueError:  # a NUL byte in an argument or in the environment
        os.write(report, f"{stage}:22".encode())
    finally:
        os._exit(127)


def _limit_core(*, wanted: bool) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard if wanted else 0, hard))
    # A handler behind a pipe (systemd-coredump, apport) is not bound by the limit: a process of 30 GB would
    # be written out while its crash looks like a hang. Dumping no mapping keeps that short. Not every
    # container shows the file. One that is wanted has private memory and the headers of libraries: what is
    # shared with a GPU would make it huge.
    with contextlib.suppress(OSError):
        Path("/proc/self/coredump_filter").write_text("0x11" if wanted else "0")


def serve(requests: socket.socket) -> None:
    """Fork one supervisor per request until the worker goes away."""
    wakeup = _wakeup()
    # Should a supervisor be killed, its trial's orphans come here instead of going to init.
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
                os.set_inheritable(received, False)  # what recvmsg hands out would survive the exec
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
    """Wait, once the worker is gone, until every supervisor has ended its trial; kill those that do not."""
    deadline = time.monotonic() + 2 * END_GRACE
    while supervisors and time.monotonic() < deadline:
        _bury(supervisors)
        time.sleep(0.02)
    _signal_all(supervisors, signal.SIGKILL)
    while (_bury(supervisors) or _end_orphans(supervisors)) and time.monotonic() < deadline + END_GRACE:
        time.sleep(0.02)


def _bury(supervisors: set[int]) -> bool:
    """Reap ended supervisors; return whether one left processes of its trial behind."""
    orphaned = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return orphaned
        if pid == 0:
            return orphaned
        if pid in supervisors:
            supervisors.remove(pid)
            orphaned = orphaned or status != 0


def _end_orphans(supervisors: set[int]) -> bool:
    """Kill the processes that dead supervisors left; return false if there are none."""
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
        clean = True
    except Exception:  # noqa: BLE001 - the process's outermost frame: the worker reports it
        supervisor.tell({"event": "failed", "stage": "supervisor", "text": traceback.format_exc()})
        supervisor.end_all()
    finally:
        os._exit(0 if clean else 1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
