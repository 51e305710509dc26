"""Runs functions in new processes, which are forked from a small server.

Each worker has one *server*: a process with one thread, which has imported what trials need and nothing of
Dask or CUDA. It forks processes, each of which reads from a *line* which function to run, and sends the
result back. Starting a new interpreter for each trial would take longer than a short trial. A process runs
one function after another; it is replaced if it was cancelled, if the server was killed, or if processes are
left that it cannot end. If the caller dies, for whatever reason, the line is closed, and the function ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import psutil

import bisect_env
from bisect_env.trials.processes import (
    END_GRACE,
    PR_SET_CHILD_SUBREAPER,
    child_signals,
    clear,
    parents_of_all,
    prctl,
    signal_all,
)

# --------------------------------------------------------------------------------------------------
# The connection between a function in a forked process and its caller.

_LENGTH = struct.Struct("!Q")
_QUESTION, _RESULT, _LAST_RESULT = "question", "result", "last result"
"""Kinds of messages of a function. After its last result, a process ends."""
TICK = 0.1
"""Seconds between two checks of the caller whether to cancel."""
MESSAGE_LIMIT = 60.0
"""Maximum seconds for which the caller waits to send or receive the rest of a message. A process that takes
longer was stopped, as by SIGSTOP."""


class LostError(Exception):
    """An error that is raised when a process could not be started, or ended without an answer."""


class Line:
    """A connection between a function in a forked process and its caller, which carries pickled objects.

    Args:
        connection: One end of a pair of sockets.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.is_open = True

    def close(self) -> None:
        """Close this side of the line."""
        self.is_open = False
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def send(self, value: object) -> None:
        """Send an object. Raises OSError if the other side is gone, or was stopped."""
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """Wait for an object and return it. Raises EOFError if the other side is gone, or was stopped."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))

    def _exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            try:
                count = self._socket.recv_into(view)
            except (ConnectionResetError, TimeoutError):
                count = 0
            if count == 0:
                raise EOFError("the other side of the line is gone")
            view = view[count:]
        return data

    def is_readable(self) -> bool:
        """Return whether an object waits to be received, or the other side has cancelled or is gone."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def ask(self, question: str) -> Any:
        """Ask the caller a question while the function runs, and return the answer.

        Return None if the caller has cancelled the function.
        """
        try:
            self.send((_QUESTION, question))
            return self.receive()
        except (EOFError, OSError):
            return None

    def cancel(self) -> None:
        """Tell the function to end. Its end of the line becomes readable; it can still send its result."""
        self.is_open = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


def results(
    lines: Sequence[Line], answer: Callable[[str], object], look: Callable[[], None] = lambda: None
) -> list[Any]:
    """Wait until all functions have returned, and return their results in the order of the lines.

    Args:
        lines: Lines to forked processes.
        answer: Returns the answer to a question of a function.
        look: Called at least ten times a second; it may cancel functions.

    Raises:
        LostError: A process ended without a result, or with an exception.
    """
    found: dict[int, Any] = {}
    poll = select.poll()
    by_descriptor = {line.fileno(): (place, line) for place, line in enumerate(lines)}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    while len(found) < len(lines):
        for descriptor, _ in poll.poll(1000 * TICK):
            place, line = by_descriptor[descriptor]
            try:
                kind, value = line.receive()
            except EOFError as error:
                raise LostError(
                    "the trial's supervisor was killed; does the script kill its parent processes?"
                ) from error
            if kind == _QUESTION:
                with contextlib.suppress(OSError):  # the function was cancelled
                    line.send(answer(value))
                continue
            if kind == _LAST_RESULT:
                line.is_open = False
            if isinstance(value, LostError):
                raise value
            found[place] = value
            poll.unregister(descriptor)
        look()
    return [found[place] for place in range(len(lines))]


# --------------------------------------------------------------------------------------------------
# The forked processes.


