"""Reads from the last words of launchers and test runners how the program behind them ended. Pure.

A *launcher* is a program that runs another one, such as `make`, `sh`, `nox` or `xargs`. Many replace the exit
code of what they ran by one of their own, but nearly all print it. A *test runner*, such as pytest, has exit
codes that say that no test was judged. Which words and codes were seen from which version is stated in
`docs/outcomes.md`.
"""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

END_LINES = 8
"""Number of lines at the end of an output in which a launcher says how the program behind it ended."""

# --------------------------------------------------------------------------------------------------
# Launchers.


@dataclass(frozen=True, slots=True)
class LaunchedEnd:
    """The end of a program behind a launcher, as the launcher's exit code or its words state it.

    Attributes:
        code: Exit code as in `subprocess`: negative for a signal.
        words: Line that states it; "" if only the launcher's exit code does.
    """

    code: int
    words: str = ""

    @property
    def signal(self) -> int:
        """Return the number of the signal that ended the program; 0 if none did."""
        return -self.code if self.code < 0 else 0


NAMED_SIGNALS = {
    "Illegal instruction": signal.SIGILL,
    "Trace/breakpoint trap": signal.SIGTRAP,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
}
"""What the C library calls the signals that end a program, to the signals."""
_SIGNAL_NAME = re.compile(
    # A shell writes only that; make, bash and Slurm write it behind a place, a process id or a task.
    rf"^(?:.*[\]:\d] +)?(?P<name>{'|'.join(NAMED_SIGNALS)})(?: +\(core dumped\)| {{2,}}.*)*$"
)
_SIGNAL_NUMBER = re.compile(
    # xargs, find, GNU time, Open MPI, Intel MPI: `terminated by signal 11`, `exited on signal 11 (…)`.
    r"\b(?:terminated|killed|exited|died)\b.{0,40}?\bsignal:? (?P<by>\d+)"
    # torch: `Signal 11 (SIGSEGV) received by PID 7`; subprocess: `died with <Signals.SIGSEGV: 11>`.
    r"|\bsignal (?P<named>\d+) \(SIG|<Signals\.SIG[A-Z]+: (?P<member>\d+)>"
    # joblib: `The exit codes of the workers are {SIGSEGV(-11)}`.
    r"|\bSIG[A-Z]+\(-(?P<negative>\d+)\)",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"\*\*\* \[[^\]]*\] Error (?P<make>\d+)"
    # nox, just, cargo, torch: `failed with exit code -11`, `exit status: 101`, `(exitcode: 1)`.
    r"|\bexit ?(?:code|status) ?[:=]? ?(?P<exit>-?\d+)"
    # tox, dvc, snakemake, doit: `exit 3 (`, `exited with -11`, `FAIL code 3`, `returned 3`.
    r"|\bexit(?:ed)?(?: with)? (?P<exited>-?\d+)\b|\bFAIL code (?P<tox>-?\d+)|\breturned (?P<doit>-?\d+)\b"
)
_DEADLY = frozenset({*NAMED_SIGNALS.values(), signal.SIGTERM})
"""Signals that a launcher's exit code may stand for; other codes above 128 have other meanings."""


def launched_end(returncode: int, stdout: str, stderr: str) -> LaunchedEnd:
    """Return how the program behind a launcher ended.

    Signals are looked for before exit codes, because some launchers replace a signal by a code that means
    something else (xargs: 125). Without any words, codes such as 139 (128 + 11) and 245 (256 - 11) stand for
    signals, and other codes are those of the program.

    Args:
        returncode: Exit code of the launcher, greater than 0.
        stdout: Its standard output.
        stderr: Its standard error.
    """
    lines = [*_after_tests(_last_lines(stderr)), *_after_tests(_last_lines(stdout))]
    for line in lines:
        if number := _signal_in(line):
            return LaunchedEnd(-number, line)
    for line in lines:
        if (code := _code_in(line)) is not None:
            return LaunchedEnd(_as_signal(code), line)
    return LaunchedEnd(_as_signal(returncode))


_TIMEOUT_CODE = 124
"""Exit code of coreutils' `timeout` after its limit."""
_OWN_LIMIT = re.compile(
    r"\+{3,} Timeout \+{3,}"  # pytest-timeout 2.4 with its thread method
    r"|(?:\w+\.)*CellTimeoutError\b.*"  # nbclient 0.11, papermill 2.7
    r"|.*Watchdog caught collective operation timeout.*"  # NCCL 2.28
)
_FAILED_TEST = re.compile(r"^FAILED .*?(?P<limit> from pytest-timeout\.?)?$")


def own_limit(command: Sequence[str], returncode: int, stdout: str, stderr: str) -> str:
    """Return the words by which a launcher or test runner says that its own time limit has passed, or "".

    Of several failed tests all must have reached it.

    Args:
        command: Program and arguments.
        returncode: Exit code of the command, greater than 0.
        stdout: Its standard output.
        stderr: Its standard error.
    """
    if command and command[0].rpartition("/")[2] == "timeout" and returncode == _TIMEOUT_CODE:
        return "`timeout` in the command"
    out, errors = _last_lines(stdout), _last_lines(stderr)
    failed = [match for line in out if (match := _FAILED_TEST.match(line))]
    if failed:
        return "pytest-timeout" if all(match["limit"] for match in failed) else ""
    return next((line for line in (*errors, *out) if _OWN_LIMIT.fullmatch(line)), "")


