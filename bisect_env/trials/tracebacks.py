"""Parses the stacks that CPython (2.7 and later) prints: tracebacks, and dumps of `faulthandler`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bisect_env.trials.records import Phase

_HEADER = "Traceback (most recent call last):"
"""Header of a traceback. It may stand behind other text, because a progress bar was printed before it."""

# --------------------------------------------------------------------------------------------------
# Tracebacks of exception groups (Python 3.11 and later), reduced to the first exception inside. Pure.
#
# `asyncio.TaskGroup` and similar functions raise exception groups. The group itself always has the same type
# and place. The exceptions inside it show what failed, and where.

_GROUP = re.compile(r"^ +\+ Exception Group Traceback \(most recent call last\):$")
_BRANCH = re.compile(r"^ +\+(?:-\+)?-+ \d+ -+$")
_PREFIX = re.compile(r"^ +\| ?")
_DRAWN = re.compile(r"^ +[|+]")


def without_groups(lines: Sequence[str]) -> list[str]:
    """Simplify the tracebacks of exception groups to that of the first exception inside each group.

    The simplified traceback has the frames of the group, followed by the frames of that exception.

    Args:
        lines: Lines of the output.
    """
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
    """Return the index after the last line of an exception group, searching from `position` on.

    Lines of a group begin with `|` or `+`. Other lines, which belong to a message, are skipped.
    """
    end = position
    for index in range(position, len(lines)):
        if _DRAWN.match(lines[index]) and not _GROUP.match(lines[index]):
            end = index + 1
        elif lines[index].endswith(_HEADER):
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
        if text.endswith(_HEADER) or text.lstrip().startswith("+--"):
            continue
        (frames if not message and (text.startswith(" ") or not text) else message).append(text)
    return [_HEADER, *frames, *message]


# --------------------------------------------------------------------------------------------------
# Parsing tracebacks and dumps of `faulthandler`, as CPython (2.7 and later) prints them.

_FRAME = re.compile(r'^\s+(?:\| )?File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_FINAL = re.compile(r"^[ |]*(?P<type>[^\W\d](?:[\w.]|<locals>)*)(?:: (?P<message>.*))?$")
_CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
_ASIDE = (
    "Exception ignored ",
    "Exception in thread ",
    "Error in atexit",
    "Unhandled exception in thread",
    "--- Logging error ---",
    # asyncio names the task or the callback whose exception nobody handled.
    "future: <",
    "task: <",
    "handle: <",
    # `site` reports lines of `.pth` and `.start` files that raise, and goes on.
    "Error processing line ",
    "Error in entry point ",
    "Error resolving entry point ",
    "Invalid entry point syntax in ",
    "Error in import line from ",
    # `sys.remote_exec` reports a script that raises, and the process goes on.
    "Error executing debugger script ",
)
"""Starts of the line before a traceback whose exception does not end the process."""
_FATAL = re.compile(r"^.*?(?P<text>Fatal Python error: (?P<reason>.*))$")
_THREAD = re.compile(
    r"^(?:(?P<which>Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\)"
    # The only stack, where other threads are not shown: without the GIL, with `all_threads=False`, in PyPy.
    r"|Stack \(most recent call first(?:, approximate line numbers)?\)):$"
)
_MOST_FRAMES = 100
"""Maximum number of frames of a thread in a dump. From Python 3.13 on no line says that more follow."""
_DUMP_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack trace: function, file, line and source code.

    Attributes:
        function: Name of the function, or an address if the name is unknown.
        file: Name of the source file, or of the library.
        line: Line number; 0 if unknown.
        source: Line of Python code; "" if it is unknown.
        native: Whether it is a frame of native code, not of Python.
    """

    function: str
    file: str = ""
    line: int = 0
    source: str = ""
    native: bool = False

    def __str__(self) -> str:
        place = f"{self.file}{f':{self.line}' if self.line else ''}"
        return f"{self.function} ({place})" if place else self.function

    @property
    def is_importlib(self) -> bool:
        """Return whether the frame belongs to Python's import system.

        Frames of the harness count, too, because the harness wraps the lock of the import system.
        """
        return self.file.startswith(("<frozen importlib", "<frozen zipimport")) or self.file.endswith(
            "/harness/sitecustomize.py"
        )

    @property
    def is_module(self) -> bool:
        """Return whether the frame is the top-level code of a file, not of `exec` or `python -c`."""
        return self.function == "<module>" and not self.file.startswith("<")


