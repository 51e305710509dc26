"""`bisect-env trial --debug` on real failures: a segfault in native code, a deadlock, a flake."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from bisect_env.engine.diagnose import GPU_CORE_ENV
from bisect_env.storage.store import Store
from bisect_env.trials.forks import SERVER
from bisect_env.trials.harness_marks import LINGER
from bisect_env.trials.stacks import find_tool
from tests.cli.calls import RunCommand
from tests.trials.test_stacks import DEADLOCK

pytestmark = pytest.mark.integration

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
MATRIX = f"""\
version: 1
name: diagnosed
axes:
  python: {{package: python, versions: ["{PYTHON}"]}}
  level: {{values: [1, 2]}}
trial: {{command: "python script.py {{level}}", files: [script.py], timeout: 3s}}
"""
SEGFAULT = """
    import ctypes, sys, threading

    def innocent():
        threading.Event().wait()

    def guilty():
        ctypes.CDLL(None).strlen(ctypes.c_void_p(8))

    threading.Thread(target=innocent, daemon=True).start()
    guilty() if sys.argv[1] == "2" else None
"""


@pytest.fixture
def diagnose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / "results.sqlite"))

    def call(script: str, *options: str, level: str = "2") -> tuple[int, str, str]:
        Path("script.py").write_text(textwrap.dedent(script))
        Path("matrix.yaml").write_text(MATRIX)
        return run("trial", "matrix.yaml", "--debug", "--at", f"level={level}", *options)

    return call


def need(tool: str) -> None:
    if shutil.which(tool) is None:
        if os.environ.get("BISECT_ENV_TEST_GDB") == "required":
            pytest.fail(f"{tool} is required")
        pytest.skip(f"{tool} is not installed")


def test_the_guilty_frame_of_a_segfault(diagnose, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    need("gdb")
    code, out, err = diagnose(SEGFAULT)
    assert code == 3, err
    if "no core file" in out:
        pytest.skip("this host leaves no core file: " + out)
    first, guilty, *_, kept = out.splitlines()
    assert first.startswith("crash in trial 1: SIGSEGV")
    # The innermost native frame, and the Python function that called it.
    assert guilty.startswith("guilty frame: ")
    assert "strlen" in guilty
    assert "called from guilty (" in guilty
    assert "script.py:8)" in guilty
    folder = next((tmp_path / "diagnosis").iterdir())
    assert str(folder.relative_to(tmp_path)) in kept
    assert {"core", "core.txt", "stack.txt", "stderr.txt", "diagnosis.json"} <= {
        p.name for p in folder.iterdir()
    }
    text = (folder / "core.txt").read_text()
    # All threads, with Python frames and with native ones.
    assert "innocent (" in text
    assert text.count("\nThread ") >= 2
    # Nothing of it is evidence.
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        assert store.studies() == []


@pytest.fixture
def no_cores() -> Iterator[None]:
    """The processes of trials inherit a limit that allows no core file, as on many hosts."""
    SERVER.close()
    SERVER.prepare()
    assert SERVER.process is not None
    resource.prlimit(SERVER.process.pid, resource.RLIMIT_CORE, (0, 0))
    yield
    SERVER.close()


def test_a_crash_that_leaves_no_core_is_run_in_gdb(diagnose, no_cores: None) -> None:  # type: ignore[no-untyped-def]
    need("gdb")
    code, out, err = diagnose(SEGFAULT)
    assert code == 3, err
    guilty = next(line for line in out.splitlines() if line.startswith("guilty frame: "))
    assert "strlen" in guilty
    assert "note: no core file: " in out
    assert "note: run in gdb instead, where it crashed in trial 1" in out


@pytest.mark.slow
def test_the_threads_of_a_deadlock(diagnose, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = diagnose(DEADLOCK, "--json")
    assert code == 3, err
    found = json.loads(out.splitlines()[-1])
    assert found["outcome"] == "hang"
    deadlock, held, *_ = found["findings"]
    assert deadlock.startswith("deadlock: ")
    assert "holds it inside the native call pthread_mutex_lock" in held
    assert "called from call_without" in held
    if shutil.which("gdb"):
        assert "PyGILState_Ensure" in (Path(found["folder"]) / "gdb.txt").read_text()


def test_a_failure_that_shows_now_and_then(diagnose, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    script = f"""
        with open({str(tmp_path / "count")!r}, "a+") as count:
            count.write("x")
            count.seek(0)
            trials = len(count.read())
        def flaky():
            if trials == 3:
                raise ValueError("third time")
        flaky()
    """
    code, out, err = diagnose(script, "--output", "found")
    assert code == 3, err
    said = [line.split()[:2] for line in err.splitlines()[-3:]]
    assert said == [["1", "good"], ["2", "good"], ["3", "bad"]]
    assert "guilty frame: flaky (script.py:8)" in out
    kept = sorted(path.name for path in Path("found").iterdir())
    assert kept == ["diagnosis.json", "stack.txt", "stderr.txt"]


def test_an_interruption_leaves_nothing(diagnose, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    # The command runs in this process: the script interrupts it once it is under way.
    script = f"import os, signal, time; os.kill({os.getpid()}, signal.SIGINT); time.sleep(100)"
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        code, _, err = diagnose(script, "--output", "found")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (code, "the same command begins again" in err) == (130, True)
    assert not Path("found").exists()


def test_another_failure_than_that_of_the_study_is_passed_over(  # type: ignore[no-untyped-def]
    diagnose, run: RunCommand, tmp_path: Path
) -> None:
    script = """
        import os, sys
        def wanted(): raise ValueError("what the study is about")
        def another(): raise KeyError("something else")
        another() if os.path.exists(PLACE) else wanted()
    """.replace("PLACE", repr(str(tmp_path / "another")))
    Path("script.py").write_text(textwrap.dedent(script))
    Path("matrix.yaml").write_text(
        MATRIX.replace("timeout: 3s", "bad: {signature: from-bad-end}") + "bad: {level: 2}\n"
    )
    words = ["trial", "matrix.yaml", "--debug", "--at", "bad", "-n", "2", "--json"]
    code, out, _ = run(*words)
    found = json.loads(out.splitlines()[-1])
    # Nobody knows yet which failure is meant, and that is said.
    assert (code, found["findings"]) == (3, ["guilty frame: wanted (script.py:3)"])
    assert any("any failure that fits" in note for note in found["notes"])
    assert run("trial", "matrix.yaml", "--at", "bad", "-n", "1")[0] == 3
    code, out, _ = run(*words)
    assert (code, json.loads(out.splitlines()[-1])["notes"]) == (3, [])
    (tmp_path / "another").touch()
    code, out, _ = run(*words)
    found = json.loads(out.splitlines()[-1])
    assert (code, found["shown"], found["trials"]) == (1, False, 2)


def test_a_failure_that_does_not_show(diagnose) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = diagnose(SEGFAULT, "-n", "2", level="1")
    assert code == 1
    assert out.startswith("the failure did not show in 2 trials; the last: pass")
    assert diagnose(SEGFAULT, "--output", "diagnosis", level="1")[0] == 2
    code, _, err = diagnose(SEGFAULT, "--sanitizer", "magic")
    assert (code, "memcheck" in err) == (2, True)
    if (
        shutil.which("compute-sanitizer") is None
        and not Path("/usr/local/cuda/bin/compute-sanitizer").exists()
    ):
        code, _, err = diagnose(SEGFAULT, "--sanitizer", "memcheck", "--output", "none")
        assert (code, "CUDA toolkit" in err) == (2, True)
        assert not Path("none").exists()


@pytest.mark.parametrize("option", ["--workers", "--scheduler", "--scheduler-file"])
def test_options_for_another_place_are_refused(diagnose, option: str) -> None:  # type: ignore[no-untyped-def]
    code, _, err = diagnose(SEGFAULT, option, "1")
    assert (code, f"{option}: `--debug` runs one trial at a time on this host" in err) == (2, True)


def test_a_sanitizer_runs_the_script_and_nothing_of_the_host(  # type: ignore[no-untyped-def]
    diagnose, run: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Stands in for the toolkit's, which needs a GPU: called as that is, it finds something and runs the rest.
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\n[ "$2" = racecheck ] || exit 9\nshift 4\necho "========= Race here"\n"$@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    find_tool.cache_clear()
    try:
        code, out, err = diagnose(SEGFAULT, "--sanitizer", "racecheck", level="1")
    finally:
        find_tool.cache_clear()
    assert code == 3, err
    assert "compute-sanitizer: Race here" in out
    # What the sanitizer is to start is looked at as if it started alone: none of the host's programs.
    Path("matrix.yaml").write_text(MATRIX.replace("python script.py", "sort script.py"))
    find_tool.cache_clear()
    try:
        code, out, err = run("trial", "matrix.yaml", "--debug", "--at", "level=2", "--sanitizer", "racecheck")
    finally:
        find_tool.cache_clear()
    assert (code, "Race here" in out) == (1, False)
    assert "`--allow-host sort`" in out


FAULT = """
    import os, sys, threading, time

    def driver():
        time.sleep(1)
        with open("gpu-%d.nvcudmp" % os.getpid(), "w") as core:
            core.write("a core of the GPU")
        os.abort()

    assert not [name for name in os.environ if "HARNESS" in name]
    if "CUDA_ENABLE_COREDUMP_ON_EXCEPTION" in os.environ:
        threading.Thread(target=driver, daemon=True).start()
    else:
        assert os.environ["CUDA_LAUNCH_BLOCKING"] == "1"
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""
"""As CUDA's driver was seen to behave: a program hears of no fault where it writes cores of the GPU."""


def test_a_core_of_the_gpu_is_had_once_the_failure_has_shown(diagnose, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = diagnose(FAULT, "--cuda", "-o", "found")
    assert code == 3, err
    assert out.startswith("cuda-fault in trial 1: ")
    kept = {path.name for path in (tmp_path / "found").iterdir()}
    (core,) = [name for name in kept if name.endswith(".nvcudmp")]
    assert (tmp_path / "found" / core).read_text() == "a core of the GPU"
    # What is told is the fault, not how the driver ended the program afterwards.
    document = json.loads((tmp_path / "found" / "diagnosis.json").read_text())
    assert document["outcome"] == "cuda-fault"
    assert document["findings"] == ["guilty frame: <module> (script.py:15)"]
    assert not kept & {"core", "core.txt"}


def test_where_the_driver_leaves_no_core_of_the_gpu(diagnose, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(GPU_CORE_ENV, LINGER, "0.1")
    code, out, err = diagnose("raise ValueError", "--cuda")
    assert code == 3, err
    assert "no core of the GPU in 3 further trials" in out + err
