"""Real processes: every way to end that a CPU can make, known for what it is, with nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from bisect_env.matrix.files import StudyFile
from bisect_env.temporary import TRIAL, make_held
from bisect_env.trials.forks import SERVER
from bisect_env.trials.judge import Target, output_matches
from bisect_env.trials.records import Outcome, Phase, TrialRecord
from bisect_env.trials.run import TrialCancelledError, harness_error_record, run_trial
from bisect_env.trials.signature import matches
from bisect_env.trials.workdir import REMOVAL, sweep
from tests.trials.trial_support import PREFIX, Living, make_spec, watched_trials

pytestmark = pytest.mark.integration

Run = Callable[..., TrialRecord]
SEGFAULT = "import ctypes\ndef crash(): ctypes.string_at(0)\n"


def test_a_passing_script(run: Run) -> None:
    before = datetime.now(UTC)
    record = run("import sys; print('out'); print('err', file=sys.stderr)")
    assert record.outcome is Outcome.PASS
    assert (record.returncode, record.stdout, record.stderr) == (0, "out\n", "err\n")
    assert before <= record.started_at <= datetime.now(UTC)
    assert timedelta(seconds=record.duration) < datetime.now(UTC) - before
    assert record.stack == record.signature == ""


@pytest.mark.parametrize(
    ("code", "outcome", "returncode", "detail"),
    [
        ("import sys; sys.exit(3)", Outcome.EXIT_FAIL, 3, "exit code 3"),
        ("import sys; sys.exit(125)", Outcome.SKIP, 125, "exit code 125"),
        ("import sys; sys.exit(139)", Outcome.EXIT_FAIL, 139, "SIGSEGV"),
        ("raise KeyError('lost')", Outcome.EXIT_FAIL, 1, "KeyError: 'lost'"),
        ("import no_such_module", Outcome.IMPORT_ERROR, 1, "no_such_module"),
        ("import os; os.abort()", Outcome.CRASH, -6, "SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", Outcome.CRASH, -4, "SIGILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", Outcome.CRASH, -7, "SIGBUS"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGFPE)", Outcome.CRASH, -8, "SIGFPE"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Outcome.KILLED_EXTERNAL, -9, "not sent"),
        (
            "raise OSError(28, 'inotify watch limit reached')",
            Outcome.EXIT_FAIL,
            1,
            "OSError: [Errno 28]",
        ),
        ("def f(:", Outcome.NOT_RUNNABLE, 1, "SyntaxError"),
        (
            "raise RuntimeError('CUDA error: an illegal memory access was encountered')",
            Outcome.CUDA_FAULT,
            1,
            "700",
        ),
    ],
)
def test_endings(run: Run, code: str, outcome: Outcome, returncode: int, detail: str) -> None:
    record = run(code)
    assert (record.outcome, record.returncode) == (outcome, returncode), record.stderr
    assert detail in record.detail


@pytest.mark.parametrize(
    ("code", "phase", "function"),
    [
        (SEGFAULT + "crash()", Phase.BODY, "crash"),
        (SEGFAULT + "import atexit; atexit.register(crash)", Phase.TEARDOWN, "crash"),
        (SEGFAULT + "import threading; threading.Thread(target=crash).start()", Phase.BODY, "crash"),
        ("import broken", Phase.IMPORT, "broken.py"),
    ],
)
def test_segfaults_keep_their_stack_and_say_where(run: Run, code: str, phase: Phase, function: str) -> None:
    files = (
        StudyFile("main.py", code.encode()),
        StudyFile("broken.py", b"import ctypes\nctypes.string_at(0)\n"),
    )
    record = run(files=files)
    assert (record.outcome, record.returncode, record.phase) == (Outcome.CRASH, -signal.SIGSEGV, phase)
    assert record.stack.startswith("Fatal Python error: Segmentation fault")
    assert function in record.stack
    assert function in record.signature
    assert matches(record.signature, run(files=files).signature)


def test_a_kill_from_outside_is_not_a_crash(private_temp: Path, living: Living) -> None:
    spec = make_spec("import time; time.sleep(600)")
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(run_trial, spec, PREFIX)
        deadline = time.monotonic() + 20
        while not (found := living()) and time.monotonic() < deadline:
            time.sleep(0.02)
        psutil.Process(found[0]).send_signal(signal.SIGKILL)
        record = trial.result(timeout=30)
    assert (record.outcome, record.returncode) == (Outcome.KILLED_EXTERNAL, -signal.SIGKILL)
    assert record.signature == ""


@pytest.mark.skipif(
    os.geteuid() != 0, reason="a limit of processes counts all of a user's: it takes root to be another"
)
def test_a_fork_bomb_within_a_limit_is_ended(run: Run) -> None:
    # As nobody, who may have sixty processes; each goes on making more until it is killed.
    bomb = "bomb() { bomb | bomb & }; bomb; while true; do bomb; sleep 0.01; done"
    humbly = ("setpriv", "--reuid=65534", "--clear-groups", "prlimit", "--nproc=60:60")
    record = run(command=(*humbly, "sh", "-c", bomb), timeout=1.5, allow_host=("setpriv",))
    assert record.outcome in (Outcome.HANG, Outcome.EXIT_FAIL)


def test_an_import_that_fails_with_another_exception_is_an_import_error(run: Run) -> None:
    files = (
        StudyFile("main.py", b"import package.module\n"),
        StudyFile("package/__init__.py", b""),
        StudyFile("package/module.py", b"raise AttributeError('moved')\n"),
    )
    record = run(files=files)
    assert (record.outcome, record.phase) == (Outcome.IMPORT_ERROR, Phase.IMPORT)
    assert "AttributeError: moved" in record.stack


def test_a_hang_that_ignores_sigterm_is_ended_with_its_stack(run: Run) -> None:
    code = """
        import signal, threading
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        def wait_for_ever(): threading.Event().wait()
        wait_for_ever()
    """
    record = run(code, timeout=2.0)
    assert (record.outcome, record.phase) == (Outcome.HANG, Phase.BODY)
    assert "idle" in record.detail
    assert "in wait_for_ever" in record.stack


def test_a_hang_that_ignores_sigabrt_too_is_killed(run: Run) -> None:
    record = run("import signal, time; signal.signal(6, signal.SIG_IGN); time.sleep(600)", timeout=2.0)
    assert (record.outcome, record.returncode) == (Outcome.HANG, -signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_is_stopped_at_its_time_limit_did_not_hang(run: Run) -> None:
    """Who sent SIGSTOP cannot be known, as with SIGKILL: the trial is void."""
    # On a busy machine the interpreter itself needs a second or two to start.
    record = run("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", timeout=5.0)
    assert (record.outcome, record.returncode) == (Outcome.KILLED_EXTERNAL, -signal.SIGABRT)
    assert "SIGSTOP" in record.detail
    assert "Fatal Python error: Aborted" in record.stack


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
"""
STOP_SUPERVISOR = "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)\n"
STOP_ALL = (
    STOP_SUPERVISOR
    + "server = int(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])\n"
    + "os.kill(server, signal.SIGSTOP)\n"
    + "os.kill(os.getppid(), signal.SIGSTOP)\n"
)


