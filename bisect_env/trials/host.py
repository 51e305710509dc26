"""What the host can say about a trial: memory kills that the kernel counted, CPU time of a process tree."""

from __future__ import annotations

import re
from pathlib import Path

import psutil


def oom_kills(root: Path = Path("/")) -> int:
    """How often the kernel has killed for lack of memory in this process's memory cgroup.

    In the root cgroup, which keeps no such count, the host's own. Only differences mean anything.

    Args:
        root: Where `proc` and `sys` are (a test's copy).

    Returns:
        The counter; 0 when the host shows none.
    """
    for path in (*_cgroup_counters(root), root / "proc/vmstat"):
        try:
            match = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
        except OSError:  # another cgroup version, or hidden in a container
            continue
        if match:
            return int(match[1])
    return 0


def _cgroup_counters(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    paths = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            paths.append(root / "sys/fs/cgroup" / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            paths.append(root / "sys/fs/cgroup/memory" / path.lstrip("/") / "memory.oom_control")
    return paths


def tree_cpu_seconds(pid: int) -> float:
    """CPU time, user and system, that the living processes below `pid` have used."""
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
    """The oldest living child of a process; None when there is none."""
    try:
        children = psutil.Process(pid).children() if pid else []
        return min(children, key=lambda child: child.create_time()).pid if children else None
    except psutil.Error:
        return None