def fork(function: Callable[..., object], *arguments: object, close: Sequence[Line] = ()) -> tuple[int, Line]:
    """Run a function in a process that is forked from this one, and return its id and a line to it.

    Args:
        function: Called with its line and the arguments.
        arguments: Arguments of the function.
        close: Lines of this process that the new one closes, so that their other sides notice when this
            process dies.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        for line in close:
            line.close()
        _work(lambda: _answer(Line(theirs), function, arguments))
    theirs.close()
    return pid, Line(ours)


def _answer_all(line: Line) -> bool:
    """Run the functions that are requested on a line, until the caller closes it or processes are left."""
    # No variable holds a request, which may be large, while the process waits for the next one.
    while _answer(line, *line.receive()):
        pass
    return False


def _answer(line: Line, function: Callable[..., object], arguments: Sequence[object]) -> bool:
    """Run a function and send its result; return False if processes are left that could not be ended."""
    try:
        value = function(line, *arguments)
    except Exception:  # noqa: BLE001 - the outermost frame of a process: the caller reports the error
        value = LostError(f"the trial's supervisor failed:\n{traceback.format_exc()}")
    clean = not _has_children()
    line.send((_RESULT if clean else _LAST_RESULT, value))
    return clean


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _work(run: Callable[[], bool]) -> NoReturn:
    """Call `run` in this forked process, and exit: with 0 if it returns True, else with 1."""
    clean = False
    # Orphans of the function's processes come here, and the exit code tells that there are some.
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        clean = run()
    except (EOFError, OSError):
        clean = not _has_children()  # the caller has closed the line, or died
    finally:
        os._exit(0 if clean else 1)


# --------------------------------------------------------------------------------------------------
# The server.


def serve(requests: socket.socket) -> None:
    """Wait for requests on a socket and fork a process for each, until the worker dies."""
    # If a forked process is killed, the processes that it started become children of this one, not of init.
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    forked: set[int] = set()
    orphaned = False
    with child_signals() as child_ended:
        poll = select.poll()
        poll.register(requests, select.POLLIN)
        poll.register(child_ended, select.POLLIN)
        while True:
            for fd, _ in poll.poll(1000 if orphaned else None):
                if fd == child_ended:
                    clear(fd)
                    continue
                message, fds, _, _ = socket.recv_fds(requests, 1, 1)
                if not message:
                    _end_last(forked)
                    return
                os.set_inheritable(fds[0], False)  # a received descriptor would stay open after exec
                pid = os.fork()
                if pid == 0:
                    requests.close()
                    line = Line(socket.socket(fileno=fds[0]))
                    _work(lambda line=line: _answer_all(line))  # type: ignore[misc]
                forked.add(pid)
                os.close(fds[0])
            orphaned = _bury(forked) or orphaned
            if orphaned:
                orphaned = _end_orphans(forked)


def _end_last(forked: set[int]) -> None:
    """Wait until all forked processes have ended after the worker's death; kill those that do not end."""
    deadline = time.monotonic() + 2 * END_GRACE
    while forked and time.monotonic() < deadline:
        _bury(forked)
        time.sleep(0.02)
    signal_all(forked, signal.SIGKILL)
    while (_bury(forked) or _end_orphans(forked)) and time.monotonic() < deadline + END_GRACE:
        time.sleep(0.02)


def _bury(forked: set[int]) -> bool:
    """Remove ended processes from the set; return whether one of them may have left processes behind."""
    orphaned = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # there is no child
            return orphaned
        if pid == 0:
            return orphaned
        if pid in forked:
            forked.remove(pid)
            orphaned = orphaned or status != 0


def _end_orphans(forked: set[int]) -> bool:
    """Kill the processes that ended processes left behind; return whether there were any."""
    me = os.getpid()
    orphans = {pid for pid, parent in parents_of_all().items() if parent == me} - forked
    signal_all(orphans, signal.SIGKILL)
    return bool(orphans)


# --------------------------------------------------------------------------------------------------
# The client of the server. The server is started when first needed and shared by all threads.

MARK = "bisect-env trial server"
"""Argument of the server, by which it and its forks are recognised in a process list."""
_PROGRAM = """
import json, socket, sys
sys.path[:] = json.loads(sys.argv[2])
import {module}
from bisect_env.trials.forks import serve
serve(socket.socket(fileno=int(sys.argv[3])))
"""
CLOSE_GRACE = 3.0
"""Seconds to wait for the server to end. After that it continues to end its processes in the background."""


