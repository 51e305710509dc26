"""The stacks of a process that hangs, taken from outside while it still lives."""

from __future__ import annotations

import json
from collections.abc import Iterable

import psutil

from bisect_env.trials import threads
from bisect_env.trials.tools import Said, find_tool, go_on, is_stopped, run_tool, unwinds_natively

FAMILY = 8
"""Processes looked at in one trial at most: the interpreter that hangs may be a grandchild."""
_GDB = ["-batch", "-nx", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"]
_BY_PY_SPY = ", by py-spy:"


def live_stacks(pid: int) -> str:
    """Python and native stacks of every thread of a process and of what it started; goes on afterwards.

    py-spy where it is and understands the process, else gdb. What neither can tell is said, not hidden.

    Args:
        pid: The process.
    """
    return "\n\n".join(filter(None, (_of_one(member) for member in _family(pid))))


def _family(pid: int) -> list[int]:
    try:
        top = psutil.Process(pid)
        return [pid, *(child.pid for child in top.children(recursive=True))][:FAMILY]
    except psutil.Error:
        return []


def _of_one(pid: int) -> str:
    failures = []
    # One that has stopped itself hangs for that reason: waking it would end the hang before it was judged.
    stopped = is_stopped(pid)
    for name, take in (("py-spy", with_py_spy), ("gdb", with_gdb)):
        tool = find_tool(name)
        if tool is None:
            failures.append(f"{name}: not on this machine")
            continue
        said = take(tool, pid)
        if not stopped:
            go_on(pid)
        if said.ok:
            return said.text
        failures.append(f"{name}: {said.why}")
    return f"Process {pid}: no stacks from outside ({'; '.join(failures)})"


def with_py_spy(tool: str, pid: int) -> Said:
    """All threads as py-spy sees them, with who waits for whom.

    Args:
        tool: py-spy.
        pid: The process.
    """
    native = ["--native"] if unwinds_natively() else []
    said = run_tool([tool, "dump", *native, "--json", "--pid", str(pid)])
    if not said.ok and native:
        said = run_tool([tool, "dump", "--json", "--pid", str(pid)])
    if not said.ok:
        return said
    try:
        found = threads.with_waits(pid, threads.of_py_spy(json.loads(said.text)))
    except (ValueError, KeyError) as error:
        return Said(False, "", f"its answer cannot be read: {error!r}")
    return Said(True, render(pid, found))


def sentences(text: str) -> list[str]:
    """What `live_stacks` says of why a process hangs, without the stacks. Pure."""
    found: list[str] = []
    reading = False
    for line in text.splitlines():
        if line.startswith("Process ") and line.endswith(_BY_PY_SPY):
            reading = True
        elif line.startswith("Thread "):
            reading = False
        elif reading:
            found.append(line)
    return found


def with_gdb(tool: str, pid: int) -> Said:
    """All threads as gdb sees them: native frames alone.

    Args:
        tool: gdb.
        pid: The process.
    """
    said = run_tool([tool, *_GDB, "-p", str(pid), "-ex", "thread apply all bt 40"])
    if "#0" not in said.text:
        return Said(False, "", said.why or "no frames")
    return Said(True, f"Process {pid}, by gdb:\n{only_threads(said.text)}")


def only_threads(text: str) -> str:
    """What gdb printed from its first thread on. Pure."""
    at = text.find("\nThread ")
    return text[at + 1 :].strip() if at >= 0 else text.strip()


def render(pid: int, found: Iterable[threads.Thread]) -> str:
    """Threads as text: what keeps them, then each with its frames. Pure."""
    listed = list(found)
    lines = [f"Process {pid}{_BY_PY_SPY}", *(threads.explain(listed) or threads.where_main_is(listed))]
    for thread in listed:
        marks = [
            *(["holds the GIL"] if thread.has_gil else []),
            *(["waits for the GIL"] if thread.wants_gil else []),
            *([f"waits for a mutex of thread {thread.mutex_owner}"] if thread.mutex_owner else []),
        ]
        title = str(thread)
        lines.append(f"{title[0].upper()}{title[1:]}{': ' if marks else ''}{', '.join(marks)}")
        lines += [f"  {frame}" for frame in thread.frames]
    return "\n".join(lines)
