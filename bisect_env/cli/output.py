"""Writes a command's results to stdout and its messages to stderr, and prints rows as table, JSON or CSV."""

from __future__ import annotations

import functools
import json
import math
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import psutil

from bisect_env.answers.phrases import aligned
from bisect_env.answers.untrusted import clean, clean_lines, comma_separated, command_line, write
from bisect_env.cli.options import TableOptions
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.secrets import MASK, may_be_stored, without_passwords, without_passwords_in_code
from bisect_env.temporary import replacing

# --------------------------------------------------------------------------------------------------
# Writing data to stdout and messages to stderr.


def say(text: str, stream: TextIO | None = None) -> None:
    """Print text and a newline, without passwords. Characters that the stream cannot encode are replaced."""
    write(clean_lines(without_passwords(text)) + "\n", sys.stdout if stream is None else stream)


def tell(text: str) -> None:
    """Print a message line on stderr, with commands written as the user calls this program.

    For example, `uvx bisect-env run` replaces `bisect-env run` (see `in_own_form`).
    """
    say(in_own_form(text), sys.stderr)


def shown_line(text: str) -> str:
    """Return a text as one safe line without passwords, with commands as the user calls this program."""
    return clean(without_passwords(in_own_form(text)))


def emit(document: object, output: Path | None = None) -> None:
    """Write an object as one line of JSON to stdout or to a file; see `deliver` for the errors raised."""
    # Plain ASCII, because scripts print arbitrary bytes and the locale's encoding may lack characters.
    deliver(json.dumps(document) + "\n", output)


def deliver(text: str, output: Path | None = None) -> None:
    """Write text to stdout, or atomically to a file.

    Args:
        text: The text, with its final newline.
        output: The file to write; None or `-` for stdout.

    Raises:
        UsageError: The file's directory does not exist, or the path is a directory.
        InfrastructureError: The file cannot be written.
    """
    if output is None or str(output) == "-":
        write(text, sys.stdout)
        return
    if output.is_dir():
        raise UsageError(f"{output} is a directory", remedy="name a file in it with `--output`")
    try:
        if output.exists() and not output.is_file():
            # A pipe or a device cannot be replaced by a new file, so it is written to.
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
# Printed commands of this program.


def own_command(arguments: Sequence[str]) -> str:
    """Return the running command as text for files and logs, without secrets and without `--db`.

    Args:
        arguments: Arguments of the running command.
    """
    shown = ["bisect-env"]
    for name, equals, value in _options_in(arguments):
        if name == "--db":
            continue
        variable, is_set, content = value.partition("=")
        if name == "--env" and is_set and not may_be_stored(variable, content):
            value = f"{variable}={MASK}"
        shown += [f"{name}={value}"] if equals else [name, value] if name else [value]
    return command_line(*shown)


_REPEATED = ("--db", "--cache", "--offline")


def _options_in(arguments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, "=" or "", value) for each option of interest, and ("", "", word) for any other word.

    Options of interest are the options in `_REPEATED`, and `--env`. In the words after `--`, which are the
    user's own command, only `--env` is of interest, because its value may be secret.
    """
    read, words = {*_REPEATED, "--env"}, iter(arguments)
    for word in words:
        read = {"--env"} if word == "--" else read
        name, equals, value = word.partition("=")
        yield (name, equals, value if equals else next(words, "")) if name in read else ("", "", word)


_COMMAND = re.compile(r"(?<![\w./-])bisect-env (?=[a-z])(?!itself)")


def in_own_form(text: str) -> str:
    """Return a text in which commands are written as the user calls this program.

    For example, `uvx bisect-env run` replaces `bisect-env run`.
    """
    form = own_form()
    return text if form == "bisect-env" else _COMMAND.sub(lambda _: f"{form} ", text)


@functools.cache
def own_form() -> str:
    """Return the words that started this program, such as `bisect-env` or `uvx bisect-env`."""
    program = sys.argv[0]
    if Path(program).name == "__main__.py":
        return command_line(sys.orig_argv[0], "-m", "bisect_env")
    if form := _form_of_parent():
        return form
    found = shutil.which("bisect-env")
    is_on_path = "/" not in program or (
        found is not None and Path(found).resolve() == Path(program).resolve()
    )
    return "bisect-env" if is_on_path or Path(program).name != "bisect-env" else command_line(program)


def _form_of_parent() -> str:
    """Return the command up to `bisect-env` if this program was started with `uvx`, `uv run` or `pipx run`.

    Return "" if the parent process is none of these tools.
    """
    try:
        words = psutil.Process().parent().cmdline()  # type: ignore[union-attr]
    except (psutil.Error, AttributeError):
        return ""
    names = [Path(word).name for word in words]
    if not names or names[0] not in ("uv", "uvx", "pipx") or "bisect-env" not in names[1:]:
        return ""
    # `--from` may also contain the name `bisect-env`; the command is the last word before its arguments.
    ours = len(words) - len(sys.argv[1:]) - 1
    if not 0 < ours < len(words) or names[ours].partition("@")[0] != "bisect-env":
        return ""
    # `uvx` runs itself as `uv tool uvx`; show the form that users type.
    start = ["uvx"] if words[1:3] == ["tool", "uvx"] else [names[0], *words[1:3]]
    return command_line(*start, *words[3 : ours + 1])


def to_repeat(arguments: Sequence[str]) -> str:
    """Return a sentence that tells the user which options to repeat in the next command.

    Return "" if there are none.

    The sentence does not contain a database address that has a password.

    Args:
        arguments: Arguments of the running command.
    """
    said = {name: value for name, _, value in _options_in(arguments) if name in _REPEATED and value}
    hidden = without_passwords_in_code(said.get("--db", "")) != said.get("--db", "")
    if hidden:
        del said["--db"]
    parts = (
        [f"add {' '.join(command_line(*pair) for pair in said.items())} to these commands"] if said else []
    )
    parts += ["set BISECT_ENV_DB to the address of `--db`, which holds a password"] if hidden else []
    return "; ".join(parts)


# --------------------------------------------------------------------------------------------------
# Printing rows as a table, as JSON or as comma-separated values.

Rows = Sequence[Sequence[object]]


def deliver_rows(names: Sequence[str], rows: Rows, form: TableOptions, output: Path | None = None) -> None:
    """Write rows to stdout or to a file: as a table, as one JSON object per line, or as CSV.

    Args:
        names: Names of the columns.
        rows: Rows of numbers, texts, None, or other values, which are converted to texts.
        form: The form in which to write them.
        output: The file to write; None for stdout.
    """
    plain = [[_plain(value) for value in row] for row in rows]
    if form.as_json:
        text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in plain)
    else:
        text = comma_separated(names, plain) if form.as_csv else _table(names, plain)
    deliver(text, output)


def _table(names: Sequence[str], rows: Rows) -> str:
    table: list[Sequence[object]] = [list(names), *rows]
    cells = [[clean("" if value is None else str(value)) for value in row] for row in table]
    cells.insert(1, ["-" * max(map(len, column)) for column in zip(*cells, strict=True)])
    return "".join(f"{line}\n" for line in aligned(cells))


def _plain(value: Any) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity and no NaN
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)
