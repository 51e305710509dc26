"""How a script ended behind a launcher or test runner: by captured words, and by the programs themselves."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable

import pytest

from bisect_env.matrix.signatures import read_signature
from bisect_env.trials.classify import Classification, ExitRecord, classify, named_in
from bisect_env.trials.records import Outcome, Phase, TrialRecord
from bisect_env.trials.runners import launched_end, no_test_ran, runner_error_in

Run = Callable[..., TrialRecord]
SEGV, KILL = -signal.SIGSEGV, -signal.SIGKILL

LAUNCHERS = [
    # exit code, what it printed on stderr, on stdout, and how the program behind it ended
    ("make 4.3", 2, "make: *** [Makefile:2: 3.t] Error 3", "", 3),
    ("make 4.3", 2, "make: *** [Makefile:2: 125.t] Error 125", "", 125),
    (
        "make 4.3, nested",
        2,
        "make[1]: *** [M:2: t] Error 127\nmake: *** [M:5: a] Error 2",
        "",
        2,
    ),
    ("make 4.3", 2, "make: *** [Makefile:2: segv.t] Segmentation fault (core dumped)", "", SEGV),
    ("make 4.3", 2, "make: *** [Makefile:2: kill.t] Killed", "", KILL),
    ("just 1.57", 125, "error: recipe `t` failed on line 2 with exit code 125", "", 125),
    ("just 1.57", 139, "Segmentation fault\nerror: recipe `t` failed on line 2 with exit code 139", "", SEGV),
    (
        "nox 2026.10",
        1,
        "nox > Command x failed with exit code 125\nnox > Session t failed.",
        "",
        125,
    ),
    (
        "nox 2026.10",
        1,
        "nox > Command x failed with exit code -11\nnox > Session t failed.",
        "",
        SEGV,
    ),
    ("tox 4.67", 245, "", "  py: FAIL code -11 (0.11 seconds)\n  evaluation failed :( (0.18 seconds)", SEGV),
    ("tox 4.67", 247, "", "", KILL),
    ("invoke 2.2", 245, "", "", SEGV),
    ("npm 9.2", 139, "Segmentation fault", "", SEGV),
    ("dash", 139, "Segmentation fault (core dumped)", "", SEGV),
    ("bash", 139, "t.sh: line 1: 71 Segmentation fault      (core dumped) python s.py", "", SEGV),
    (
        "dvc 3.67",
        255,
        "ERROR: failed to reproduce 'x': failed to run: s.py, exited with -11",
        "",
        SEGV,
    ),
    ("dvc 3.67", 255, "ERROR: failed to reproduce 'x': failed to run: s.py, exited with 125", "", 125),
    ("snakemake 9.27", 1, "… returned non-zero exit status 139.", "", SEGV),
    ("xargs 4.9", 125, "xargs: python: terminated by signal 11", "", SEGV),
    ("GNU time 1.9", 139, "Command terminated by signal 11\n0.01user 0.00system", "", SEGV),
    ("Open MPI 4.1", 139, "mpirun noticed that process rank 1 with PID 0 exited on signal 11 (…).", "", SEGV),
    ("Slurm 22.05", 139, "srun: error: node: task 1: Segmentation fault", "", SEGV),
    ("Slurm 22.05", 3, "srun: error: node: task 1: Exited with exit code 3", "", 3),
    (
        "torchrun 2.9",
        1,
        "exitcode  : -11 (pid: 7)\ntraceback : Signal 11 (SIGSEGV) received",
        "",
        SEGV,
    ),
    ("doit 0.37", 2, "python s.py returned 139", "", SEGV),
    ("no words", 4, "", "", 4),
    ("papermill 2.7", 138, "nbclient.exceptions.DeadKernelError: Kernel died", "", 138),
    # What tests print says nothing about the end of the runner.
    ("pytest", 1, "", "E  returned non-zero exit status 125.\n1 failed in 0.1s", 1),
    ("unittest", 1, "died with <Signals.SIGSEGV: 11>\n\nRan 1 test in 0.001s\n\nFAILED (errors=1)", "", 1),
]


@pytest.mark.parametrize(("name", "code", "stderr", "stdout", "end"), LAUNCHERS)
def test_the_end_behind_a_launcher(name: str, code: int, stderr: str, stdout: str, end: int) -> None:
    assert launched_end(code, f"before\n{stdout}\n", f"before\n{stderr}\n").code == end


NO_TEST = [
    ("pytest 9.2", 5, "", "============== 2 deselected in 0.01s ==============="),
    ("pytest 9.2 -q", 5, "", "2 deselected in 0.01s"),
    ("pytest 9.2", 5, "", "collected 0 items\n\n============ no tests ran in 0.85s ============="),
    ("pytest 9.2", 4, "ERROR: file or directory not found: nope.py", "\nno tests ran in 0.70s"),
    (
        "pytest 9.2",
        4,
        "ERROR: usage: pytest [options]\npytest: error: unrecognized",
        "",
    ),
    ("pytest 9.2, all skipped", 0, "", "s            [100%]\n1 skipped in 0.02s"),
    (
        "pytest 9.2, all skipped",
        0,
        "",
        "=== 3 skipped, 2 deselected, 1 warning in 61.02s (0:01:01) ===",
    ),
    ("unittest of 3.12", 5, "Ran 0 tests in 0.000s\n\nNO TESTS RAN", ""),
    ("unittest of 3.12, all skipped", 5, "Ran 0 tests in 0.000s\n\nNO TESTS RAN (skipped=1)", ""),
    ("unittest of 3.11", 0, "Ran 0 tests in 0.000s\n\nOK", ""),
    ("unittest of 3.11, all skipped", 0, "Ran 1 test in 0.000s\n\nOK (skipped=1)", ""),
    ("pytest behind make", 2, "make: *** [Makefile:2: t] Error 5", "no tests ran in 0.01s"),
    ("nox 2026.10", 3, "nox > Sessions not found: nope", ""),
    ("tox 4.67", 254, "", "ROOT: HandledError| provided environments not found in configuration file:\nnope"),
    ("make 4.3", 2, "make: *** No rule to make target 'nope'.  Stop.", ""),
    ("ctest 4.4", 0, "No tests were found!!!", "Test project /b"),
]


@pytest.mark.parametrize(("name", "code", "stderr", "stdout"), NO_TEST)
def test_a_runner_that_judged_no_test(name: str, code: int, stderr: str, stdout: str) -> None:
    assert no_test_ran(code, stdout, stderr)
    found = classify(ExitRecord(returncode=code, stdout=stdout, stderr=stderr, command=("x",)))
    assert found.outcome is Outcome.NOT_RUNNABLE


@pytest.mark.parametrize(
    ("code", "stderr", "stdout"),
    [
        (0, "", "========= 1 passed, 1 skipped in 0.01s ========="),
        (1, "", "1 failed, 3 skipped in 0.1s"),
        (1, "", "1 error in 1.17s"),
        (0, "", "1 xfailed in 0.1s"),
        (0, "Ran 2 tests in 0.000s\n\nOK (skipped=1)", ""),
        (1, "Ran 1 test in 0.000s\n\nFAILED (errors=1)", ""),
        (2, "", "!!! Interrupted: 1 error during collection !!!!\n=== 1 error in 1.17s ==="),
    ],
)
def test_a_runner_that_judged_some_test(code: int, stderr: str, stdout: str) -> None:
    assert no_test_ran(code, stdout, stderr) == ""


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        (
            2,
            "!!!!!! KeyboardInterrupt !!!!!!\n/t.py:1: KeyboardInterrupt\n=== no tests ran in 0.2s ===",
        ),
        (2, "!!!!!! _pytest.outcomes.Exit: no licence !!!!!!\n===== 1 passed in 0.24s ====="),
        (3, "INTERNALERROR> ValueError: conftest broke\n\n=== no tests ran in 0.02s ==="),
    ],
)
def test_a_runner_that_was_interrupted_or_failed_itself(code: int, stdout: str) -> None:
    assert runner_error_in(stdout)
    record = ExitRecord(returncode=code, stdout=stdout, command=("pytest",))
    assert classify(record).outcome is Outcome.RUNNER_ERROR


# --------------------------------------------------------------------------------------------------
# What a script that is run by an interpreter prints about others does not explain its own end.


def of_script(code: int, stderr: str) -> Classification:
    record = ExitRecord(returncode=code, stderr=stderr, command=("python", "t.py"), files=("t.py",))
    return classify(record)


@pytest.mark.parametrize("words", ["Error 125", "exit code 127", "terminated by signal 11", "Killed"])
def test_a_script_without_a_launcher_ends_as_its_code_says(words: str) -> None:
    assert of_script(1, f"{words}\n").outcome is Outcome.EXIT_FAIL


def test_a_syntax_error_of_a_program_that_the_script_runs_is_not_its_own() -> None:
    child = '  File "other.py", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n'
    assert of_script(1, child).outcome is Outcome.EXIT_FAIL
    assert of_script(1, child.replace("other.py", "/tmp/t.py")).outcome is Outcome.NOT_RUNNABLE


DUMP = """Fatal Python error: Segmentation fault

