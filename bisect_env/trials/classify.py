"""Classifies the end of one process from what was seen of it, by named rules in order. Pure.

The order is that of the table in `docs/outcomes.md`. Rules that read text look at the last words
of a process that failed by itself, never at the whole output: a handled error explains nothing.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from bisect_env.trials.gpu_errors import SICK_XIDS, described, find_cuda_error
from bisect_env.trials.harness_marks import NO_MARKS, Expected, Marks, mismatch
from bisect_env.trials.records import Outcome, Phase
from bisect_env.trials.tracebacks import FatalDump, Traceback, final_traceback, parse_fatal_dump

# --------------------------------------------------------------------------------------------------
# What was observed of one process, without any interpretation.


@dataclass(frozen=True)
class ExitRecord:
    """The facts about one process that classification uses, with its parsed output.

    Attributes:
        returncode: As `subprocess` gives it, negative for a signal; None when the process never started or
            could not be ended.
        stage: Where starting failed (`setup`, `chdir`, `exec`, `lookup`, `outside`), or "".
        why: Why it was not started, if `errno` cannot say it.
        timed_out: Whether the deadline passed before the process ended.
        killed_by_us: Whether we sent a signal before it ended.
        cpu_rate: CPUs it kept busy just before the deadline; None when not measured.
        gpu_rate: Share of the time in which its GPUs were busy just before the deadline; None when not
            measured.
        oom_kills: Kills for lack of memory that the cgroup counted while it ran.
        left_over: Number of processes that outlived it and that we ended.
        unended: Number of processes that even SIGKILL did not end (held by a driver).
        duration: Seconds from exec to end.
        peak: Peak memory of the process, or of one that it waited for, in bytes; 0 when not known.
        stdout: Kept part, decoded.
        stderr: Kept part, decoded.
        stacks: What the deadline's stack hook returned, or "".
        pid: Id of the process; for a container, of the engine's client.
        iterations: Number of iterations of the script that were begun; 1 if it is not repeated.
        state: State of the container after its end, as the engine reported it, or "".
        marks: Notes of the harness inside the interpreter.
        expected: Distributions that the watched modules should have come from.
        xids: Xids that the driver reported for the trial's GPUs while it ran.
        disk_error: Why its file system could not be written to after it, if its output named EIO; else "".
    """

    returncode: int | None
    stage: str = ""
    why: str = ""
    errno: int = 0
    timed_out: bool = False
    killed_by_us: bool = False
    cpu_rate: float | None = None
    gpu_rate: float | None = None
    oom_kills: int = 0
    left_over: int = 0
    unended: int = 0
    duration: float = 0.0
    peak: int = 0
    stdout: str = ""
    stderr: str = ""
    stacks: str = ""
    pid: int = 0
    iterations: int = 1
    state: str = ""
    marks: Marks = NO_MARKS
    expected: Mapping[str, Expected] = field(default_factory=dict)
    xids: tuple[int, ...] = ()
    disk_error: str = ""

    @property
    def signal(self) -> int:
        """Return the signal that ended the process, or 0."""
        return -self.returncode if self.returncode is not None and self.returncode < 0 else 0

    @property
    def failed_alone(self) -> bool:
        """Return whether the process ended by itself, and not with success."""
        return self.returncode not in (None, 0) and not self.killed_by_us

    @cached_property
    def traceback(self) -> Traceback | None:
        """Return the last traceback that can explain why the process ended."""
        return final_traceback(self.stderr)

    @cached_property
    def dump(self) -> FatalDump | None:
        """Return the last of faulthandler's dumps."""
        return parse_fatal_dump(self.stderr)

    @cached_property
    def words(self) -> str:
        """Return the text in which a failed process explains its failure.

        That is its final traceback, else the end of its output. After a signal it is the output before
        faulthandler's dump, which may be very long.
        """
        if self.signal:
            return tail(before_dump(self.stderr), LAST_WORDS)
        if self.traceback is not None:
            return self.traceback.said
        return tail(self.stderr if self.stderr.strip() else self.stdout, LAST_WORDS)

    @property
    def phase(self) -> Phase:
        """Return the phase in which the process ended, or failed if it then ended in order.

        The phases are those of `docs/outcomes.md`: *start* until the interpreter is up, *import* while the
        main thread imports a module for the first time, *body*, and *teardown* from the first handler of
        `atexit` on. Waiting for threads belongs to the body.

        A mark of teardown is certain. Otherwise a stack takes precedence over a mark: the stack is that of
        the thread that failed, whereas marks come from the main thread; after `exec` they come from the
        replaced program.
        """
        if self.signal or self.timed_out or self.returncode is None:
            if self.marks.phase is Phase.TEARDOWN:
                return Phase.TEARDOWN
            from_stacks = self.dump.phase if self.dump is not None else Phase.UNKNOWN
            return self.marks.phase if from_stacks is Phase.UNKNOWN else from_stacks
        if self.traceback is not None:
            return Phase.IMPORT if self.traceback.while_importing else Phase.BODY
        if self.marks.finished:
            return Phase.BODY  # it went through teardown after `sys.exit` had been called
        return self.marks.phase


