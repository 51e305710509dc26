"""The harness: it marks phases and imports, and the script cannot tell that it is there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.environments.interpreters import Interpreter, machine_interpreters
from bisect_env.matrix.files import StudyFile
from bisect_env.trials.harness_marks import (
    MARKS,
    MODULES,
    NO_MARKS,
    PYTHONPATH,
    Marks,
    install,
    is_watched,
    iterations_begun,
    read_marks,
)
from bisect_env.trials.records import Outcome, Phase, TrialRecord
from bisect_env.trials.workdir import inherited_env, trial_env

Run = Callable[..., TrialRecord]

# ruff: noqa: E501 - whole programs in a line


def interpreter(version: str) -> Interpreter:
    """The newest of this machine's Pythons with this major and minor version."""
    found = [one for one in machine_interpreters().installed() if one.version.startswith(f"{version}.")]
    if not found:
        pytest.skip(f"there is no Python {version} on this machine")
    return max(found, key=lambda one: one.release)


# Everything that a program could see of a harness, printed before and after imports, with threads, handlers,
# a fork and a child.
SNAPSHOT = """\
import sys
first = sorted(sys.modules)
import os, signal, atexit, threading, subprocess
def show(*what):
    print(*what)
show(first == sorted(set(first) - {"sitecustomize"}), [m for m in first if m not in ("atexit",)])
show(sys.argv, sys.path, sys.meta_path, sys.path_hooks, sorted(sys.path_importer_cache), sys.flags)
show(sorted(os.environ.items()), sorted(globals()), sorted(vars(sys.modules["__main__"])))
show([signal.getsignal(n) for n in range(1, 65)], sorted(os.listdir("/proc/self/fd")))
show(sys.excepthook, sys.getrecursionlimit(), sys.gettrace(), sys.getprofile(), threading.enumerate())
show(len(__import__("gc").callbacks), sys.stdout, sys.stderr, os.getcwd())
frame, depth = sys._getframe(), 0
while frame: frame, depth = frame.f_back, depth + 1
show(depth, atexit.register.__name__, atexit.register.__module__)
class Late(object):
    def __del__(self): os.write(1, b"late\\n")
late = Late()
@atexit.register
def first_registered(): show("handler 1")
atexit.register(show, "handler 2")
try: import missing_module
except ImportError as error: show(repr(error))
sys.stdout.flush()
if os.fork() == 0:
    import json
    show("in the fork"); sys.exit(0)
os.wait()
code = "import os, sys; print(sorted(os.environ.items()), sys.path)"
sys.stdout.write(subprocess.check_output([sys.executable, "-c", code]).decode())
import package.broken
"""
PACKAGE = {
    "package/__init__.py": "import xml.dom.minidom\n",
    "package/broken.py": "def f():\n    raise KeyError('planted')\nf()\n",
}


def plain(output: bytes, place: Path) -> str:
    return re.sub(r"0x[0-9a-f]+|\b\d{9,}\b", "#", output.decode().replace(str(place), "PLACE"))


def started(
    python: Path, arguments: list[str], place: Path, *, harness: bool, extra: dict[str, str] | None = None
) -> tuple[subprocess.CompletedProcess[bytes], Marks]:
    env = trial_env(inherited_env({}, python.parent), tmp=place, hash_seed=1, trial_id="x", extra=extra)
    marks = place / "none"
    if harness:
        top = place / "top"
        top.mkdir()
        env, marks = install(top, env, ["xml.dom", "package", "absent"])
    done = subprocess.run([python, *arguments], cwd=place / "work", env=env, capture_output=True, check=False)
    return done, read_marks(marks)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name, text in {"main.py": SNAPSHOT, **PACKAGE}.items():
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.integration
@pytest.mark.parametrize("version", [f"3.{minor}" for minor in range(6, 15)])
def test_the_script_sees_what_it_would_see_alone(version: str, work: Path) -> None:
    python = interpreter(version).path
    arguments = [["main.py", "a", "b c"], ["-W", "ignore", "-u", "-m", "main", "x"]]
    for number, words in enumerate(arguments):
        extra = {"PYTHONPATH": f"/nowhere{os.pathsep}/else"} if number else None
        bare, _ = started(python, words, work, harness=False, extra=extra)
        watched, marks = started(python, words, work, harness=True, extra=extra)
        assert plain(watched.stdout, work) == plain(bare.stdout, work)
        assert plain(watched.stderr, work) == plain(bare.stderr, work)
        assert watched.returncode == bare.returncode == 1
        assert b"handler 1" in watched.stdout
        assert b"KeyError: 'planted'" in watched.stderr
        assert (marks.phase, marks.finished) == (Phase.TEARDOWN, True)
        assert marks.imported[0].module == "python"
        assert interpreter(version).version == marks.imported[0].stated
        assert [one.module for one in marks.imported[1:]] == ["package", "xml.dom"]
        shutil.rmtree(work / "top" / "harness" / "__pycache__", ignore_errors=True)
        (work / "top" / "harness" / "sitecustomize.py").unlink()
        (work / "top" / "harness" / "marks").unlink()
        (work / "top" / "harness").rmdir()
        (work / "top").rmdir()


