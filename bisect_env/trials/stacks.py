"""Reads the stacks of a hanging process with py-spy or gdb, and finds which thread waits for which other."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from bisect_env.containers.engine import ask
from bisect_env.trials.tracebacks import Frame

# --------------------------------------------------------------------------------------------------
# Running the debugging tools with a time limit.

TOOL_LIMIT = 20.0
"""Time limit for one tool in seconds. gdb needs several seconds to read the symbols of a CUDA process."""
_KEPT = 200_000
"""Maximum number of characters kept of a tool's output."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The result of running a debugging tool such as gdb: its output, or why it failed.

    Attributes:
        ok: Whether the tool succeeded.
        text: Its standard output, truncated if it is too long.
        why: What went wrong, in one line; "" if nothing did.
    """

    ok: bool
    text: str
    why: str = ""


_TOOLKIT = "/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
"""Directories of the CUDA toolkit, which its installer does not add to PATH."""


@functools.cache
def find_tool(name: str) -> str | None:
    """Return the path of an installed program, or None if the program is not found.

    The directory of the current Python interpreter is searched first, then PATH, then the CUDA toolkit.
    """
    beside = Path(sys.executable).parent / name
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which(name) or shutil.which(name, path=_TOOLKIT)


def run_tool(argv: Sequence[str], limit: float = TOOL_LIMIT) -> ToolOutput:
    """Run a debugging tool and return its result.

    A tool that takes more than `limit` seconds has failed.
    """
    answer = ask(argv, limit)
    if answer.returncode is None:
        return ToolOutput(False, "", f"no answer in {limit:.0f} s")
    lines = [line for line in answer.stderr.splitlines() if line.strip()]
    # The first line of stderr usually names the problem; in a traceback, it is the last line.
    said = lines[-1] if lines and lines[0].startswith("Traceback (") else next(iter(lines), "")
    why = "" if answer.ok else (said or f"exit code {answer.returncode}")
    return ToolOutput(answer.ok, answer.stdout[:_KEPT].replace("\0", "\ufffd"), why)


# --------------------------------------------------------------------------------------------------
# Parsing native stacks in the format of gdb. Pure.

_FRAME = re.compile(r"^#\d+\s+(?:0x[0-9a-f]+ in )?(?P<name>.+)$")
_HANDLER = Frame("<signal handler called>", native=True)
_PLACE = re.compile(r" (?:at (?P<source>(?:(?! at ).)+:\d+)|from (?P<library>(?:(?! from ).)+))$")
_UNNAMED = "??"
_DYING = re.compile(
    r"^_*(?:GI_+)?(?:raise|abort|gsignal|kill|pthread_kill\w*|libc_message\w*|malloc_printerr|fortify_fail\w*"
    r"|chk_fail|stack_chk_fail|assert_fail\w*|gnu_cxx::.*|cxxabiv1::.*|cxa_(?:throw|rethrow)|std::terminate"
    r"|std::__throw_.*|faulthandler_\w*|fatal_error\w*|Py_FatalError\w*)(?:\W|$)"
)
"""Functions with which a process ends itself by a signal (`abort`, `raise`, ...). They are the same for every
cause, so they are left out of stacks."""


def failing_frames(text: str) -> list[Frame]:
    """Return the native frames of a failed thread, innermost first, parsed from gdb's output.

    If a signal handler is on the stack, only the frames that called into the handler are returned. The
    functions with which a process ends itself, such as `abort`, are left out.

    Args:
        text: Output of gdb's command `bt`.
    """
    found = map(_FRAME.match, text.splitlines())
    frames = [_native_frame(match["name"]) for match in found if match]
    if _HANDLER in frames:
        # Use the outermost handler: a second signal may have arrived while faulthandler was printing.
        frames = frames[len(frames) - frames[::-1].index(_HANDLER) :]
    begin = 0
    for position, frame in enumerate(frames):
        # In libraries without symbols, unnamed frames may lie between the frames of `abort`.
        if _DYING.match(frame.function):
            begin = position + 1
        elif frame.function != _UNNAMED:
            break
    return frames[begin:]


def _native_frame(text: str) -> Frame:
    if text.startswith(_HANDLER.function):
        return _HANDLER
    place = _PLACE.search(text)
    if place is not None:
        text = text[: place.start()]
    function = text[: _arguments_begin(text)].strip()
    return Frame(function, (place["source"] or place["library"]) if place else "", native=True)


def _arguments_begin(text: str) -> int:
    """Return the index at which the argument list of a frame begins, such as ` (x=1, y=2)`.

    Return `len(text)` if there is no argument list.
    """
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[position], 0)
        if depth <= 0:
            is_list = text[position] == "(" and position > 0 and text[position - 1] == " "
            return position if is_list else len(text)
    return len(text)


# --------------------------------------------------------------------------------------------------
# Finding which thread of a hanging process waits for which other, and whether these waits form a cycle.
#
# There are three sources, none of which needs debugging symbols. py-spy shows which thread holds the GIL, and
# the frames of each thread. The kernel shows the address on which a thread sleeps
# (`/proc/<pid>/task/<tid>/syscall`). If a `pthread_mutex_t` is at that address, it contains the thread id of
# its owner. If the address lies inside the interpreter's own data, the thread waits for the GIL, because
# CPython implements the GIL with a condition variable in its runtime data.

_FUTEX = {202, 98}
"""Numbers of the system call `futex` on x86-64 and on aarch64."""
_WAITS = {0, 6, 9}
"""Numbers of the futex operations that wait: FUTEX_WAIT, FUTEX_LOCK_PI, FUTEX_WAIT_BITSET."""
_LOOKS = 12
"""Maximum number of times that a thread's state is read until it is found sleeping."""
_PAUSE = 0.003
"""Seconds between two such readings."""
_PYTHON = re.compile(r"/(?:lib)?python\d[\d.]*[a-z]*(?:\.so[\d.]*)?$")
_MACHINERY = re.compile(
    r"^0x|^_?_?(?:GI_|lll_|pthread_|sem_|futex|syscall|poll|ppoll|select|epoll|ioctl|sched_yield|clock_)"
    r"|ffi_call|_call_function_pointer"
    r"|_ctypes_callproc|PyCFuncPtr_call|_CallPythonObject|closure_fcn|^Py[A-Z_]|^_Py"
)
"""Functions that implement waiting, or calls from Python into native code. They do not show which library
made the call."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of a process, with its stack and what the thread waits for.

    Attributes:
        tid: Id of the thread in the kernel.
        name: Name of the thread in Python; "" if it has none.
        frames: Native and Python frames, innermost first.
        has_gil: Whether the thread holds the GIL.
        wants_gil: Whether the thread sleeps while it waits for the GIL.
        mutex_owner: Id of the thread that holds the mutex for which this thread waits; None if it waits for
            no mutex.
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
        """Return the innermost Python frame of the thread; None if it has none."""
        return next((frame for frame in self.frames if not frame.native), None)

    @property
    def native_call(self) -> Frame | None:
        """Return the frame of the native function that the thread's innermost Python code is calling.

        Frames that only implement waiting are avoided. Return None if the thread is running Python code.
        """
        inner = []
        for frame in self.frames:
            if not frame.native:
                break
            inner.append(frame)
        if not inner:
            return None
        # In order of preference: the innermost frame that does more than wait and is not in the C library,
        # one that does more than wait, one with a name. For example, a thread that keeps the GIL in a driver
        # sleeps in `ioctl`, called by `cuMemGetInfo`, which is the name to show.
        telling = [frame for frame in inner if not _MACHINERY.search(frame.function)]
        apart = [frame for frame in telling if not frame.file.startswith(("libc.so", "libc-"))]
        named = [frame for frame in inner if not frame.function.startswith("0x")]
        return (apart or telling or named or inner)[0]

    @property
    def place(self) -> str:
        """Return text that says in which native and Python function the thread is."""
        called_from = f", called from {self.python}" if self.native_call and self.python else ""
        return f"{self.native_call or self.python}{called_from}"


def of_py_spy(document: Sequence[Mapping[str, Any]]) -> list[Thread]:
    """Convert the parsed JSON output of `py-spy dump --json` to a list of threads.

    The function only computes; it does no input or output.

    Raises:
        KeyError: A key is missing in the output.
    """
    threads = []
    for thread in document:
        frames = tuple(
            Frame(
                str(frame["name"]),
                str(frame.get("short_filename") or frame["filename"]),
                int(frame.get("line") or 0),
                # Only native frames have a module (their library).
                native=bool(frame.get("module")),
            )
            for frame in thread["frames"]
        )
        tid = int(thread.get("os_thread_id") or thread["thread_id"])
        threads.append(Thread(tid, str(thread.get("thread_name") or ""), frames, bool(thread["owns_gil"])))
    return threads


def with_waits(pid: int, threads: Sequence[Thread]) -> list[Thread]:
    """Return copies of the threads that also state what each thread waits for.

    The attributes `wants_gil` and `mutex_owner` are read from `/proc`. If that fails, return the threads
    unchanged.
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
        # The holder of the GIL cannot wait for it. Its address may lie in a range that is really the heap.
        wants_gil = not thread.has_gil and any(low <= (address or 0) < high for low, high in runtime)
        owner = None if address is None or wants_gil else _owner(pid, address)
        if owner == thread.tid or owner not in here:
            owner = None
        found.append(replace(thread, wants_gil=wants_gil, mutex_owner=owner))
    return found