class ForkServer:
    """A client of the server, which is a separate process from which others are forked.

    It is safe to use from several threads.

    Args:
        module: Module that the server imports before it forks.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._worker = f"worker {os.getpid()}"
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._stderr: int | None = None
        self._idle: list[Line] = []

    @contextmanager
    def run(self, function: Callable[..., object], *arguments: object) -> Iterator[Line]:
        """Run a function in another process during the `with` block, and provide the line to it.

        If the block raises, or the current process dies, the function is cancelled.

        Args:
            function: A function of a module, called with its line and the arguments.
            arguments: Arguments of the function, which are pickled.

        Raises:
            LostError: The server could not be started or reached, or the process ended without a result.
        """
        try:
            line = self._requested(function, arguments)
            server = self.process
            try:
                yield line
            except BaseException:
                line.close()
                raise
        except LostError as error:
            if said := self._error_of_server():
                last = said.splitlines()[-1]
                raise LostError(f"the server of trials ended with an error: {last}\n{said}") from error
            raise
        if line.is_open and server is self.process:
            self._idle.append(line)
        else:
            line.close()

    def _requested(self, function: Callable[..., object], arguments: Sequence[object]) -> Line:
        line = self._idle_line() or self._new_line()
        try:
            line.send((function, arguments))
        except OSError as error:
            line.close()
            self.wake()
            raise LostError(f"the trial supervisor cannot be reached: {error}") from error
        return line

    def _idle_line(self) -> Line | None:
        """Return a line to a process that waits for a function, or None if there is none.

        Processes of a killed server are not used: if one was killed, too, nobody would end its trial.
        """
        while self._idle and self._is_alive():
            with contextlib.suppress(IndexError):  # another thread has taken it
                line = self._idle.pop()
                # The process may have been killed since; its line is readable then.
                if not line.is_readable():
                    return line
                line.close()
        return None

    def _is_alive(self) -> bool:
        server = self.process  # another thread may replace it
        return server is not None and server.poll() is None

    def _new_line(self) -> Line:
        """Let the server fork a process, and return the line to it. Raises LostError if this fails."""
        ours, theirs = socket.socketpair()
        ours.settimeout(MESSAGE_LIMIT)
        try:
            with theirs, self._lock:
                if not self._is_alive():
                    self._start_server()
                assert self._requests is not None
                socket.send_fds(self._requests, [b"+"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise LostError(f"the trial supervisor cannot be reached: {error}") from error
        return Line(ours)

    def _error_of_server(self) -> str:
        """Return what the server wrote to its standard error if it has ended, such as a failed import."""
        server, stderr = self.process, self._stderr
        if server is None or stderr is None:
            return ""
        if said := os.pread(stderr, 100_000, 0).decode("utf-8", "replace").strip():
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(1.0)
                return said
        return ""

    def prepare(self) -> None:
        """Start the server before it is first needed.

        An error is ignored here; the first `run` will report it.
        """
        with self._lock, contextlib.suppress(OSError):
            if self.process is None:
                self._start_server()

    def _start_server(self) -> None:
        self._discard()
        if self._stderr is None:
            with tempfile.TemporaryFile() as file:
                self._stderr = os.dup(file.fileno())
        os.ftruncate(self._stderr, 0)
        os.lseek(self._stderr, 0, os.SEEK_SET)
        # Packets, so that one receive is one request with its descriptor.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here = str(Path(bisect_env.__file__).parents[1])
        # `here` is last: before the standard library, a backport beside bisect_env would replace a module. So
        # would a file in the working directory, for which "" stands.
        path = json.dumps([*(str(one) for one in sys.path if Path(one).is_absolute()), here])
        program = _PROGRAM.format(module=self._module)
        with theirs:
            # The server gets its own session, so that Ctrl-C in the terminal reaches only the command.
            # -S and -I: no hooks of site packages, no variables of the worker's environment.
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", program, MARK, path, str(theirs.fileno()), self._worker],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                cwd="/",
                start_new_session=True,
            )
        self._requests = ours

    def wake(self) -> None:
        """Send SIGCONT to the server and its forks, in case a script has stopped them with SIGSTOP.

        The forks of a killed server, which are not its children any more, get it, too.
        """
        ours = {MARK.encode(), self._worker.encode()}
        for pid in psutil.pids():
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                if ours <= set(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")):
                    os.kill(pid, signal.SIGCONT)

    def _discard(self) -> None:
        server, self.process = self.process, None
        idle, self._idle = self._idle, []
        for line in idle:
            line.close()
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if server is not None:
            self.wake()
            # The server ends after its socket is closed and the last trial has ended; `wait` reaps it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(CLOSE_GRACE)

    def close(self) -> None:
        """End the server. The next call of `run` starts a new one."""
        with self._lock:
            self._discard()


SERVER = ForkServer("bisect_env.trials.run")
"""The server of this process, from which its trials are forked."""

atexit.register(SERVER.close)
