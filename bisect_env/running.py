"""Runs tools (uv, git, a container engine) with a time limit, and ends them when the command ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bisect_env.errors import InfrastructureError

_LISTEN = 0.2  # seconds between two reads of a tool's output
_START_SECONDS = 1.0  # seconds that the end of the command waits for a tool that is just being started
_KEEP = 400_000  # bytes of output that are kept; a failing C++ build can write gigabytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of running a tool: exit code, output, and whether the time limit had passed.

    Attributes:
        returncode: Exit code as in `subprocess`, negative for a signal.
        stdout: Standard output, possibly only its end.
        stderr: Standard error, possibly only its end.
        timed_out: Whether the tool was killed because of its time limit.
    """

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False


def run_tool(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout: float,
    on_line: Callable[[str], None] | None = None,
    keep: int | None = _KEEP,
    holding: int | None = None,
    stdin: str = "",
) -> Finished:
    """Run a command in its own process group, wait for it, and return its result.

    Output goes to files instead of pipes, because a build back end may start a server process that would keep
    a pipe open forever.

    Args:
        argv: The program and its arguments.
        env: All environment variables of the command.
        cwd: Working directory.
        timeout: Time limit in seconds. After it the process group is killed.
        on_line: Called with each line of standard error, shortly after it was written.
        keep: Number of bytes kept from the end of each output; None for all.
        holding: File descriptor of a locked file that the command inherits. The lock thus stays held until
            the command has ended, even if this process is killed.
        stdin: Text that the command can read once from its standard input, which is a pipe. The command must
            read a text of more than 64 KiB at once.

    Raises:
        OSError: The command cannot be started.
        InfrastructureError: `end_running` was called for this thread.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Started while the lock is held, or `end_running` could miss a process that has just been started.
        with _lock:
            if threading.current_thread() in _ended:
                raise InfrastructureError("the command has ended, so no tool is started")
            process = subprocess.Popen(
                [str(word) for word in argv],
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                pass_fds=() if holding is None else (holding,),
            )
            _running.add(process.pid)
        ended = False
        try:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError), process.stdin:
                    process.stdin.write(stdin.encode())
            ended = _ended_in(process, timeout, err.fileno(), on_line)
        finally:
            with _lock:
                # The process is reaped below. Until then, no other process group can have this ID.
                _running.discard(process.pid)
            # Also on Ctrl-C, which does not reach the tool because it has its own session.
            if not ended:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return Finished(process.returncode, _tail(out, keep), _tail(err, keep), not ended)


_lock = threading.Lock()
_running: set[int] = set()
_ended: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def end_running(threads: Iterable[threading.Thread] = ()) -> None:
    """Kill all tools, such as uv and git, that the given threads of this process are running.

    Call this when the command ends.

    Args:
        threads: Threads that start no more tools afterwards.
    """
    # Starting a tool may hang on a file system that does not answer. The others are killed even then.
    is_held = _lock.acquire(timeout=_START_SECONDS)
    try:
        _ended.update(threads)
        for pid in [*_running]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    finally:
        if is_held:
            _lock.release()


def _ended_in(
    process: subprocess.Popen[bytes], timeout: float, errors: int, on_line: Callable[[str], None] | None
) -> bool:
    """Wait for the end of a process, and return whether the process ended within `timeout` seconds.

    Meanwhile `on_line` is called with each line that the process writes to the file `errors`.

    The process is not reaped.

    A thread waits for the process, because `Popen.wait` with a time limit may notice the end 50 ms late, and
    because many a Python has no `os.pidfd_open`.
    """
    deadline = time.monotonic() + timeout
    ended = threading.Event()

    def wait() -> None:
        # The process may have been reaped: after the time limit, or by the kernel if SIGCHLD is ignored.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        ended.set()

    threading.Thread(target=wait, name=f"wait for {process.pid}", daemon=True).start()
    at = 0
    while True:
        has_ended = ended.wait(max(0.0, min(_LISTEN, deadline - time.monotonic())))
        if on_line is not None:
            at = _pass_on(errors, at, on_line)
        if has_ended or time.monotonic() >= deadline:
            return has_ended


def _pass_on(fd: int, at: int, on_line: Callable[[str], None]) -> int:
    """Call a function with each complete line that a running process has written to a file.

    The file position of the process does not change.

    Args:
        fd: File descriptor of the file.
        at: Position of the first line to pass on.
        on_line: The function to call.

    Returns:
        The position after the last complete line, or inside a line that is longer than `_KEEP` bytes.
    """
    window = os.pread(fd, _KEEP, at)
    text, end, _ = window.rpartition(b"\n")
    if not end and len(window) == _KEEP:
        return at + _KEEP  # the line does not fit: go on inside it
    for line in text.decode("utf-8", "replace").splitlines():
        on_line(line)
    return at + len(text) + len(end)


def _tail(stream: IO[bytes], keep: int | None) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0 if keep is None else max(0, size - keep))
    return stream.read().decode("utf-8", "replace")