def _addresses(pid: int, tids: Mapping[int, int]) -> dict[int, int]:
    """Map the id of each sleeping thread to the memory address on which the thread waits.

    The state of the threads is read several times, because a thread that waits for the GIL wakes up every
    5 ms.

    Args:
        pid: Process id on this host.
        tids: Id of each thread in its own namespace to its id on this host.
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
    """Return the id that a thread has in its own PID namespace, such as that of a container.

    `task` is the directory `/proc/<pid>/task/<tid>` of the thread. In a container, the id in the namespace
    differs from the id on the host. py-spy reports the former, and a mutex stores it as its owner.
    """
    try:
        match = re.search(r"^NSpid:.*?(\d+)$", (task / "status").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return int(match[1]) if match else int(task.name)


def interpreter_data(maps: str) -> list[tuple[int, int]]:
    """Return the address ranges (start, end) of the Python interpreter's global variables.

    The function only computes; it does no input or output.

    Args:
        maps: Content of `/proc/<pid>/maps`.
    """
    ranges: list[tuple[int, int]] = []
    last_end = 0
    for line in maps.splitlines():
        span, permissions, _, _, _, *name = line.split(maxsplit=5)
        low, high = (int(part, 16) for part in span.split("-"))
        path = name[0] if name else ""
        writable = "w" in permissions
        # Variables that are initially zero lie in a mapping without a name, directly after the file's own.
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
    """Return the id of the thread that holds the mutex at a memory address.

    Return None if the memory cannot be read. A `pthread_mutex_t` of glibc begins with the integers lock,
    count and owner.
    """
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            _, _, owner = struct.unpack("=iIi", memory.read(12))
    except (OSError, struct.error, ValueError):
        return None
    return int(owner)


def explain(threads: Sequence[Thread]) -> list[str]:
    """Return sentences that say which thread waits for which other thread.

    The list is empty if no thread waits. A cycle of waiting threads is reported first, as a deadlock. The
    function only computes; it does no input or output.
    """
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
    """Return sentences on where the main thread is, and which other thread holds the GIL.

    Use this if `explain` returns nothing. It cannot see who holds a `threading.Lock`; then a thread that
    holds the GIL during a native call is the likely cause of a hang. The function only computes; it does no
    input or output.
    """
    main = next((thread for thread in threads if thread.name == "MainThread"), None)
    holder = next((t for t in threads if t.has_gil and t is not main and t.native_call is not None), None)
    sentences = []
    for thread, does in ((main, "is in"), (holder, "holds the GIL inside the native call")):
        if thread is not None and thread.frames:
            sentences.append(f"{thread} {does} {thread.place}")
    return sentences


def _cycle(waits: Mapping[int, int]) -> list[int]:
    """Return the ids of threads that wait for each other in a cycle; empty if there is no cycle.

    Args:
        waits: Id of each waiting thread to the id of the thread that it waits for.
    """
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
# Reading the stacks of a hanging process from outside, while it is still alive.

FAMILY = 8
"""Maximum number of processes of one trial whose stacks are read. The process that hangs may be a descendant
of the one that was started."""
GDB = ["-batch", "-nx", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"]
_BY_PY_SPY = ", by py-spy:"


def live_stacks(pid: int) -> str:
    """Return, as text, the stacks of all threads of a process and of its descendants.

    The stacks are read with py-spy or, if it is missing or fails, with gdb. If both fail, the text says why.
    A tool that was interrupted can leave a process stopped, which handles a signal only after SIGCONT.
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
    for name, take in (("py-spy", with_py_spy), ("gdb", with_gdb)):
        tool = find_tool(name)
        if tool is None:
            failures.append(f"{name}: not on this machine")
            continue
        said = take(tool, pid)
        if said.ok:
            return said.text
        failures.append(f"{name}: {said.why}")
    return f"Process {pid}: no stacks from outside ({'; '.join(failures)})"