def _last_lines(text: str) -> list[str]:
    """Return the last lines of an output that are not empty, the very last one first."""
    lines = [line.strip()[-1000:] for line in text[-100_000:].splitlines() if line.strip()]
    return lines[: -END_LINES - 1 : -1]


def _after_tests(lines: list[str]) -> list[str]:
    """Return the lines behind the summary of a test runner, whose tests may print anything.

    Args:
        lines: Last lines of an output, the very last one first.
    """
    return list(itertools.takewhile(lambda line: not is_summary(line), lines))


def _signal_in(line: str) -> int:
    if match := _SIGNAL_NAME.match(line):
        return int(NAMED_SIGNALS[match["name"]])
    if match := _SIGNAL_NUMBER.search(line):
        return int(next(filter(None, match.groups())))
    return 0


def _code_in(line: str) -> int | None:
    match = _CODE.search(line)
    # A launcher that prints 0 speaks of another program than the one that failed.
    return int(next(filter(None, match.groups()))) or None if match else None


def _as_signal(code: int) -> int:
    """Return the negative number of the signal for which an exit code stands, or the code itself."""
    for number in (code - 128, 256 - code):
        if number in _DEADLY:
            return -number
    return code


# --------------------------------------------------------------------------------------------------
# Test runners.

_PYTEST_END = re.compile(r"^=* ?(?P<counts>no tests ran|\d+ \w.*?) in [\d.]+s(?: \([\d:, a-z]+\))? ?=*$")
_JUDGED = re.compile(r"\d+ (?:passed|failed|errors?|xfailed|xpassed)\b")
_UNITTEST_END = re.compile(r"^Ran (?P<count>\d+) tests? in [\d.]+s$")
_SKIPPED = re.compile(r"\bskipped=(?P<count>\d+)")
_UNITTEST_RESULT = re.compile(r"^(?:OK|FAILED|NO TESTS RAN)(?: \(\w.*\))?$")
_WRONG_CALL = re.compile(
    r"^(?:ERROR: (?:file or directory not found|not found|usage): ?.*"  # pytest 9.2, exit code 4
    r"|nox > (?:Sessions not found: .*|No sessions (?:selected|defined)\b.*)"  # nox 2026.10, exit code 3
    r"|ROOT: HandledError\| provided environments not found in configuration file:"  # tox 4.67, 254
    r"|[\w.-]*make(?:\[\d+\])?: \*\*\* No rule to make target .*"  # GNU make 4.3, exit code 2
    r"|make: \*\*\* No targets specified and no makefile found\..*"
    r"|error: [Jj]ustfile does not contain recipe .*)$"  # just 1.57, exit code 1
)
_CTEST_NONE = "No tests were found!!!"
"""What ctest 4.4 writes to stderr, with exit code 0, or 8 if `--no-tests=error` is given."""


def is_summary(line: str) -> bool:
    """Return whether a line is the last one of pytest's or unittest's summary."""
    return bool(_PYTEST_END.match(line) or _UNITTEST_RESULT.match(line))


def no_test_ran(returncode: int, stdout: str, stderr: str) -> str:
    """Return why no test was judged, as a test runner or launcher said at its end; "" if it did not.

    Tests that were only skipped count as not judged. The runner may have passed (pytest with nothing but
    skipped tests; unittest before Python 3.12 without any test).

    Args:
        returncode: Exit code of the command.
        stdout: Its standard output.
        stderr: Its standard error.
    """
    out, errors = _last_lines(stdout), _last_lines(stderr)
    if wrong := next((line for line in (*errors, *out) if returncode and _WRONG_CALL.match(line)), ""):
        return wrong
    # pytest: its summary is its last line; a launcher may add some to stderr.
    if out and (match := _PYTEST_END.match(out[0])) and not _JUDGED.search(match["counts"]):
        return "" if runner_error_in(stdout) else f"no test ran: {match['counts']}"
    if _CTEST_NONE in (*errors, *out):
        return "no test ran: ctest found none"
    return _unittest_ran_none(errors)


def _unittest_ran_none(errors: list[str]) -> str:
    ran = next((match for line in errors if (match := _UNITTEST_END.match(line))), None)
    if ran is None:
        return ""
    skipped = sum(int(match["count"]) for line in errors if (match := _SKIPPED.search(line)))
    if int(ran["count"]) and int(ran["count"]) != skipped:
        return ""
    return f"no test ran: unittest ran {ran['count']}" + (f", skipped {skipped}" if skipped else "")


_INTERRUPTED = re.compile(
    # pytest 2: an interrupt or `pytest.exit`. A test module that cannot be collected is a failure, however.
    r"^!+ (?:KeyboardInterrupt|_pytest\.outcomes\.Exit: .*|Interrupted: (?!\d+ errors? during coll).*) !+$"
    r"|^INTERNALERROR> \S.*"  # pytest 3
)


def runner_error_in(stdout: str) -> str:
    """Return the line in which a test runner says that it was interrupted or failed itself, or "".

    Args:
        stdout: Standard output of the command.
    """
    return next((line for line in _last_lines(stdout) if _INTERRUPTED.match(line)), "")
