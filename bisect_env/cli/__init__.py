"""The command line: the only package that prints, and the place where every error becomes a message."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path

from bisect_env.cli import signals
from bisect_env.errors import BisectEnvError, ExitCode, StudyInterruptedError, UsageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO}


def main() -> None:
    """Run a command and exit with its documented code; see `docs/reference/exit-codes.md`."""
    signals.leave_at_once()
    _open_closed_streams()
    # The search multiplies small matrices: with more threads they take as long, and cores that trials could
    # have. Trials see nothing of it, since their environment is built from an allow-list.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Nor plugins of pydantic: to look for them is to read what every installed package says of itself.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Python puts the current directory first on the path of `-c`, of `-m` and of every worker that
    # multiprocessing spawns: a `typing.py` that somebody left there would run in each of them.
    os.environ["PYTHONSAFEPATH"] = "1"
    code = _exit_code()
    signals.finish()
    signals.leave_in_time(code)
    sys.exit(code)


def _open_closed_streams() -> None:
    """Give the three standard streams a place to go to where the caller has closed them (`report >&-`).

    Otherwise the next file that is opened, perhaps the database, would get the number of one, and what is
    printed would be written into it.
    """
    closed = []
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
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


def _exit_code() -> int:
    try:
        # Importing the commands can fail too, in an installation that is not whole.
        from bisect_env.cli.app import COMMANDS, application, menu

        signals.interrupt()
        _check_surroundings(sys.argv[1:])
        # Standalone, so that typer itself words usage errors and ends with 2.
        word = sys.argv[1] if len(sys.argv) > 1 else ""
        command = application(word) if word in COMMANDS else menu()
        command(prog_name="bisect-env")
    except SystemExit as end:
        if end.code == ExitCode.INTERRUPTED and signals.is_interrupted():
            return _stopped()  # typer has nothing to say about it
        return _code_of(end)
    except BisectEnvError as error:
        _report(error)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return _stopped()
    except BrokenPipeError:
        # The reader of our output closed it. Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return int(ExitCode.NO_VERDICT)
    except OSError as error:
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
        # Python, or a library, may have made another error of the signal: of one at `__set_name__`, say.
        return _stopped() if signals.is_interrupted() else _internal(error)
    return 0


def _report(error: BisectEnvError) -> None:
    from bisect_env.cli.output import in_own_form, to_repeat

    text = str(error)
    # Who ended it by Ctrl-C knows that, and made no mistake.
    said = text if isinstance(error, StudyInterruptedError) else f"error: {text}"
    if "bisect-env " in text and (note := to_repeat(sys.argv[1:])):
        said = f"{said}\n  {note}"
    _say(in_own_form(said))


def _check_surroundings(arguments: list[str]) -> None:
    """Refuse what no command could work with.

    Args:
        arguments: Of the command line.

    Raises:
        UsageError: An argument is not UTF-8, which neither logs nor databases take; or the current directory
            was removed.
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


def _stopped() -> int:
    """Say so, with nothing imported: a signal in the midst of an import may have left half a library."""
    sys.stderr.write("stopped\n")
    return int(ExitCode.INTERRUPTED)


def _code_of(end: SystemExit) -> int:
    if isinstance(end.code, str):
        _say(end.code)
        return 1
    return end.code or 0


def _say(text: str) -> None:
    from bisect_env.answers.untrusted import clean_lines
    from bisect_env.secrets import without_passwords

    # Messages quote solvers, file names and logs.
    sys.stderr.write(clean_lines(without_passwords(text)) + "\n")


def _internal(error: Exception) -> int:
    from bisect_env.secrets import without_passwords_in_code

    name = without_passwords_in_code(f"{type(error).__name__}: {error}".partition("\n")[0])
    _say(f"error: bisect-env itself failed ({name}); please report it with {_write_log(error)}")
    return int(ExitCode.INTERNAL)


def _write_log(error: Exception) -> str:
    from bisect_env.cli.output import own_command
    from bisect_env.secrets import without_passwords_in_code

    command = without_passwords_in_code(own_command(sys.argv[1:]))
    text = f"{command}\n{without_passwords_in_code(''.join(traceback.format_exception(error)))}"
    for folder in (_log_folder, tempfile.gettempdir):
        try:
            place = Path(folder())
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
            # Made by mkstemp: mode 0600, and no name that somebody could have put a link at.
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