def with_py_spy(tool: str, pid: int) -> ToolOutput:
    """Read the stacks of all threads of a process with py-spy.

    The resulting text also says which thread waits for which other thread.

    Args:
        tool: Path of py-spy.
        pid: Id of the process.
    """
    dump = [tool, "dump", "--json", "--pid", str(pid)]
    said = run_tool([*dump, "--native"])
    if not said.ok:  # py-spy cannot read native frames of every process, nor on every CPU
        said = run_tool(dump)
    if not said.ok:
        return said
    try:
        found = with_waits(pid, of_py_spy(json.loads(said.text)))
    except (ValueError, KeyError) as error:
        return ToolOutput(False, "", f"its answer cannot be read: {error!r}")
    return ToolOutput(True, render(pid, found))


def sentences(text: str) -> list[str]:
    """Return the sentences that explain a hang, from text that `live_stacks` returned.

    The function only computes; it does no input or output.
    """
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
    """Read the native frames of all threads of a process with gdb.

    Args:
        tool: Path of gdb.
        pid: Id of the process.
    """
    said = run_tool([tool, *GDB, "-p", str(pid), "-ex", "thread apply all bt 40"])
    if "#0" not in said.text:
        return ToolOutput(False, "", said.why or "no frames")
    return ToolOutput(True, f"Process {pid}, by gdb:\n{only_threads(said.text)}")


def only_threads(text: str) -> str:
    """Return the output of gdb without the lines before the first thread.

    The function only computes; it does no input or output.
    """
    at = text.find("\nThread ")
    return text[at + 1 :].strip() if at >= 0 else text.strip()


def render(pid: int, found: Sequence[Thread]) -> str:
    """Format the threads of a process as text: first why the process hangs, then all frames.

    The function only computes; it does no input or output.
    """
    lines = [f"Process {pid}{_BY_PY_SPY}", *(explain(found) or where_main_is(found))]
    for thread in found:
        marks = [
            *(["holds the GIL"] if thread.has_gil else []),
            *(["waits for the GIL"] if thread.wants_gil else []),
            *([f"waits for a mutex of thread {thread.mutex_owner}"] if thread.mutex_owner else []),
        ]
        title = str(thread)
        lines.append(f"{title[0].upper()}{title[1:]}{': ' if marks else ''}{', '.join(marks)}")
        lines += [f"  {frame}" for frame in thread.frames]
    return "\n".join(lines)
