"""The first process (PID 1) of a trial's container. It starts the script and reports how the script ended.

It is needed for two reasons. First, a container engine reports exit code 139 both for a script that exited
with 139 and for a script that was killed by SIGSEGV. Second, PID 1 of a container ignores every signal
without a handler, even its own `abort()`, so a script that ran as PID 1 would behave differently than outside
a container. Here the script runs as an ordinary child process, and its wait status is written to a file.

This file runs with the Python of the image or of the mounted prefix. It therefore uses only the standard
library of Python 3.6. It watches a file that the supervisor, outside the container, keeps locked. If the lock
becomes free, the supervisor has ended, so this process kills everything in the container.
"""

import errno
import fcntl
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, Callable, NoReturn, Optional

HARNESS = "BISECT_ENV_HARNESS_MARKS"
PYTHONPATH = "BISECT_ENV_HARNESS_PYTHONPATH"
LOOK = 0.5
LINGER = 0.2
FIRST_LINGER = 0.5
FORWARDED = (signal.SIGABRT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def _become(request: Any, report: int) -> NoReturn:
    """Replace this forked process with the script. The function never returns.

    Args:
        request: The content of `request.json`: arguments, environment, working directory and limits.
        report: File descriptor of a pipe. If the script cannot be started, the failing step and the error
            number are written to it, for example `chdir:2`.
    """
    stage = "setup"
    try:
        os.setsid()
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError, RuntimeError):
                pass  # SIGKILL, SIGSTOP and the signals of the C library cannot be set
        signal.set_wakeup_fd(-1)
        if request["cpus"]:
            # Use only CPUs that the container may use, which can be fewer than those of the host.
            os.sched_setaffinity(0, set(request["cpus"]) & os.sched_getaffinity(0) or os.sched_getaffinity(0))
        _limit_core(request["core"])
        env = dict(os.environ)
        env.update(request["env"])
        if HARNESS in env and PYTHONPATH not in env and "PYTHONPATH" in os.environ:
            # The image sets PYTHONPATH. Keep its value, so that the harness can restore it for the script.
            env[PYTHONPATH] = os.environ["PYTHONPATH"]
            env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], os.environ["PYTHONPATH"]])
        path = os.pathsep.join(request["path"] + [os.environ.get("PATH", os.defpath)])
        env["PATH"] = path
        stage = "chdir"
        os.chdir(request["cwd"])
        stage = "exec"
        argv = request["argv"]
        names = [argv[0], "python3"] if argv[0] == "python" else [argv[0]]
        for name in names:
            try:
                os.execvpe(name, argv, env)
            except FileNotFoundError:
                if name == names[-1]:
                    stage = "lookup" if "/" not in name else "exec"
                    raise
    except OSError as error:
        os.write(report, ("%s:%d" % (stage, error.errno or 0)).encode())
    except ValueError:
        os.write(report, ("%s:%d" % (stage, errno.EINVAL)).encode())
    os._exit(127)


def _limit_core(wanted: bool) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard if wanted else 0, hard))
    try:
        with open("/proc/self/coredump_filter", "w") as file:
            file.write("0x11" if wanted else "0")
    except OSError:
        pass  # some sandboxes lack the file; a core dump then has the kernel's default content


def _oom_kills() -> int:
    """Return how many processes of this container the kernel has killed for lack of memory."""
    total = 0
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                for line in file:
                    words = line.split()
                    if len(words) == 2 and words[0] == "oom_kill":
                        total += int(words[1])
        except (OSError, ValueError):
            pass  # a host has one of the two files, by its version of cgroups
    return total


def _full() -> str:
    """Return the mount point of a full file system, such as /dev/shm with its 64 MB; "" if none is full."""
    try:
        with open("/proc/self/mounts") as file:
            mounts = [line.split() for line in file]
    except (OSError, ValueError):
        return ""  # the script took /proc away, or an image names a mount in another encoding
    for words in mounts:
        if "ro" in words[3].split(","):
            continue
        place = words[1].encode().decode("unicode_escape")  # a space is written as \\040
        try:
            disk = os.statvfs(place)
        except OSError:
            continue
        if disk.f_blocks and disk.f_bavail * 20 <= disk.f_blocks:
            return place
    return ""