Current thread 0x00007f0 (most recent call first):
  File "t.py", line 3 in child
"""
POOL = """Traceback (most recent call last):
  File "t.py", line 9, in <module>
concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly
"""


def test_a_pool_whose_worker_crashed_is_a_crash() -> None:
    found = of_script(1, DUMP + POOL)
    assert (found.outcome, found.code) == (Outcome.CRASH, "SIGSEGV")


def test_a_child_that_crashed_before_something_else_failed_is_none() -> None:
    other = POOL.replace("concurrent.futures.process.BrokenProcessPool: A process", "ValueError: a process")
    assert of_script(1, DUMP + other.partition(" in the")[0]).outcome is Outcome.EXIT_FAIL


def test_what_a_pass_prints_is_named() -> None:
    warning = "UserWarning: CUDA error: no CUDA-capable device is detected; falling back to the CPU\n"
    failed = ExitRecord(returncode=1, stderr=f"{warning}FAIL: wrong sum\n", command=("python", "t.py"))
    found = classify(failed)
    passed = ExitRecord(returncode=0, stderr=warning, command=("python", "t.py"))
    assert named_in(failed, found) == named_in(passed, classify(passed)) != ()


LATE = "FAILED t.py::a - Failed: Timeout (>5.0s) from pytest-timeout."
LIMITS = [
    (("timeout", "2", "python", "t.py"), 124, "", ""),
    (("pytest",), 1, f"{LATE}\n1 failed in 5.1s", ""),
    (("pytest",), 1, "", "+++++++++++++ Timeout +++++++++++++"),
    (("papermill",), 1, "", "nbclient.exceptions.CellTimeoutError: A cell timed out"),
]


@pytest.mark.parametrize(("command", "code", "stdout", "stderr"), LIMITS)
def test_the_time_limit_of_a_runner_is_a_hang(
    command: tuple[str, ...], code: int, stdout: str, stderr: str
) -> None:
    found = classify(ExitRecord(returncode=code, stdout=stdout, stderr=stderr, command=command))
    assert found.outcome is Outcome.HANG
    assert "`trial.timeout`" in found.detail


def test_a_test_that_fails_beside_one_that_reached_its_limit_is_no_hang() -> None:
    stdout = f"{LATE}\nFAILED t.py::b - assert 0\n2 failed in 5.1s"
    record = ExitRecord(returncode=1, stdout=stdout, command=("pytest",))
    assert classify(record).outcome is Outcome.EXIT_FAIL


# --------------------------------------------------------------------------------------------------
# Real programs.

ENDS = """
    import os, signal, sys
    end = sys.argv[1]
    if end == "raise":
        raise RuntimeError("planted")
    if end.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, end))
    sys.exit(int(end))
