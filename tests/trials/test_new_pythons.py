"""What Python 3.13 to 3.15 print and do anew, by their words and by the running interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bisect_env.matrix.signatures import read_signature
from bisect_env.trials.classify import ExitRecord, classify
from bisect_env.trials.records import Outcome, Phase, TrialRecord
from bisect_env.trials.run import run_trial
from bisect_env.trials.tracebacks import final_traceback, parse_fatal_dump
from tests.trials.trial_support import make_spec

Run = Callable[..., TrialRecord]

CRASH = """
    import faulthandler, os, signal
    faulthandler.enable(all_threads=False)
    def bad(): os.kill(os.getpid(), signal.SIGSEGV)
    bad()
"""


@pytest.mark.integration
def test_a_dump_of_one_thread_has_frames(run: Run) -> None:
    """Without the GIL every dump has this heading."""
    record = run(CRASH)
    assert "Stack (most recent call first):" in record.stderr
    assert (record.outcome, record.phase) == (Outcome.CRASH, Phase.BODY)
    assert read_signature(record.signature).frames == ("main.py:bad", "main.py:<module>")
    assert "in bad" in record.stack


@pytest.mark.parametrize("heading", ["Stack (most recent call first, approximate line numbers):"])
def test_a_dump_of_pypy_has_frames(heading: str) -> None:
    frame = '  File "a.py", line 3 in bad'
    dump = parse_fatal_dump(f"Fatal Python error: Segmentation fault\n\n{heading}\n{frame}\n")
    assert dump is not None
    assert dump.current is not None
    assert [frame.function for frame in dump.current.frames] == ["bad"]


@pytest.mark.parametrize("more", ["", "  ...\n"])
def test_a_hundred_frames_do_not_show_the_outermost(more: str) -> None:
    """From 3.13 on nothing says that more follow; without its outermost frame no stack is one of teardown."""
    frames = '  File "a.py", line 3 in down\n' * 100
    dump = parse_fatal_dump(
        "Fatal Python error: Segmentation fault\n\n"
        f"Current thread 0x00007f0 (most recent call first):\n{frames}{more}"
    )
    assert dump is not None
    assert dump.phase is Phase.UNKNOWN


@pytest.mark.integration
def test_a_deep_stack_that_dies_in_the_body_is_not_in_teardown(run: Run) -> None:
    record = run(
        """
        import os, signal
        def down(n): return down(n - 1) if n else os.kill(os.getpid(), signal.SIGSEGV)
        down(150)
        """
    )
    assert (record.outcome, record.phase) == (Outcome.CRASH, Phase.BODY)


@pytest.mark.parametrize(
    "words",
    [
        "Error processing line 1 of /env/site-packages/hook.pth:\n",
        "Error in entry point 'hook:bad' from /env/site-packages/hook.start:\n",
        "Error in import line from /env/site-packages/hook.pth: import hook\n",
        "Error executing debugger script '/tmp/inject.py':",
    ],
)
def test_what_python_reports_and_survives_does_not_end_it(words: str) -> None:
    traceback = '{0}Traceback (most recent call last):\n{0}  File "hook.py", line 2, in bad\n{0}KeyError: 3\n'
    for indent in ("", "  "):
        stderr = f"{words}\n{traceback.format(indent)}error: bad input\n"
        assert final_traceback(stderr) is None
        found = classify(ExitRecord(returncode=1, stderr=stderr, command=("python", "t.py")))
        assert (found.outcome, found.code) == (Outcome.EXIT_FAIL, "1")


@pytest.mark.integration
def test_an_interpreter_that_cannot_start_says_why(run: Run) -> None:
    record = run("pass", command=("sh", "-c", "PYTHONHASHSEED=abc python main.py"))
    assert record.outcome is Outcome.EXIT_FAIL
    assert record.phase is Phase.START
    assert record.detail.startswith("Fatal Python error: config_init_hash_seed: PYTHONHASHSEED must be")
    assert read_signature(record.signature).kind == "exit-fail:config_init_hash_seed"


def test_the_words_before_an_abort_are_shown_whatever_signal_ends_it() -> None:
    stderr = "*** stack smashing detected ***: terminated\nFatal Python error: Segmentation fault\n"
    found = classify(ExitRecord(returncode=-11, stderr=stderr, command=("python", "t.py")))
    assert found.detail == "SIGSEGV: *** stack smashing detected ***: terminated"


@pytest.mark.integration
def test_where_imports_cannot_be_seen_the_phase_is_unknown(tmp_path: Path) -> None:
    """An import system of the future that makes its locks in another way, planted by a `.pth` file."""
    prefix = tmp_path / "prefix"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    (site,) = prefix.glob("lib/python*/site-packages")
    (site / "other_locks.py").write_text(
        "import _frozen_importlib as b\n"
        "Lock, real = b._ModuleLock, b._get_module_lock\n"
        "b._get_module_lock = lambda name: Lock(name)\n"
    )
    at_exit = "import atexit, os; atexit.register(os._exit, 3)"
    ends = {"import os; os._exit(3)": Phase.BODY, at_exit: Phase.TEARDOWN}
    for code, phase in ends.items():
        (site / "other.pth").unlink(missing_ok=True)
        seen = run_trial(make_spec(code), prefix)
        (site / "other.pth").write_text("import other_locks\n")
        unseen = run_trial(make_spec(code), prefix)
        assert (seen.returncode, seen.phase) == (3, phase)
        assert unseen.returncode == 3
        assert unseen.phase is (Phase.UNKNOWN if phase is Phase.BODY else Phase.TEARDOWN)
