"""Parses what CPython (2.7 and later) prints when it fails: tracebacks, groups and faulthandler's dumps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bisect_env.trials.records import Phase

# --------------------------------------------------------------------------------------------------
# Tracebacks of exception groups (Python 3.11 and later), read as that of the first failure inside. Pure.
#
# A group is how `asyncio.TaskGroup` and its like pass on what failed in them. It always says the same, at
# the same place: what failed, and where, stands in its branches.

_GROUP = re.compile(r"^ +\+ Exception Group Traceback \(most recent call last\):$")
_BRANCH = re.compile(r"^ +\+(?:-\+)?-+ \d+ -+$")
_PREFIX = re.compile(r"^ +\| ?")
_DRAWN = re.compile(r"^ +[|+]")
_GROUP_HEADER = "Traceback (most recent call last):"


def without_groups(lines: Sequence[str]) -> list[str]:
    """Replace each exception group by a plain traceback: its frames, then those of its first leaf."""
    found: list[str] = []
    position = 0
    while position < len(lines):
        if not _GROUP.match(lines[position]):
            found.append(lines[position])
            position += 1
            continue
        end = _end(lines, position + 1)
        found += _first_leaf(lines[position + 1 : end])
        position = end
    return found


def _end(lines: Sequence[str], position: int) -> int:
    """Return the position after the last drawn line of an exception group; a message may interrupt it."""
    end = position
    for index in range(position, len(lines)):
        if _DRAWN.match(lines[index]) and not _GROUP.match(lines[index]):
            end = index + 1
        elif lines[index].endswith(_GROUP_HEADER):
            break
    return end


def _first_leaf(lines: Sequence[str]) -> list[str]:
    frames: list[str] = []
    message: list[str] = []
    for line in lines:
        if _BRANCH.match(line):
            if not message or not message[0].partition(":")[0].endswith("ExceptionGroup"):
                break
            message = []
            continue
        text = _PREFIX.sub("", line)
        if text.endswith(_GROUP_HEADER) or text.lstrip().startswith("+--"):
            continue
        (frames if not message and (text.startswith(" ") or not text) else message).append(text)
    return [_GROUP_HEADER, *frames, *message]


# --------------------------------------------------------------------------------------------------
# Reading what CPython (2.7 and later) prints when it fails: tracebacks and faulthandler's dumps.

# A progress bar leaves its line open: headers need not begin theirs.
_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+(?:\| )?File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_FINAL = re.compile(r"^[ |]*(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
_FATAL = re.compile(r"^.*?(?P<text>Fatal Python error: (?P<reason>.*))$")
_THREAD = re.compile(r"^(?P<which>Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_DUMP_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


@dataclass(frozen=True, slots=True)
class PythonFrame:
    """One Python frame."""

    function: str
    file: str
    line: int = 0
    source: str = ""
    """The line of code, where the interpreter could read it."""

    @property
    def is_importlib(self) -> bool:
        """Return whether the frame belongs to the import system or to the harness's wrapper of its lock."""
        return self.file.startswith(("<frozen importlib", "<frozen zipimport")) or self.file.endswith(
            "/harness/sitecustomize.py"
        )

    @property
    def is_module(self) -> bool:
        """Return whether the frame is the top level of a file (not of `exec` or `-c`)."""
        return self.function == "<module>" and not self.file.startswith("<")