KILL_SERVER = STOP_ALL.replace("kill(server, signal.SIGSTOP)", "kill(server, signal.SIGKILL)")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [STOP_SUPERVISOR, STOP_ALL, KILL_SERVER])
def test_a_trial_that_stops_what_watches_it_costs_itself_alone(run: Run, stop: str) -> None:
    with watched_trials() as living:
        # The server ends what a killed supervisor leaves; `run` would look for it before it has.
        lost = run_trial(make_spec(f"{DAEMON}{stop}time.sleep(100)", timeout=3.0), PREFIX)
        assert lost.outcome is Outcome.HARNESS_ERROR
        deadline = time.monotonic() + 10
        while living():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        again = run("print('fine')")
        assert (again.outcome, again.stdout) == (Outcome.PASS, "fine\n")


def test_a_busy_loop_is_told_from_a_deadlock(run: Run) -> None:
    record = run("while True: pass", timeout=2.0)
    assert record.outcome is Outcome.HANG
    assert "busy-cpu" in record.detail


@pytest.mark.slow
def test_the_signature_of_a_hang_is_that_of_the_main_process(run: Run) -> None:
    code = """
        import multiprocessing, time
        def child_sleeps():
            while True: time.sleep(1)
        def main_waits(child):
            while child.is_alive(): time.sleep(0.01)
        if __name__ == "__main__":
            children = [multiprocessing.Process(target=child_sleeps) for _ in range(6)]
            for child in children: child.start()
            main_waits(children[0])
    """
    records = [run(code, timeout=1.0) for _ in range(4)]
    stacks = [record.signature.partition("main.py:")[2].partition('"')[0] for record in records]
    assert stacks == ["main_waits"] * 4
    # The stacks of the children are written at the same time and run into each other; none is missing.
    assert [record.stderr.count("Fatal Python error: ") for record in records] == [7] * 4


