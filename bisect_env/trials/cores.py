"""Finds the core files (memory images of crashed processes) of trials and reads their stacks with debuggers.

Only trials that are run for diagnosis (`Debug`) leave core files. CPU cores are read by gdb and py-spy, GPU
cores by cuda-gdb.
"""

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
from bisect_env.trials.stacks import find_tool, live_stacks, run_tool, with_gdb

# --------------------------------------------------------------------------------------------------
# Core files: where this host writes them, and the stacks that gdb and py-spy read from them.

PATTERN = Path("/proc/sys/kernel/core_pattern")
_JOURNAL_WAIT = 10.0
"""Seconds to wait for systemd-coredump, which writes the core after the process has ended."""
_CLOCKS = 60.0
"""Seconds by which the clock of a file system may differ, including the time since the process ended."""
_GDB_LIMIT = 120.0
"""Time limit for a debugger in seconds, which reads the symbols of hundreds of libraries if CUDA is used."""
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
"""Functions of the allocator. If one of them finds the heap damaged, its caller is the guilty frame."""


@dataclass(frozen=True, slots=True)
class Autopsy:
    """The stacks of a crashed process, as read by a debugger.

    Attributes:
        guilty: Innermost native frame of the thread that crashed, without the frames of signal handling,
            `abort()` and the allocator; "" if not known.
        python: Innermost Python frame of the thread that crashed; "" if not known.
        text: Python and native frames of all threads.
    """

    guilty: str = ""
    python: str = ""
    text: str = ""

    @property
    def sentence(self) -> str:
        """Return text that names the function at fault and its Python caller; "" if neither is known."""
        if not self.guilty:
            return f"guilty frame: {self.python}" if self.python else ""
        return f"guilty frame: {self.guilty}" + (f", called from {self.python}" if self.python else "")


def core_names(pattern: str, pid: int) -> list[str]:
    """Return glob patterns for the possible names of a process's core file, the most exact first.

    The function only computes; it does no input or output.

    Args:
        pattern: The kernel's `core_pattern`, such as `core.%p`.
        pid: Id of the process that crashed.
    """

    def value(match: re.Match[str]) -> str:
        letter = match[1]
        return "%" if letter == "%" else str(pid) if letter in "pP" else "*"

    name = re.sub(r"%(.)", value, pattern.strip())
    return [f"{name}.{pid}", name]


def find_core(work: Path, pid: int, since: float, pattern: str | None = None) -> tuple[Path | None, str]:
    """Find the core file of a crashed process, or the reason why there is none.

    Args:
        work: Working directory of the process.
        pid: Id of the process.
        since: Unix time before the crash. Older files are those of other processes with the same id.
        pattern: The kernel's `core_pattern`; if None, the pattern of this host is read.

    Returns:
        The path of the core file and "", or None and the reason why there is no core file.
    """
    if pattern is None:
        try:
            pattern = PATTERN.read_text("utf-8").strip()
        except OSError as error:
            return None, f"{PATTERN} cannot be read: {error.strerror}"
    if pattern.startswith("|"):
        return _of_journal(work, pid, pattern, since)
    for name in core_names(pattern, pid):
        folder = Path("/") if name.startswith("/") else work
        # A folder of the pattern may have any number in its name.
        if folder != work and str(pid) not in re.findall(r"\d+", Path(name).name):
            return (
                None,
                f"core_pattern {pattern!r} does not say to which process a core belongs; add %p to it",
            )
        times = {path: path.stat().st_mtime for path in folder.glob(name.lstrip("/")) if path.is_file()}
        if times and max(times.values()) >= since:
            return max(times, key=lambda path: times[path]), ""
    return None, f"none was left (core_pattern {pattern!r}; `ulimit -H -c` has to allow it)"


def _of_journal(work: Path, pid: int, pattern: str, since: float) -> tuple[Path | None, str]:
    tool = find_tool("coredumpctl")
    if "systemd-coredump" not in pattern or tool is None:
        return None, f"this host hands cores to {pattern.split()[0].lstrip('|')!r}"
    target = work / "core.journal"
    deadline = time.monotonic() + _JOURNAL_WAIT
    while True:
        said = run_tool([tool, "dump", str(pid), f"--since=@{int(since)}", "--output", str(target)])
        if said.ok:
            return target, ""
        if time.monotonic() > deadline:
            return None, f"coredumpctl: {said.why}"
        time.sleep(0.5)


def read_core(core: Path, program: str) -> Autopsy:
    """Read the stacks of a crashed program from its core file with gdb and py-spy.

    A tool that is not installed is skipped; the text says so.
    """
    native, first, tid = _with_gdb(core, program)
    python, frame = _with_py_spy(core, tid)
    return Autopsy(first, frame, "\n\n".join(part for part in (python, native) if part))


def under_gdb() -> tuple[str, ...] | None:
    """Return the command prefix that runs a program in gdb and prints the stacks when a signal arrives.

    Use it on hosts that write no core files. In gdb a program runs slower, and its threads are scheduled
    differently. Return None if gdb is not installed.
    """
    gdb = find_tool("gdb")
    if gdb is None:
        return None
    return (gdb, *stacks.GDB, "-ex", "run", *_SHOW, "--args")


def of_gdb(stdout: str) -> Autopsy:
    """Parse the output of a program that ran under gdb, and return the stacks of its crash.

    The program must have been started with the command of `under_gdb`.

    The result is empty if gdb reported no signal. The function only computes; it does no input or output.
    """
    at = stdout.find("received signal")
    if at < 0:
        return Autopsy()
    own, _, everything = stdout[at:].partition(_MARK)
    return Autopsy(guilty_frame(own), "", f"native frames, by gdb:\n{everything.strip()}")