@dataclass(frozen=True, slots=True)
class Traceback:
    """One exception as printed.

    Attributes:
        frames: Most recent call first.
        exception: Its type as printed, `torch.OutOfMemoryError`.
        message: First line of its message.
        is_aside: Whether a thread, a destructor or an atexit handler printed it: the process went on.
        text: From the first exception of its chain to the end of the message.
    """

    frames: tuple[PythonFrame, ...]
    exception: str
    message: str
    is_aside: bool
    text: str

    @property
    def said(self) -> str:
        """Return its text without source lines, which may name failures that did not happen."""
        lines = self.text.splitlines()
        return "\n".join(
            line
            for before, line in zip(["", *lines], lines, strict=False)
            if not (line.startswith("    ") and _FRAME.match(before))
        )

    @property
    def while_importing(self) -> bool:
        """Return whether an import was executing a module's top level.

        The interpreter removes the import system's own frames from a traceback. The top level of an
        imported file remains, called from another frame; the outermost frame alone is the script itself.
        """
        if any(frame.is_importlib for frame in self.frames):
            return True
        # A top level that was reached through `exec` (coverage, runpy) is a script, not an import.
        return any(
            frame.is_module and (not caller.source or "import" in caller.source)
            for frame, caller in itertools.pairwise(self.frames)
            if not _is_runpy(caller)
        )


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread of a faulthandler dump, innermost frame first; without the outermost if it is cut."""

    current: bool
    frames: tuple[PythonFrame, ...]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class FatalDump:
    """The output of faulthandler on a fatal signal.

    Attributes:
        reason: `Segmentation fault`, `Aborted`…
        threads: In the order printed; the one that got the signal is `current`.
    """

    reason: str
    threads: tuple[ThreadStack, ...]
    text: str

    @property
    def current(self) -> ThreadStack | None:
        """Return the thread that got the signal."""
        return next((thread for thread in self.threads if thread.current), None)

    @property
    def phase(self) -> Phase:
        """Return the phase in which the process was, as far as the stacks show it.

        While the script's top level runs, some thread has it as its outermost frame; afterwards the main
        thread waits for the other threads. If neither is so, the interpreter is shutting down: atexit
        handlers and destructors are called from no frame.
        """
        stacks = [thread.frames for thread in self.threads if thread.frames]
        if not stacks or self.current is None:
            return Phase.UNKNOWN
        if not any(_is_top_level(frames[-1]) or _waits_for_threads(frames[-1]) for frames in stacks):
            # faulthandler prints a hundred frames: below them may be anything.
            return Phase.UNKNOWN if any(thread.cut for thread in self.threads) else Phase.TEARDOWN
        return Phase.IMPORT if any(frame.is_importlib for frame in self.current.frames) else Phase.BODY


def _is_runpy(frame: PythonFrame) -> bool:
    return frame.file.startswith("<frozen runpy") or frame.file.endswith("/runpy.py")


def _is_top_level(frame: PythonFrame) -> bool:
    return frame.function == "<module>" or frame.function == "_run_module_as_main"


def _waits_for_threads(frame: PythonFrame) -> bool:
    return frame.function in ("_shutdown", "_exitfunc") and frame.file.endswith("/threading.py")


def parse_tracebacks(text: str) -> list[Traceback]:
    """Return every traceback in an output, in order; chained exceptions are one traceback, the last."""
    lines = without_groups(text.splitlines())
    found: list[Traceback] = []
    chain_start: int | None = None
    position = 0
    while position < len(lines):
        if not lines[position].endswith(_HEADER):
            position += 1
            continue
        start = position if chain_start is None else chain_start
        frames, end = _frames(lines, position + 1)
        final = _FINAL.match(lines[end]) if end < len(lines) else None
        position = end
        if final is None:
            chain_start = None
            continue
        position += 1
        following = _chained_to(lines, position)
        if following is not None:
            chain_start, position = start, following
            continue
        stop = _end_of_message(lines, position)
        found.append(
            Traceback(
                frames=tuple(reversed(frames)),
                exception=final["type"],
                message=final["message"] or "",
                is_aside=_is_aside(lines, start),
                text="\n".join([_from_header(lines[start]), *lines[start + 1 : stop]]),
            )
        )
        chain_start = None
    return found


def _from_header(line: str) -> str:
    return line if line.startswith((" ", "+")) else _HEADER


def _frames(lines: list[str], position: int) -> tuple[list[PythonFrame], int]:
    """Return the frames from here on, and the position of the first line that is not indented."""
    frames = []
    while position < len(lines) and (lines[position].startswith(" ") or not lines[position]):
        match = _FRAME.match(lines[position])
        if match:
            following = lines[position + 1] if position + 1 < len(lines) else ""
            source = following.strip() if following.startswith("    ") else ""
            frames.append(
                PythonFrame(match["function"] or "<module>", match["file"], int(match["line"]), source)
            )
        position += 1
    return _of_script(frames), position


def _of_script(frames: list[PythonFrame]) -> list[PythonFrame]:
    """Leave out the frames of the runner that repeats a script."""
    return [frame for frame in frames if not frame.file.endswith("/repeat/repeat.py")]


def _chained_to(lines: list[str], position: int) -> int | None:
    """Return where the next traceback of the same chain begins; None if there is none."""
    end = _end_of_message(lines, position)
    for index in range(position, end):
        if lines[index].startswith(_CHAIN):
            return next((i for i in range(index, len(lines)) if lines[i].endswith(_HEADER)), None)
    return None


def _end_of_message(lines: list[str], position: int) -> int:
    """Return where a message ends: at the next traceback or dump, or at the end of the output."""
    while position < len(lines) and not (
        lines[position].endswith(_HEADER) or "Fatal Python error: " in lines[position]
    ):
        position += 1
    return position


def _is_aside(lines: list[str], start: int) -> bool:
    before = lines[start - 1] if start else ""
    return before.startswith(
        ("Exception ignored ", "Exception in thread ", "Error in atexit", "Unhandled exception in thread")
    )


def final_traceback(text: str) -> Traceback | None:
    """Return the last traceback that can explain why the process ended."""
    return next((t for t in reversed(parse_tracebacks(text)) if not t.is_aside), None)


def parse_fatal_dump(text: str) -> FatalDump | None:
    """Parse the last of faulthandler's dumps in an output."""
    lines = text.splitlines()
    found = [(i, match) for i, line in enumerate(lines) if (match := _FATAL.match(line))]
    if not found:
        return None
    start, header = found[-1]
    lines[start] = header["text"]
    threads: list[ThreadStack] = []
    current, inside, cut, end = False, False, False, start + 1
    frames: list[PythonFrame] = []
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if match := _THREAD.match(line):
            if inside:
                threads.append(ThreadStack(current, tuple(_of_script(frames)), cut))
            inside, current, cut, frames = True, match["which"] == "Current thread", False, []
        elif inside and (match := _DUMP_FRAME.match(line)):
            number = int(match["line"]) if match["line"].isdigit() else 0
            frames.append(PythonFrame(match["function"], match["file"], number))
        elif inside and line == "  ...":
            cut = True
        elif line and not line.startswith(
            (" ", "<", "Extension modules", "Current thread's C stack", "Python runtime")
        ):
            break
        end = index + 1
    if inside:
        threads.append(ThreadStack(current, tuple(_of_script(frames)), cut))
    return FatalDump(header["reason"], tuple(threads), "\n".join(lines[start:end]).rstrip())
