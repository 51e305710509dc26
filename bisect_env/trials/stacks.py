"""Runs this host's debugging tools: takes the stacks of a process that hangs, and says who waits for whom."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import shutil
import signal
import struct
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from bisect_env.containers.engine import ask

# --------------------------------------------------------------------------------------------------
# The tools, with a time limit, and what they say.

TOOL_LIMIT = 20.0
"""Seconds for one tool; the symbols of a CUDA process take gdb some of them."""
_KEPT = 200_000
"""Characters kept of what a tool prints."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The output of a tool.

    Attributes:
        text: Its standard output, truncated if it is too long.
        why: Why it failed, in one line, or "".
    """

    ok: bool
    text: str
    why: str = ""


@functools.cache
def find_tool(name: str) -> str | None:
    """Find a tool beside our own interpreter or on PATH; None if there is none."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


def run_tool(argv: Sequence[str], limit: float = TOOL_LIMIT) -> ToolOutput:
    """Run a tool until it ends, for at most `limit` seconds."""
    answer = ask(argv, limit)
    if answer.returncode is None:
        return ToolOutput(False, "", f"no answer in {limit:.0f} s")
    lines = [line for line in answer.stderr.splitlines() if line.strip()]
    # A tool says what is wrong first; a traceback says it last.
    said = lines[-1] if lines and lines[0].startswith("Traceback (") else next(iter(lines), "")
    why = "" if answer.ok else (said or f"exit code {answer.returncode}")
    return ToolOutput(answer.ok, answer.stdout[:_KEPT].replace("\0", "\ufffd"), why)


def unwinds_natively() -> bool:
    """Return whether py-spy sees native frames on this architecture."""
    return platform.machine() in ("x86_64", "AMD64")


def is_stopped(pid: int) -> bool:
    """Return whether a process has been stopped by a signal."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def go_on(pid: int) -> None:
    """Continue a process that an interrupted tool has left stopped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGCONT)


# --------------------------------------------------------------------------------------------------
# Reading native stacks as gdb prints them. Pure.

_FRAME = re.compile(r"^#\d+\s+(?:0x[0-9a-f]+ in )?(?P<name>.+)$")
_HANDLER = "<signal handler called>"
_PLACE = re.compile(r" (?:at (?P<source>(?:(?! at ).)+:\d+)|from (?P<library>(?:(?! from ).)+))$")
_THREAD = re.compile(r"^Thread (\d+) (?P<took>.*received signal )?")
_UNNAMED = "??"
_DYING = re.compile(
    r"^_*(?:GI_+)?(?:raise|abort|gsignal|kill|pthread_kill\w*|libc_message\w*|malloc_printerr|fortify_fail\w*"
    r"|chk_fail|stack_chk_fail|assert_fail\w*|gnu_cxx::.*|cxxabiv1::.*|cxa_(?:throw|rethrow)|std::terminate"
    r"|std::__throw_.*|faulthandler_\w*|fatal_error\w*|Py_FatalError\w*)(?:\W|$)"
)
"""Frames of how a process brings a signal on itself, which are the same whatever the reason."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a thread.

    Attributes:
        function: Its name, or an address.
        file: Name of the source file or library.
        line: Line number, 0 if unknown.
        native: Whether it is native code instead of Python.
    """

    function: str
    file: str = ""
    line: int = 0
    native: bool = False

    def __str__(self) -> str:
        place = f"{self.file}{f':{self.line}' if self.line else ''}"
        return f"{self.function} ({place})" if place else self.function


_HANDLER_FRAME = Frame(_HANDLER, native=True)


def failing_frames(text: str) -> list[Frame]:
    """Return the native frames of the thread that failed, innermost first, without those of dying itself.

    That thread is the one with a signal handler on its stack; its frames below the handler are returned.
    If the signal met no handler, it is the thread that gdb names, which in a core file is thread 1.

    Args:
        text: Output of `thread apply all bt` or `bt`.
    """
    threads: dict[int, list[Frame]] = {}
    number = took = 1
    for line in text.splitlines():
        if match := _THREAD.match(line):
            number = int(match[1])
            took = number if match["took"] else took
        elif match := _FRAME.match(line):
            threads.setdefault(number, []).append(_native_frame(match["name"]))
    if not threads:
        return []
    with_handler = next((stack for stack in threads.values() if _HANDLER_FRAME in stack), None)
    failed = with_handler or threads.get(took) or next(iter(threads.values()))
    if with_handler:
        # The outermost: while faulthandler prints, a second signal may arrive.
        failed = failed[len(failed) - failed[::-1].index(_HANDLER_FRAME) :]
    begin = 0
    for position, frame in enumerate(failed):
        # Libraries without symbols have unnamed frames among those of dying.
        if _DYING.match(frame.function):
            begin = position + 1
        elif frame.function != _UNNAMED:
            break
    return failed[begin:]


