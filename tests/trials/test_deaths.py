"""Real processes that end in every way that a CPU can make, and what they are taken for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from bisect_env.matrix.files import StudyFile
from bisect_env.temporary import TRIAL
from bisect_env.trials import workdir
from bisect_env.trials.classify import ExitRecord, classify
from bisect_env.trials.forks import SERVER
from bisect_env.trials.records import Outcome, Phase, TrialRecord
from bisect_env.trials.run import run_trial
from tests.trials import dying
from tests.trials.conftest import open_files
from tests.trials.trial_support import PREFIX, Living, make_spec

pytestmark = pytest.mark.integration

Run = Callable[..., TrialRecord]
FILES = (
    StudyFile("main.py", Path(dying.__file__).read_bytes()),
    StudyFile("dying_module.py", b"import ctypes\nctypes.string_at(0)\n"),
)
BODY, IMPORT, TEARDOWN = Phase.BODY, Phase.IMPORT, Phase.TEARDOWN
SIGSEGV, SIGABRT = signal.SIGSEGV, signal.SIGABRT


def command(what: object) -> tuple[str, ...]:
    return ("python", "main.py", str(what))


@pytest.mark.parametrize(
    ("what", "outcome", "returncode", "phase", "detail"),
    [
        (dying.crash_in_body, Outcome.CRASH, -SIGSEGV, BODY, "SIGSEGV in body"),
        (dying.crash_at_exit, Outcome.CRASH, -SIGSEGV, TEARDOWN, "SIGSEGV in teardown"),
        (dying.crash_in_a_thread, Outcome.CRASH, -SIGSEGV, BODY, "SIGSEGV in body"),
        (dying.crash_while_importing, Outcome.CRASH, -SIGSEGV, IMPORT, "SIGSEGV in import"),
        (dying.abort_of_cpp, Outcome.CRASH, -SIGABRT, BODY, "terminate called after throwing"),
        (dying.heap_corruption, Outcome.CRASH, -SIGABRT, BODY, "double free detected"),
        (dying.illegal_instruction, Outcome.CRASH, -signal.SIGILL, BODY, "SIGILL"),
        (dying.bus_error, Outcome.CRASH, -signal.SIGBUS, BODY, "SIGBUS"),
        (dying.division_by_zero, Outcome.CRASH, -signal.SIGFPE, BODY, "SIGFPE"),
        *(
            (what, Outcome.CRASH, -SIGSEGV, BODY, "SIGSEGV in body")
            for what in (dying.stack_overflow, dying.stack_overflow_of_a_thread)
            # From 3.14 on Python notices the end of the stack itself.
            if sys.version_info < (3, 14)
        ),
        (dying.killed, Outcome.KILLED_EXTERNAL, -signal.SIGKILL, BODY, "SIGKILL, not sent by us"),
        (dying.terminated, Outcome.KILLED_EXTERNAL, -signal.SIGTERM, BODY, "SIGTERM, not sent by us"),
        (dying.out_of_memory_under_a_limit, Outcome.EXIT_FAIL, 1, BODY, "MemoryError"),
        (dying.exit_code, Outcome.EXIT_FAIL, 3, BODY, "exit code 3"),
        (dying.skipped, Outcome.SKIP, 125, BODY, "exit code 125"),
        (dying.exception, Outcome.EXIT_FAIL, 1, BODY, "ValueError: planted"),
        (dying.import_error, Outcome.IMPORT_ERROR, 1, IMPORT, "no_such_module"),
        (dying.passing, Outcome.PASS, 0, TEARDOWN, "exit code 0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_ends(
    run: Run, what: Callable[[], None], outcome: Outcome, returncode: int, phase: Phase, detail: str
) -> None:
    record = run(files=FILES, command=command(what.__name__))
    assert (record.outcome, record.returncode, record.phase) == (outcome, returncode, phase), record.stderr
    assert detail in record.detail
    if outcome is Outcome.CRASH and what is not dying.stack_overflow_of_a_thread:
        assert record.stack.startswith("Fatal Python error: ")


@pytest.mark.parametrize(
    ("what", "detail", "frame"),
    [
        (dying.native_deadlock_with_the_gil, "hang (idle)", "native_deadlock_with_the_gil"),
        (dying.lock_deadlock, "hang (idle)", "lock_deadlock"),
        (dying.busy_loop, "hang (busy-cpu)", "busy_loop"),
        # A library that installs its own handler turns a crash into a hang.
        (dying.own_handler, "hang (busy-cpu)", "own_handler"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_hangs(run: Run, what: Callable[[], None], detail: str, frame: str) -> None:
    record = run(files=FILES, command=command(what.__name__), timeout=1.5)
    assert (record.outcome, record.phase) == (Outcome.HANG, BODY)
    assert detail in record.detail
    # Taken by faulthandler on SIGABRT, which works even while native code holds the GIL.
    assert f"in {frame}" in record.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
def test_a_missing_symbol_is_an_import_that_fails(run: Run, tmp_path: Path) -> None:
    module = tmp_path / "changed.c"
    module.write_text("extern int gone_in_2_0(void);\nint PyInit_changed(void) { return gone_in_2_0(); }\n")
    library = tmp_path / "changed.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, module], check=True)
    files = (StudyFile("main.py", b"import changed\n"), StudyFile("changed.so", library.read_bytes()))
    record = run(files=files)
    assert (record.outcome, record.phase) == (Outcome.IMPORT_ERROR, IMPORT)
    assert "undefined symbol: gone_in_2_0" in record.detail


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can only be mounted by root")
    yield place  # type: ignore[misc]
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("program", ["python", "shell"])
def test_a_full_disk_is_no_failure_of_the_script(run: Run, small_disk: Path, program: str) -> None:
    code = f"open({str(small_disk / 'x')!r}, 'wb').write(b'x' * 200_000)"
    shell = ("sh", "-c", f"head -c 200000 /dev/zero > {small_disk}/x")
    record = run(code, command=("python", "main.py") if program == "python" else shell)
    assert record.outcome is Outcome.DISK_FULL
    assert "No space left" in record.detail or "Errno 28" in record.detail


def test_what_a_script_mounts_over_its_directory_is_not_removed(small_disk: Path) -> None:
    (small_disk / "data").mkdir()
    (small_disk / "data" / "file").touch()
    (small_disk / "file").touch()
    code = "import os, subprocess; subprocess.run(['mount', '--bind', os.environ['DATA'], os.getcwd()])"
    record = run_trial(make_spec(code, env={"DATA": str(small_disk)}), PREFIX)
    try:
        assert record.outcome is Outcome.PASS, record.stderr
        assert (small_disk / "file").exists()
        assert (small_disk / "data" / "file").exists()
    finally:
        for mount in psutil.disk_partitions(all=True):
            if TRIAL in mount.mountpoint:
                subprocess.run(["umount", mount.mountpoint], check=True)


def test_no_space_for_what_is_no_file_is_no_error_of_a_disk(run: Run) -> None:
    record = run("open('/dev/full', 'wb', buffering=0).write(b'x')")
    assert record.detail == "OSError: [Errno 28] No space left on device"
    assert record.outcome is Outcome.EXIT_FAIL


def test_a_file_system_that_does_not_answer_holds_up_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a lost server: nothing ends a process that asks it, so only a thread of its own may wait."""
    monkeypatch.setattr(workdir, "ANSWERS_IN", 0.2)
    monkeypatch.setattr(psutil, "disk_usage", lambda _mount: threading.Event().wait())
    said = workdir.full_disk()
    assert "does not answer" in said
    stderr = "OSError: [Errno 28] No space left on device"
    assert classify(ExitRecord(1, stderr=stderr, disk_full=said)).outcome is Outcome.DISK_FULL


