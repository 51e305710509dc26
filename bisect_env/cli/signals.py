"""Makes Ctrl-C, SIGTERM and SIGHUP end a command in order and in bounded time, whenever they arrive.

Before a command begins, a signal ends the process at once. Later, the first signal asks for an orderly end,
and further signals shorten the time for it. No exception is raised in the middle of library code. Python runs
signal handlers only between two instructions of the main thread, which may be waiting in a library that never
returns. Therefore a second thread receives every signal too, and ends the process when the time is over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from bisect_env.running import end_running
from bisect_env.temporary import remove_own

ORDERLY = 45.0
"""Seconds for an orderly end: trials get thirty to be ended, clusters five to be closed."""
SILENT = 15.0
"""Seconds after which a main thread that has not checked for a request to stop counts as stuck, for example
waiting for an index. Ending trials may take this long."""
AT_ONCE = 3.0
"""Seconds for an orderly end after a second signal."""
LEAVING = 5.0
"""Seconds for Python to exit after the command is done; threads of libraries may delay it."""
INTERRUPTED = 130
STOPPED = "stopped\n  remedy: give the same command again\n"
"""Message if a signal arrives before the first trial or in a command that runs none."""


class Stopped(KeyboardInterrupt):
    """An error raised in the main thread by a signal.

    It is a subclass because of a side effect of `KeyboardInterrupt` itself: if that error passes through
    `exec` of a text, as in the definition of a dataclass, a process started with `-m` kills itself with
    SIGINT at its end, even if the error was caught (`run_eval_code_obj` in CPython checks the exact type).
    """


_LOOK = 0.25
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_Handler = Callable[[int, FrameType | None], None]


def leave_at_once() -> None:
    """Make signals end the process at once with a message. Used before a command begins."""
    _handle(_leave)


def interrupt() -> None:
    """Make every signal raise `Stopped`, a `KeyboardInterrupt`, in the main thread."""
    global _raised, _is_command
    _raised, _is_command = False, True
    _handle(_raise)


def finish() -> None:
    """Stop watching whether the command ends in time, and ignore signals while the process exits."""
    global _is_command
    _is_command = False
    while _watches:
        _watches.pop()()
    _ignore()


def _ignore() -> None:
    for number in _NUMBERS:
        with contextlib.suppress(ValueError):  # only the main thread may set handlers
            signal.signal(number, signal.SIG_IGN)


def _handle(handler: _Handler) -> None:
    for number in _NUMBERS:
        # Keep SIGHUP ignored under `nohup`. SIGINT, which a shell's `&` sets to ignored, is handled again,
        # because users may still send it with `kill`.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            with contextlib.suppress(ValueError):
                signal.signal(number, handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, STOPPED.encode())
    os._exit(INTERRUPTED)


def _raise(_number: int, _frame: FrameType | None) -> None:
    global _raised
    _raised = True
    # A further signal would interrupt the orderly end.
    _ignore()
    raise Stopped


class _Asked(threading.Event):
    """A flag that is set when the user asks to stop. It records when it was last checked."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_at = time.monotonic()

    def is_set(self) -> bool:
        self.looked_at = time.monotonic()
        return super().is_set()


_raised = False
_is_command = False
_watches: list[Callable[[], None]] = []
"""Functions that end the watches of `_watch_over`."""


def is_interrupted() -> bool:
    """Return whether a signal was raised as `KeyboardInterrupt` in this command."""
    return _raised


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Make signals stop the command in an orderly way and in bounded time inside the `with` block.

    A signal that arrived inside the block counts as obeyed when the block ends without an error: the command
    goes on, and the next signal raises `Stopped`. After an error the command ends, and is watched until then.

    Yields:
        An event that the first signal sets.
    """
    stop = _Asked()
    _handle(lambda _number, _frame: stop.set())
    end = _watch_over(stop)
    yield stop
    _handle(_raise)
    if end is not None:
        _watches.remove(end)
        end()


def _watch_over(stop: _Asked) -> Callable[[], None] | None:
    """Start a thread that kills the process if it does not end in time after a request to stop.

    Returns:
        A function that ends the watch; None if nothing is watched.
    """
    if not _is_command or threading.current_thread() is not threading.main_thread():
        return None  # nothing would call `finish` to end the watch
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    over = threading.Event()

    def end() -> None:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(writer)

    _watches.append(end)
    threading.Thread(target=_listen, args=(reader, over, stop), name="signals", daemon=True).start()
    return end


def _listen(reader: int, over: threading.Event, stop: _Asked) -> None:
    first = deadline = float("inf")
    with open(reader, "rb", buffering=0) as signals_read:
        while not over.is_set():
            if select.select([signals_read], [], [], None if first == float("inf") else _LOOK)[0]:
                for number in signals_read.read(64):
                    if number in _NUMBERS:
                        now = time.monotonic()
                        deadline = min(deadline, now + (ORDERLY if first == float("inf") else AT_ONCE))
                        first = min(first, now)
            now = time.monotonic()
            if (now > deadline or now > max(first, stop.looked_at) + SILENT) and not over.is_set():
                _end_by_force()


def _end_by_force() -> None:
    _kill_workers()
    remove_own()
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""  # a live view hides the cursor
    os.write(
        2,
        f"{shown}error: stopped; what did not end in time was killed, and every trial that ended is stored\n"
        "  remedy: give the same command again; it goes on where it stopped\n".encode(),
    )
    # Last, because the main thread may wait for a tool, and would go on.
    end_running()
    os._exit(INTERRUPTED)


def _kill_workers() -> bool:
    """Kill the workers of this process's Dask cluster, and return whether there were any.

    The process ends next.
    """
    module = sys.modules.get("multiprocessing")
    children = [] if module is None else module.active_children()
    for child in children:
        child.kill()
    return bool(children)


def leave_in_time(code: int) -> None:
    """Make the process end soon after its main thread, even if threads (such as downloads) still run."""
    others = (one for one in threading.enumerate() if one is not threading.main_thread())
    # distributed stops its threads when Python exits, which may take long, too.
    if "distributed" not in sys.modules and all(one.daemon for one in others):
        return
    if code == INTERRUPTED and _kill_workers():
        # The cluster was still starting, and the thread that starts it would keep this process alive.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        remove_own()
        os._exit(code)

    def wait() -> None:
        threading.main_thread().join()
        time.sleep(LEAVING)
        _kill_workers()
        end_running()
        remove_own()
        os._exit(code)

    threading.Thread(target=wait, name="leave", daemon=True).start()