"""
SHELLS = {
    "sh": ("sh", "-c", "python main.py {end}; exit $?"),
    "bash": ("bash", "-c", "python main.py {end}"),
    "pipefail": ("bash", "-o", "pipefail", "-c", "python main.py {end} | cat"),
    "xargs": ("xargs", "-a", "/dev/null", "python", "main.py", "{end}"),
    "env": ("env", "python", "main.py", "{end}"),
    "timeout": ("timeout", "20", "python", "main.py", "{end}"),
}
EXPECTED = {
    "125": (Outcome.SKIP, ""),
    "127": (Outcome.NOT_RUNNABLE, ""),
    "SIGSEGV": (Outcome.CRASH, "crash:SIGSEGV in body, at main.py:<module>"),
    "SIGKILL": (Outcome.KILLED_EXTERNAL, ""),
    "raise": (Outcome.EXIT_FAIL, "exit-fail:RuntimeError in body, at main.py:<module>"),
    "3": (Outcome.EXIT_FAIL, "exit-fail:3"),
    "0": (Outcome.PASS, ""),
}


def shown(record: TrialRecord) -> str:
    return str(read_signature(record.signature)) if record.signature else ""


@pytest.mark.integration
@pytest.mark.parametrize("end", EXPECTED)
@pytest.mark.parametrize("launcher", SHELLS)
def test_ends_behind_shells(run: Run, launcher: str, end: str) -> None:
    if launcher == "xargs" and end in ("3", "125", "127"):
        pytest.skip("xargs says 123 for every exit code of what it runs, without a word")
    command = tuple(word.format(end=end) for word in SHELLS[launcher])
    record = run(ENDS, command=command, allow_host=("xargs", "env", "timeout"))
    outcome, signature = EXPECTED[end]
    assert (record.outcome, shown(record)[: len(signature)]) == (outcome, signature), record.detail


@pytest.mark.integration
def test_a_hang_behind_timeout(run: Run) -> None:
    command = ("timeout", "1", "python", "main.py")
    record = run("import time; time.sleep(600)", command=command, allow_host=("timeout",))
    assert (record.outcome, record.returncode) == (Outcome.HANG, 124)


@pytest.mark.integration
@pytest.mark.parametrize("end", EXPECTED)
def test_ends_behind_make(run: Run, end: str) -> None:
    """With the recipe's words on stdout and make's on stderr; make's own exit code is 2 for all."""
    assert shutil.which("make")
    makefile = "t:\n\\tpython main.py $(END)\n"
    command = ("sh", "-c", f"printf '{makefile}' > Makefile; make t END={end}")
    record = run(ENDS, command=command)
    outcome, signature = EXPECTED[end]
    assert (record.outcome, shown(record)[: len(signature)]) == (outcome, signature), record.detail
    assert record.returncode == (0 if end == "0" else 2)
    if record.outcome is Outcome.CRASH:
        assert record.phase is Phase.BODY