# --------------------------------------------------------------------------------------------------
# The text in which a failed process says why: the end of what it wrote, of bounded length. Pure.

LAST_WORDS = 40
"""Lines at the end of the output in which a process without a traceback says why it fails."""
LINE_LIMIT = 2000
"""Characters of a line that are looked at: an endless line must not cost endless time."""


def before_dump(stderr: str) -> str:
    """Return the output before faulthandler's dump."""
    before, mark, _ = stderr.rpartition("Fatal Python error: ")
    return before if mark else stderr


_ABORT = re.compile(
    r"^(?:"
    # C++'s terminate handler; assert() in C; glibc's fortify and heap checks; Python's own fatal errors.
    r"terminate called .*"
    r"|.*: Assertion [`'].*' failed\.?"
    r"|\*\*\* .* \*\*\*.*"
    r"|.*\b(?:free|malloc|realloc|munmap_chunk|malloc_consolidate|calloc)\(\): .*"
    r"|.*\b(?:corrupted |double free ).*"
    r"|Fatal Python error: (?!Aborted).*"
    r")$",
    re.MULTILINE,
)


def abort_cause(stderr: str) -> str:
    """Return the line in which a library explains why it called abort(), or ""."""
    found = _ABORT.findall(tail(before_dump(stderr), LAST_WORDS))
    return str(found[-1]).strip() if found else ""


def tail(text: str, lines: int) -> str:
    """Return the last lines of an output, cut to the end of each line that is too long."""
    end = text[-lines * LINE_LIMIT :].rstrip()
    return "\n".join(line[-LINE_LIMIT:] for line in end.splitlines()[-lines:])


# --------------------------------------------------------------------------------------------------
# What one process did, decided from its exit record alone: named rules, first match wins.

BUSY_RATE = 0.1
"""CPUs in use before the deadline above which a hang is a busy loop; on a crowded host it gets few. Of a
GPU, the share of time in which a kernel ran."""
NOTED_LEFT_OVER = "left {} running, ended"


@dataclass(frozen=True, slots=True)
class Classification:
    """The outcome of a process, with its reason.

    Attributes:
        outcome: The outcome.
        detail: The reason, in one readable line.
        phase: The phase in which it ended, as far as known.
        code: What distinguishes failures of this outcome: the CUDA error, the signal's name, the exception or
            the exit code; "" if nothing does.
    """

    outcome: Outcome
    detail: str
    phase: Phase = Phase.UNKNOWN
    code: str = ""


Rule = Callable[[ExitRecord], Classification | None]