@dataclass(frozen=True, slots=True)
class Traceback:
    """A traceback of one exception, as Python printed it.

    Attributes:
        frames: Frames, most recent call first.
        exception: Printed type of the exception, such as `torch.OutOfMemoryError`.
        message: First line of the exception's message.
        is_aside: Whether the exception occurred where it cannot end the process, such as in a thread, a
            destructor, an `atexit` handler or while a message was logged.
        text: Printed text, from the first exception of a chain to the end of the last message.
    """

    frames: tuple[Frame, ...]
    exception: str
    message: str
    is_aside: bool
    text: str

    @property
    def said(self) -> str:
        """Return the text of the traceback without the lines of source code.

        Source code may mention errors that did not occur.
        """
        lines = self.text.splitlines()
        return "\n".join(
            line
            for before, line in zip(["", *lines], lines, strict=False)
            if not (line.startswith("    ") and _FRAME.match(before))
        )

    @property
    def while_importing(self) -> bool:
        """Return whether the exception occurred while a module was being imported.

        The frames of the import system show this, but Python usually removes them from a traceback. So it
        also counts if another frame called the top-level code of a file. The outermost frame is not called by
        another one; it is the script itself.
        """
        if any(frame.is_importlib for frame in self.frames):
            return True
        # Top-level code that was started through `exec` (by coverage or runpy) is a script, not an import.
        return any(
            frame.is_module and (not caller.source or "import" in caller.source)
            for frame, caller in itertools.pairwise(self.frames)
            if not _is_runpy(caller)
        )


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of one thread in a dump of `faulthandler`.

    Attributes:
        current: Whether this thread got the signal.
        frames: Frames, innermost first.
        cut: Whether the outermost frames are missing, because `faulthandler` prints at most a hundred.
    """

    current: bool
    frames: tuple[Frame, ...]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class FatalDump:
    """The dump that `faulthandler` prints on a fatal signal.

    Attributes:
        reason: Reason as printed, such as `Segmentation fault`.
        threads: Stacks of all threads, in the order printed.
        text: Printed text of the dump.
    """

    reason: str
    threads: tuple[ThreadStack, ...]
    text: str

    @property
    def current(self) -> ThreadStack | None:
        """Return the stack of the thread that got the signal; None if the dump does not mark one."""
        return next((thread for thread in self.threads if thread.current), None)

    @property
    def phase(self) -> Phase:
        """Return the phase of the script at the time of the signal, as far as the stacks show it.

        While the script runs, its top-level code is the outermost frame of a thread. After that, the main
        thread waits for the other threads. If no stack shows either of these, the interpreter is shutting
        down: `atexit` handlers and destructors have no outer Python frame.
        """
        stacks = [thread.frames for thread in self.threads if thread.frames]
        if not stacks or self.current is None:
            return Phase.UNKNOWN
        if not any(_is_top_level(frames[-1]) or _waits_for_threads(frames[-1]) for frames in stacks):
            # `faulthandler` prints at most a hundred frames; the outermost of a longer stack is unknown.
            return Phase.UNKNOWN if any(thread.cut for thread in self.threads) else Phase.TEARDOWN
        return Phase.IMPORT if any(frame.is_importlib for frame in self.current.frames) else Phase.BODY


def _is_runpy(frame: Frame) -> bool:
    return frame.file.startswith("<frozen runpy") or frame.file.endswith("/runpy.py")


def _is_top_level(frame: Frame) -> bool:
    return frame.function == "<module>" or frame.function == "_run_module_as_main"


def _waits_for_threads(frame: Frame) -> bool:
    return frame.function in ("_shutdown", "_exitfunc") and frame.file.endswith("/threading.py")


def parse_tracebacks(text: str) -> list[Traceback]:
    """Return all tracebacks in an output, in order.

    Of chained exceptions ("During handling of the above exception ..."), only the last becomes a traceback;
    its text includes the others.
    """
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


def _frames(lines: list[str], position: int) -> tuple[list[Frame], int]:
    """Parse the frames of a traceback from index `position` on.

    Return them and the index of the first unindented line.
    """
    frames = []
    while position < len(lines) and (lines[position].startswith(" ") or not lines[position]):
        match = _FRAME.match(lines[position])
        if match:
            following = lines[position + 1] if position + 1 < len(lines) else ""
            source = following.strip() if following.startswith("    ") else ""
            frames.append(Frame(match["function"] or "<module>", match["file"], int(match["line"]), source))
        position += 1
    return _of_script(frames), position


def _of_script(frames: list[Frame]) -> list[Frame]:
    """Return the frames except those of `repeat.py`, the harness's runner that repeats a script."""
    return [frame for frame in frames if not frame.file.endswith("/repeat/repeat.py")]