TESTS = {
    # what main.py holds, how it is run, and what that is
    "wrong name": ("def test_a(): pass", ("pytest", "main.py::test_gone"), Outcome.NOT_RUNNABLE),
    "wrong option": ("def test_a(): pass", ("pytest", "--nosuch"), Outcome.NOT_RUNNABLE),
    "none selected": ("def test_a(): pass", ("pytest", "-k", "gone", "main.py"), Outcome.NOT_RUNNABLE),
    "all skipped": (
        "import pytest\n@pytest.mark.skip\ndef test_a(): pass",
        ("pytest", "main.py"),
        Outcome.NOT_RUNNABLE,
    ),
    "interrupted": ("def test_a(): raise KeyboardInterrupt", ("pytest", "main.py"), Outcome.RUNNER_ERROR),
    "one of two skipped": (
        "import pytest\n@pytest.mark.skip\ndef test_a(): pass\ndef test_b(): pass",
        ("pytest", "main.py"),
        Outcome.PASS,
    ),
    "fails": ("def test_a(): assert 0", ("pytest", "main.py"), Outcome.EXIT_FAIL),
    "a child's end in a failing test": (
        """
        import subprocess, sys
        def test_a():
            subprocess.run([sys.executable, '-c', 'import sys; sys.exit(125)'], check=True)
        """,
        ("pytest", "main.py"),
        Outcome.EXIT_FAIL,
    ),
    "no test of unittest": ("import unittest", ("python", "-m", "unittest", "main"), Outcome.NOT_RUNNABLE),
    "unittest skips all": (
        "import unittest\nclass T(unittest.TestCase):\n  @unittest.skip('no')\n  def test_a(self): pass",
        ("python", "-m", "unittest", "main"),
        Outcome.NOT_RUNNABLE,
    ),
    "unittest passes": (
        "import unittest\nclass T(unittest.TestCase):\n  def test_a(self): pass",
        ("python", "-m", "unittest", "main"),
        Outcome.PASS,
    ),
}


@pytest.mark.integration
@pytest.mark.parametrize("case", TESTS)
def test_ends_of_test_runners(run: Run, case: str) -> None:
    code, command, outcome = TESTS[case]
    record = run(code, command=command)
    assert record.outcome is outcome, record.detail
