"""Makes Ctrl-C, SIGTERM and SIGHUP end a command in order and in bounded time, whenever they arrive.

Until a command begins there is nothing to end: the process says so and leaves. Then a signal asks for an
orderly end, and each further one leaves less time for it. Nothing is raised into the middle of a library.
Python's own handlers run between two instructions of the main thread, which may be waiting in a library that
never returns; so a thread hears of every signal, too, and ends the process when its time is over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from bisect_env.temporary import remove_own

ORDERLY = 45.0
"""Seconds for an orderly end: trials get thirty to be ended, clusters five to be closed."""
SILENT = 15.0
"""Seconds in which nobody has asked whether to stop, after which the main thread is taken to be stuck: in a
call to an index that does not answer, say. Ending trials may take as long."""
AT_ONCE = 3.0
"""Seconds that a second signal leaves."""
LEAVING = 5.0
"""Seconds for Python to end once the command is done: threads of libraries may hold it up."""
INTERRUPTED = 130


class Stopped(KeyboardInterrupt):
    """A signal came.

    Not `KeyboardInterrupt` itself: where that passes through `exec` of a text, as at the definition of a data
    class, Python remembers it, and a process started with `-m` kills itself by SIGINT at its end even though
    it was caught (`run_eval_code_obj` in CPython, which compares the type and not its parents).
    """


_LOOK = 0.25
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_Handler = Callable[[int, FrameType | None], None]


def leave_at_once() -> None:
    """Let signals end this process with a word: nothing has begun."""
    _handle(_leave)


def interrupt() -> None:
    """Let every signal be what Ctrl-C is: a `KeyboardInterrupt` (`Stopped`) in the main thread."""
    global _raised, _is_command
    _raised, _is_command = False, True
    _handle(_raise)


def finish() -> None:
    """Stop watching the command's end, and ignore signals while the process ends."""
    global _is_command
    _is_command = False
    while _watches:
        _watches.pop()()
    _ignore()


def _ignore() -> None:
    for number in _NUMBERS:
        with contextlib.suppress(ValueError):  # not the main thread's
            signal.signal(number, signal.SIG_IGN)


def _handle(handler: _Handler) -> None:
    for number in _NUMBERS:
        # What `nohup` has switched off stays off. A shell's `&` switches Ctrl-C off, which can still be sent.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            with contextlib.suppress(ValueError):
                signal.signal(number, handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"stopped before anything had begun\n")
    os._exit(INTERRUPTED)


def _raise(_number: int, _frame: FrameType | None) -> None:
    global _raised
    _raised = True
    # One more would only break what is being ended.
    _ignore()
    raise Stopped


class _Asked(threading.Event):
    """Whether to stop, and when that was last asked."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_at = time.monotonic()

    def is_set(self) -> bool:
        self.looked_at = time.monotonic()
        return super().is_set()


_asked: _Asked | None = None
_raised = False
_is_command = False
_watches: list[Callable[[], None]] = []
"""What ends the watch over a command's end."""


def is_interrupted() -> bool:
    """Return whether a signal was raised as `KeyboardInterrupt` in this command."""
    return _raised


def is_stopping() -> bool:
    """Return whether the user has asked this command to stop."""
    return _asked is not None and _asked.is_set()


def stop_on_signals() -> threading.Event:
    """Let signals stop the command in an orderly way and in bounded time from now on.

    Returns:
        Set by the first signal.
    """
    global _asked
    stop = _asked = _Asked()
    _handle(lambda _number, _frame: stop.set())
    _watch_over(stop)
    return stop


def _watch_over(stop: _Asked) -> None:
    """End the process when an end that was asked for does not come."""
    if not _is_command or threading.current_thread() is not threading.main_thread():
        return  # nobody would say when it is over
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
    os._exit(INTERRUPTED)


def _kill_workers() -> bool:
    """Kill the workers of a Dask cluster of this process, which ends next; return whether there were any."""
    module = sys.modules.get("multiprocessing")
    children = [] if module is None else module.active_children()
    for child in children:
        child.kill()
    return bool(children)


def leave_in_time(code: int) -> None:
    """Make the process end soon after its main thread, even if threads of libraries still run."""
    if "distributed" not in sys.modules:
        return
    if code == INTERRUPTED and _kill_workers():
        # It was still starting, and the thread that starts it goes on as long as there is a process.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        remove_own()
        os._exit(code)

    def wait() -> None:
        threading.main_thread().join()
        time.sleep(LEAVING)
        _kill_workers()
        remove_own()
        os._exit(code)

    threading.Thread(target=wait, name="leave", daemon=True).start()
