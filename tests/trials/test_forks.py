"""The processes that trials are forked from: what becomes of them between trials and when they cannot run."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

import bisect_env
from bisect_env.containers.engine import Engine
from bisect_env.containers.trial import Inside
from bisect_env.matrix.files import StudyFile
from bisect_env.trials import forks
from bisect_env.trials.cores import Debug
from bisect_env.trials.forks import SERVER, ForkServer, LostError, results
from bisect_env.trials.records import Outcome
from bisect_env.trials.run import run_trial
from tests.trials.trial_support import PREFIX, make_spec

pytestmark = pytest.mark.integration

LARGE = (StudyFile("main.py", b"pass\n"), StudyFile("data", bytes(100_000_000)))
"""Files that fill the buffer of any socket."""


@pytest.fixture(autouse=True)
def own_server() -> Iterator[None]:
    """Each test has a server of its own, with one process that waits for the next trial."""
    SERVER.close()
    assert run_trial(make_spec("pass"), PREFIX).outcome is Outcome.PASS
    yield
    SERVER.close()


def server() -> psutil.Process:
    assert SERVER.process is not None
    return psutil.Process(SERVER.process.pid)


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@pytest.mark.parametrize("which", ["server", "idle process"])
def test_a_stopped_process_does_not_hold_up_a_trial_with_large_files(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "MESSAGE_LIMIT", 1.0, raising=False)
    SERVER.close()
    run_trial(make_spec("pass"), PREFIX)
    (idle,) = server().children()
    if which == "server":
        idle.kill()
        deadline = time.monotonic() + 20
        while idle.is_running() and idle.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.02)
    with ThreadPoolExecutor(1) as pool, stopped(idle if which == "idle process" else server()):
        trial = pool.submit(run_trial, make_spec(files=LARGE), PREFIX)
        assert trial.result(timeout=20).outcome is Outcome.HARNESS_ERROR
        # What was stopped has been continued: the next trial runs.
        assert run_trial(make_spec(files=LARGE), PREFIX).outcome is Outcome.PASS


def test_a_process_forgets_the_files_of_its_last_trial() -> None:
    assert run_trial(make_spec(files=LARGE), PREFIX).outcome is Outcome.PASS
    (idle,) = server().children()
    deadline = time.monotonic() + 10  # it sends the record first
    while (used := idle.memory_info().rss) > 80_000_000 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert used < 80_000_000


RUN_ONE = """
import sys
import tempfile
sys.path[:] = [*(one for one in sys.path if one != {root!r}), {site!r}, {root!r}]
import bisect_env
from bisect_env.trials.run import run_trial
from tests.trials.trial_support import PREFIX, make_spec
record = run_trial(make_spec("pass"), PREFIX)
print(bisect_env.__file__, record.outcome, record.detail)
"""


def test_a_backport_beside_bisect_env_does_not_replace_the_standard_library(tmp_path: Path) -> None:
    root, site = Path(bisect_env.__file__).parents[1], tmp_path / "site-packages"
    site.mkdir()
    (site / "bisect_env").symlink_to(root / "bisect_env")
    (site / "dataclasses.py").write_text("raise ImportError('a backport for an old Python')\n")
    program = RUN_ONE.format(root=str(root), site=str(site))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{site}/bisect_env/__init__.py pass exit code 0\n"


@pytest.mark.parametrize("change", ["", "gone"])
def test_the_server_imports_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    SERVER.close()
    place = tmp_path / "here"
    place.mkdir()
    (place / "dataclasses.py").write_text("raise ImportError('a file of the user')\n")
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    if change == "gone":
        shutil.rmtree(place)
    record = run_trial(make_spec("pass"), PREFIX)
    assert (record.outcome, record.detail) == (Outcome.PASS, "exit code 0")


def test_a_server_that_cannot_start_says_why() -> None:
    broken = ForkServer("bisect_env.no_such_module")
    for _ in range(2):
        with pytest.raises(LostError) as error, broken.run(run_trial) as line:
            results([line], lambda _question: None)
        first, second, *_ = str(error.value).splitlines()
        assert "ModuleNotFoundError: No module named 'bisect_env.no_such_module'" in first
        assert second == "Traceback (most recent call last):"
    broken.close()


def test_the_end_of_a_script_is_seen_also_if_the_worker_blocks_the_signal_of_it() -> None:
    SERVER.close()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    started = time.monotonic()
    try:
        record = run_trial(make_spec("pass", timeout=60.0), PREFIX)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    assert record.outcome is Outcome.PASS
    assert time.monotonic() - started < 30


def test_a_time_limit_of_a_month_is_no_error() -> None:
    record = run_trial(make_spec("pass", timeout=30 * 24 * 3600.0), PREFIX)
    assert (record.outcome, record.detail) == (Outcome.PASS, "exit code 0")


def test_a_container_that_cannot_start_leaves_no_lock_and_no_open_file() -> None:
    (process,) = server().children()
    before = process.num_fds()
    inside = Inside(Engine("podman", ("/no/such/podman",)), "image", PREFIX)
    record = run_trial(make_spec("pass"), PREFIX, inside=inside)
    assert record.detail == "ContainerError: the container engine podman cannot be started"
    assert run_trial(make_spec("pass"), PREFIX).outcome is Outcome.PASS
    assert server().children() == [process]
    assert process.num_fds() == before


@pytest.mark.parametrize("copies", [1, 3])
def test_what_a_diagnosis_finds_in_one_of_several_copies_is_told(tmp_path: Path, copies: int) -> None:
    code = """
        import os, resource, sys
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.abort()
    """
    debug = Debug(tmp_path, notes=["given"])
    record = run_trial(make_spec(code, concurrency=copies), PREFIX, debug=debug)
    assert record.outcome is Outcome.CRASH
    given, missing = debug.notes
    assert given == "given"
    assert missing.startswith("no core file: ")


def test_the_processes_of_a_killed_server_are_replaced_with_it() -> None:
    old = server()
    assert SERVER.process is not None
    old.kill()
    SERVER.process.wait()
    assert run_trial(make_spec("pass"), PREFIX).outcome is Outcome.PASS
    assert server() != old
    assert len(server().children()) == 1


def test_a_server_that_is_closed_ends_with_its_last_trial() -> None:
    closed = server()
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(run_trial, make_spec("import time; time.sleep(1.5)"), PREFIX)
        deadline = time.monotonic() + 20
        while not closed.children()[0].children() and time.monotonic() < deadline:
            time.sleep(0.02)
        SERVER.close()
        assert not closed.is_running()
        assert trial.result(timeout=20).outcome is Outcome.PASS


def test_a_host_without_any_temporary_directory_is_a_harness_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    record = run_trial(make_spec("pass"), PREFIX)
    assert record.outcome is Outcome.HARNESS_ERROR
    assert "No usable temporary directory" in record.detail


def test_the_record_of_a_lost_trial_tells_when_it_started() -> None:
    before = datetime.now(UTC)
    code = "import os, signal, time; time.sleep(2); os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"
    record = run_trial(make_spec(code), PREFIX)
    assert record.outcome is Outcome.HARNESS_ERROR
    assert before <= record.started_at < before + timedelta(seconds=2)


def test_a_worker_does_not_continue_the_processes_of_another() -> None:
    program = "from bisect_env.trials.forks import SERVER; SERVER.wake()"
    (idle,) = server().children()
    with stopped(idle):
        root = Path(bisect_env.__file__).parents[1]
        subprocess.run([sys.executable, "-c", program], cwd=root, timeout=60, check=True)
        assert idle.status() == psutil.STATUS_STOPPED
        SERVER.wake()
        deadline = time.monotonic() + 20
        while idle.status() == psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.02)
        assert idle.status() != psutil.STATUS_STOPPED
