"""The text in which a failed process says why: the end of what it wrote, of bounded length. Pure."""

from __future__ import annotations

import re

from bisect_env.trials.exit_record import ExitRecord
from bisect_env.trials.tracebacks import final_traceback

LAST_WORDS = 40
"""Lines at the end of the output in which a process without a traceback says why it fails."""
LINE_LIMIT = 2000
"""Characters of a line that are looked at: an endless line must not cost endless time."""


def last_words(record: ExitRecord) -> str:
    """The text in which a failed process says why.

    Its final traceback, else the end of its output; with a signal, what came before faulthandler's dump,
    which may be longer than anything worth reading.
    """
    if record.signal:
        return tail(before_dump(record.stderr), LAST_WORDS)
    traceback = final_traceback(record.stderr)
    if traceback is not None:
        return traceback.said
    return tail(record.stderr if record.stderr.strip() else record.stdout, LAST_WORDS)


def before_dump(stderr: str) -> str:
    """What was written before faulthandler's dump."""
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
    """The line in which a library says why it calls abort(), or ""."""
    found = _ABORT.findall(tail(before_dump(stderr), LAST_WORDS))
    return str(found[-1]).strip() if found else ""


def tail(text: str, lines: int) -> str:
    """The last lines of an output, of long ones their ends."""
    end = text[-lines * LINE_LIMIT :].rstrip()
    return "\n".join(line[-LINE_LIMIT:] for line in end.splitlines()[-lines:])
