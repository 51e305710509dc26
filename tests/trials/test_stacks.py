"""Stacks from outside: real processes that hang, and what can be said of why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.trials import stacks
from bisect_env.trials.records import Outcome, TrialRecord
from bisect_env.trials.stacks import (
    Thread,
    explain,
    find_tool,
    interpreter_data,
    of_py_spy,
    where_main_is,
)
from bisect_env.trials.tracebacks import Frame

Run = Callable[..., TrialRecord]

DEADLOCK = """
    import ctypes, threading
    keeps_the_gil, gives_it_back = ctypes.PyDLL(None), ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(64)
    locked = threading.Event()

    def call_with_callback():
        gives_it_back.pthread_mutex_lock(mutex)
        locked.set()
        values = (ctypes.c_int * 2000)(*range(2000))
        compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda a, b: 0)
        while True:
            gives_it_back.qsort(values, 2000, 4, compare)

    def call_without():
        locked.wait()
        keeps_the_gil.pthread_mutex_lock(mutex)

    threading.Thread(target=call_with_callback, name="launcher").start()
    call_without()
"""
"""A driver that calls back into Python under a lock, against one that wants the lock and keeps the GIL."""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> int:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(code))
        one = subprocess.Popen([sys.executable, str(path)])
        started.append(one)
        return one.pid

    yield start
    for one in started:
        one.kill()
        one.wait()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.integration
def test_a_deadlock_over_the_gil_is_named(run: Run) -> None:
    record = run(DEADLOCK, timeout=3.0)
    assert record.outcome is Outcome.HANG
    sentences = record.stack.splitlines()
    deadlock = next(line for line in sentences if line.startswith("deadlock: "))
    assert "(MainThread) waits for a mutex" in deadlock
    assert "(launcher) waits for the GIL" in deadlock
    held = next(line for line in sentences if "holds it inside the native call" in line)
    assert "pthread_mutex_lock" in held
    assert "called from call_without (main.py:" in held
    assert any("(launcher) is in qsort" in line for line in sentences)
    # What faulthandler printed on SIGABRT follows.
    assert "Fatal Python error: Aborted" in record.stack


@pytest.mark.integration
def test_all_threads_with_gdb_where_py_spy_is_not(
    process: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("gdb") is None:
        if os.environ.get("BISECT_ENV_TEST_GDB") == "required":
            pytest.fail("gdb is required")
        pytest.skip("gdb is not installed")
    pid = process("import threading\nthreading.Thread(target=threading.Event().wait).start()")
    until(lambda: psutil.Process(pid).num_threads() == 2)
    monkeypatch.setattr(stacks, "find_tool", lambda name: None if name == "py-spy" else find_tool(name))
    text = stacks.live_stacks(pid)
    assert text.startswith(f"Process {pid}, by gdb:")
    assert text.count("\nThread ") == 2
    assert psutil.Process(pid).status() != psutil.STATUS_STOPPED


@pytest.mark.integration
def test_the_family_of_a_wrapper_is_looked_at(process: Callable[[str], int]) -> None:
    pid = process(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import time\\ndef inner(): time.sleep(99)\\ninner()'])"
    )
    try:
        until(lambda: "in inner" in stacks.live_stacks(pid) or " inner (" in stacks.live_stacks(pid))
    finally:
        for child in psutil.Process(pid).children():
            child.kill()


@pytest.mark.integration
def test_without_tools_the_reason_is_given(
    process: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "find_tool", lambda _name: None)
    pid = process("import time; time.sleep(99)")
    assert "py-spy: not on this machine; gdb: not on this machine" in stacks.live_stacks(pid)
    assert stacks.live_stacks(2**22 + 1) == ""


def frames(*names: str) -> tuple[Frame, ...]:
    return tuple(Frame(name.removeprefix("py:"), "x", 1, native=not name.startswith("py:")) for name in names)


def test_two_mutexes_taken_in_different_orders() -> None:
    first = Thread(1, "a", frames("pthread_mutex_lock", "cuLaunch", "py:f"), mutex_owner=2)
    second = Thread(2, "b", frames("pthread_mutex_lock", "cuFree", "py:g"), mutex_owner=1)
    said = explain([first, second, Thread(3, "c", frames("py:h"))])
    assert said[0] == (
        "deadlock: thread 1 (a) waits for a mutex, which thread 2 holds; "
        "thread 2 (b) waits for a mutex, which thread 1 holds"
    )
    assert "thread 1 (a) is in cuLaunch (x:1), called from f (x:1)" in said


def test_a_native_call_that_keeps_the_gil_is_named_without_a_cycle() -> None:
    holder = Thread(1, "main", frames("poll", "cuCtxSynchronize", "py:f"), has_gil=True)
    waiter = Thread(2, "w", frames("pthread_cond_timedwait", "py:g"), wants_gil=True)
    said = explain([holder, waiter])
    assert said[0] == (
        "thread 2 (w) waits for the GIL; thread 1 (main) holds it inside the native call "
        "cuCtxSynchronize (x:1), called from f (x:1)"
    )
    assert not any("deadlock" in sentence for sentence in said)


def test_who_keeps_the_gil_is_named_where_nobody_is_seen_to_wait_for_it() -> None:
    """The main thread waits for a Python lock, which has no owner that could be read."""
    main = Thread(1, "MainThread", frames("lock_PyThread_acquire_lock", "py:<module>"))
    holder = Thread(2, "worker", frames("nanosleep", "sleep", "py:work"), has_gil=True)
    keeps = f"thread 2 (worker) holds the GIL inside the native call {holder.native_call}"
    assert where_main_is([holder, main]) == [
        "thread 1 (MainThread) is in lock_PyThread_acquire_lock (x:1), called from <module> (x:1)",
        f"{keeps}, called from work (x:1)",
    ]
    assert where_main_is([main]) == where_main_is([holder, main])[:1]


def test_a_thread_that_computes_in_python_is_no_finding() -> None:
    busy = Thread(1, "main", frames("py:f"), has_gil=True)
    assert explain([busy, Thread(2, "w", frames("py:g"), wants_gil=True)]) == ["thread 2 (w) is in g (x:1)"]


@given(st.dictionaries(st.integers(1, 9), st.integers(1, 9), max_size=9))
def test_a_cycle_is_found_exactly_when_there_is_one(waits: dict[int, int]) -> None:
    ids = {*waits, *waits.values()}
    threads = [Thread(tid, "", frames("f"), mutex_owner=waits.get(tid)) for tid in sorted(ids)]

    def reaches_itself(start: int) -> bool:
        at, seen = waits.get(start), set()
        while at is not None and at not in seen:
            if at == start:
                return True
            seen.add(at)
            at = waits.get(at)
        return False

    found = any(sentence.startswith("deadlock") for sentence in explain(threads))
    assert found == any(reaches_itself(tid) for tid in waits)


def test_the_interpreters_data_in_a_map_of_memory() -> None:
    maps = """\