@pytest.mark.integration
def test_python_2_runs_without_marks_and_without_traces(work: Path) -> None:
    code = "import os, sys; print(sorted(os.environ.items())); print(sys.path); print(sys.modules.get('sitecustomize'))"
    bare, _ = started(interpreter("2.7").path, ["-c", code], work, harness=False)
    watched, marks = started(interpreter("2.7").path, ["-c", code], work, harness=True)
    assert (watched.stdout, watched.stderr, watched.returncode) == (bare.stdout, bare.stderr, 0)
    assert marks == Marks()


@pytest.mark.integration
def test_a_sitecustomize_of_the_environment_is_run_as_ever(work: Path) -> None:
    own = work / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.planted = __file__\n")
    code = "import sys; print(sys.planted, sys.modules['sitecustomize'].__file__, sys.path)"
    for harness in (False, True):
        done, marks = started(
            Path(sys.executable), ["-c", code], work, harness=harness, extra={"PYTHONPATH": str(own)}
        )
        assert done.stdout.decode().startswith(f"{own}/sitecustomize.py {own}/sitecustomize.py ")
        assert b"/harness" not in done.stdout
        assert done.stderr == b""
    assert marks.finished


# -- phases of real trials -------------------------------------------------------------------------------

KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
QUIET = "import faulthandler; faulthandler.disable()\n"
SEGV = "import os, signal\ndef die(): os.kill(os.getpid(), signal.SIGSEGV)\n"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("code", "module", "outcome", "phase"),
    [
        # Without faulthandler there is no stack: the marks alone say where it was.
        (QUIET + SEGV + "die()", "", Outcome.CRASH, Phase.BODY),
        ("import module", QUIET + SEGV + "die()", Outcome.CRASH, Phase.IMPORT),
        ("def f(): import module\nf()", QUIET + SEGV + "die()", Outcome.CRASH, Phase.IMPORT),
        ("import module; module.die()", QUIET + SEGV, Outcome.CRASH, Phase.BODY),
        (QUIET + SEGV + "import atexit; atexit.register(die)", "", Outcome.CRASH, Phase.TEARDOWN),
        ("import module", QUIET + SEGV + "import atexit\natexit.register(die)", Outcome.CRASH, Phase.TEARDOWN),
        (QUIET + SEGV + "import atexit\ndef f():\n import module\n die()\natexit.register(f)", "",
         Outcome.CRASH, Phase.TEARDOWN),
        # A destructor at the very end, after the handlers of atexit.
        (QUIET + SEGV + "class X:\n def __del__(self, die=die): die()\nx = X()", "", Outcome.CRASH, Phase.TEARDOWN),
        # Threads that are still waited for are the body.
        (QUIET + SEGV + "import threading, time\ndef f(): time.sleep(.3); die()\nthreading.Thread(target=f).start()",
         "", Outcome.CRASH, Phase.BODY),
        (SEGV + "import threading, time\ndef f(): time.sleep(.3); die()\nthreading.Thread(target=f).start()",
         "", Outcome.CRASH, Phase.BODY),
        ("import sys; sys.exit(3)", "", Outcome.EXIT_FAIL, Phase.BODY),
        ("import os; os._exit(3)", "", Outcome.EXIT_FAIL, Phase.BODY),
        ("import module", "import os; os._exit(3)", Outcome.EXIT_FAIL, Phase.IMPORT),
        ("import atexit, os; atexit.register(os._exit, 3)", "", Outcome.EXIT_FAIL, Phase.TEARDOWN),
        ("1/0", "", Outcome.EXIT_FAIL, Phase.BODY),
        # A fork that fails, and one that goes through its own teardown, do not speak for the trial.
        ("import os\nif os.fork() == 0: raise SystemExit\nos.wait()\nos._exit(3)", "", Outcome.EXIT_FAIL, Phase.BODY),
        ("import atexit, time; atexit.register(time.sleep, 600)", "", Outcome.HANG, Phase.TEARDOWN),
        ("import module", "import time; time.sleep(600)", Outcome.HANG, Phase.IMPORT),
        ("import signal, time\nsignal.signal(signal.SIGABRT, signal.SIG_IGN)\nimport module",
         "import time; time.sleep(600)", Outcome.HANG, Phase.IMPORT),
    ],
)  # fmt: skip
def test_phases_of_real_ends(run: Run, code: str, module: str, outcome: Outcome, phase: Phase) -> None:
    files = (StudyFile("main.py", code.encode()), StudyFile("module.py", module.encode()))
    record = run(files=files, timeout=1.5 if outcome is Outcome.HANG else 30.0)
    assert (record.outcome, record.phase) == (outcome, phase), record.stderr