def test_short_processes_one_after_another_keep_the_cpu_busy(run: Run) -> None:
    code = """
        import subprocess, sys
        while True:
            subprocess.run([sys.executable, "-S", "-c", "sum(range(10**6))"])
    """
    record = run(code, timeout=3.0)
    assert (record.outcome, record.detail) == (Outcome.HANG, "hang (busy-cpu) at the deadline")


@pytest.mark.slow
def test_the_hang_of_a_grandchild_shows_its_stack(run: Run) -> None:
    # To another stream: two stacks that are written at the same time run into each other.
    code = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'], stderr=sys.stdout)"
    )
    # Two interpreters have to be up by then, on a machine that may be busy.
    record = run(code, timeout=5.0)
    assert record.outcome is Outcome.HANG
    assert 'File "<string>", line 1 in <module>' in record.stdout
    assert "subprocess.py" in record.stderr


def test_a_daemonised_grandchild_that_keeps_stdout_open_makes_nobody_wait(run: Run) -> None:
    code = """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.environ.clear()
                time.sleep(600)
            os._exit(0)
        print("done")
    """
    before = time.monotonic()
    record = run(code)
    assert (record.outcome, record.stdout) == (Outcome.PASS, "done\n")
    assert "left 1 process running, ended" in record.detail
    assert time.monotonic() - before < 20