def test_an_error_of_a_terminal_is_no_error_of_a_disk(run: Run) -> None:
    code = """
        import os, pty
        ours, theirs = pty.openpty()
        os.close(theirs)
        os.read(ours, 1)
    """
    record = run(code)
    assert "[Errno 5]" in record.stderr
    assert record.outcome is Outcome.EXIT_FAIL


def test_an_error_of_a_disk_that_cannot_be_written_is_one(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full is what a disk can be made to be here; it is asked, and its word counts."""
    subprocess.run(["mount", "-o", "remount,size=400k", str(small_disk)], check=True)
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    code = """
        import os
        with open(os.environ["TMPDIR"] + "/x", "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)): pass
            except OSError:
                pass
        raise OSError(5, "Input/output error")
    """
    record = run_trial(make_spec(code), PREFIX)
    assert (record.outcome, record.detail) == (
        Outcome.DISK_FULL,
        "disk: Input/output error: No space left on device",
    )


MEMORY = Path("/sys/fs/cgroup/memory")

# Runs in a process of its own, in a cgroup of its own: it must not be ours that runs out.
IN_A_CGROUP = """
import os, sys
from pathlib import Path
group = Path(sys.argv[1])
(group / "cgroup.procs").write_text(str(os.getpid()))
from tests.trials.trial_support import PREFIX, Living, make_spec
from bisect_env.trials.run import run_trial
code = "x = []\\nwhile True: x.append(bytearray(1 << 20))"
record = run_trial(make_spec(code, timeout=60.0), PREFIX)
print(record.outcome, record.returncode, record.phase, record.detail)
"""


@pytest.fixture
def small_memory() -> Path:
    """A cgroup with 200 MB, of either version; the counter of kills has to work in it, too."""
    version_2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    own = [line.split(":") for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = [path for _, controllers, path in own if "memory" in controllers.split(",")]
    root = Path("/sys/fs/cgroup") if version_2 else MEMORY / (paths[0].lstrip("/") if paths else "")
    group = root / f"bisect-env-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.max" if version_2 else "memory.limit_in_bytes")
        limit.write_text(str(200_000_000))
        if version_2:
            (group / "memory.swap.max").write_text("0")
        elif "oom_kill " not in (group / "memory.oom_control").read_text():
            raise OSError("this kernel does not count kills")
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    yield group  # type: ignore[misc]
    group.rmdir()


def test_a_kill_for_lack_of_memory_is_the_hosts(small_memory: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CGROUP, str(small_memory)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.startswith("host-oom -9 body killed by the kernel"), done.stdout + done.stderr


# -- bad input -------------------------------------------------------------------------------------------


def test_a_script_without_read_permission(run: Run) -> None:
    # Root reads everything, unless it gives that up.
    humbly = "setpriv --bounding-set=-dac_override,-dac_read_search" if os.geteuid() == 0 else "exec"
    record = run("pass", command=("sh", "-c", f"chmod 0 main.py; {humbly} python main.py"))
    assert (record.outcome, record.returncode) == (Outcome.NOT_RUNNABLE, 2)
    assert "can't open file" in record.detail
    assert "Permission denied" in record.detail


@pytest.mark.parametrize(
    ("code", "outcome", "ends"),
    [
        ("import os; os.write(1, bytes(range(256)) * 1000)", Outcome.PASS, "\ufffd"),
        (
            "import os; os.write(2, b'\\0' * 1000 + b'\\xff\\xfe'); raise ValueError",
            Outcome.EXIT_FAIL,
            "ValueError",
        ),
        (
            "import os; os.write(2, b'x' * 5_000_000); raise ValueError('end')",
            Outcome.EXIT_FAIL,
            "ValueError: end",
        ),
        ("import os; os.write(2, b'\\xc3' * 100_001); os.abort()", Outcome.CRASH, "SIGABRT"),
        ("raise ValueError('\\ud800 and \\0')", Outcome.EXIT_FAIL, "ValueError"),
    ],
    ids=["binary", "nul-and-invalid", "endless-line", "cut-character", "lone-surrogate"],
)
def test_output_of_any_bytes(run: Run, code: str, outcome: Outcome, ends: str) -> None:
    record = run(code)
    assert record.outcome is outcome
    assert ends in record.detail + record.stdout + record.stderr
    for text in (record.stdout, record.stderr, record.detail, record.stack, record.signature):
        text.encode("utf-8")
        assert "\0" not in text
    assert "\n" not in record.detail


# -- many ------------------------------------------------------------------------------------------------

PLANTED = {
    "passing": (Outcome.PASS, 0, TEARDOWN),
    "exit_code": (Outcome.EXIT_FAIL, 3, BODY),
    "exception": (Outcome.EXIT_FAIL, 1, BODY),
    "import_error": (Outcome.IMPORT_ERROR, 1, IMPORT),
    "crash_in_body": (Outcome.CRASH, -SIGSEGV, BODY),
    "crash_at_exit": (Outcome.CRASH, -SIGSEGV, TEARDOWN),
    "crash_in_a_thread": (Outcome.CRASH, -SIGSEGV, BODY),
    "abort_of_cpp": (Outcome.CRASH, -SIGABRT, BODY),
    "heap_corruption": (Outcome.CRASH, -SIGABRT, BODY),
    "illegal_instruction": (Outcome.CRASH, -signal.SIGILL, BODY),
    "division_by_zero": (Outcome.CRASH, -signal.SIGFPE, BODY),
    "killed": (Outcome.KILLED_EXTERNAL, -signal.SIGKILL, BODY),
}


def die_often(number: int, seed: int, place: Path, living: Living) -> None:
    """Run trials with seeds of their own, and see that each is what was planted and nothing is left."""
    print(f"seeds {seed} to {seed + number - 1}")
    SERVER.close()
    fds, threads = open_files(), psutil.Process().num_threads()
    specs = [make_spec(files=FILES, command=command(one)) for one in range(seed, seed + number)]
    with ThreadPoolExecutor(4) as pool:
        records = list(pool.map(lambda spec: run_trial(spec, PREFIX), specs))
    seen: dict[str, set[str]] = {}
    wrong = []
    for one, record in enumerate(records, start=seed):
        name = dying.chosen(one).__name__
        found = (record.outcome, record.returncode, record.phase)
        seen.setdefault(name, set()).add(record.signature)
        if found != PLANTED[name]:
            wrong.append((one, name, found, record.detail))
    assert not wrong, wrong
    assert all(len(signatures) == 1 for signatures in seen.values()), seen
    failing = [
        next(iter(signatures)) for name, signatures in seen.items() if name not in ("passing", "killed")
    ]
    assert len(set(failing)) == len(failing)
    assert list(place.iterdir()) == []
    deadline = time.monotonic() + 20  # a thread that Python has joined may be a moment in the kernel yet
    while psutil.Process().num_threads() > threads and time.monotonic() < deadline:
        time.sleep(0.02)
    assert psutil.Process().num_threads() <= threads
    SERVER.close()
    assert open_files() == fds
    assert living() == []
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def test_sixty_trials_that_die_in_random_ways(private_temp: Path, living: Living) -> None:
    die_often(60, 1_000, private_temp, living)


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_thousand_trials_that_die_in_random_ways(private_temp: Path, living: Living) -> None:
    die_often(1_000, 20_000, private_temp, living)