def _native_frame(text: str) -> Frame:
    if text.startswith(_HANDLER):
        return _HANDLER_FRAME
    place = _PLACE.search(text)
    if place is not None:
        text = text[: place.start()]
    function = text[: _arguments_begin(text)].strip()
    return Frame(function, (place["source"] or place["library"]) if place else "", native=True)


def _arguments_begin(text: str) -> int:
    """Return where ` (x=1, y=...)` at the end of a frame begins; its length if there is none."""
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[position], 0)
        if depth <= 0:
            is_list = text[position] == "(" and position > 0 and text[position - 1] == " "
            return position if is_list else len(text)
    return len(text)


# --------------------------------------------------------------------------------------------------
# Which thread of a hanging process waits for which other, and the cycle in that, if there is one.
#
# Three sources, none of which needs debugging symbols. py-spy says which thread has the GIL and what frames
# each has. The kernel says on which address a thread sleeps (`/proc/<pid>/task/<tid>/syscall`). At that
# address a `pthread_mutex_t` names its owner, and an address inside the interpreter's own data is the GIL,
# for which CPython waits on a condition of its runtime.

_FUTEX = {202, 98}
"""Number of the system call `futex` on x86-64, and on aarch64."""
_WAITS = {0, 6, 9}
"""FUTEX_WAIT, FUTEX_LOCK_PI, FUTEX_WAIT_BITSET."""
_LOOKS = 12
_PAUSE = 0.003
"""Looks at a thread that does not sleep, and seconds between two."""
_PYTHON = re.compile(r"/(?:lib)?python\d[\d.]*[a-z]*(?:\.so[\d.]*)?$")
_MACHINERY = re.compile(
    r"^0x|^_?_?(?:GI_|lll_|pthread_|sem_|futex|syscall|poll|ppoll|select|epoll|ioctl|sched_yield|clock_)"
    r"|ffi_call|_call_function_pointer"
    r"|_ctypes_callproc|PyCFuncPtr_call|_CallPythonObject|closure_fcn|^Py[A-Z_]|^_Py"
)
"""Frames that say how a thread waits, or how Python calls, and not whose call it is."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of a process.

    Attributes:
        tid: Its id in the kernel.
        frames: Native and Python frames, innermost first.
        wants_gil: Whether it sleeps until it gets the GIL.
        mutex_owner: Thread that holds the mutex for which it sleeps; None if it waits for none.
    """

    tid: int
    name: str
    frames: tuple[Frame, ...]
    has_gil: bool = False
    wants_gil: bool = False
    mutex_owner: int | None = None

    def __str__(self) -> str:
        return f"thread {self.tid} ({self.name})" if self.name else f"thread {self.tid}"

    @property
    def python(self) -> Frame | None:
        """Return its innermost Python frame."""
        return next((frame for frame in self.frames if not frame.native), None)

    @property
    def native_call(self) -> Frame | None:
        """Return the native function that the innermost Python frame has called; None in Python code."""
        inner = []
        for frame in self.frames:
            if not frame.native:
                break
            inner.append(frame)
        if not inner:
            return None
        # The first that is no mere waiting, and rather a library's than the C library's; else any that has a
        # name. A thread that keeps the GIL in a driver sleeps in `ioctl`, called by `cuMemGetInfo`.
        telling = [frame for frame in inner if not _MACHINERY.search(frame.function)]
        apart = [frame for frame in telling if not frame.file.startswith(("libc.so", "libc-"))]
        named = [frame for frame in inner if not frame.function.startswith("0x")]
        return (apart or telling or named or inner)[0]

    @property
    def place(self) -> str:
        """Return a phrase that names the thread's native call and the Python frame that made it."""
        called_from = f", called from {self.python}" if self.native_call and self.python else ""
        return f"{self.native_call or self.python}{called_from}"