def _chained_to(lines: list[str], position: int) -> int | None:
    """Return the index at which the next traceback in a chain of exceptions begins.

    Return None if the chain ends here.
    """
    end = _end_of_message(lines, position)
    for index in range(position, end):
        if lines[index].startswith(_CHAIN):
            return next((i for i in range(index, len(lines)) if lines[i].endswith(_HEADER)), None)
    return None


def _end_of_message(lines: list[str], position: int) -> int:
    """Return the index of the line after the message of an exception.

    The message ends at the next traceback or dump, or at the end of the output.
    """
    while position < len(lines) and not (
        lines[position].endswith(_HEADER) or "Fatal Python error: " in lines[position]
    ):
        position += 1
    return position


def _is_aside(lines: list[str], start: int) -> bool:
    # `site` leaves a line empty between its words and the traceback.
    before = next((line for line in lines[max(0, start - 2) : start][::-1] if line.strip()), "")
    return before.startswith(_ASIDE)


def final_traceback(text: str) -> Traceback | None:
    """Return the traceback that explains why a process ended, or None if there is none.

    It is the last one in the output that can be the cause. Tracebacks of threads, destructors, `atexit`
    handlers, failed log messages and forgotten tasks are ignored, because they do not end a process.
    """
    return next((t for t in reversed(parse_tracebacks(text)) if not t.is_aside), None)


def _thread(frames: list[Frame], *, current: bool, cut: bool) -> ThreadStack:
    return ThreadStack(current, tuple(_of_script(frames)), cut or len(frames) >= _MOST_FRAMES)


def parse_fatal_dump(text: str) -> FatalDump | None:
    """Parse the last dump of `faulthandler` in an output; return None if there is none."""
    lines = text.splitlines()
    found = [(i, match) for i, line in enumerate(lines) if (match := _FATAL.match(line))]
    if not found:
        return None
    start, header = found[-1]
    lines[start] = header["text"]
    threads: list[ThreadStack] = []
    current, inside, cut, end = False, False, False, start + 1
    frames: list[Frame] = []
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if match := _THREAD.match(line):
            if inside:
                threads.append(_thread(frames, current=current, cut=cut))
            inside, current, cut, frames = True, match["which"] != "Thread", False, []
        elif inside and (match := _DUMP_FRAME.match(line)):
            number = int(match["line"]) if match["line"].isdigit() else 0
            frames.append(Frame(match["function"], match["file"], number))
        elif inside and line == "  ...":
            cut = True
        elif line and not line.startswith(
            (" ", "<", "Extension modules", "Current thread's C stack", "Python runtime")
        ):
            break
        end = index + 1
    if inside:
        threads.append(_thread(frames, current=current, cut=cut))
    return FatalDump(header["reason"], tuple(threads), "\n".join(lines[start:end]).rstrip())
