"""Keeps the core files of trials that are run for diagnosis, and has debuggers read them."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bisect_env.trials import stacks
from bisect_env.trials.classify import ExitRecord
from bisect_env.trials.stacks import find_tool, go_on, is_stopped, live_stacks, run_tool, with_gdb

# --------------------------------------------------------------------------------------------------
# Core files: where this host leaves them, and what gdb and py-spy read in them.

PATTERN = Path("/proc/sys/kernel/core_pattern")
_JOURNAL_WAIT = 10.0
"""Seconds for systemd-coredump, which writes after the process has gone."""
_GDB_LIMIT = 120.0
"""Seconds for gdb: a process with CUDA has hundreds of libraries whose symbols it reads."""
_MARK = "=== all threads\n"
_SHOW = (
    "-ex",
    "thread",
    "-ex",
    "bt 60",
    "-ex",
    "echo \\n=== all threads\\n",
    "-ex",
    "thread apply all bt 40",
)
_LIBRARY = re.compile(r"/lib(?:64)?/python\d[\d.]*/|^<frozen ")
_ALLOCATOR = re.compile(
    r"^_*(?:GI_+)?(?:(?:libc_|int_)?(?:free|malloc|realloc|calloc)|malloc_consolidate|unlink_chunk)$"
)
"""Functions of malloc: where they find the heap damaged, their caller is of interest."""


@dataclass(frozen=True, slots=True)
class Autopsy:
    """The stacks that a debugger read from a core file.

    Attributes:
        guilty: The innermost native frame of the thread that crashed, without the frames of dying itself.
        python: The innermost Python frame of that thread.
        text: All threads, with Python and native frames.
    """

    guilty: str = ""
    python: str = ""
    text: str = ""

    @property
    def sentence(self) -> str:
        """Return a sentence that names the guilty frame; "" if no tool could read the core."""
        if not self.guilty:
            return f"guilty frame: {self.python}" if self.python else ""
        return f"guilty frame: {self.guilty}" + (f", called from {self.python}" if self.python else "")


def core_names(pattern: str, pid: int) -> list[str]:
    """Return globs for the names that a `core_pattern` may give a core, most exact first. Pure."""

    def value(match: re.Match[str]) -> str:
        letter = match[1]
        return "%" if letter == "%" else str(pid) if letter in "pP" else "*"

    name = re.sub(r"%(.)", value, pattern.strip())
    return [f"{name}.{pid}", name]


def find_core(work: Path, pid: int, pattern: str | None = None) -> tuple[Path | None, str]:
    """Return the core file of a process, or the reason why there is none.

    `pattern` is a `core_pattern`; if it is None, this host's is read.
    """
    if pattern is None:
        try:
            pattern = PATTERN.read_text("utf-8").strip()
        except OSError as error:
            return None, f"{PATTERN} cannot be read: {error.strerror}"
    if pattern.startswith("|"):
        return _of_journal(work, pid, pattern)
    for name in core_names(pattern, pid):
        folder = Path("/") if name.startswith("/") else work
        found = [path for path in folder.glob(name.lstrip("/")) if path.is_file()]
        if found:
            return max(found, key=lambda path: path.stat().st_mtime), ""
    return None, f"none was left (core_pattern {pattern!r}; `ulimit -H -c` has to allow it)"


def _of_journal(work: Path, pid: int, pattern: str) -> tuple[Path | None, str]:
    tool = find_tool("coredumpctl")
    if "systemd-coredump" not in pattern or tool is None:
        return None, f"this host hands cores to {pattern.split()[0].lstrip('|')!r}"
    target = work / "core.journal"
    deadline = time.monotonic() + _JOURNAL_WAIT
    while True:
        said = run_tool([tool, "dump", str(pid), "--output", str(target)])
        if said.ok:
            return target, ""
        if time.monotonic() > deadline:
            return None, f"coredumpctl: {said.why}"
        time.sleep(0.5)


def read_core(core: Path, program: str) -> Autopsy:
    """Read a core file with the debuggers that are installed."""
    native, first, tid = _with_gdb(core, program)
    python, frame = _with_py_spy(core, tid)
    return Autopsy(first, frame, "\n\n".join(part for part in (python, native) if part))


def under_gdb() -> tuple[str, ...] | None:
    """Return the gdb command that runs a program and prints the stacks at a signal; None without gdb.

    It is meant for hosts that leave no core file. Under gdb a program runs slower, and its threads are
    scheduled differently.
    """
    gdb = find_tool("gdb")
    if gdb is None:
        return None
    return (gdb, *stacks.GDB, "-ex", "run", *_SHOW, "--args")


def of_gdb(stdout: str) -> Autopsy:
    """Read the stacks that gdb printed for a program that it ran; empty if no signal came. Pure."""
    at = stdout.find("received signal")
    if at < 0:
        return Autopsy()
    own, _, everything = stdout[at:].partition(_MARK)
    return Autopsy(guilty_frame(own), "", f"native frames, by gdb:\n{everything.strip()}")


def _with_gdb(core: Path, program: str) -> tuple[str, str, int | None]:
    """Return all threads as text, the guilty frame, and the id of the thread that crashed."""
    gdb = find_tool("gdb")
    if gdb is None:
        return "native frames: gdb is not on this machine", "", None
    said = run_tool([gdb, *stacks.GDB, *_SHOW, program, str(core)], _GDB_LIMIT)
    own, mark, everything = said.text.partition(_MARK)
    if not mark or "#0" not in own:
        return f"native frames: gdb: {said.why or 'no frames'}", "", None
    lwp = re.search(r"\(LWP (\d+)\)", own)
    return f"native frames, by gdb:\n{everything.strip()}", guilty_frame(own), int(lwp[1]) if lwp else None


def guilty_frame(backtrace: str) -> str:
    """Return the innermost failing frame of gdb's backtrace outside of malloc; "" if none is known. Pure."""
    for frame in stacks.failing_frames(backtrace):
        if not _ALLOCATOR.match(frame.function):
            # Nothing is known of a container whose libraries are not on this host.
            return "" if str(frame) == "??" else str(frame)
    return ""