def test_left_over_processes_without_a_trace_of_the_trial_are_ended(run: Run, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = """
        import os, subprocess, sys
        subprocess.Popen(["setsid", "sh", "-c", "echo $$ > $1; exec sleep 600", "sh", sys.argv[1]],
                         env={"PATH": os.environ["PATH"]}, start_new_session=True)
        while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read(): pass
    """
    record = run(code, command=("python", "main.py", str(pid_file)))
    assert record.outcome is Outcome.PASS
    assert not psutil.pid_exists(int(pid_file.read_text()))


def test_a_bounded_fork_bomb_is_ended(run: Run) -> None:
    code = """
        import os, time
        for _ in range(6):
            os.fork()
        time.sleep(600)
    """
    assert run(code, timeout=1.5).outcome is Outcome.HANG


def test_100_mb_of_output_is_capped_and_its_end_kept(run: Run) -> None:
    code = """
        import sys
        sys.stdout.write("first\\n")
        for _ in range(100): sys.stdout.write("x" * 999_999 + "\\n")
        sys.stdout.write("last\\n")
    """
    record = run(code)
    assert record.outcome is Outcome.PASS
    assert record.stdout.startswith("first\n")
    assert record.stdout.endswith("last\n")
    assert "bytes left out" in record.stdout
    assert len(record.stdout) < 1_000_100


def test_endless_output_ends_at_the_deadline(run: Run) -> None:
    record = run("import os\nwhile True: os.write(2, b'x' * 65536)", timeout=2.0, output_limit=10_000)
    assert record.outcome is Outcome.HANG
    assert len(record.stderr) < 10_100
    assert "Fatal Python error: Aborted" in record.stack


def test_binary_output_is_kept_as_text(run: Run) -> None:
    record = run("import os; os.write(1, b'a\\x00b\\xff\\xfec\\n')")
    assert record.stdout == "a\ufffdb\ufffd\ufffdc\n"


@pytest.mark.parametrize(
    ("command", "detail"),
    [
        (("no-such-command",), "command not found"),
        (("./main.py",), "Permission denied"),
        (("./missing",), "No such file"),
        (("python", "missing.py"), "can't open file"),
        (("python", "main.py", "nul\0byte"), "Invalid argument"),
        (("sh", "-c", "no-such-command"), "exit code 127"),
    ],
)
def test_commands_that_cannot_run(run: Run, command: tuple[str, ...], detail: str) -> None:
    record = run("pass", command=command)
    assert (record.outcome, record.phase) == (Outcome.NOT_RUNNABLE, Phase.START)
    assert detail in record.detail


def test_a_script_in_the_prefix_is_found_and_other_tools_are_found_on_the_path(run: Run) -> None:
    assert "pytest" in run(command=("pytest", "--version")).stdout
    assert run(command=("sh", "-c", "exit 7")).returncode == 7


@pytest.fixture
def bare_prefix(tmp_path: Path) -> Path:
    """An environment without commands but its Python, as a lock without pytest makes it."""
    (tmp_path / "prefix" / "bin").mkdir(parents=True)
    (tmp_path / "prefix" / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    return tmp_path / "prefix"


def host_tool(folder: Path, name: str, first_line: str) -> Path:
    folder.mkdir(exist_ok=True)
    tool = folder / name
    tool.write_text(f"{first_line}\necho the host\n")
    tool.chmod(0o755)
    return tool


def test_a_program_of_the_host_is_not_run_in_silence(
    run: Run, bare_prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = host_tool(tmp_path / "host", "pytest", "#!/bin/sh")
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    for name in ("pytest", str(tool)):
        record = run(command=(name,), prefix=bare_prefix)
        assert record.outcome is Outcome.NOT_RUNNABLE
        assert record.stdout == ""
        assert "packages: [pytest]" in record.detail
        assert "allow_host: [pytest]" in record.detail
    for allowed in ("pytest", str(tool)):
        record = run(command=("pytest",), prefix=bare_prefix, allow_host=(allowed,))
        assert (record.outcome, record.stdout) == (Outcome.PASS, "the host\n")


def test_a_python_of_the_host_is_not_run_in_silence(run: Run, bare_prefix: Path) -> None:
    other = str(Path(sys.executable).resolve())
    record = run("print(1)", command=(other, "main.py"), prefix=bare_prefix)
    assert record.outcome is Outcome.NOT_RUNNABLE
    assert "call it `python`" in record.detail


def test_a_script_whose_first_line_names_another_python(run: Run, bare_prefix: Path) -> None:
    other = Path(sys.executable).resolve()
    script = f"#!{other}\nprint('ran')\n".encode()
    files = (StudyFile("run.py", script, executable=True),)
    record = run(command=("./run.py",), files=files, prefix=bare_prefix)
    assert record.outcome is Outcome.NOT_RUNNABLE
    assert f"#!/usr/bin/env {other.name}" in record.detail
    meant = replace(files[0], content=b"#!/usr/bin/env python\nprint('ran')\n")
    assert run(command=("./run.py",), files=(meant,), prefix=bare_prefix).stdout == "ran\n"
    assert (
        run(command=("./run.py",), files=files, prefix=bare_prefix, allow_host=(other.name,)).stdout
        == "ran\n"
    )


def test_a_command_that_is_nowhere_says_which_line_would_help(run: Run, bare_prefix: Path) -> None:
    record = run(command=("no-such-tool",), prefix=bare_prefix)
    assert "name the package that brings it (`--with`, or `packages` in a matrix)" in record.detail


def test_tools_of_our_own_environment_are_not(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prefix" / "bin").mkdir(parents=True)
    (tmp_path / "prefix" / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin:/usr/bin:/bin")
    record = run(command=("ruff", "--version"), prefix=tmp_path / "prefix")
    assert record.outcome is Outcome.NOT_RUNNABLE


def test_the_child_sees_a_clean_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OMP_NUM_THREADS",
        "MALLOC_TRIM_THRESHOLD_",
        "LD_LIBRARY_PATH",
        "SECRET_TOKEN",
        "PYTHONPATH",
    ):
        monkeypatch.setenv(name, "1")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    code = """
        import json, os, resource, signal, sys
        print(json.dumps({
            "env": dict(os.environ),
            "cwd": sorted(os.listdir()),
            "fds": sorted(os.listdir("/proc/self/fd")),
            "stdin": os.readlink("/proc/self/fd/0"),
            "session": os.getsid(0) == os.getpid(),
            "usr1": signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL,
            "int": signal.getsignal(signal.SIGINT) == signal.default_int_handler,
            "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
            "argv": sys.argv,
        }))
    """
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    SERVER.close()  # the next server inherits these
    try:
        record = run(code, hash_seed=77, env={"BISECT_ENV_NUMPY": "1.0"}, command=("python", "main.py", "é"))
    finally:
        signal.signal(signal.SIGINT, old)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        SERVER.close()
    seen = json.loads(record.stdout)
    env = seen["env"]
    leaked = {"OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_", "LD_LIBRARY_PATH", "SECRET_TOKEN", "PYTHONPATH"}
    assert not leaked & env.keys()
    assert env["PYTHONHASHSEED"] == "77"
    assert env["BISECT_ENV_NUMPY"] == "1.0"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["cwd"] == ["main.py"]
    # Three streams and the one that lists the directory.
    assert len(seen["fds"]) == 4
    assert seen["stdin"] == "/dev/null"
    assert seen["session"]
    assert seen["usr1"]
    assert seen["int"]
    assert seen["mask"] == []
    assert seen["core"] == 0
    assert seen["argv"] == ["main.py", "é"]
    assert record.hash_seed == 77


def test_a_secret_that_the_script_was_given_is_not_in_its_record(run: Run) -> None:
    code = """
        import os, sys
        print(os.environ["MY_API_TOKEN"], os.environ["LEVEL"])
        raise RuntimeError("refused: " + os.environ["MY_API_TOKEN"])
    """
    record = run(code, env={"MY_API_TOKEN": "planted-5566778899", "LEVEL": "planted"})
    assert record.stdout == "*** planted\n"
    assert record.detail == "RuntimeError: refused: ***"
    assert "planted-5566778899" not in repr(record)


def test_an_internal_error_that_quotes_a_secret_is_recorded_without_it() -> None:
    spec = make_spec(env={"MY_API_TOKEN": "planted-5566778899"})
    error = RuntimeError("podman: login failed: planted-5566778899, https://me:planted-pw@example.org/\nmore")
    record = harness_error_record(spec, error)
    assert record.detail == "RuntimeError: podman: login failed: ***, https://me:***@example.org/"
    assert "planted" not in repr(record)


IN_COLOUR = (
    "Traceback (most recent call last):\n"
    '  File \x1b[35m"/w/main.py"\x1b[0m, line \x1b[35m4\x1b[0m, in \x1b[35mload\x1b[0m\n'
    "    \x1b[31mf\x1b[0m\x1b[1;31m()\x1b[0m\n    \x1b[31m~\x1b[0m\x1b[1;31m^^\x1b[0m\n"
    "\x1b[1;35mValueError\x1b[0m: \x1b[35mboom\x1b[0m\n"
)
"""What Python 3.13 prints under FORCE_COLOR=1."""


@pytest.mark.parametrize("end", ["sys.exit(3)", "sys.exit('accuracy too low')"])
def test_an_error_that_was_logged_long_before_the_end_is_no_cause(run: Run, end: str) -> None:
    code = f"""
        import logging, sys
        try:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        except RuntimeError:
            logging.exception("smaller batch")
        for epoch in range(100): print("epoch", epoch, file=sys.stderr)
        {end}
    """
    assert run(code).outcome is Outcome.EXIT_FAIL


def test_an_exception_with_a_long_message_is_the_cause(run: Run) -> None:
    record = run("raise RuntimeError('CUDA out of memory' + ' at\\n' * 100)")
    assert record.outcome is Outcome.CUDA_OOM


def test_a_failure_in_colour_is_the_same_failure(run: Run) -> None:
    record = run(f"import sys; sys.stderr.write({IN_COLOUR!r}); sys.exit(1)")
    assert (record.outcome, record.detail) == (Outcome.EXIT_FAIL, "ValueError: boom")
    assert record.signature == '[2,"exit-fail:ValueError","body","main.py:load"]'
    assert output_matches(record, Target(output=("^ValueError: boom$",)))


def test_gpus_and_cpus_are_handed_on(run: Run) -> None:
    record = run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])", gpus=("GPU-a", "GPU-b"))
    assert (record.stdout, record.gpu) == ("GPU-a,GPU-b\n", "GPU-a,GPU-b")
    cpu = min(os.sched_getaffinity(0))
    record = run_trial(make_spec("import os; print(os.sched_getaffinity(0))"), PREFIX, cpus={cpu})
    assert record.stdout == f"{{{cpu}}}\n"


def test_copies_run_at_once_and_are_classified_each(run: Run, tmp_path: Path) -> None:
    code = """
        import os, sys, time
        place = sys.argv[1]
        open(os.path.join(place, str(os.getpid())), "w").close()
        while len(os.listdir(place)) < 3: time.sleep(0.01)
        time.sleep(0.1)
        if min(os.listdir(place), key=int) == str(os.getpid()): os.abort()
    """
    place = tmp_path / "meeting"
    place.mkdir()
    record = run(code, concurrency=3, command=("python", "main.py", str(place)))
    assert record.copies == {Outcome.CRASH: 1, Outcome.PASS: 2}
    assert (record.outcome, record.returncode) == (Outcome.CRASH, -signal.SIGABRT)
    assert "1 of 3 copies" in record.detail


def test_cancel_ends_the_trial_at_once(private_temp: Path, living: Living) -> None:
    spec = make_spec(f"{DAEMON}import subprocess; subprocess.run(['sleep', '600'])", timeout=600)
    started = time.monotonic()
    with pytest.raises(TrialCancelledError):
        run_trial(spec, PREFIX, cancelled=lambda: time.monotonic() > started + 0.5)
    assert living() == []
    assert list(private_temp.iterdir()) == []
    assert time.monotonic() - started < 30


def test_a_file_that_leads_out_of_the_directory_is_a_harness_error(private_temp: Path) -> None:
    record = run_trial(make_spec(files=(StudyFile("../evil", b""),)), PREFIX)
    assert record.outcome is Outcome.HARNESS_ERROR
    assert "../evil" in record.detail
    assert "Traceback" in record.stack
    assert list(private_temp.iterdir()) == []


@pytest.mark.parametrize("end", ["", "import ctypes; ctypes.string_at(0)"])
def test_a_script_that_removes_its_own_directory_is_judged_by_its_end(run: Run, end: str) -> None:
    record = run(f"import os, shutil; shutil.rmtree(os.path.dirname(os.getcwd()))\n{end}")
    assert record.outcome is (Outcome.CRASH if end else Outcome.PASS)


def test_directories_without_permissions_are_removed_all_the_same(run: Run) -> None:
    assert (
        run("import os; os.makedirs('a/b'); os.chmod('a', 0); os.symlink('/', 'root')").outcome
        is Outcome.PASS
    )


DEEP = """
import os
for _ in range(1200):
    os.mkdir({name!r})
    os.chdir({name!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d", "longer than the kernel accepts in one path"])
def test_directories_in_any_depth_are_removed(run: Run, name: str) -> None:
    assert run(DEEP.format(name=name)).outcome is Outcome.PASS


@pytest.mark.parametrize("commands", ["pipe", "5", "[[]]", "[" * 100_000, '[["false"]]'])
def test_what_a_script_wrote_does_not_stop_later_trials(private_temp: Path, commands: str) -> None:
    left, lock = make_held(TRIAL)
    os.close(lock)
    if commands == "pipe":
        os.mkfifo(left / REMOVAL)
    else:
        (left / REMOVAL).write_text(commands)
    sweep()
    assert list(private_temp.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system can only be mounted by root")
def test_a_result_counts_even_if_its_directory_cannot_be_removed(private_temp: Path) -> None:
    code = """
        import os, subprocess
        os.mkdir("disk")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "disk"], check=True)
    """
    record = run_trial(make_spec(code), PREFIX)
    if "permission denied" in record.stderr:
        pytest.skip("no file system can be mounted here")
    try:
        assert record.outcome is Outcome.PASS, record.stderr
        (left,) = private_temp.iterdir()
    finally:
        for mount in psutil.disk_partitions(all=True):
            if mount.mountpoint.startswith(str(private_temp)):
                subprocess.run(["umount", mount.mountpoint], check=True)
    sweep()
    assert not left.exists()


def test_a_killed_supervisor_is_a_harness_error_and_leaves_no_child(living: Living) -> None:
    spec = make_spec("import subprocess; subprocess.Popen(['sleep', '600']); import time; time.sleep(600)")
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(run_trial, spec, PREFIX)
        deadline = time.monotonic() + 20
        while len(found := living()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        main = min((psutil.Process(pid) for pid in found), key=lambda process: process.create_time())
        main.parent().kill()
        record = trial.result(timeout=30)
    assert record.outcome is Outcome.HARNESS_ERROR
    deadline = time.monotonic() + 20
    while living() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert living() == []


def test_what_outlives_even_the_killed_server_is_seen_by_these_tests(living: Living) -> None:
    """Else it would be for want of looking that no other test finds anything left behind."""
    daemon = """
        import os, sys, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve(sys.executable, ["daemon", "-c", "import time; time.sleep(600)"], {})
            os._exit(0)
        time.sleep(600)
    """
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(run_trial, make_spec(daemon), PREFIX)
        found: list[psutil.Process] = []
        deadline = time.monotonic() + 20
        while not found and time.monotonic() < deadline:
            with contextlib.suppress(psutil.Error):  # those between it and the script end at once
                processes = [psutil.Process(pid) for pid in living()]
                found = [one for one in processes if one.cmdline()[0] == "daemon"]
            time.sleep(0.02)
        (outlives,) = found
        server = SERVER.process
        assert server is not None
        (supervisor,) = psutil.Process(server.pid).children()
        assert outlives.ppid() == supervisor.pid
        server.kill()
        supervisor.kill()
        assert trial.result(timeout=30).outcome is Outcome.HARNESS_ERROR
    deadline = time.monotonic() + 20
    while living() != [outlives.pid] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert living() == [outlives.pid]
    outlives.kill()
    outlives.wait(20)
    assert living() == []


def test_a_killed_server_is_replaced(run: Run) -> None:
    run("pass")
    process = SERVER.process
    assert process is not None
    process.kill()
    process.wait()
    assert run("pass").outcome is Outcome.PASS


def test_nothing_outlives_a_worker_that_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    script = f"""
import os, time
os.environ.clear()
if os.fork() == 0:
    os.setsid()
    if os.fork() > 0: os._exit(0)
    os.fork()