def signal_name(number: int) -> str:
    """Return the name of a signal: `SIGSEGV` for 11, `signal 40` for a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def harness_error(record: ExitRecord) -> Classification | None:
    """Recognise a process that the host could not start (no memory, no descriptors), or our own failure."""
    if record.stage in ("setup", "chdir") or (record.stage and record.errno in _RESOURCES):
        return Classification(
            Outcome.HARNESS_ERROR, f"cannot start a process: {os.strerror(record.errno)}", Phase.START
        )
    return None


_RESOURCES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO})


def env_mismatch(record: ExitRecord) -> Classification | None:
    """Recognise an interpreter, or an imported package, of another version than the lock."""
    if why := mismatch(record.expected, record.marks.imported):
        return Classification(Outcome.ENV_MISMATCH, why, record.phase)
    return None


def _named_by_cuda(record: ExitRecord, *outcomes: Outcome) -> Classification | None:
    # A signal other than SIGABRT has its own cause; SIGABRT is how an uncaught C++ exception ends.
    if not record.failed_alone or record.signal not in (0, signal.SIGABRT):
        return None
    error = find_cuda_error(record.words)
    if error is None or error.outcome not in outcomes:
        return None
    code = f"CUDA error {error.number} ({error.runtime})"
    return Classification(error.outcome, f"{code}: {error.text}", record.phase, code)


def gpu_sick(record: ExitRecord) -> Classification | None:
    """Recognise a sick Xid while the trial ran, however the script ended."""
    if sick := sorted(set(record.xids) & SICK_XIDS):
        return Classification(Outcome.GPU_LOST, described(sick), record.phase, described(sick))
    return None


def gpu_lost(record: ExitRecord) -> Classification | None:
    """Recognise last words that name a CUDA error of a GPU that went away or is sick."""
    return _named_by_cuda(record, Outcome.GPU_LOST)


def unsupported(record: ExitRecord) -> Classification | None:
    """Recognise last words that name a CUDA error by which this driver or GPU cannot run that build."""
    return _named_by_cuda(record, Outcome.UNSUPPORTED)


def cuda_failure(record: ExitRecord) -> Classification | None:
    """Recognise last words that name a CUDA error, with an exit code or SIGABRT."""
    return _named_by_cuda(record, Outcome.CUDA_FAULT, Outcome.CUDA_OOM, Outcome.CUDA_INIT)


def killed_external(record: ExitRecord) -> Classification | None:
    """Recognise SIGKILL or SIGTERM that we did not send, without a kill for lack of memory."""
    if not record.killed_by_us and record.signal in (signal.SIGKILL, signal.SIGTERM) and not record.oom_kills:
        name = signal_name(record.signal)
        return Classification(Outcome.KILLED_EXTERNAL, f"{name}, not sent by us", record.phase)
    return None


_DISK = re.compile(
    r"\[Errno (?:28|116|122)\]|No space left on device|Disk quota exceeded|Stale (?:NFS )?file handle|ENOSPC"
)

_DISK_CAUSE = re.compile(r"^OSError: \[Errno (?:28|116|122)\].*", re.MULTILINE)
IO_ERROR = re.compile(r"\[Errno 5\]|Input/output error")
"""What a broken disk gives, and a terminal whose other end is closed, a device or a pipe just as well."""


def disk_full(record: ExitRecord) -> Classification | None:
    """Recognise ENOSPC, EDQUOT or ESTALE in the final exception, one that led to it, or the last three lines.

    EIO alone says nothing of a disk: then nothing can be written where the trial ran.
    """
    if not record.failed_alone:
        return None
    if record.disk_error:
        return Classification(Outcome.DISK_FULL, f"disk: {record.disk_error}", record.phase)
    traceback = record.traceback
    text = f"{traceback.exception}: {traceback.message}" if traceback else tail(record.stderr, 3)
    match = _DISK.search(text) or (_DISK_CAUSE.search(traceback.said) if traceback else None)
    return Classification(Outcome.DISK_FULL, f"disk: {match[0]}", record.phase) if match else None


def skip(record: ExitRecord) -> Classification | None:
    """Exit code 125, as in git: the script says that nothing can be learnt here."""
    if record.failed_alone and record.returncode == 125:
        return Classification(Outcome.SKIP, "exit code 125", record.phase)
    return None


_NO_SCRIPT = re.compile(
    r"can't open file '.*|can't find '__main__' module in .*|is a directory, cannot continue"
)
_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError)\b.*")
_ENCODING = re.compile(r"SyntaxError: (?:Non-(?:UTF-8|ASCII) \w+ |encoding problem: |unknown encoding: ).*")
"""Of a script that could not even be read, for which no place in it is given."""
_LOADER = re.compile(r"symbol lookup error:.*|error while loading shared libraries:.*")


def not_runnable(record: ExitRecord) -> Classification | None:
    """Recognise a missing command or script, or a host's; no permission, 126, 127, its own syntax error."""
    if record.stage:
        why = "command not found" if record.stage == "lookup" else os.strerror(record.errno)
        why = record.why or why
        return Classification(Outcome.NOT_RUNNABLE, f"cannot execute the command: {why}", Phase.START)
    if not record.failed_alone or _LOADER.search(tail(record.stderr, 3)):
        return None  # the dynamic loader exits with 127 too: that is an import that fails
    if record.returncode in (126, 127):
        return Classification(Outcome.NOT_RUNNABLE, f"exit code {record.returncode}", Phase.START)
    return _script_unusable(record)


