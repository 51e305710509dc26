"""Derives the outcome of one process (crash, hang, pass, ...) from its exit record. Pure.

Each rule is a function that returns the outcome which it stands for, or None. The rules are applied in the
order of the table in `docs/outcomes.md`, and the first rule that matches decides. Rules that search text read
only the *last words* of a process that failed by itself: its final traceback, or the end of its output. They
never read the whole output, because an error that the script handled earlier does not explain why the process
failed.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from bisect_env.matrix.interpreter import is_python, python_options
from bisect_env.trials.gpu_errors import SICK_XIDS, described, find_cuda_error
from bisect_env.trials.harness_marks import NO_MARKS, Expected, Marks, mismatch
from bisect_env.trials.records import Outcome, Phase
from bisect_env.trials.runners import (
    NAMED_SIGNALS,
    LaunchedEnd,
    is_summary,
    launched_end,
    no_test_ran,
    own_limit,
    runner_error_in,
)
from bisect_env.trials.tracebacks import FatalDump, Traceback, final_traceback, parse_fatal_dump

# --------------------------------------------------------------------------------------------------
# What was observed of one process, without any interpretation.


@dataclass(frozen=True)
class ExitRecord:
    """The observations about one process of a trial, such as its return code and its output.

    The outcome of the process is derived from them. The traceback, the dump and the last words are parsed
    when they are first requested, and the results are kept for every rule, the signature and the stored
    stack.

    Attributes:
        returncode: Return code as in `subprocess`: negative for a signal; None if the process never started
            or could not be ended.
        stage: Step at which starting the process failed (`setup`, `chdir`, `exec`, `lookup`, `outside`); ""
            if it started.
        why: Reason why the process was not started, if `errno` cannot express it; else "".
        errno: Error number of the system call that failed to start the process; 0 if there was none.
        timed_out: Whether the time limit passed before the process ended.
        killed_by_us: Whether bisect-env sent a signal to the process before it ended.
        stopped: Whether the process was stopped, as by SIGSTOP, when the time limit passed.
        cpu_rate: Average number of CPUs in use just before the time limit; None if not measured.
        gpu_rate: Share of the time (0 to 1) in which its GPUs were busy just before the time limit; None if
            not measured.
        oom_kills: Number of kills for lack of memory that the memory cgroup counted while the process ran.
        left_over: Number of processes that were still running after the process ended and were then killed.
        unended: Number of processes that survived SIGKILL (for example blocked in a driver).
        duration: Run time in seconds.
        peak: Peak memory in bytes of the process, or of a child that it waited for; 0 if not known.
        stdout: Kept part of standard output, decoded.
        stderr: Kept part of standard error, decoded.
        matched_in_gap: Patterns of the target that match in output that was not kept.
        stacks: Stacks that were read from the live process at the time limit, or "".
        command: Program and arguments of the trial.
        files: Names of the trial's own files.
        pid: Id of the process; for a container, the id of the engine's client process.
        iterations: Number of iterations of the script that were begun; 1 if the script is not repeated.
        state: State of the container after it ended, as the engine reported it; "" outside a container.
        marks: Notes that the harness wrote inside the interpreter.
        expected: Watched module to the distribution of the lock that should provide it.
        xids: Xids (error codes of the NVIDIA driver) reported for the trial's GPUs while the process ran.
        disk_full: Which file system was full after the process had ended, such as `/data is full`; "" if none
            was. It is checked only if stderr named ENOSPC or EIO.
        disk_error: Error of a test write to the trial's file system after the process had ended; "" if there
            was none. It is checked only if stderr named ENOSPC or EIO.
    """

    returncode: int | None
    stage: str = ""
    why: str = ""
    errno: int = 0
    timed_out: bool = False
    killed_by_us: bool = False
    stopped: bool = False
    cpu_rate: float | None = None
    gpu_rate: float | None = None
    oom_kills: int = 0
    left_over: int = 0
    unended: int = 0
    duration: float = 0.0
    peak: int = 0
    stdout: str = ""
    stderr: str = ""
    matched_in_gap: tuple[str, ...] = ()
    stacks: str = ""
    command: Sequence[str] = ()
    files: Sequence[str] = ()
    pid: int = 0
    iterations: int = 1
    state: str = ""
    marks: Marks = NO_MARKS
    expected: Mapping[str, Expected] = field(default_factory=dict)
    xids: tuple[int, ...] = ()
    disk_full: str = ""
    disk_error: str = ""

    @property
    def signal(self) -> int:
        """Return the number of the signal that ended the process; 0 if no signal did."""
        return -self.returncode if self.returncode is not None and self.returncode < 0 else 0

    @property
    def failed_alone(self) -> bool:
        """Return whether the process failed (non-zero return code) before bisect-env sent it any signal."""
        return self.returncode not in (None, 0) and not self.killed_by_us

    @cached_property
    def traceback(self) -> Traceback | None:
        """Return the last Python traceback in stderr that can explain the failure; None if there is none.

        If the script ended by `sys.exit`, a traceback was only logged, and must stand in the last lines.
        """
        text = self.stderr
        found = final_traceback(text)
        if found is None and self.is_launcher and self.failed_alone:
            text = self.launched_output
            found = final_traceback(text)
        if found is None or self.marks.unhandled is not False:
            return found
        return found if found.exception in tail(text, LAST_WORDS) else None

    @cached_property
    def dump(self) -> FatalDump | None:
        """Return the stack dump of `faulthandler` that explains the end; None if there is none.

        It is the last one in stderr. After a hang, when all processes of the script are aborted, it is the
        first one of an abort, because the main process is aborted first.
        """
        text = self.stderr
        if self.timed_out:
            before, mark, after = text.partition("Fatal Python error: Aborted")
            text = before + mark + after.partition("Fatal Python error: ")[0]
        found = parse_fatal_dump(text)
        if found is None and self.is_launcher and self.failed_alone:
            return parse_fatal_dump(self.launched_output)
        return found

    @cached_property
    def is_launcher(self) -> bool:
        """Return whether the command is a program that may run the script in a process of its own.

        That is any program but an interpreter with a script or code, such as `make`, `sh` or `python -m nox`.
        """
        if not self.command:
            return False
        program, *arguments = self.command
        if not is_python(program):
            return not program.endswith(".py")
        options = python_options(arguments)
        if options is None:
            return False
        return options.end is None or arguments[options.end].startswith("-m")

    @property
    def launched_output(self) -> str:
        """Return standard output, into which some launchers put all output of what they run.

        It is "" if a test runner wrote it, because its tests may print anything.
        """
        return "" if any(map(is_summary, tail(self.stdout, 1).splitlines())) else self.stdout

    @cached_property
    def end(self) -> LaunchedEnd:
        """Return how the script ended: by the process's own code, or as a launcher states it.

        A dump of `faulthandler` shows the signal that ended a child, behind any launcher. For an interpreter
        with a script it counts only if the script ended because of that.
        """
        code = self.returncode or 0
        if not self.failed_alone or self.signal:
            return LaunchedEnd(code)
        if (number := self._signal_of_child()) and self.dump is not None:
            return LaunchedEnd(-number, f"Fatal Python error: {self.dump.reason}")
        return launched_end(code, self.stdout, self.stderr) if self.is_launcher else LaunchedEnd(code)

    @property
    def raised(self) -> Traceback | None:
        """Return the traceback of the exception that ended the script; None if it ended in another way.

        Python then exits with 1; launchers have codes of their own.
        """
        return self.traceback if self.end.code == 1 or self.is_launcher else None

    def _signal_of_child(self) -> int:
        number = NAMED_SIGNALS.get(self.dump.reason, 0) if self.dump is not None else 0
        if not number or self.dump is None:
            return 0
        after = self.stderr.rpartition(self.dump.text)[2]
        if len(after.splitlines()) > 2 * LAST_WORDS:
            return 0  # the process went on for long after it
        if self.is_launcher:
            return int(number)
        # A pool whose worker died raises an exception that says so; the dump stands before its traceback.
        found = final_traceback(after)
        lost = found is not None and _LOST_CHILD.search(f"{found.exception}: {found.message}")
        return int(number) if lost else 0

    @cached_property
    def words(self) -> str:
        """Return the *last words* of the process: the text that most likely explains its failure.

        After a signal, these are the last lines of stderr before the dump of `faulthandler`. Otherwise they
        are the final traceback or, without one, the last lines of stderr (of stdout if stderr is empty).
        """
        if self.signal:
            before, mark, _ = self.stderr.rpartition("Fatal Python error: ")
            return tail(before if mark else self.stderr, LAST_WORDS)
        if self.traceback is not None:
            return self.traceback.said
        return tail(self.stderr if self.stderr.strip() else self.stdout, LAST_WORDS)

    @cached_property
    def abort_cause(self) -> str:
        """Return the line in which a library said why it aborted the process, or "" if there is none.

        An example is `double free or corruption (out)`.
        """
        found = _ABORT.findall(self.words) if self.signal else []
        return str(found[-1]).strip() if found else ""

    @property
    def phase(self) -> Phase:
        """Return the phase of the script, such as import or teardown, in which the process failed or ended.

        The phases are those of `docs/outcomes.md`: *start* until the interpreter is running, *import* while
        the main thread imports a module for the first time, *body* for the rest of the script (including
        waiting for threads), and *teardown* from the first `atexit` handler on.

        There are two sources: the marks of the harness and the stacks in stderr. A mark of teardown always
        decides. Otherwise a stack decides before a mark: the stack belongs to the thread that failed, but
        marks describe only the main thread and, after `exec`, still the program that was replaced.
        """
        from_stacks = self.dump.phase if self.dump is not None else Phase.UNKNOWN
        if self.signal or self.timed_out or self.returncode is None:
            if self.marks.phase is Phase.TEARDOWN:
                return Phase.TEARDOWN
            return self.marks.phase if from_stacks is Phase.UNKNOWN else from_stacks
        if self.end.signal:
            return from_stacks  # the marks are those of the launcher
        if self.traceback is not None:
            return Phase.IMPORT if self.traceback.while_importing else Phase.BODY
        if self.marks.finished:
            return Phase.BODY  # it went through teardown after `sys.exit` had been called
        return self.marks.phase


# --------------------------------------------------------------------------------------------------
# The end of a failed process's output, of limited length, which explains the failure. Pure.

LAST_WORDS = 40
"""Number of lines at the end of the output that are searched for the cause if there is no traceback."""
LINE_LIMIT = 2000
"""Number of characters of a line that are searched, so that a very long line cannot take very long."""
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


_LOST_CHILD = re.compile(
    # concurrent.futures, joblib, Dask, Jupyter, torch, ray, subprocess.
    r"Broken|Terminated|Killed|Dead|Crashed|Exited|\b(?:died|killed|crashed|terminated|exit\w*|signal|SIG[A-Z]+)"
)
"""Words of an exception that is raised because a child process ended."""


def tail(text: str, lines: int) -> str:
    """Return the last `lines` lines of `text`, each shortened to its last `LINE_LIMIT` characters."""
    end = text[-lines * LINE_LIMIT :].rstrip()
    return "\n".join(line[-LINE_LIMIT:] for line in end.splitlines()[-lines:])


# --------------------------------------------------------------------------------------------------
# The rules that derive the outcome of one process from its exit record; the first match decides.

BUSY_RATE = 0.1
"""Threshold from which a hanging process counts as busy instead of idle, measured just before the time limit.

