"""Writes a command's results to stdout and its messages to stderr, and prints rows as table, JSON or CSV."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from bisect_env.answers.untrusted import clean, clean_lines, comma_separated, command_line
from bisect_env.engine import events
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.secrets import MASK, may_be_stored, without_passwords, without_passwords_in_code
from bisect_env.temporary import replacing

# --------------------------------------------------------------------------------------------------
# Where a command's data and its words go.


def tell(event: events.Event) -> None:
    """Show what is being done and what is doubtful: for commands that have no other use for events."""
    if isinstance(event, events.Said):
        say(event.text, sys.stderr)
    warn(event)


def warn(event: events.Event) -> None:
    """Show an event if it is a warning: for commands that have no other use for events."""
    if isinstance(event, events.Warned):
        say(f"warning: {event.text}", sys.stderr)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line; characters that the stream's encoding lacks are replaced."""
    stream = sys.stdout if stream is None else stream
    public = clean_lines(without_passwords(text))
    encoding = stream.encoding or "utf-8"
    stream.write(public.encode(encoding, "replace").decode(encoding) + "\n")
    stream.flush()


def deliver(text: str, output: Path | None) -> None:
    """Write text to a file, which then has all of it or is as before, or to stdout.

    Args:
        text: With its final newline.
        output: The file; None, or `-`, for stdout.

    Raises:
        UsageError: The file's directory is not there, or the path is a directory.
        InfrastructureError: It cannot be written.
    """
    if output is None or str(output) == "-":
        # What is printed may hold any character, and stdout's encoding is the locale's.
        sys.stdout.write(text.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding))
        sys.stdout.flush()
        return
    if output.is_dir():
        raise UsageError(f"{output} is a directory", remedy="name a file in it with `--output`")
    try:
        if output.exists() and not output.is_file():
            # A pipe or a device cannot be replaced.
            output.write_text(text, encoding="utf-8", errors="replace")
            return
        target = output.resolve()
        with replacing(target) as beside:
            beside.write_text(text, encoding="utf-8", errors="replace")
            if target.exists():
                beside.chmod(target.stat().st_mode & 0o777)
    except OSError as error:
        if not output.parent.is_dir():
            raise UsageError(
                f"there is no directory {output.parent}", remedy="make it, or name another file"
            ) from error
        raise InfrastructureError(
            f"{output} cannot be written: {error.strerror or error}",
            remedy="name another file with `--output`",
        ) from error


# --------------------------------------------------------------------------------------------------
# Commands that we name to be given next carry the options under which this one was given.


def own_command(arguments: Sequence[str]) -> str:
    """Return a command of ours as files and logs may hold it: without secrets, and without `--db`. Pure.

    Args:
        arguments: What the command was given.
    """
    shown, option = ["bisect-env"], ""
    for word in arguments:
        name, separator, value = word.partition("=")
        if option == "--db" or (name == "--db" and separator):
            option = ""
            continue
        if name == "--db":
            option = name
            continue
        variable, is_set, content = (value if name == "--env" else word).partition("=")
        if (option == "--env" or name == "--env") and is_set and not may_be_stored(variable, content):
            word = f"{'--env=' if name == '--env' else ''}{variable}={MASK}"
        shown.append(word)
        option = word if word == "--env" else ""
    return command_line(*shown)


_ON_HOST = ("run", "map", "trial", "verify", "shell", "diagnose", "amplify", "explain")
_TAKES = {
    "--db": (*_ON_HOST, "db", "report", "trials", "studies", "diff", "reproduce", "query", "serve"),
    "--cache": (*_ON_HOST, "plan", "fetch", "diff"),
    "--offline": _ON_HOST,
    # Without them it would be another question.
    "--skip": ("run", "map"),
    "--all": ("run",),
    "--only-mine": ("run", "map"),
}
_FLAGS = {"--all", "--only-mine"}
# A word as `command_line` quotes it. Options are put after a command's last word, and never into quotes.
_WORD = r"""(?:'[^'\n]*'|"'"|[^\s`;)'"])+"""
_COMMAND = re.compile(rf"(?<![^\s`(])(?='){_WORD}|bisect-env (?P<name>[a-z]+)\b(?: (?![ #]){_WORD})*")


def with_options(text: str, arguments: Sequence[str]) -> str:
    """Return a text in which each command of ours has the options of this one that it needs to go on. Pure.

    A database address with a password is left out: the text then ends with what to set instead.

    Args:
        text: A message, or a report.
        arguments: What this command was given.
    """
    given: dict[str, list[str]] = {}
    for position, word in enumerate(arguments):
        name, separator, value = word.partition("=")
        if name in _FLAGS and not separator:
            given[name] = [name]
        elif name in _TAKES and (separator or position + 1 < len(arguments)):
            value = value if separator else arguments[position + 1]
            if name == "--db" and without_passwords_in_code(value) != value:
                given[name] = []
                continue
            said = command_line(name, value)
            # Of what can be said once, the last one counts.
            given[name] = [*(given.get(name, ()) if name == "--skip" else ()), said]

    def complete(match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0]
        words = match[0].split()
        hides.update(name for name, said in given.items() if not said and match["name"] in _TAKES[name])
        more = [
            said
            for name, options in given.items()
            if match["name"] in _TAKES[name] and name not in words
            for said in options
        ]
        # A full stop ends the sentence, not the command; `.` and `x/.` are paths.
        ends = re.search(r"[^\s./]\.$", match[0]) is not None
        command, stop = (match[0][:-1], ".") if ends else (match[0], "")
        return " ".join([command, *more]) + stop

    hides: set[str] = set()
    text = _COMMAND.sub(complete, text)
    if not hides:
        return text
    note = "`--db` holds a password and is not repeated: set BISECT_ENV_DB to that address first"
    return f"{text.rstrip()}\n{note}\n" if text.endswith("\n") else f"{text} ({note})"


# --------------------------------------------------------------------------------------------------
# Rows of a question as a table, as JSON or as comma-separated values.

Rows = Sequence[Sequence[object]]


def as_text(names: Sequence[str], rows: Rows, *, as_json: bool = False, as_csv: bool = False) -> str:
    """Return the text that is printed.

    Args:
        names: Of the columns.
        rows: Numbers, texts, None, or what becomes a text.
        as_json: A list of objects.
        as_csv: With a line of names.

    Raises:
        UsageError: Both forms are asked for.
    """
    if as_json and as_csv:
        raise UsageError("`--json` and `--csv` exclude each other", remedy="give one of them")
    plain = [[_plain(value) for value in row] for row in rows]
    if as_json:
        return json.dumps([dict(zip(names, row, strict=True)) for row in plain], indent=1) + "\n"
    if as_csv:
        return comma_separated(names, plain)
    table: list[list[object]] = [list(names), *plain]
    cells = [[clean("" if value is None else str(value)) for value in row] for row in table]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    cells.insert(1, ["-" * width for width in widths])
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def named(combination: str) -> str:
    """Return a combination's JSON as people read it; what is none stays as it is."""
    try:
        return ", ".join(f"{axis} {value}" for axis, value in json.loads(combination))
    except (ValueError, TypeError):
        return combination


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no number for it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)
