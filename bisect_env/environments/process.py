"""Running a tool to its end, or to its time limit, with everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_KEEP = 400_000  # bytes of output: a failing C++ build can write gigabytes


@dataclass(frozen=True, slots=True)
class Finished:
    """How a tool ended.

    Attributes:
        returncode: As `subprocess` gives it.
        stdout: The end of its output.
        stderr: The end of its errors.
        timed_out: Whether we ended it.
    """

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False


def run_tool(argv: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, timeout: float) -> Finished:
    """Run a command without a shell in its own process group.

    Output goes to files, not pipes: a build back end may leave a server behind that keeps a pipe open
    for ever.

    Raises:
        OSError: The command cannot be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [str(word) for word in argv],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            # Also on Ctrl-C: in its own session the tool does not hear of it.
            if process.poll() is None:
                _end_group(process)
        return Finished(process.returncode, _tail(out), _tail(err), timed_out)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    # The leader is not reaped yet, so its group id cannot belong to anyone else.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(stream: IO[bytes]) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - _KEEP))
    return stream.read().decode("utf-8", "replace")