open({str(pid_file)!r}, "a").write(f"{{os.getpid()}}\\n")
time.sleep(600)
"""
    program = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.trials.trial_support import make_spec, PREFIX
from bisect_env.trials.run import run_trial
run_trial(make_spec({script!r}, timeout=600), PREFIX)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as worker:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                if len(pid_file.read_text().splitlines()) == 3:
                    break
            time.sleep(0.05)
        pids = [int(line) for line in pid_file.read_text().splitlines()]
        assert len(pids) == 3
        worker.kill()
    deadline = time.monotonic() + 20
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids))
    deadline = time.monotonic() + 20
    while list(tmp_path.glob("bisect-env-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.glob("bisect-env-*")) == []


def test_the_next_worker_removes_what_one_left_that_was_killed_with_its_supervisor(
    tmp_path: Path, living: Living
) -> None:
    program = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.trials.trial_support import make_spec, PREFIX
from bisect_env.trials.run import run_trial
run_trial(make_spec(sys.argv[2], timeout=600, trial_id=sys.argv[1]), PREFIX)
"""
    # A script that takes permissions away: removing its directory takes more than one attempt.
    hang = "import os, time; os.makedirs('a/b'); os.chmod('a', 0); time.sleep(600)"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    trial_id = make_spec().trial_id
    with subprocess.Popen([sys.executable, "-c", program, trial_id, hang], env=env) as worker:
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("bisect-env-*/*/a/b")) and time.monotonic() < deadline:
            time.sleep(0.02)
        everything = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
        for process in everything:
            process.suspend()  # so that none can do anything about the death of another
        for process in everything:
            process.kill()
    deadline = time.monotonic() + 20
    while living() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(list(tmp_path.glob("bisect-env-*"))) == 1
    subprocess.run([sys.executable, "-c", program, "next", "pass"], env=env, check=True, timeout=60)
    assert list(tmp_path.glob("bisect-env-*")) == []


