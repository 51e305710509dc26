"""Writes the log of a command that runs trials: every event, in a file whose path is printed.

The terminal shows only a selection of events. Passwords are removed from the log. The output of trials is
in the database instead.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import platformdirs
import typer

from bisect_env import __version__
from bisect_env.cli.options import ShownOptions
from bisect_env.cli.output import own_command
from bisect_env.engine import events
from bisect_env.errors import UsageError
from bisect_env.secrets import public_json, without_passwords_in_code

KEPT = 50
"""Number of logs kept in the user's log directory; older ones are deleted."""

_log = logging.getLogger("bisect_env.command")


def start_log(command: str, options: ShownOptions) -> None:
    """Start the log of a command, and print its path unless the command is quiet.

    The log is appended to the file of `--log-file`; without that option, a new file in the user's log
    directory is created. If that directory cannot be written, a message says so and there is no log.

    Raises:
        UsageError: The file of `--log-file` cannot be written.
    """
    logger = logging.getLogger("bisect_env")
    logger.setLevel(logging.DEBUG)
    form = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    form.converter = time.gmtime
    form.default_time_format, form.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"
    try:
        path = options.log_file or _new_file(command)
        is_new = not path.exists()
        written = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        if options.log_file is not None:
            raise UsageError(
                f"the log {options.log_file} cannot be written: {error.strerror}",
                remedy="name another `--log-file`",
            ) from None
        typer.echo(f"no log is written: {error}", err=True)
        return
    if is_new:
        with contextlib.suppress(OSError):  # some file systems have no modes
            path.chmod(0o600)
    written.setFormatter(form)
    logger.addHandler(written)
    _log.info("%s: %s", __version__, without_passwords_in_code(own_command(sys.argv[1:])))
    if not options.quiet:
        typer.echo(f"log: {path}", err=True)


class _LogFile(logging.FileHandler):
    """A handler that writes a log file and prints only one message if writing fails."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name that logging gave it
        """Print why the log is incomplete, but only at the first failure.

        Args:
            record: The record that could not be written.
        """
        if not self._has_failed:
            self._has_failed = True
            typer.echo(f"the log is incomplete: {sys.exc_info()[1]}", err=True)


def _new_file(command: str) -> Path:
    folder = Path(platformdirs.user_log_dir("bisect-env"))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    # The names contain the time, so that sorting puts the oldest first.
    old = sorted(folder.glob("command-*.log"))
    for path in old[: max(0, len(old) - KEPT + 1)]:
        with contextlib.suppress(OSError):
            path.unlink()
    return folder / f"command-{stamp}-{command}.log"


def log_event(event: events.Event) -> None:
    """Write an event of a study, such as a finished trial, to the log of the command."""
    if not _log.isEnabledFor(logging.DEBUG):
        return
    if isinstance(event, events.LockProgress | events.Progress):
        return  # frequent, and implied by the other events
    document = public_json(event.as_json())
    if isinstance(event, events.Concluded):
        # The rest of the report can be read from the database.
        document = {"event": "verdict", "verdict": document.get("verdict")}
    kind = document.pop("event")
    level = {"warning": logging.WARNING, "error": logging.ERROR}.get(kind, logging.DEBUG)
    _log.log(level, "%s %s", kind, json.dumps(document, ensure_ascii=False))