def _with_py_spy(core: Path, tid: int | None) -> tuple[str, str]:
    """Return the Python frames of all threads as text, and the innermost frame of one thread."""
    tool = find_tool("py-spy")
    if tool is None:
        return "Python frames: py-spy is not on this machine", ""
    said = run_tool([tool, "dump", "--json", "--core", str(core)], _GDB_LIMIT)
    try:
        # It tells of the core in a line of its own before.
        found = stacks.of_py_spy(json.loads(said.text[said.text.index("[") :]))
    except (ValueError, KeyError):
        return f"Python frames: py-spy: {said.why or 'none'}", ""
    guilty = _thread(found, tid)
    crashed = f", {guilty} crashed" if guilty else ""
    lines = [f"Python frames, by py-spy{crashed}:"]
    for thread in found:
        lines += [str(thread), *(f"  {frame}" for frame in thread.frames)]
    return "\n".join(lines), called_from(guilty) if guilty else ""


def called_from(thread: stacks.Thread) -> str:
    """Return a thread's innermost Python frame and, if it differs, the innermost frame of the user's code."""
    frames = [frame for frame in thread.frames if not frame.native]
    own = next((frame for frame in frames if not _LIBRARY.search(frame.file)), None)
    innermost = str(frames[0]) if frames else ""
    return innermost if own in (None, *frames[:1]) else f"{innermost}, from {own}"


def _thread(found: Sequence[stacks.Thread], tid: int | None) -> stacks.Thread | None:
    """Return the thread with this id or, if there is no id, the only thread; else None."""
    named = [thread for thread in found if thread.tid == tid]
    return named[0] if named else found[0] if tid is None and len(found) == 1 else None


def read_gpu_core(core: Path) -> tuple[str, str]:
    """Return cuda-gdb's output for a GPU core, and a sentence that sums it up; both "" without cuda-gdb."""
    tool = find_tool("cuda-gdb") or shutil.which("cuda-gdb", path="/usr/local/cuda/bin")
    if tool is None:
        return "", ""
    said = run_tool([tool, "-batch", "-nx", "-ex", f"target cudacore {core}", "-ex", "bt"], _GDB_LIMIT)
    return said.text, of_cuda_gdb(said.text)


def of_cuda_gdb(text: str) -> str:
    """Return the error on the GPU and its place from cuda-gdb's output; "" if there is none. Pure."""
    error = re.search(r"^CUDA Exception: (.+)$", text, re.MULTILINE)
    if error is None:
        return ""
    # Cores without the GPU's memory have no frames, but name the function.
    frame = re.search(r"^#0\s+(?:0x[0-9a-f]+ in )?(.+)$", text, re.MULTILINE) or re.search(
        r"^The exception was triggered at PC 0x[0-9a-f]+[ \t]+(\S.*)$", text, re.MULTILINE
    )
    return f"on the GPU: {error[1].strip()}" + (f" in {frame[1].strip()}" if frame else "")


# --------------------------------------------------------------------------------------------------
# What is done around a trial that is run to be looked at, and never counted.


@dataclass(slots=True)
class Debug:
    """A debugger of one trial that keeps its findings in a directory.

    Attributes:
        autopsy: Stacks from the core file, if there was one.
        on_gpu: Sentences about GPU core files.
        notes: What could not be done, and why.
    """

    keep: Path
    autopsy: Autopsy = field(default_factory=Autopsy)
    on_gpu: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def on_deadline(self, pid: int) -> str:
        """Return the stacks of a hanging process; gdb's stacks are kept in a file as well."""
        text = live_stacks(pid)
        gdb = find_tool("gdb")
        if gdb is None:
            self.notes.append("gdb is not on this machine: no native stacks by it")
        elif "by gdb:" not in text:
            stopped = is_stopped(pid)
            said = with_gdb(gdb, pid)
            if not stopped:
                go_on(pid)
            if said.ok:
                (self.keep / "gdb.txt").write_text(said.text, "utf-8")
            else:
                self.notes.append(f"gdb: {said.why}")
        return text

    def after(self, record: ExitRecord, work: Path, program: str) -> None:
        """Collect and read the core files that a process left in its directory."""
        for path in work.glob("*.nvcudmp"):
            kept = self.keep / path.name
            shutil.move(path, kept)
            text, sentence = read_gpu_core(kept)
            if text:
                (self.keep / "gpu.txt").write_text(text, "utf-8")
            if sentence:
                self.on_gpu.append(sentence)
        if not record.signal or record.killed_by_us:
            return
        core, why = find_core(work, record.pid)
        if core is None:
            self.notes.append(f"no core file: {why}")
            return
        self.autopsy = read_core(core, program)
        kept = self.keep / "core"
        shutil.move(core, kept)
        (self.keep / "core.txt").write_text(self.autopsy.text, "utf-8")
