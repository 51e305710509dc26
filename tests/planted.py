"""Failures at a stated rate without a throw of dice, so that no test of a flaky failure fails by bad luck.

A script of a test says `from planted import fails`, and its matrix names this file beside it. Calls are
counted in a folder that all trials share: with a share of 0.3 the 2nd, 5th, 9th … call of a name fails,
whoever makes it.
"""

import os
from pathlib import Path

MODULE = "planted"

_SOURCE = '''\
import fcntl, os


def fails(share, name="all"):
    """Whether this call, the n-th of its name, is one of the failures: n * share rounds to one more."""
    with open(os.path.join({folder!r}, "calls-of-%s" % name), "ab") as calls:
        fcntl.flock(calls, fcntl.LOCK_EX)
        before = calls.seek(0, os.SEEK_END)
        calls.write(b".")
    return int((before + 1) * share + 0.5) > int(before * share + 0.5)
'''


def plant(folder: Path) -> Path:
    """Write the module into a folder, which keeps the counts as well."""
    path = folder / f"{MODULE}.py"
    path.write_text(_SOURCE.format(folder=os.fspath(folder)))
    return path