def _with_gdb(core: Path, program: str) -> tuple[str, str, int | None]:
    """Read a core file with gdb; return all stacks as text, the frame at fault and the crashed thread's id.

    For the frame at fault, see `guilty_frame`.
    """
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
    """Return the innermost frame of a gdb backtrace, not counting signal handling and memory allocation.

    Return "" if there is no such frame, or gdb could not name it. The function only computes; it does no
    input or output.
    """
    for frame in stacks.failing_frames(backtrace):
        if not _ALLOCATOR.match(frame.function):
            # gdb cannot name frames of a container whose libraries are not on this host.
            return "" if str(frame) == "??" else str(frame)
    return ""


def _with_py_spy(core: Path, tid: int | None) -> tuple[str, str]:
    """Read a core file with py-spy; return all Python stacks as text, and the frame that crashed.

    The frame is the innermost one of the thread that crashed. `tid` is the id of the thread that crashed;
    None if not known. The second value is "" without that thread.
    """
    tool = find_tool("py-spy")
    if tool is None:
        return "Python frames: py-spy is not on this machine", ""
    said = run_tool([tool, "dump", "--json", "--core", str(core)], _GDB_LIMIT)
    try:
        # py-spy prints a line about the core before the JSON.
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
    """Return a thread's innermost Python frame as text; "" if it has no Python frames.

    If that frame is in a library, the innermost frame of the user's code is added after `, from`.
    """
    frames = [frame for frame in thread.frames if not frame.native]
    own = next((frame for frame in frames if not _LIBRARY.search(frame.file)), None)
    innermost = str(frames[0]) if frames else ""
    return innermost if own in (None, *frames[:1]) else f"{innermost}, from {own}"


def _thread(found: Sequence[stacks.Thread], tid: int | None) -> stacks.Thread | None:
    """Return the thread with the id `tid`, or None if there is no such thread.

    If `tid` is None, return the only thread, or None if there are several.
    """
    named = [thread for thread in found if thread.tid == tid]
    return named[0] if named else found[0] if tid is None and len(found) == 1 else None


def read_gpu_core(core: Path) -> tuple[str, str]:
    """Read a GPU core file with cuda-gdb; return the output and a one-line summary.

    The summary is that of `of_cuda_gdb`. Output and summary are "" if cuda-gdb is not installed.
    """
    tool = find_tool("cuda-gdb")
    if tool is None:
        return "", ""
    said = run_tool([tool, "-batch", "-nx", "-ex", f"target cudacore {core}", "-ex", "bt"], _GDB_LIMIT)
    return said.text, of_cuda_gdb(said.text)


def of_cuda_gdb(text: str) -> str:
    """Return a summary of cuda-gdb's output: the CUDA exception and the function where it happened.

    Return "" if the output names no exception. The function only computes; it does no input or output.
    """
    error = re.search(r"^CUDA Exception: (.+)$", text, re.MULTILINE)
    if error is None:
        return ""
    # Cores written without the GPU's memory have no frames, but name the function.
    frame = re.search(r"^#0\s+(?:0x[0-9a-f]+ in )?(.+)$", text, re.MULTILINE) or re.search(
        r"^The exception was triggered at PC 0x[0-9a-f]+[ \t]+(\S.*)$", text, re.MULTILINE
    )
    return f"on the GPU: {error[1].strip()}" + (f" in {frame[1].strip()}" if frame else "")


# --------------------------------------------------------------------------------------------------
# Collecting the findings of a trial that is run for diagnosis. Its result is not counted.


@dataclass(slots=True)
class Debug:
    """A collector of the stacks and core files of one trial, which saves them in a directory.

    Attributes:
        autopsy: Stacks from the core file, if there was one.
        on_gpu: Sentences about GPU core files.
        notes: What could not be done, and why.
    """

    keep: Path
    autopsy: Autopsy = field(default_factory=Autopsy)
    on_gpu: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, other: Debug) -> None:
        """Add what another collector has found, such as that of a trial's process."""
        if other.autopsy.text:
            self.autopsy = other.autopsy
        self.on_gpu = list(dict.fromkeys([*self.on_gpu, *other.on_gpu]))
        self.notes = list(dict.fromkeys([*self.notes, *other.notes]))

    def on_deadline(self, pid: int) -> str:
        """Return the stacks of a process that has reached its time limit.

        If gdb is installed and these stacks are not from gdb, its stacks are also written to `gdb.txt` in
        `keep`.
        """
        text = live_stacks(pid)
        gdb = find_tool("gdb")
        if gdb is None:
            self.notes.append("gdb is not on this machine: no native stacks by it")
        elif "by gdb:" not in text:
            said = with_gdb(gdb, pid)
            if said.ok:
                (self.keep / "gdb.txt").write_text(said.text, "utf-8")
            else:
                self.notes.append(f"gdb: {said.why}")
        return text

    def after(self, record: ExitRecord, work: Path, program: str) -> None:
        """Move the core files of an ended process to `keep` and read their stacks.

        Args:
            record: Exit record of the process. A CPU core is looked for only if it died of a signal that
                bisect-env did not send.
            work: Working directory of the process.
            program: Program that the process ran, from which gdb reads symbols.
        """
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
        core, why = find_core(work, record.pid, time.time() - record.duration - _CLOCKS)
        if core is None:
            self.notes.append(f"no core file: {why}")
            return
        self.autopsy = read_core(core, program)
        kept = self.keep / "core"
        shutil.move(core, kept)
        (self.keep / "core.txt").write_text(self.autopsy.text, "utf-8")
