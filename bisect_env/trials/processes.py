"""Lists, signals and ends the descendants of a process, and reads what they used."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
END_GRACE = 10.0
"""Seconds to wait for killed processes to end. A process that is blocked in a driver may never end."""

prctl = ctypes.CDLL(None, use_errno=True).prctl


@contextmanager
def child_signals() -> Iterator[int]:
    """Provide a descriptor that becomes readable when a child process ends, for use with `poll`."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Some programs block it, and what they start inherits that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reader)
        os.close(writer)


def clear(fd: int) -> None:
    """Read a descriptor of `child_signals` until it is empty."""
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 512):
            pass


def parents_of_all() -> dict[int, int]:
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


def descendants() -> set[int]:
    """Return the ids of all descendants of the current process."""
    parents = parents_of_all()
    found: set[int] = set()
    frontier = {os.getpid()}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier and pid not in found}
        found |= frontier
    return found


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes; those that have ended or belong to another user are left out."""
    for pid in pids:
        # The process has ended, or is a setuid program, which will be counted as a survivor.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds (user and system) used by process `pid` and its descendants, even ended ones.

    Return 0.0 if the process `pid` does not exist.
    """
    total = 0.0
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                # The times of an ended child are those of its parent from when the parent waits for it.
                total += sum(process.cpu_times()[:4])
    return total


def first_child(pid: int | None) -> int | None:
    """Return the id of the oldest living child of process `pid`; None if `pid` is None or has no child."""
    try:
        children = psutil.Process(pid).children() if pid else []
        return min(children, key=lambda child: child.create_time()).pid if children else None
    except psutil.Error:
        return None


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal and waits for SIGCONT."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


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


def end_descendants(main: int, reap: Callable[[], bool]) -> tuple[int, int]:
    """Kill and reap all descendants of this process.

    Args:
        main: Id of a process that does not count as left over.
        reap: Function that collects the exit status of ended children, and returns False if none is left.

    Returns:
        The number of processes, other than `main`, that were still running, and the number that survived
        SIGKILL.
    """
    if not reap():
        return 0, 0
    # Stop all processes before killing them: a fork bomb could otherwise create processes faster than they
    # are killed.
    deadline = time.monotonic() + END_GRACE
    stopped: set[int] = set()
    while new := descendants() - stopped:
        signal_all(new, signal.SIGSTOP)
        stopped |= new
        if time.monotonic() > deadline:
            break
    left_over = len(stopped - {main})
    pause = 0.0005
    while reap() and time.monotonic() < deadline:
        signal_all(descendants(), signal.SIGKILL)
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return left_over, len(descendants())
