"""Writes a command's results to stdout and its messages to stderr, and prints rows as table, JSON or CSV."""

from __future__ import annotations

import functools
import json
import math
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from bisect_env.answers.untrusted import clean, clean_lines, comma_separated, command_line
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.secrets import MASK, may_be_stored, without_passwords, without_passwords_in_code
from bisect_env.temporary import replacing

# --------------------------------------------------------------------------------------------------
# Where a command's data and its words go.


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line; characters that the stream's encoding lacks are replaced."""
    stream = sys.stdout if stream is None else stream
    public = clean_lines(without_passwords(text))
    encoding = stream.encoding or "utf-8"
    stream.write(public.encode(encoding, "replace").decode(encoding) + "\n")
    stream.flush()


def tell(text: str) -> None:
    """Print a line on stderr, with commands of ours in the form in which this one was started."""
    say(in_own_form(text), sys.stderr)


def emit(document: object) -> None:
    """Print an object as one line of JSON on stdout."""
    # ASCII: stdout's encoding is the locale's, and what a script printed may be no text at all.
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def deliver(text: str, output: Path | None = None) -> None:
    """Write text to a file, which then has all of it or is as before, or to stdout.

    Args:
        text: With its final newline.
        output: The file; None, or `-`, for stdout.

    Raises:
        UsageError: The file's directory does not exist, or the path is a directory.
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
# Commands of ours in what is printed.


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


_COMMAND = re.compile(r"(?<![\w./-])bisect-env (?=[a-z])(?!itself)")


def in_own_form(text: str) -> str:
    """Return a text whose commands begin as this one did: `uvx --from … bisect-env`, say."""
    form = own_form()
    return text if form == "bisect-env" else _COMMAND.sub(lambda _: f"{form} ", text)


@functools.cache
def own_form() -> str:
    """Return the words with which this command was started, up to the name of a subcommand."""
    program = sys.argv[0]
    if Path(program).name == "__main__.py":
        return command_line(sys.orig_argv[0], "-m", "bisect_env")
    if form := _form_of_parent():
        return form
    found = shutil.which("bisect-env")
    is_on_path = "/" not in program or (found is not None and Path(found).samefile(program))
    return "bisect-env" if is_on_path or Path(program).name != "bisect-env" else command_line(program)


def _form_of_parent() -> str:
    """Return the words of `uvx`, `uv run` or `pipx run`, which waits for this command; "" for others."""
    import psutil

    try:
        words = psutil.Process().parent().cmdline()  # type: ignore[union-attr]
    except (psutil.Error, AttributeError):
        return ""
    names = [Path(word).name for word in words]
    if not names or names[0] not in ("uv", "uvx", "pipx") or "bisect-env" not in names[1:]:
        return ""
    # `--from` may name the package as well: ours is the last word before our own arguments.
    ours = len(words) - len(sys.argv[1:]) - 1
    if not 0 < ours < len(words) or names[ours].partition("@")[0] != "bisect-env":
        return ""
    # `uvx` starts `uv tool uvx`, which nobody writes.
    start = ["uvx"] if words[1:3] == ["tool", "uvx"] else [names[0], *words[1:3]]
    return command_line(*start, *words[3 : ours + 1])


_REPEATED = ("--db", "--cache", "--offline")


def to_repeat(arguments: Sequence[str]) -> str:
    """Return a sentence on the options that the next command needs, too; "" if there are none. Pure.

    A database address with a password is not repeated.

    Args:
        arguments: What this command was given.
    """
    said: dict[str, str] = {}
    for position, word in enumerate(arguments):
        name, separator, value = word.partition("=")
        if word == "--":
            break
        if name in _REPEATED and (separator or position + 1 < len(arguments)):
            said[name] = value if separator else arguments[position + 1]
    hidden = without_passwords_in_code(said.get("--db", "")) != said.get("--db", "")
    if hidden:
        del said["--db"]
    parts = (
        [f"add {' '.join(command_line(*pair) for pair in said.items())} to these commands"] if said else []
    )
    parts += ["set BISECT_ENV_DB to the address of `--db`, which holds a password"] if hidden else []
    return "; ".join(parts)


# --------------------------------------------------------------------------------------------------
# Rows of a question as a table, as JSON or as comma-separated values.

Rows = Sequence[Sequence[object]]


def deliver_rows(names: Sequence[str], rows: Rows, *, as_json: bool, as_csv: bool) -> None:
    """Print rows as a table, as one JSON object a line, or as comma-separated values.

    Args:
        names: Names of the columns.
        rows: Numbers, texts, None, or what becomes a text.
        as_json: Whether to print JSON.
        as_csv: Whether to print comma-separated values, after a line of names.

    Raises:
        UsageError: Both forms are asked for.
    """
    if as_json and as_csv:
        raise UsageError("`--json` and `--csv` exclude each other", remedy="give one of them")
    plain = [[_plain(value) for value in row] for row in rows]
    if as_json:
        for row in plain:
            emit(dict(zip(names, row, strict=True)))
    else:
        deliver(comma_separated(names, plain) if as_csv else _table(names, plain))


def _table(names: Sequence[str], rows: Rows) -> str:
    table: list[Sequence[object]] = [list(names), *rows]
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


def _plain(value: Any) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no number for it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)