For CPUs: the average number in use; it is low because a busy loop gets little CPU time on a crowded host. For
GPUs: the share of the time in which a kernel ran."""
NOTED_LEFT_OVER = "left {} running, ended"
"""Remark in a trial's detail about processes that were still running after the script and were killed."""


@dataclass(frozen=True, slots=True)
class Classification:
    """The outcome of one process of a trial, such as `crash`, and the reason for it.

    Attributes:
        outcome: Outcome of the process.
        detail: Reason for the outcome, in one readable line.
        phase: Phase of the script in which the process ended, if known.
        code: Text that tells failures of the same outcome apart: the CUDA error, the signal's name, the
            exception or the exit code; "" if the outcome needs none.
        named: What the output named, if that decided the outcome, such as the CUDA error; else "". It decides
            nothing where trials that pass name it, too.
    """

    outcome: Outcome
    detail: str
    phase: Phase = Phase.UNKNOWN
    code: str = ""
    named: str = ""


Rule = Callable[[ExitRecord], Classification | None]
"""A function that returns the classification of an exit record if its condition holds, else None."""


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGSEGV` for 11.

    A signal without a name, such as a real-time signal, becomes `signal 40`.
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def harness_error(record: ExitRecord) -> Classification | None:
    """Return `harness-error` if the host could not start the process, or bisect-env failed, else None."""
    if record.stage in ("setup", "chdir") or (record.stage and record.errno in _RESOURCES):
        return Classification(
            Outcome.HARNESS_ERROR, f"cannot start a process: {os.strerror(record.errno)}", Phase.START
        )
    return None


_RESOURCES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO})


def env_mismatch(record: ExitRecord) -> Classification | None:
    """Return `env-mismatch` if Python or an imported package has a version not in the lock, else None."""
    if why := mismatch(record.expected, record.marks.imported):
        return Classification(Outcome.ENV_MISMATCH, why, record.phase)
    return None


def _named_by_cuda(record: ExitRecord, *outcomes: Outcome) -> Classification | None:
    # An uncaught C++ exception may name a CUDA error and ends in SIGABRT; other signals have other causes.
    if not record.failed_alone or record.signal not in (0, signal.SIGABRT):
        return None
    error = find_cuda_error(record.words)
    if error is None or error.outcome not in outcomes:
        return None
    code = f"CUDA error {error.number} ({error.runtime})"
    return Classification(error.outcome, f"{code}: {error.text}", record.phase, code, named=code)


def gpu_sick(record: ExitRecord) -> Classification | None:
    """Return `gpu-lost` if the driver reported an Xid (error) of broken hardware or software, else None.

    Only the Xids in `SICK_XIDS` count, and only those reported during the trial. How the script ended does
    not matter.
    """
    if sick := sorted(set(record.xids) & SICK_XIDS):
        return Classification(Outcome.GPU_LOST, described(sick), record.phase, described(sick))
    return None


def gpu_lost(record: ExitRecord) -> Classification | None:
    """Return `gpu-lost` if the last words name a CUDA error of a lost or defective GPU, else None."""
    return _named_by_cuda(record, Outcome.GPU_LOST)


def unsupported(record: ExitRecord) -> Classification | None:
    """Return `unsupported` if stderr ends with a CUDA error of a too old driver or GPU, else None."""
    return _named_by_cuda(record, Outcome.UNSUPPORTED)


def cuda_failure(record: ExitRecord) -> Classification | None:
    """Return the outcome if the last words name a CUDA error that no other rule covers, else None.

    The outcome is that of the CUDA error: a fault, lack of GPU memory, or a failed start of CUDA. The process
    must have ended with an exit code or SIGABRT.
    """
    return _named_by_cuda(record, Outcome.CUDA_FAULT, Outcome.CUDA_OOM, Outcome.CUDA_INIT)


def killed_external(record: ExitRecord) -> Classification | None:
    """Return `killed-external` if a SIGKILL, SIGTERM or SIGSTOP came from somebody else, else None.

    A kill by bisect-env, or by the kernel for lack of memory, is another outcome. A process that is stopped
    at its time limit did not hang: it was not allowed to run.
    """
    if record.timed_out and record.stopped:
        return Classification(
            Outcome.KILLED_EXTERNAL, "stopped (SIGSTOP) at the time limit, not by us", record.phase
        )
    # The kernel kills with SIGKILL only. Daemons that free memory early, such as earlyoom, send SIGTERM.
    number = record.signal or record.end.signal
    by_kernel = number == signal.SIGKILL and record.oom_kills
    if not record.killed_by_us and number in (signal.SIGKILL, signal.SIGTERM) and not by_kernel:
        behind = "" if record.signal else f" ({_behind(record)})"
        name = signal_name(number)
        remedy = "if the script ends itself so, let it exit with a code instead"
        detail = f"{name}{behind}, not sent by us; {remedy}"
        return Classification(Outcome.KILLED_EXTERNAL, detail, record.phase)
    return None


_DISK = re.compile(r"\[Errno (?:116|122)\]|Disk quota exceeded|Stale (?:NFS )?file handle")
_DISK_CAUSE = re.compile(r"^OSError: \[Errno (?:116|122)\].*", re.MULTILINE)
_NO_SPACE = re.compile(r"\[Errno 28\]|No space left on device|ENOSPC")
_NO_SPACE_CAUSE = re.compile(r"^OSError: \[Errno 28\].*", re.MULTILINE)
_IO_ERROR = re.compile(r"\[Errno 5\]|Input/output error")


def may_be_disk(stderr: str) -> bool:
    """Return whether an output names an error that a disk, among other things, can cause.

    A full disk causes ENOSPC, but so does a limit of inotify or of a device. A broken disk causes EIO, but so
    does a closed terminal or pipe.
    """
    return bool(_NO_SPACE.search(stderr) or _IO_ERROR.search(stderr))


def disk_full(record: ExitRecord) -> Classification | None:
    """Return `disk-full` if a disk was full, over quota or unreachable (ENOSPC, EDQUOT, ESTALE), else None.

    The final exception, one that led to it, or the last three lines must name the error. An exception that
    does not stand in the last lines was handled earlier.

    ENOSPC and EIO can have other causes than a disk (see `may_be_disk`). ENOSPC counts only if a file system
    was found to be full or broken afterwards, and EIO only if it was found to be broken.
    """
    if not record.failed_alone:
        return None
    match = _named_at_end(record, _DISK, _DISK_CAUSE)
    problem = record.disk_error or record.disk_full
    if match is None and problem:
        match = _named_at_end(record, _NO_SPACE, _NO_SPACE_CAUSE)
    if match is None and record.disk_error:
        match = _IO_ERROR.search(record.stderr)
    if match is None:
        return None
    detail = ": ".join(filter(None, ("disk", match[0], problem)))
    return Classification(Outcome.DISK_FULL, detail, record.phase)


def _named_at_end(
    record: ExitRecord, error: re.Pattern[str], as_cause: re.Pattern[str]
) -> re.Match[str] | None:
    """Return where the final exception, one that led to it, or the last three lines name an error."""
    traceback = record.traceback
    if traceback is not None and traceback.exception not in tail(record.stderr, LAST_WORDS):
        traceback = None
    text = f"{traceback.exception}: {traceback.message}" if traceback else tail(record.stderr, 3)
    return error.search(text) or (as_cause.search(traceback.said) if traceback else None)


def skip(record: ExitRecord) -> Classification | None:
    """Return `skip` if the exit code is 125, which asks to skip as in `git bisect run`, else None.

    A launcher may print the code that it replaced by its own.
    """
    if record.failed_alone and record.end.code == 125:
        printed = f": {record.end.words}" if record.end.words else ""
        named = "exit code 125" if printed else ""
        return Classification(Outcome.SKIP, f"exit code 125{printed}", record.phase, named=named)
    return None


_NO_SCRIPT = re.compile(
    r"can't open file '.*|can't find '__main__' module in .*|is a directory, cannot continue"
)
_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError)\b.*")
_ENCODING = re.compile(r"SyntaxError: (?:Non-(?:UTF-8|ASCII) \w+ |encoding problem: |unknown encoding: ).*")
"""A syntax error about the encoding of the script, for which Python reports no line of the script."""
_LOADER = re.compile(r"symbol lookup error:.*|error while loading shared libraries:.*")


def not_runnable(record: ExitRecord) -> Classification | None:
    """Return `not-runnable` if command or script cannot be run, or no test was judged, else None.

    The command cannot be run if its exit code, or that which a launcher prints, is 126 or 127, and the script
    cannot if it is missing or has a syntax error. Test runners say that they ran no test.
    """
    if record.stage:
        why = "command not found" if record.stage == "lookup" else os.strerror(record.errno)
        is_missing = record.stage == "lookup" and not any(map(is_python, record.command[:1]))
        named = MISSING_COMMAND if is_missing else ""
        why = f"cannot execute the command: {record.why or why}"
        return Classification(Outcome.NOT_RUNNABLE, why, Phase.START, named=named)
    if record.returncode is None or record.returncode < 0 or record.killed_by_us:
        return None
    if why := no_test_ran(record.returncode, record.stdout, record.stderr):
        return Classification(Outcome.NOT_RUNNABLE, f"{why} (exit code {record.returncode})", record.phase)
    if record.returncode == 0 or _LOADER.search(tail(record.stderr, 3)):
        return None  # the dynamic loader exits with 127 as well, but that is an import error
    if record.end.code in (126, 127):
        detail = f"exit code {record.end.code}" + (f": {record.end.words}" if record.end.words else "")
        return Classification(Outcome.NOT_RUNNABLE, detail, Phase.START, named=MISSING_COMMAND)
    return _script_unusable(record)


MISSING_COMMAND = "missing command"
"""What `Classification.named` is if a program is missing; where others pass, it went away with a version."""


def _script_unusable(record: ExitRecord) -> Classification | None:
    match = _NO_SCRIPT.search(tail(record.stderr, 3))
    if record.returncode in (1, 2) and match and _names_own_file(record, match[0]):
        return Classification(Outcome.NOT_RUNNABLE, match[0], Phase.START, named=match[0])
    # A syntax error of the script itself is printed without a "Traceback" line, because no frame was entered.
    # A syntax error of an imported module is printed with that line.
    lines = tail(record.stderr, LAST_WORDS).splitlines()
    if record.returncode == 1 and lines and (match := _SYNTAX.match(lines[-1])):
        place = next((line for line in lines if line.startswith('  File "')), "")
        is_placed = bool(place) or _ENCODING.match(lines[-1])
        # If the harness saw the script end by `sys.exit`, it ran, and the error is that of a child.
        is_own = record.marks.unhandled is not False and _names_own_file(record, place or lines[-1])
        if is_placed and is_own and record.traceback is None:
            detail = f"the script: {match[0]}"
            return Classification(Outcome.NOT_RUNNABLE, detail, Phase.START, named=match[0])
    return None


def _names_own_file(record: ExitRecord, line: str) -> bool:
    """Return whether an error is about the trial's script; programs that a script runs print the same."""
    if not record.is_launcher:
        script = next((word for word in record.command[1:] if not word.startswith("-")), "")
        return "-c" in record.command or script.rpartition("/")[2] in line
    return any(name.rpartition("/")[2] in line for name in record.files)


def host_oom(record: ExitRecord) -> Classification | None:
    """Return `host-oom` if the kernel killed the process for lack of memory, as its cgroup says, else None.

    The process ended by SIGKILL, or by 137 from a shell.
    """
    killed = signal.SIGKILL in (record.signal, record.end.signal, (record.returncode or 0) - 128)
    if killed and not record.killed_by_us and record.oom_kills:
        detail = "killed by the kernel for lack of memory"
        if record.peak:
            # If several trials ran at once, this shows which of them used the memory.
            detail += f", of which it had {record.peak / 1e6:.0f} MB"
        return Classification(Outcome.HOST_OOM, detail, record.phase)
    return None


def hang(record: ExitRecord) -> Classification | None:
    """Return `hang` if the time limit passed before the process ended, else None.

    The time limit of a launcher or test runner in the command counts, too. The use of CPU and GPU before the
    trial's own limit decides whether it is `idle`, `busy-cpu` or `busy-gpu`.
    """
    if record.failed_alone and not record.signal:
        words = own_limit(record.command, record.returncode or 0, record.stdout, record.stderr)
        if words:
            remedy = "`trial.timeout` would show its stacks"
            return Classification(Outcome.HANG, f"hang, ended by {words}; {remedy}", record.phase)
    if not record.timed_out:
        return None
    detail = f"hang ({_hang_kind(record)}) at the deadline"
    if record.unended:
        detail += f"; {_processes(record.unended)} cannot be killed"
    return Classification(Outcome.HANG, detail, record.phase)


def _hang_kind(record: ExitRecord) -> str:
    # Check the GPU first: a thread that waits for a GPU kernel by polling keeps a CPU busy, too.
    if record.gpu_rate is not None and record.gpu_rate >= BUSY_RATE:
        return "busy-gpu"
    if record.cpu_rate is None:
        return "not measured"
    return "idle" if record.cpu_rate < BUSY_RATE else "busy-cpu"


def crash(record: ExitRecord) -> Classification | None:
    """Return `crash` if a signal that bisect-env did not send ended the process, else None.

    The signal may have ended a program that the process ran, if the process failed because of that. For
    SIGABRT, the detail contains the reason that was printed.
    """
    number = record.signal or record.end.signal
    if not number or record.killed_by_us:
        return None
    name = signal_name(number)
    where = "" if record.phase is Phase.UNKNOWN else f" in {record.phase}"
    # The handler of an abort may die itself: glibc's words then stand before a SIGSEGV.
    is_cause = record.signal == signal.SIGABRT or record.abort_cause.startswith("*** ")
    cause = record.abort_cause if is_cause else ""
    behind = "" if record.signal else f" ({_behind(record)})"
    detail = f"{name}{where}{behind}" + (f": {cause}" if cause else "")
    return Classification(Outcome.CRASH, detail, record.phase, name)


def _behind(record: ExitRecord) -> str:
    """Return the exit code of a launcher, and in which line it states how the program behind it ended."""
    words = f": {record.end.words}" if record.end.words else ""
    return f"exit code {record.returncode}{words}"


def runner_error(record: ExitRecord) -> Classification | None:
    """Return `runner-error` if a test runner was interrupted, or failed itself (pytest 2, 3), else None."""
    if not record.failed_alone or record.signal:
        return None
    line = runner_error_in(record.stdout)
    if not line:
        return None
    return Classification(Outcome.RUNNER_ERROR, f"{line} (exit code {record.returncode})", Phase.UNKNOWN)


def import_error(record: ExitRecord) -> Classification | None:
    """Return `import-error` if an import failed, or the loader did not find a symbol, else None."""
    if not record.failed_alone or record.signal:
        return None
    raised = record.raised
    if match := _LOADER.search(tail(record.stderr, 3)):
        why = match[0]
    elif raised is not None and _is_import_failure(raised):
        why = _one_line(raised)
    # `python -m` reports a missing module without a traceback.
    elif record.end.code == 1 and (match := _NO_MODULE.search(tail(record.stderr, 1))):
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
    """Return `exit-fail` if the exit code is not 0 and no earlier rule explains why, else None.

    A process that ended by a signal, or never started, has no exit code. Codes above 128 get a note, because
    a shell exits with such a code if its child was ended by a signal.
    """
    if record.returncode is None or record.returncode <= 0:
        return None
    if record.raised is not None:
        detail = _one_line(record.raised)
        return Classification(Outcome.EXIT_FAIL, detail, record.phase, _failure_code(record))
    if record.returncode == 1 and (match := _NO_START.search(tail(record.stderr, LAST_WORDS))):
        return Classification(Outcome.EXIT_FAIL, match[0], Phase.START, match["why"])
    detail = _behind(record)
    if 128 < record.returncode <= 128 + signal.NSIG:
        # A shell whose child died of signal 11 exits with 139, but so does `exit(139)`: no proof of a crash.
        detail += f" (a shell reports {signal_name(record.returncode - 128)} so)"
    return Classification(Outcome.EXIT_FAIL, detail, record.phase, _failure_code(record))


_NO_START = re.compile(r"^Fatal Python error: (?P<why>\w+): .*", re.MULTILINE)
"""What an interpreter prints that cannot start, such as `config_read_gil`; it exits with 1."""


def _failure_code(record: ExitRecord) -> str:
    """Return the name of the exception that ended the script, or its exit code as text without one."""
    return record.raised.exception if record.raised is not None else str(record.end.code)


def passed(record: ExitRecord) -> Classification | None:
    """Return `pass` if the exit code is 0, else None."""
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
    runner_error,
    import_error,
    exit_fail,
    passed,
)
"""All rules in order of precedence. `cuda_failure` precedes `crash`: an abort that names a CUDA error is a
CUDA failure."""


def classify(record: ExitRecord) -> Classification:
    """Apply all rules to a process in order, and return the result of the first rule that matches.

    If no rule matches, the outcome is `harness-error`. Remarks about processes killed for lack of memory and
    about processes left running are appended to the detail.
    """
    answers = (answer for rule in RULES if (answer := rule(record)) is not None)
    unknown = Classification(Outcome.HARNESS_ERROR, "the process ended in a way that no rule knows")
    found = next(answers, unknown)
    return replace(found, detail="; ".join([found.detail, *_notes(found, record)]))


def named_in(record: ExitRecord, found: Classification) -> tuple[str, ...]:
    """Return what the output of a process names that rules of text look for.

    For a process that passed, this is what it would have been set aside for if it had failed with the same
    words.

    Args:
        record: Exit record of the process.
        found: Classification of that record.
    """
    if found.outcome is not Outcome.PASS:
        return (found.named,) if found.named else ()
    if not record.stderr.strip() and not record.stdout.strip():
        return ()
    failed = replace(record, returncode=1, marks=NO_MARKS)
    answers = (rule(failed) for rule in (gpu_lost, unsupported, skip, not_runnable, cuda_failure))
    return tuple(dict.fromkeys(answer.named for answer in answers if answer is not None and answer.named))


def _notes(found: Classification, record: ExitRecord) -> list[str]:
    notes = []
    # The kernel may have killed a child of the script, which made the script fail, or an unrelated process.
    if record.oom_kills and record.returncode != 0 and found.outcome is not Outcome.HOST_OOM:
        notes.append(f"the kernel killed {_processes(record.oom_kills)} for lack of memory meanwhile")
    if record.left_over and not record.killed_by_us:
        notes.append(NOTED_LEFT_OVER.format(_processes(record.left_over)))
    return notes


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _one_line(traceback: Traceback) -> str:
    return f"{traceback.exception}: {traceback.message}" if traceback.message else traceback.exception