def of_py_spy(document: Sequence[Mapping[str, Any]]) -> list[Thread]:
    """Return the threads from the output of `py-spy dump --json`. Pure.

    Raises:
        KeyError: The output has another form.
    """
    threads = []
    for thread in document:
        frames = tuple(
            Frame(
                str(frame["name"]),
                str(frame.get("short_filename") or frame["filename"]),
                int(frame.get("line") or 0),
                # Python frames belong to no library.
                bool(frame.get("module")),
            )
            for frame in thread["frames"]
        )
        tid = int(thread.get("os_thread_id") or thread["thread_id"])
        threads.append(Thread(tid, str(thread.get("thread_name") or ""), frames, bool(thread["owns_gil"])))
    return threads


def with_waits(pid: int, threads: Sequence[Thread]) -> list[Thread]:
    """Return the threads with what each waits for, as the kernel shows it.

    Unchanged if that is unreadable.
    """
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
        here = {_inner(path): int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()}
    except OSError:
        return list(threads)
    runtime = interpreter_data(maps)
    addresses = _addresses(pid, {thread.tid: here.get(thread.tid, thread.tid) for thread in threads})
    found = []
    for thread in threads:
        address = addresses.get(thread.tid)
        # The holder does not wait for it: what lies behind the interpreter's variables may be the heap.
        wants_gil = not thread.has_gil and any(low <= (address or 0) < high for low, high in runtime)
        owner = None if address is None or wants_gil else _owner(pid, address)
        if owner == thread.tid or owner not in here:
            owner = None
        found.append(replace(thread, wants_gil=wants_gil, mutex_owner=owner))
    return found


def _addresses(pid: int, tids: Mapping[int, int]) -> dict[int, int]:
    """Map each thread, by its own id, to the address on which it sleeps.

    The threads are read several times: one that waits for the GIL wakes every 5 ms and sleeps again.
    """
    found: dict[int, int] = {}
    for _ in range(_LOOKS):
        for inner, outer in tids.items():
            if inner not in found and (address := _sleeps_at(pid, outer)) is not None:
                found[inner] = address
        if len(found) == len(tids):
            break
        time.sleep(_PAUSE)
    return found