def _script_unusable(record: ExitRecord) -> Classification | None:
    if record.returncode in (1, 2) and (match := _NO_SCRIPT.search(tail(record.stderr, 3))):
        return Classification(Outcome.NOT_RUNNABLE, match[0], Phase.START)
    # The script's own syntax error has no "Traceback" line: no frame had been entered. One in an imported
    # module has.
    lines = tail(record.stderr, LAST_WORDS).splitlines()
    if record.returncode == 1 and lines and (match := _SYNTAX.match(lines[-1])):
        is_placed = any(line.startswith('  File "') for line in lines) or _ENCODING.match(lines[-1])
        if is_placed and record.traceback is None:
            return Classification(Outcome.NOT_RUNNABLE, f"the script: {match[0]}", Phase.START)
    return None


def host_oom(record: ExitRecord) -> Classification | None:
    """Recognise SIGKILL not by us (137 from a shell) while the cgroup counted a kill for lack of memory."""
    killed = record.signal == signal.SIGKILL or record.returncode == 128 + signal.SIGKILL
    if killed and not record.killed_by_us and record.oom_kills:
        detail = "killed by the kernel for lack of memory"
        if record.peak:
            # With several trials at once it tells who had it.
            detail += f", of which it had {record.peak / 1e6:.0f} MB"
        return Classification(Outcome.HOST_OOM, detail, record.phase)
    return None


def hang(record: ExitRecord) -> Classification | None:
    """Recognise a time limit that passed; idle, busy-cpu or busy-gpu by what was used just before."""
    if not record.timed_out:
        return None
    detail = f"hang ({_hang_kind(record)}) at the deadline"
    if record.unended:
        detail += f"; {_processes(record.unended)} cannot be killed"
    return Classification(Outcome.HANG, detail, record.phase)


def _hang_kind(record: ExitRecord) -> str:
    # The GPU first: a thread that waits for a kernel may do so by polling, and keeps a CPU busy.
    if record.gpu_rate is not None and record.gpu_rate >= BUSY_RATE:
        return "busy-gpu"
    if record.cpu_rate is None:
        return "not measured"
    return "idle" if record.cpu_rate < BUSY_RATE else "busy-cpu"


def crash(record: ExitRecord) -> Classification | None:
    """Recognise an end by a signal that no process sent; SIGABRT with the C library's or C++'s reason."""
    if not record.signal or record.killed_by_us:
        return None
    name = signal_name(record.signal)
    where = "" if record.phase is Phase.UNKNOWN else f" in {record.phase}"
    cause = abort_cause(record.stderr) if record.signal == signal.SIGABRT else ""
    return Classification(
        Outcome.CRASH, f"{name}{where}" + (f": {cause}" if cause else ""), record.phase, name
    )