55d0c0000000-55d0c0001000 r--p 00000000 08:01 1 /opt/python/bin/python3.11
55d0c0004000-55d0c0005000 rw-p 00003000 08:01 1 /opt/python/bin/python3.11
55d0c1000000-55d0c1100000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000010000 rw-p 00000000 08:01 2 /opt/python/lib/libpython3.11.so.1.0
7f0000010000-7f0000050000 rw-p 00000000 00:00 0
7f0000060000-7f0000070000 rw-p 00000000 00:00 0
7f0000080000-7f0000090000 rw-p 00000000 08:01 3 /usr/lib/libcuda.so.1
7f0000090000-7f00000a0000 rw-p 00000000 00:00 0
"""
    assert interpreter_data(maps) == [
        (0x55D0C0004000, 0x55D0C0005000),
        (0x7F0000000000, 0x7F0000010000),
        (0x7F0000010000, 0x7F0000050000),
    ]


def test_py_spys_answer() -> None:
    frame = {"name": "f", "filename": "/a/b.py", "short_filename": "b.py", "line": 3, "module": None}
    native = {
        "name": "0x1",
        "filename": "/lib/c.so",
        "short_filename": "c.so",
        "line": 0,
        "module": "/lib/c.so",
    }
    thread = {"thread_id": 5, "os_thread_id": 7, "thread_name": None, "owns_gil": True}
    (found,) = of_py_spy([{**thread, "frames": [native, frame]}])
    assert (found.tid, found.name, found.has_gil) == (7, "", True)
    assert found.python == Frame("f", "b.py", 3)
    assert found.native_call == Frame("0x1", "c.so", 0, native=True)


def test_the_tools_of_cuda_are_found_where_its_installer_puts_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "compute-sanitizer-of-a-test"
    tool.touch(0o755)
    monkeypatch.setattr(stacks, "_TOOLKIT", str(tmp_path))
    assert find_tool(tool.name) == str(tool)