def _inner(task: Path) -> int:
    """Return the id of a thread in its own namespace, which in a container differs from the id here.

    py-spy reports this id, and a mutex stores it as its owner.
    """
    try:
        match = re.search(r"^NSpid:.*?(\d+)$", (task / "status").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return int(match[1]) if match else int(task.name)


def interpreter_data(maps: str) -> list[tuple[int, int]]:
    """Return the address ranges of the interpreter's own variables, from `/proc/<pid>/maps`. Pure."""
    ranges: list[tuple[int, int]] = []
    last_end = 0
    for line in maps.splitlines():
        span, permissions, _, _, _, *name = line.split(maxsplit=5)
        low, high = (int(part, 16) for part in span.split("-"))
        path = name[0] if name else ""
        writable = "w" in permissions
        # What is zero at the start lies behind the file's last part, in a mapping of its own.
        if writable and (_PYTHON.search(path) or (path == "" and low == last_end)):
            ranges.append((low, high))
            last_end = high
        else:
            last_end = 0
    return ranges


def _sleeps_at(pid: int, tid: int) -> int | None:
    try:
        words = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
    except OSError:
        return None
    if len(words) < 3 or not words[0].isdigit() or int(words[0]) not in _FUTEX:
        return None
    return int(words[1], 16) if int(words[2], 16) & 0x7F in _WAITS else None


def _owner(pid: int, address: int) -> int | None:
    """Return the thread that holds the mutex at an address, as glibc lays it out: lock, count, owner."""
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            _, _, owner = struct.unpack("=iIi", memory.read(12))
    except (OSError, struct.error, ValueError):
        return None
    return int(owner)


def explain(threads: Sequence[Thread]) -> list[str]:
    """Return sentences that explain why a process does not continue; empty if no cause is seen. Pure."""
    by_id = {thread.tid: thread for thread in threads}
    holder = next((thread for thread in threads if thread.has_gil), None)
    waits: dict[int, tuple[int, str]] = {}
    for thread in threads:
        if thread.mutex_owner is not None:
            waits[thread.tid] = (thread.mutex_owner, "a mutex")
        elif thread.wants_gil and holder is not None:
            waits[thread.tid] = (holder.tid, "the GIL")
    sentences = []
    cycle = _cycle({tid: other for tid, (other, _) in waits.items()})
    if cycle:
        steps = []
        for tid in cycle:
            other, what = waits[tid]
            steps.append(f"{by_id[tid]} waits for {what}, which thread {other} holds")
        sentences.append(f"deadlock: {'; '.join(steps)}")
    if holder is not None and holder.native_call is not None:
        waiting = [thread for thread in threads if thread.wants_gil]
        if waiting:
            names = ", ".join(str(thread) for thread in waiting)
            verb = "waits" if len(waiting) == 1 else "wait"
            sentences.append(
                f"{names} {verb} for the GIL; {holder} holds it inside the native call {holder.place}"
            )
    sentences += [
        f"{thread} is in {thread.place}"
        for thread in threads
        if thread.tid in waits and thread is not holder and thread.frames
    ]
    return sentences


def where_main_is(threads: Sequence[Thread]) -> list[str]:
    """Return sentences on where the main thread is and which thread keeps the GIL. Pure.

    Use this for processes in which no thread is seen to wait for another. The owner of a `threading.Lock`
    cannot be seen; a thread in a native call that holds the GIL is then the likely cause.
    """
    main = next((thread for thread in threads if thread.name == "MainThread"), None)
    holder = next((t for t in threads if t.has_gil and t is not main and t.native_call is not None), None)
    sentences = []
    for thread, does in ((main, "is in"), (holder, "holds the GIL inside the native call")):
        if thread is not None and thread.frames:
            sentences.append(f"{thread} {does} {thread.place}")
    return sentences


def _cycle(waits: Mapping[int, int]) -> list[int]:
    """Return the threads of a cycle of waits, beginning with the smallest; empty when there is none."""
    for start in sorted(waits):
        path: list[int] = []
        at = start
        while at in waits and at not in path:
            path.append(at)
            at = waits[at]
        if at == start:
            return path
    return []


# --------------------------------------------------------------------------------------------------
# The stacks of a process that hangs, taken from outside while it still lives.

FAMILY = 8
"""Processes looked at in one trial at most: the interpreter that hangs may be a grandchild."""
GDB = ["-batch", "-nx", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"]
_BY_PY_SPY = ", by py-spy:"


def live_stacks(pid: int) -> str:
    """Return Python and native stacks of all threads of a process and its descendants.

    py-spy is used if it is installed and understands the process, else gdb. Failures of both are part of
    the text. The process continues afterwards.
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


def with_py_spy(tool: str, pid: int) -> ToolOutput:
    """Return all threads as py-spy sees them, with the thread that each waits for."""
    native = ["--native"] if unwinds_natively() else []
    said = run_tool([tool, "dump", *native, "--json", "--pid", str(pid)])
    if not said.ok and native:
        said = run_tool([tool, "dump", "--json", "--pid", str(pid)])
    if not said.ok:
        return said
    try:
        found = with_waits(pid, of_py_spy(json.loads(said.text)))
    except (ValueError, KeyError) as error:
        return ToolOutput(False, "", f"its answer cannot be read: {error!r}")
    return ToolOutput(True, render(pid, found))


def sentences(text: str) -> list[str]:
    """Return the sentences of `live_stacks` that explain a hang, without the stacks. Pure."""
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


def with_gdb(tool: str, pid: int) -> ToolOutput:
    """Return all threads with their native frames, as gdb shows them."""
    said = run_tool([tool, *GDB, "-p", str(pid), "-ex", "thread apply all bt 40"])
    if "#0" not in said.text:
        return ToolOutput(False, "", said.why or "no frames")
    return ToolOutput(True, f"Process {pid}, by gdb:\n{only_threads(said.text)}")


def only_threads(text: str) -> str:
    """Return the output of gdb from its first thread on. Pure."""
    at = text.find("\nThread ")
    return text[at + 1 :].strip() if at >= 0 else text.strip()


def render(pid: int, found: Iterable[Thread]) -> str:
    """Return threads as text: first why the process does not continue, then the frames of each. Pure."""
    listed = list(found)
    lines = [f"Process {pid}{_BY_PY_SPY}", *(explain(listed) or where_main_is(listed))]
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