def test_many_threads_at_once(private_temp: Path) -> None:
    kinds = {
        "pass": Outcome.PASS,
        "import os; os.abort()": Outcome.CRASH,
        "import sys; sys.exit(4)": Outcome.EXIT_FAIL,
        "import os; os.fork() or os.setsid(); print('x' * 200_000)": Outcome.PASS,
    }
    codes = [code for code in kinds for _ in range(10)]
    SERVER.close()
    threads = threading.active_count()
    with ThreadPoolExecutor(8) as pool:
        records = list(pool.map(lambda code: run_trial(make_spec(code), PREFIX), codes))
    assert [record.outcome for record in records] == [kinds[code] for code in codes]
    assert list(private_temp.iterdir()) == []
    assert threading.active_count() == threads
    server = SERVER.process
    assert server is not None
    # A process runs one trial after another, and there are no more of them than trials ran at once.
    assert len(psutil.Process(server.pid).children()) <= 8


def test_one_process_runs_trial_after_trial_until_one_is_cancelled(run: Run) -> None:
    """A new one for each trial would halve what a short script can be run on two cores."""
    code = "import os; print(os.getppid())"
    first = run(code).stdout
    assert run(code).stdout == first
    with pytest.raises(TrialCancelledError):
        run_trial(make_spec("import time; time.sleep(60)"), PREFIX, cancelled=lambda: True)
    assert run(code).stdout != first


