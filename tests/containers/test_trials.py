"""Trials in real containers: every ending is what it is outside of them, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bisect_env.containers.engine import LABEL, prune_containers
from bisect_env.containers.trial import Inside
from bisect_env.matrix.files import StudyFile
from bisect_env.trials.records import Outcome, Phase, TrialRecord
from bisect_env.trials.run import TrialCancelledError, run_trial
from bisect_env.trials.workdir import TRIAL_ID
from tests.containers.real_engine import OURS
from tests.trials.trial_support import make_spec

pytestmark = [pytest.mark.slow, pytest.mark.integration]

NOWHERE = Path("/no-prefix")


@pytest.fixture(autouse=True)
def private_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "t"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


def run(inside: Inside, code: str = "", **changes: object) -> TrialRecord:
    spec = make_spec(code, **changes)
    record = run_trial(spec, NOWHERE, inside=inside)
    assert record.outcome is not Outcome.HARNESS_ERROR, record.stack
    assert processes_of(spec.trial_id) == []
    return record


@pytest.mark.parametrize(
    ("code", "outcome", "returncode", "detail"),
    [
        ("print('out')", Outcome.PASS, 0, "exit code 0"),
        ("import os; os.kill(os.getpid(), 11)", Outcome.CRASH, -11, "SIGSEGV"),
        ("import ctypes; ctypes.string_at(0)", Outcome.CRASH, -11, "SIGSEGV"),
        # The engine's own state has 139 for the two above and for this one.
        ("import sys; sys.exit(139)", Outcome.EXIT_FAIL, 139, "exit code 139"),
        ("import os; os.abort()", Outcome.CRASH, -6, "SIGABRT"),
        ("import sys; sys.exit(125)", Outcome.SKIP, 125, "exit code 125"),
        ("import no_such_module", Outcome.IMPORT_ERROR, 1, "no_such_module"),
        ("import os; os.kill(os.getpid(), 9)", Outcome.KILLED_EXTERNAL, -9, "not sent"),
    ],
)
def test_endings(inside: Inside, code: str, outcome: Outcome, returncode: int, detail: str) -> None:
    record = run(inside, code)
    assert (record.outcome, record.returncode) == (outcome, returncode), record.stderr
    assert detail in record.detail


def test_files_whose_names_hold_a_comma_or_a_quote(inside: Inside) -> None:
    names = ("data,v1.csv", 'a "b".txt')
    code = f"for name in {names!r}: assert open(name).read() == name"
    contents = {"main.py": code, **{name: name for name in names}}
    record = run(inside, files=tuple(StudyFile(name, text.encode()) for name, text in contents.items()))
    assert record.outcome is Outcome.PASS, record.stderr


def test_what_a_trial_finds_inside(inside: Inside, private_temp: Path) -> None:
    code = """
        import os, socket, sys, tempfile
        assert os.getcwd() == os.path.dirname(os.path.abspath("main.py"))
        for path in ("main.py", "data/values.txt"):
            try:
                open(path, "a")
                sys.exit(path + " can be written")
            except OSError as error:
                assert error.errno == 30, error
        open("result.txt", "w").write("the directory itself is the trial's own")
        with tempfile.NamedTemporaryFile() as file:
            assert file.name.startswith(os.environ["TMPDIR"])
        try:
            socket.create_connection(("192.0.2.1", 9), 1)
            sys.exit("there is a network")
        except OSError as error:
            assert error.errno == 101, error
        print(sorted(name for name in os.environ if "SECRET" in name or "BISECT" in name))
        print(os.environ["GIVEN"], os.environ["PYTHONHASHSEED"])
    """
    os.environ["BISECT_ENV_TEST_SECRET"] = "x"
    try:
        record = run(
            inside,
            files=(
                StudyFile("main.py", textwrap.dedent(code).encode()),
                StudyFile("data/values.txt", b"1\n"),
            ),
            env={"GIVEN": "a value\nof two lines, 'quoted'"},
            hash_seed=7,
        )
    finally:
        del os.environ["BISECT_ENV_TEST_SECRET"]
    assert record.outcome is Outcome.PASS, record.stderr
    assert record.stdout == "['BISECT_ENV_TRIAL_ID']\na value\nof two lines, 'quoted' 7\n"
    assert list(private_temp.iterdir()) == []


def test_a_hang_is_ended_with_its_stack_and_told_idle_from_busy(inside: Inside) -> None:
    idle = run(inside, "import time\ndef wait(): time.sleep(600)\nwait()", timeout=2.0)
    assert (idle.outcome, idle.phase) == (Outcome.HANG, Phase.BODY)
    assert "idle" in idle.detail
    assert "in wait" in idle.stack
    busy = run(inside, "import signal; signal.signal(6, signal.SIG_IGN)\nwhile True: pass", timeout=2.0)
    assert (busy.outcome, busy.returncode) == (Outcome.HANG, -signal.SIGKILL)
    assert "busy-cpu" in busy.detail


def test_phases_are_marked_inside(inside: Inside) -> None:
    """A process that ends without a stack says by its marks how far it came."""
    files = (StudyFile("main.py", b"import broken\n"), StudyFile("broken.py", b"import os\nos._exit(3)\n"))
    record = run(inside, files=files)
    assert (record.outcome, record.returncode, record.phase) == (Outcome.EXIT_FAIL, 3, Phase.IMPORT)


def test_what_the_script_leaves_running_is_ended(inside: Inside) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)"
    record = run(inside, code)
    assert record.outcome is Outcome.PASS
    assert "left 1 process running, ended" in record.detail


def test_out_of_memory_is_the_hosts_and_not_a_crash(inside: Inside) -> None:
    engine = replace(inside.engine, run_args=(*inside.engine.run_args, "--memory", "64m"))
    record = run(replace(inside, engine=engine), "x = bytearray(400_000_000)")
    if record.outcome is Outcome.PASS:
        pytest.skip("this engine limits no memory")
    assert (record.outcome, record.returncode) == (Outcome.HOST_OOM, -signal.SIGKILL), record.detail


def test_a_full_disk_of_the_container_is_no_failure_of_the_script(inside: Inside) -> None:
    small = replace(inside.engine, run_args=(*inside.engine.run_args, "--shm-size", "64k"))
    record = run(replace(inside, engine=small), "open('/dev/shm/x', 'wb').write(bytes(200_000))")
    assert record.outcome is Outcome.DISK_FULL, record.stderr
    assert record.detail == "disk: [Errno 28]: /dev/shm in the container is full"
    record = run(inside, "raise OSError(28, 'inotify watch limit reached')")
    assert record.outcome is Outcome.EXIT_FAIL


def test_much_output_is_capped_and_its_end_kept(inside: Inside) -> None:
    code = "import sys\nfor i in range(30): sys.stdout.write('x' * 999_999 + '\\n')\nprint('last')"
    record = run(inside, code)
    assert record.outcome is Outcome.PASS
    assert record.stdout.endswith("\nlast\n")
    assert len(record.stdout) < 1_100_000


def test_copies_have_a_container_each(inside: Inside) -> None:
    code = "import os, socket; print(socket.gethostname()); os.abort() if os.urandom(1)[0] % 2 else None"
    record = run(inside, code, concurrency=4)
    assert sum(record.copies.values()) == 4
    assert set(record.copies) <= {Outcome.PASS, Outcome.CRASH}


def test_cancel_reaches_the_container(inside: Inside) -> None:
    spec = make_spec("import time; time.sleep(600)")
    cancelled = threading.Event()
    threading.Timer(1.0, cancelled.set).start()
    with pytest.raises(TrialCancelledError):
        run_trial(spec, NOWHERE, inside=inside, cancelled=cancelled.is_set)
    assert processes_of(spec.trial_id) == []


def test_a_command_that_the_image_lacks(inside: Inside) -> None:
    record = run(inside, command=("no-such-program",))
    assert record.outcome is Outcome.NOT_RUNNABLE
    assert "no-such-program" in record.detail


def test_an_engine_that_fails_is_no_failure_of_the_script(inside: Inside) -> None:
    engine = replace(inside.engine, run_args=("--no-such-option",))
    record = run_trial(make_spec("pass"), NOWHERE, inside=replace(inside, engine=engine))
    assert record.outcome is Outcome.HARNESS_ERROR
    assert "no-such-option" in record.detail
    assert "BISECT_ENV_CONTAINER_ARGS" in record.detail


def test_an_engine_that_is_slow_to_start_makes_no_hang(inside: Inside, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    program = inside.engine.command[0]
    slow.write_text(f'#!/bin/sh\ncase "$*" in *"run --name"*) sleep 30;; esac\nexec {program} "$@"\n')
    slow.chmod(0o755)
    engine = replace(inside.engine, command=(str(slow), *inside.engine.command[1:]))
    record = run_trial(make_spec("pass", timeout=1.0), NOWHERE, inside=replace(inside, engine=engine))
    assert record.outcome is Outcome.HARNESS_ERROR
    assert "had not started the container at the time limit" in record.detail


def test_the_login_of_a_proxy_stays_outside(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:planted@proxy.example:3128")
    record = run(inside, "import os; print(os.environ.get('http_proxy', ''))")
    assert "planted" not in record.stdout
    assert "me:" not in record.stdout


def test_an_image_without_python_is_told_from_an_engine_that_fails(inside: Inside) -> None:
    nowhere = replace(inside, prefix=Path("/no-such-prefix"))
    record = run_trial(make_spec("pass"), NOWHERE, inside=nowhere)
    # The prefix cannot be mounted: the engine fails, which says nothing of the script.
    assert record.outcome is Outcome.HARNESS_ERROR, record.detail
    engine = replace(inside.engine, run_args=(*inside.engine.run_args, "--env", "PATH=/nowhere"))
    record = run_trial(make_spec("pass"), NOWHERE, inside=replace(inside, engine=engine))
    assert record.outcome is Outcome.NOT_RUNNABLE, record.detail


@pytest.mark.parametrize("everything", [False, True], ids=["the worker", "the supervisor too"])
def test_a_container_does_not_outlive_a_worker_that_is_killed(
    inside: Inside, tmp_path: Path, everything: bool
) -> None:
    """Even when everything on this side gets SIGKILL at once, as from a host that is out of memory.

    What nobody was left to remove, directory and container, the next trial of this host removes.
    """
    engine = (inside.engine.kind, inside.engine.command, inside.engine.run_args)
    worker = tmp_path / "worker.py"
    worker.write_text(
        textwrap.dedent(
            f"""
            import sys
            from pathlib import Path
            from bisect_env.containers.engine import Engine
            from bisect_env.containers.trial import Inside
            from bisect_env.trials.run import run_trial
            from tests.trials.trial_support import make_spec
            inside = Inside(Engine(*{engine!r}), {inside.image!r})
            spec = make_spec(sys.argv[2], trial_id=sys.argv[1])
            run_trial(spec, Path("/no-prefix"), inside=inside)
            """
        )
    )
    trial_id = f"trial-{os.urandom(6).hex()}"
    place = tmp_path / "temp"
    place.mkdir()
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(place)}
    argv = [sys.executable, str(worker)]
    process = subprocess.Popen([*argv, trial_id, "import time; time.sleep(600)"], env=env)
    script = wait_for(lambda: scripts(trial_id))
    victims = [psutil.Process(process.pid)]
    if everything:
        # The script, its first process and the engine's monitor are left to find out by themselves.
        victims += [p for p in victims[0].children(recursive=True) if p.pid not in script and not is_inner(p)]
    for victim in victims:
        victim.kill()
    process.wait()
    wait_for(lambda: not scripts(trial_id))
    mine = ("ps", "--all", "--quiet", "--filter", f"label=bisect-env.trial={trial_id}")
    if everything:
        assert inside.engine.ask(*mine).stdout
        assert list(place.iterdir())
        subprocess.run([*argv, f"{trial_id}-next", "pass"], env=env, check=True, timeout=60)
    wait_for(lambda: not inside.engine.ask(*mine).stdout)
    wait_for(lambda: not list(place.iterdir()))


def test_old_stopped_containers_are_pruned_and_no_others(inside: Inside) -> None:
    engine, key = inside.engine, os.urandom(6).hex()
    ours = f"{LABEL}={key}"

    def start(label: str, code: str) -> str:
        options = ["--detach", "--network", "none", "--label", label, *engine.run_args]
        answer = engine.ask("run", *options, "--entrypoint", "python3", inside.image, "-c", code)
        assert answer.ok, answer.words
        return answer.stdout.strip()

    def left() -> set[str]:
        asked = ("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={OURS}")
        return set(engine.ask(*asked).stdout.split()) & made

    running = start(ours, "import time; time.sleep(600)")
    stopped, other = start(ours, "pass"), start(f"{LABEL}={key}-other", "pass")
    made, last = {running, stopped, other}, int(time.time())
    try:
        for one in (stopped, other):
            assert engine.ask("wait", one).ok
        assert prune_containers(engine, label=ours).ok
        assert left() == made, "none is a day old"
        # The engine rounds the limit down to whole seconds: containers of this second count as newer.
        wait_for(lambda: int(time.time()) > last)
        assert prune_containers(engine, label=ours, age="0s").ok
        assert left() == {running, other}
    finally:
        engine.ask("kill", running)
        engine.ask("rm", "--force", *left())


@pytest.mark.parametrize("ending", ["os.abort()", "time.sleep(600)"], ids=["ends", "is killed"])
def test_what_another_user_inside_has_written_is_removed(inside: Inside, tmp_path: Path, ending: str) -> None:
    """As with an engine without root's rights, or that is a daemon: here the worker gives its rights up."""
    engine = (inside.engine.kind, inside.engine.command, (*inside.engine.run_args, "--user", "1234"))
    worker = tmp_path / "worker.py"
    worker.write_text(
        textwrap.dedent(
            f"""
            import ctypes, sys
            from pathlib import Path
            # Effective capabilities alone: what is executed by root has them again.
            header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.capget(header, sets) == 0
            sets[0] &= ~0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
            assert libc.capset(header, sets) == 0, ctypes.get_errno()
            from bisect_env.containers.engine import Engine
            from bisect_env.containers.trial import Inside
            from bisect_env.trials.run import run_trial
            from tests.trials.trial_support import make_spec
            inside = Inside(Engine(*{engine!r}), {inside.image!r})
            code = '''
            import os, signal, tempfile, time
            signal.signal(signal.SIGABRT, signal.SIG_IGN if {ending!r}.startswith("time") else signal.SIG_DFL)
            place = tempfile.mkdtemp()
            open(os.path.join(place, "file"), "w").close()
            os.makedirs("made/here")
            os.chmod("made", 0)
            os.chmod(place, 0o500)
            print(os.getuid(), flush=True)
            {ending}
            '''
            record = run_trial(make_spec(code, timeout=3.0), Path("/no-prefix"), inside=inside)
            print(record.outcome, record.returncode, record.stdout.strip(), record.detail)
            """
        )
    )
    place = tmp_path / "temp"
    place.mkdir()
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(place)}
    done = subprocess.run([sys.executable, worker], env=env, capture_output=True, text=True, timeout=100)
    expected = "crash -6 1234" if "abort" in ending else "hang -9 1234"
    assert done.stdout.startswith(expected), done.stdout + done.stderr
    assert list(place.iterdir()) == []


def is_inner(process: psutil.Process) -> bool:
    return process.name() == "conmon" or "init.py" in " ".join(process.cmdline()[-2:])


def processes_of(trial_id: str) -> list[psutil.Process]:
    """Living processes of a trial; those in a container are below its engine and not below this process."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_one = process.environ().get(TRIAL_ID) == trial_id
            if is_one and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def scripts(trial_id: str) -> set[int]:
    """Processes of the script itself, in whatever container."""
    found = set()
    for process in processes_of(trial_id):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[-1:] == ["main.py"]:
                found.add(process.pid)
    return found


def wait_for(condition, seconds: float = 30.0):  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value