def import_error(record: ExitRecord) -> Classification | None:
    """Recognise ImportError, a symbol that the loader does not find, or any exception during an import."""
    if not record.failed_alone or record.signal:
        return None
    traceback = record.traceback
    if match := _LOADER.search(tail(record.stderr, 3)):
        why = match[0]
    elif record.returncode == 1 and traceback is not None and _is_import_failure(traceback):
        why = _one_line(traceback)
    # `python -m` says it without a traceback.
    elif record.returncode == 1 and (match := _NO_MODULE.search(tail(record.stderr, 1))):
        why = match[1]
    elif match := _COLLECTING.search(record.stdout):
        why = match[0]
    else:
        return None
    return Classification(Outcome.IMPORT_ERROR, why, Phase.IMPORT, _failure_code(record))


_NO_MODULE = re.compile(r": (No module named .*|Error while finding module specification for .*)$")
_COLLECTING = re.compile(r"^ImportError while (?:importing test module|loading conftest) .*$", re.MULTILINE)


def _is_import_failure(traceback: Traceback) -> bool:
    return (
        traceback.exception in ("ImportError", "ModuleNotFoundError")
        or "undefined symbol" in traceback.message
        or traceback.while_importing
    )


def exit_fail(record: ExitRecord) -> Classification | None:
    """Recognise any other exit code or exception; above 128 with a note that a shell reports signals so."""
    if record.returncode is None or record.returncode <= 0:
        return None
    traceback = record.traceback
    if record.returncode == 1 and traceback is not None:
        return Classification(Outcome.EXIT_FAIL, _one_line(traceback), record.phase, _failure_code(record))
    detail = f"exit code {record.returncode}"
    if 128 < record.returncode <= 128 + signal.NSIG:
        # What a shell makes of its child's signal; `exit(139)` looks the same, so it is not called a crash.
        detail += f" (a shell reports {signal_name(record.returncode - 128)} so)"
    return Classification(Outcome.EXIT_FAIL, detail, record.phase, _failure_code(record))


def _failure_code(record: ExitRecord) -> str:
    """Return the exception that ended the process, else its exit code."""
    if record.returncode == 1 and record.traceback is not None:
        return record.traceback.exception
    return str(record.returncode)


def passed(record: ExitRecord) -> Classification | None:
    """Recognise exit code 0."""
    if record.returncode != 0:
        return None
    return Classification(Outcome.PASS, "exit code 0", record.marks.phase)


RULES: tuple[Rule, ...] = (
    harness_error,
    gpu_sick,
    gpu_lost,
    killed_external,
    disk_full,
    env_mismatch,
    unsupported,
    skip,
    not_runnable,
    host_oom,
    hang,
    cuda_failure,
    crash,
    import_error,
    exit_fail,
    passed,
)
"""In order of precedence. CUDA failures stand before crashes because an abort that names one is one."""


def classify(record: ExitRecord) -> Classification:
    """Return the outcome of a process; every record has one."""
    answers = (answer for rule in RULES if (answer := rule(record)) is not None)
    unknown = Classification(Outcome.HARNESS_ERROR, "the process ended in a way that no rule knows")
    found = next(answers, unknown)
    return replace(found, detail="; ".join([found.detail, *_notes(found, record)]))


def _notes(found: Classification, record: ExitRecord) -> list[str]:
    notes = []
    # The kernel may have killed a child of the script, which then failed for that reason, or a neighbour.
    if record.oom_kills and record.returncode != 0 and found.outcome is not Outcome.HOST_OOM:
        notes.append(f"the kernel killed {_processes(record.oom_kills)} for lack of memory meanwhile")
    if record.left_over and not record.killed_by_us:
        notes.append(NOTED_LEFT_OVER.format(_processes(record.left_over)))
    return notes


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _one_line(traceback: Traceback) -> str:
    return f"{traceback.exception}: {traceback.message}" if traceback.message else traceback.exception