@pytest.mark.integration
def test_an_interpreter_that_cannot_start_ends_in_start(run: Run) -> None:
    record = run("pass", env={"PYTHONHOME": "/nowhere"})
    assert (record.outcome, record.phase) == (Outcome.EXIT_FAIL, Phase.START)


@pytest.mark.integration
@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", "exec python main.py"),
        ("python", "-I", "main.py"),
        ("python", "-ES", "main.py"),
        ("python", "-X", "importtime", "main.py"),
    ],
)
def test_what_is_no_plain_python_runs_without_it(run: Run, command: tuple[str, ...]) -> None:
    code = """
        import os
        print([v for v in os.environ if 'HARNESS' in v or v == 'PYTHONPATH'], flush=True)
        os.abort()
    """
    record = run(code, command=command)
    assert record.outcome is Outcome.CRASH
    assert record.stdout == "[]\n"
    assert record.imported == {}
    # By its stack; -I and -E leave faulthandler out as well.
    assert record.phase is (Phase.UNKNOWN if "-I" in command or "-ES" in command else Phase.BODY)
    assert record.returncode == -signal.SIGABRT


@pytest.mark.integration
def test_a_command_of_the_prefix_is_watched_as_well(run: Run) -> None:
    code = "import os\ndef test_it(): os._exit(7)\n"
    record = run(code, command=("pytest", "-q", "-p", "no:cacheprovider", "main.py"))
    assert (record.returncode, record.phase) == (7, Phase.BODY)


@pytest.mark.integration
def test_a_script_that_takes_everything_away_is_classified_all_the_same(run: Run) -> None:
    code = """
        import os, shutil
        shutil.rmtree("..", ignore_errors=True)
        os.closerange(3, 100)
        raise ValueError("gone")
    """
    record = run(code)
    assert (record.outcome, record.phase) == (Outcome.EXIT_FAIL, Phase.BODY)


# -- decisions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "watched"),
    [
        ("main.py -I", True),
        ("-m module -S", True),
        ("-mmodule", True),
        ("-c pass -E", True),
        ("-u -X faulthandler -W ignore main.py", True),
        ("-Xfaulthandler -Wignore main.py", True),
        ("-OO -B main.py", True),
        ("--check-hash-based-pycs always main.py", True),
        ("-uI main.py", False),
        ("-X importtime main.py", False),
        ("-Ximporttime main.py", False),
        ("-v main.py", False),
        ("-i main.py", False),
        ("--version", False),
        ("-", False),
        ("-u", False),
        ("", False),
    ],
)
def test_options_of_the_interpreter(arguments: str, watched: bool, tmp_path: Path) -> None:
    for program in ("python", "/p/bin/python3", "/p/bin/python3.11"):
        assert is_watched(program, arguments.split(), {}, tmp_path) is watched
    assert not is_watched("python", ["main.py"], {"PYTHONVERBOSE": "1"}, tmp_path)


@pytest.mark.parametrize(
    ("first", "watched"),
    [
        ("#!/p/bin/python3.11\n", True),
        ("#!/usr/bin/env python\n", True),
        ("#!/usr/bin/env python3.12 \n", True),
        ("#!/p/bin/python -I\n", False),
        ("#!/bin/sh\n", False),
        ("\x7fELF", False),
        ("", False),
    ],
)
def test_commands_that_are_python_scripts(first: str, watched: bool, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text(first)
    assert is_watched("./tool", [], {}, tmp_path) is watched
    assert not is_watched("./missing", [], {}, tmp_path)


@given(st.binary(max_size=300))
def test_whatever_the_file_of_marks_holds_is_read(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "marks"
    path.write_bytes(content)
    assert read_marks(path).phase in Phase


def test_a_script_that_replaces_the_files_of_the_harness_cannot_stop_the_worker(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # to open it for reading waits until somebody writes
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        assert read_marks(tmp_path / name) == NO_MARKS
        assert iterations_begun(tmp_path / name) == 0


def test_the_names_are_those_that_the_harness_reads() -> None:
    from bisect_env.trials.harness_marks import HARNESS_SOURCE

    text = HARNESS_SOURCE.read_text()
    for name, value in (("MARKS", MARKS), ("MODULES", MODULES), ("PYTHONPATH", PYTHONPATH)):
        assert f'{name} = "{value}"\n' in text