def test_a_server_that_dies_only_under_ten_clients(run: Run, tmp_path: Path) -> None:
    """Each copy is classified by itself, and the group is one trial that counts them."""
    code = """
        import os, pathlib, sys, time
        here = pathlib.Path(sys.argv[1])
        (here / str(os.getpid())).touch()
        deadline = time.monotonic() + float(sys.argv[2])
        while len(list(here.iterdir())) < 10 and time.monotonic() < deadline:
            time.sleep(0.01)
        if len(list(here.iterdir())) >= 10:
            time.sleep(0.5)  # until all have seen it
            if os.getpid() == max(int(path.name) for path in here.iterdir()):
                os.abort()
            if os.getpid() == min(int(path.name) for path in here.iterdir()):
                sys.exit(3)
    """
    for copies, seconds in ((9, "1"), (10, "20")):
        together = tmp_path / str(copies)
        together.mkdir()
        command = ("python", "main.py", str(together), seconds)
        record = run(code, concurrency=copies, command=command)
        if copies == 9:
            assert (record.outcome, dict(record.copies)) == (Outcome.PASS, {Outcome.PASS: 9})
    assert dict(record.copies) == {Outcome.CRASH: 1, Outcome.EXIT_FAIL: 1, Outcome.PASS: 8}
    assert (record.outcome, record.returncode) == (Outcome.CRASH, -signal.SIGABRT)
    assert "(1 of 10 copies)" in record.detail
