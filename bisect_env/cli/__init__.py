"""The command line: the only package that prints, and the place where every error becomes a message.

Modules that import typer are imported in functions, so that `main` handles signals from the first moment.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bisect_env.answers.untrusted import clean_lines
from bisect_env.cli import signals
from bisect_env.errors import BisectEnvError, ExitCode, InfrastructureError, StudyInterruptedError, UsageError
from bisect_env.running import end_running
from bisect_env.secrets import without_passwords, without_passwords_in_code

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
_REFUSED = {errno.ENOSYS, errno.EPERM}  # how kernels and sandboxes refuse a system call
_PATHS = {
    errno.EACCES: "change its permissions or those of its folders, or name another path",
    errno.EPERM: "change its permissions or those of its folders, or name another path",
    errno.EROFS: "name a path on another file system",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.ENOTDIR: "correct the path: a folder in it is a file",
    errno.EISDIR: "correct the path, or name a file in it",
    errno.ELOOP: "correct the path: a link in it leads to itself",
}
"""Error number to remedy, for errors that say that a path cannot be used."""


def main() -> None:
    """Run the command named on the command line, and end the process with the command's exit code.

    The exit codes are listed in `docs/reference/exit-codes.md`.
    """
    signals.leave_at_once()
    _open_closed_streams()
    _tolerate_broken_stderr()
    # The search multiplies small matrices. More threads would not be faster, and would take cores from
    # trials. Trials do not inherit this variable, because their environment is built from an allow-list.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Looking for pydantic plugins is slow: it reads the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # By default Python imports from the current directory first in `-c`, `-m` and processes spawned by
    # multiprocessing: a file `typing.py` in that directory would replace the standard module.
    os.environ["PYTHONSAFEPATH"] = "1"
    # By default Python looks for garbage after each 700 new objects, and importing the program makes 200,000.
    # With it, importing took 0.1 s less of 1.2 s.
    gc.set_threshold(50_000, 20, 20)
    # Otherwise Python visits the objects of a thousand modules several times before the process ends. With
    # it, `report` took 0.95 s instead of 1.12 s.
    atexit.register(gc.freeze)
    code = _exit_code()
    signals.finish()
    # Threads that wait for a tool would keep this process alive, and the tool would outlive it.
    end_running()
    signals.leave_in_time(code)
    sys.exit(code)


def _open_closed_streams() -> None:
    """Connect closed standard streams (`report >&-`) to /dev/null.

    Otherwise the next opened file, such as the database, would get the file descriptor of the closed stream,
    and printed text would be written into it.
    """
    closed = []
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # `open` returns the lowest free descriptor, which is this one.
            os.open(os.devnull, os.O_RDWR)
            closed.append(number)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- it lives as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if 1 in closed:
        sys.stderr.write("warning: standard output is closed: what would be printed goes nowhere\n")


class _Messages(io.FileIO):
    """The standard error stream of a command. Messages that cannot be written are dropped."""

    def write(self, text: Any) -> int:
        """Write bytes, or drop them if the stream is full or its reader has gone."""
        try:
            return super().write(text)
        except OSError:
            return len(text)


def _tolerate_broken_stderr() -> None:
    """Make writing to stderr never fail, so that a command goes on, and ends with its own exit code."""
    before = sys.__stderr__
    if before is not None and sys.stderr is before and before.fileno() == 2:
        raw = io.BufferedWriter(_Messages(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, before.encoding, "backslashreplace", line_buffering=True)


def _exit_code() -> int:
    try:
        # Imported here, because importing the commands fails in an incomplete installation.
        from bisect_env.cli.app import COMMANDS, application, menu

        signals.interrupt()
        _check_surroundings(sys.argv[1:])
        # In standalone mode, typer prints usage errors itself and exits with 2.
        word = sys.argv[1] if len(sys.argv) > 1 else ""
        command = application(word) if word in COMMANDS else menu()
        command(prog_name="bisect-env")
    except SystemExit as end:
        if end.code == ExitCode.INTERRUPTED and signals.is_interrupted():
            return _stopped()  # typer prints nothing about signals
        if isinstance(end.code, str):
            _say(end.code)
            return 1
        return end.code or 0
    except BisectEnvError as error:
        _report(error)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return _stopped()
    except BrokenPipeError:
        # The reader of the output closed the pipe. Without this, Python reports it again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return int(ExitCode.NO_VERDICT)
    except OSError as error:
        if error.errno in _PATHS and isinstance(error.filename, str | bytes):
            return _unusable(os.fsdecode(error.filename), error.errno)
        if error.errno in _REFUSED and error.filename is None:
            return _refused(error)
        if error.errno not in _FULL:
            return _internal(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        place = f" ({error.filename})" if error.filename else ""
        _say(
            f"error: something cannot be written: {os.strerror(error.errno)}{place}\n"
            "  remedy: make room where output, cache and temporary files go, then give the same command again"
        )
        return int(ExitCode.INFRASTRUCTURE)
    except Exception as error:  # noqa: BLE001 - the outermost boundary: a user never sees a traceback
        # Python or a library may replace the signal's error by another one, for example in `__set_name__`.
        return _stopped() if signals.is_interrupted() else _internal(error)
    return 0


def _refused(error: OSError) -> int:
    """Print which system call the kernel or a sandbox refuses, and return the exit code."""
    call = (traceback.extract_tb(error.__traceback__)[-1].line or "").strip()
    _say(
        f"error: this host refuses a system call: {error.strerror}{f' ({call})' if call else ''}\n"
        "  remedy: run outside this sandbox, or let its profile allow what `docs/reference/host.md` lists"
    )
    return int(ExitCode.INFRASTRUCTURE)


def _unusable(path: str, number: int) -> int:
    """Print that a path cannot be used, and return the exit code.

    It is the exit code of a usage error if the user named the path on the command line.

    Args:
        path: The path.
        number: Error number of the operating system.
    """
    _say(f"error: {path} cannot be used: {os.strerror(number)}\n  remedy: {_PATHS[number]}")
    words = [word.partition("=")[2] if word.startswith("-") else word for word in sys.argv[1:]]
    is_named = any(word and Path.cwd() / path == Path.cwd() / word for word in words)
    return int(ExitCode.USAGE if is_named else ExitCode.INFRASTRUCTURE)


def _report(error: BisectEnvError) -> None:
    from bisect_env.cli.output import in_own_form, to_repeat

    text = str(error)
    # Stopping with Ctrl-C is no error, so the text has no prefix `error:`.
    said = text if isinstance(error, StudyInterruptedError) else f"error: {text}"
    if "bisect-env " in text and (note := to_repeat(sys.argv[1:])):
        said = f"{said}\n  {note}"
    _say(in_own_form(said))


def _check_surroundings(arguments: list[str]) -> None:
    """Raise an error if an argument is not UTF-8, or the current or the home directory is missing.

    No command can work in any of these cases.

    Args:
        arguments: Arguments of the command line.

    Raises:
        UsageError: An argument is not UTF-8, which neither logs nor databases take; or the current directory
            was removed.
        InfrastructureError: There is no home directory, as in containers that run as any user id.
    """
    for number, argument in enumerate(arguments, start=1):
        if not argument.isprintable() and any("\ud800" <= c <= "\udfff" for c in argument):
            raise UsageError(
                f"argument {number} is not UTF-8", remedy="write it in UTF-8; rename such a file"
            )
    try:
        Path.cwd()
    except OSError:
        raise UsageError(
            "the current directory does not exist any more", remedy="go to another one, and try again"
        ) from None
    if {"--help", "--help-all", "-h", "--version"}.isdisjoint(arguments):
        try:
            Path.home()
        except RuntimeError:
            raise InfrastructureError(
                f"there is no home directory: HOME is not set, and the user id {os.getuid()} has no entry",
                remedy="set HOME to a directory that can be written, such as HOME=/tmp/home",
            ) from None


def _stopped() -> int:
    """Print that the command was stopped, and return the exit code of an interrupted command.

    Nothing is imported here, because the signal may have interrupted an import.
    """
    sys.stderr.write(signals.STOPPED)
    return int(ExitCode.INTERRUPTED)


def _say(text: str) -> None:
    # Messages quote text of others (solvers, file names, logs), which may contain escape sequences.
    sys.stderr.write(clean_lines(without_passwords(text)) + "\n")


def _internal(error: Exception) -> int:
    name = without_passwords_in_code(f"{type(error).__name__}: {error}".partition("\n")[0])
    _say(f"error: bisect-env itself failed ({name}); please report it with {_write_log(error)}")
    return int(ExitCode.INTERNAL)


def _write_log(error: Exception) -> str:
    from bisect_env.cli.output import own_command

    command = without_passwords_in_code(own_command(sys.argv[1:]))
    text = f"{command}\n{without_passwords_in_code(''.join(traceback.format_exception(error)))}"
    for folder in (_log_folder, tempfile.gettempdir):
        try:
            place = Path(folder())
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
            # mkstemp creates the file with mode 0600 and a name at which nobody can place a link in advance.
            handle, path = tempfile.mkstemp(prefix=f"defect-{stamp}-", suffix=".log", dir=place)
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return path
        except OSError:
            continue
    return "the command that you gave (no log file could be written)"


def _log_folder() -> str:
    import platformdirs

    return platformdirs.user_log_dir("bisect-env")