class Init:
    """The first process of a container, which runs the script and reports how the script ended.

    See the docstring of this module.
    """

    def __init__(self, control: str) -> None:
        self.control = control
        self.script = 0
        self.status: Optional[int] = None
        self.peak = 0
        self.alive = os.open(os.path.join(control, "alive"), os.O_RDONLY)

    def run(self) -> int:
        """Run the script, write the report, and return the container's exit code."""
        with open(os.path.join(self.control, "request.json")) as file:
            request = json.load(file)
        wakeup, writer = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in FORWARDED:
            signal.signal(number, self._forward)
        kills = _oom_kills()
        reader, report = os.pipe()
        started = time.time()
        self.script = os.fork()
        if self.script == 0:
            _become(request, report)
        os.close(report)
        with os.fdopen(reader, "rb") as stream:
            problem = stream.read().decode()
        self._wait(wakeup)
        ended = time.time()
        full = _full() if self.status else ""  # before the processes that are left give space back
        left = self._end_others()
        status = self.status or 0
        self._report(
            {
                "status": status,
                "problem": problem,
                "wall": ended - started,
                "peak": self.peak,
                "oom_kills": _oom_kills() - kills,
                "left_over": left,
                "full": full,
            }
        )
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def _forward(self, number: int, _frame: Any) -> None:
        if number == signal.SIGABRT:
            # The script prints its stacks before the other processes do, so that they are not mixed.
            self._send(os.kill, number)
            deadline = time.time() + FIRST_LINGER
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
            try:
                while time.time() < deadline and os.waitid(os.P_PID, self.script, ended) is None:
                    time.sleep(0.01)
            except ChildProcessError:
                pass  # the script has ended
        self._send(os.killpg, number)

    def _send(self, send: Callable[[int, int], None], number: int) -> None:
        for one in (number, signal.SIGCONT):  # a stopped process takes no signal until it goes on
            try:
                send(self.script, one)
            except (ProcessLookupError, PermissionError):
                pass  # the script has ended, or runs as another user; the engine can still kill the container

    def _wait(self, wakeup: int) -> None:
        while not self._reap():
            try:
                select.select([wakeup], [], [], LOOK)
                os.read(wakeup, 512)
            except (BlockingIOError, InterruptedError):
                pass  # no signal arrived within LOOK seconds
            if self._abandoned():
                self._kill_all()
                os._exit(137)

    def _abandoned(self) -> bool:
        try:
            fcntl.flock(self.alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False  # the supervisor lives and holds the lock; any other error kills nothing either
        return True

    def _reap(self) -> bool:
        """Collect the exit status of finished processes, and return whether the script has finished."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break  # there is no child, so nothing is left to reap
            if pid == 0:
                break
            if pid == self.script:
                self.status, self.peak = status, used.ru_maxrss * 1024
        return self.status is not None

    def _end_others(self) -> int:
        """Wait briefly for processes that outlive the script, kill the rest, and return the number killed."""
        deadline = time.time() + LINGER
        while self._others() and time.time() < deadline:
            time.sleep(0.005)
        left = self._others()
        if left:
            self._kill_all()
        return left

    def _others(self) -> int:
        self._reap()
        if os.getpid() != 1:
            return 0
        return sum(1 for name in os.listdir("/proc") if name.isdigit() and name != "1")

    def _kill_all(self) -> None:
        try:
            # -1 means every process of the PID namespace. Only PID 1 of a container may kill them all.
            if os.getpid() == 1:
                os.kill(-1, signal.SIGKILL)
            else:
                os.killpg(self.script, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # no process is left, or it runs as another user; the kernel kills all when PID 1 ends

    def _report(self, report: Any) -> None:
        path = os.path.join(self.control, "report.json")
        with open(path + ".new", "w") as file:
            json.dump(report, file)
        os.rename(path + ".new", path)


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(Init(sys.argv[1]).run())
