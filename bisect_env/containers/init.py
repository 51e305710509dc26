"""The first process of a trial's container: starts the script, and says exactly how it ended.

Why it exists. An engine tells a container that exited with 139 from one that died by SIGSEGV in no field of
its state: both are 139. And the first process of a process namespace ignores every signal that it has no
handler for, even its own `abort()`, so that a script which were that process would end differently than it
does elsewhere. Here the script is a child like any other; its wait status goes into a file.

Runs under the image's or the prefix's Python, whichever that is: nothing but the standard library as Python
3.6 has it. It watches a file that the supervisor outside holds locked; when that lock is free, nobody waits
for the trial any more, however that came about, and everything here is ended.
"""

import errno
import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn, Optional

HARNESS = "BISECT_ENV_HARNESS_MARKS"
PYTHONPATH = "BISECT_ENV_HARNESS_PYTHONPATH"
LOOK = 0.5
LINGER = 0.2
FORWARDED = (signal.SIGABRT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def _become(request: Any, report: int) -> NoReturn:
    """Turn this forked process into the script."""
    stage = "setup"
    try:
        os.setsid()
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError, RuntimeError):
                pass
        signal.set_wakeup_fd(-1)
        if request["cpus"]:
            # Within what the engine gives: a container may have fewer CPUs than the host.
            os.sched_setaffinity(0, set(request["cpus"]) & os.sched_getaffinity(0) or os.sched_getaffinity(0))
        _limit_core(request["core"])
        env = dict(os.environ)
        env.update(request["env"])
        if HARNESS in env and PYTHONPATH not in env and "PYTHONPATH" in os.environ:
            # The image has a path of its own, which the harness is to give back.
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
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard if wanted else 0, hard))
    try:
        with open("/proc/self/coredump_filter", "w") as file:
            file.write("0x11" if wanted else "0")
    except OSError:
        pass


def _oom_kills() -> int:
    """Return how often the kernel has killed for lack of memory in this container."""
    total = 0
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                for line in file:
                    words = line.split()
                    if len(words) == 2 and words[0] == "oom_kill":
                        total += int(words[1])
        except (OSError, ValueError):
            pass
    return total


class Init:
    """The first process; see the module's text."""

    def __init__(self, control: str) -> None:
        self.control = control
        self.script = 0
        self.status: Optional[int] = None
        self.peak = 0
        self.alive = os.open(os.path.join(control, "alive"), os.O_RDONLY)

    def run(self) -> int:
        """Run the script to its end and write the report; the container's exit code."""
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
            }
        )
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def _forward(self, number: int, _frame: Any) -> None:
        for one in (number, signal.SIGCONT):  # a stopped process takes no signal until it goes on
            try:
                os.killpg(self.script, one)
            except (ProcessLookupError, PermissionError):
                pass

    def _wait(self, wakeup: int) -> None:
        while not self._reap():
            try:
                select.select([wakeup], [], [], LOOK)
                os.read(wakeup, 512)
            except (BlockingIOError, InterruptedError):
                pass
            if self._abandoned():
                self._kill_all()
                os._exit(137)

    def _abandoned(self) -> bool:
        try:
            fcntl.flock(self.alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _reap(self) -> bool:
        """Reap ended processes; return whether the script has ended, now or before."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self.script:
                self.status, self.peak = status, used.ru_maxrss * 1024
        return self.status is not None

    def _end_others(self) -> int:
        """Wait a moment for processes that outlive the script, kill the rest, and return their number."""
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
            # -1 is everybody in this process namespace: only where we are its first process is that ours.
            if os.getpid() == 1:
                os.kill(-1, signal.SIGKILL)
            else:
                os.killpg(self.script, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def _report(self, report: Any) -> None:
        path = os.path.join(self.control, "report.json")
        with open(path + ".new", "w") as file:
            json.dump(report, file)
        os.rename(path + ".new", path)


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(Init(sys.argv[1]).run())
