"""The log of a command that runs trials: everything that happened, in a file whose path is printed.

What a terminal shows is chosen for people who watch; the log is for those who ask later why. Passwords are
taken out, and what trials print is in the database, not here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bisect_env.engine import events

VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show on stderr what goes into the log, too.")
]
LogFileOption = Annotated[
    Path | None,
    typer.Option(
        "--log-file",
        envvar="BISECT_ENV_LOG",
        help="Where the log goes; default: a new file for each command.",
    ),
]

KEPT = 50
"""Logs that are kept where no file is named; older ones go."""

_log = logging.getLogger("bisect_env.command")


def start_log(command: str, *, verbose: bool, log_file: Path | None, quiet: bool = False) -> None:
    """Begin the log of this command; its path is printed unless the command is to be quiet.

    Args:
        command: Its name.
        verbose: Whether stderr gets the same lines.
        log_file: Where the log goes; it is added to. None for a new file in the user's log directory.
        quiet: Whether to keep the path to oneself.

    Raises:
        UsageError: The named file cannot be written. Without a named one, a directory that cannot be
            written means no log, which is said.
    """
    from bisect_env.cli import without_passwords
    from bisect_env.errors import UsageError

    logger = logging.getLogger("bisect_env")
    logger.setLevel(logging.DEBUG)
    form = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    form.converter = time.gmtime
    form.default_time_format, form.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"
    if verbose:
        shown = logging.StreamHandler(sys.stderr)
        shown.setFormatter(form)
        logger.addHandler(shown)
    try:
        path = log_file or _new_file(command)
        written = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        if log_file is not None:
            raise UsageError(
                f"the log {log_file} cannot be written: {error.strerror}", remedy="name another `--log-file`"
            ) from None
        typer.echo(f"no log is written: {error}", err=True)
        return
    path.chmod(0o600)
    written.setFormatter(form)
    logger.addHandler(written)
    words = " ".join(without_passwords(word) for word in sys.argv[1:])
    _log.info("bisect-env %s: %s", version("bisect-env"), words)
    if not quiet:
        typer.echo(f"log: {path}", err=True)


def _new_file(command: str) -> Path:
    import platformdirs

    folder = Path(platformdirs.user_log_dir("bisect-env"))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    # The newest stay: names sort by time.
    old = sorted(folder.glob("command-*.log"))
    for path in old[: max(0, len(old) - KEPT + 1)]:
        with contextlib.suppress(OSError):
            path.unlink()
    return folder / f"command-{stamp}-{command}.log"


def logged(show: Callable[[events.Event], None]) -> Callable[[events.Event], None]:
    """The same, with a line in the log for each event."""

    def both(event: events.Event) -> None:
        log_event(event)
        show(event)

    return both


def log_event(event: events.Event) -> None:
    """Write an event into the log."""
    if not _log.isEnabledFor(logging.DEBUG):
        return
    from bisect_env.cli.views import as_json
    from bisect_env.engine import events
    from bisect_env.matrix.secrets import public_json

    if isinstance(event, events.LockProgress | events.Progress):
        return  # what they say follows from the others
    document = public_json(as_json(event))
    if isinstance(event, events.Concluded):
        # The whole report is in the database.
        document = {"event": "verdict", "verdict": document.get("verdict")}
    kind = document.pop("event")
    level = {"warning": logging.WARNING, "error": logging.ERROR}.get(kind, logging.DEBUG)
    _log.log(level, "%s %s", kind, json.dumps(document, ensure_ascii=False))
