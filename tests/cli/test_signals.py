"""Signals at every instant of a command: it ends soon, with a word, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bisect_env import temporary
from tests.cli.calls import RunCommand
from tests.cli.processes import COMMAND, Command, wait_for
from tests.engine.studies import Studies, crash_from_six

pytestmark = pytest.mark.integration

SLOW_CRASH = crash_from_six("time.sleep(0.2)")


@contextlib.contextmanager
def listener(greeting: bytes) -> Iterator[str]:
    """Something that is no scheduler: it says something to whoever connects, or nothing. Its address."""
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    stream, _ = server.accept()
                    stream.sendall(greeting)
                    kept.append(stream)

        threading.Thread(target=serve, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        for stream in kept:
            stream.close()


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_scheduler_is_said_to_be_none(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch, greeting: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = Studies(tmp_path).matrix(SLOW_CRASH)
    with listener(greeting) as address:
        code, _, err = run("run", str(matrix), "--db", "results.sqlite", "--scheduler", address)
    assert code == 6
    assert "nothing that speaks Dask's protocol listens there" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_what_says_nothing_is_no_scheduler_within_thirty_seconds(tmp_path: Path) -> None:
    command = Command(tmp_path, SLOW_CRASH)
    with listener(b"") as address:
        process = command.start("--scheduler", address)
        # What it imports before takes its time on a busy machine.
        wait_for(lambda: has_connection(process.pid, int(address.rpartition(":")[2])))
        began = time.monotonic()
        _, err = process.communicate(timeout=120)
    assert time.monotonic() - began < 30
    assert process.returncode == 6
    assert "nothing that speaks Dask's protocol listens there" in err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_scheduler_is_waited_for_ends_the_command(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = Command(tmp_path, SLOW_CRASH)
    with listener(b"") as address:
        process = command.start("--scheduler", address)
        wait_for(lambda: has_connection(process.pid, int(address.rpartition(":")[2])))
        process.send_signal(number)
        began = time.monotonic()
        _, err = process.communicate(timeout=60)
        # By itself it would give up after 20 s and more, and say something else.
        assert time.monotonic() - began < 15
    assert process.returncode == 130
    assert err.count("stopped after 0 trials; every one of them is stored") == 1
    assert "goes on from here" in err
    assert "Traceback" not in err


def has_connection(pid: int, port: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(one.raddr and one.raddr.port == port for one in psutil.Process(pid).net_connections("tcp"))
    return False


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, mask = line.partition(":")
        if name == "SigCgt":
            return bool(int(mask, 16) >> (number - 1) & 1)
    return False


def interrupt(
    folder: Path, after: float, number: int, *options: str, group: bool = False, again: float | None = None
) -> None:
    """Send a signal (to the process or its group, once or twice) at an instant of a command's life."""
    folder.mkdir()
    command = Command(folder, SLOW_CRASH)
    process = command.start(*options, start_new_session=True)
    # Before its first line is executed, Python itself would be interrupted.
    wait_for(lambda: handles(process.pid, signal.SIGTERM))
    time.sleep(after)
    family = psutil.Process(process.pid).children(recursive=True)

    def send() -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(process.pid, number)

    began = time.monotonic()
    send()
    if again is not None:
        time.sleep(again)
        send()
    _, err = process.communicate(timeout=100)
    told = f"after {after:.2f} s: {err}"
    assert time.monotonic() - began < 40, told
    assert process.returncode in (130, 0), told
    assert process.returncode == 0 or ("stopped" in err and "  remedy: " in err), told
    assert "Traceback" not in err, told
    assert "leaked" not in err, told
    _, alive = psutil.wait_procs(family, timeout=15)
    assert alive == [], told
    deadline = time.monotonic() + 10
    while left := os.listdir(folder / "temp"):  # noqa: PTH208 -- names
        assert time.monotonic() < deadline, f"{left} {told}"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_signal_in_the_first_moments_says_a_word(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for i, number in enumerate((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        interrupt(tmp_path / str(i), rng.uniform(0.0, 1.0), number)


def test_a_signal_at_the_definition_of_a_data_class_ends_with_the_documented_code(tmp_path: Path) -> None:
    # Data classes, enumerations and named tuples are made by `exec` of a text.
    (tmp_path / "defining.py").write_text(
        "import os, signal, sys\n"
        "from bisect_env.cli import signals\n"
        "signals.interrupt()\n"
        "try:\n"
        "    exec('os.kill(os.getpid(), signal.SIGTERM)')\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    done = subprocess.run([sys.executable, "-m", "defining"], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 130


IMPORTS = """
import os, signal, sys, time
from bisect_env import cli
from bisect_env.cli import app

class Named:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

def menu():
    # As an import leaves a library that it was interrupted in: it cannot be imported again.
    sys.modules["bisect_env.answers.untrusted"] = None
    if sys.argv[1] == "named":
        class Holder:
            name = Named()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)

app.menu = menu
cli.main()
"""


@pytest.mark.parametrize("where", ["plain", "named"])
def test_a_signal_in_the_midst_of_an_import_says_a_word(where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, where], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, "stopped\n  remedy: give the same command again\n")


@pytest.mark.slow
def test_terminating_the_whole_group_twice_ends_all_of_it(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for i in range(3):
        interrupt(
            tmp_path / str(i),
            rng.uniform(0.3, 3.0),
            rng.choice((signal.SIGTERM, signal.SIGHUP)),
            group=True,
            again=rng.uniform(0.0, 1.0),
        )


THREADS = """
import os, sys, tempfile, threading, time
from bisect_env import temporary

tempfile.gettempdir()  # the standard library tries the directory with a file of its own, once

def again_and_again():
    while True:
        with temporary.temporary("some"):
            time.sleep(0.003)

for _ in range(6):
    threading.Thread(target=again_and_again, daemon=True).start()
time.sleep(float(sys.argv[2]))
if sys.argv[1] == "at once":
    temporary.remove_own()
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["at once", "in order"])
def test_what_threads_of_a_process_that_ends_leave_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for _ in range(20):
        subprocess.run(
            [sys.executable, "-c", THREADS, how, str(rng.uniform(0.0, 0.05))], check=True, timeout=60
        )
        assert len(list(tmp_path.iterdir())) <= 6  # one a thread
        temporary.remove_left_behind()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_nohup_keeps_a_command_alive_and_a_shells_background_can_be_interrupted(tmp_path: Path) -> None:
    def without(*numbers: signal.Signals) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    command = Command(tmp_path, SLOW_CRASH)
    process = command.start(preexec_fn=lambda: without(signal.SIGHUP, signal.SIGINT))
    wait_for(lambda: (tmp_path / "results.sqlite").exists())
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped" in err


@pytest.mark.slow
def test_a_signal_while_an_index_does_not_answer_ends_the_command(tmp_path: Path) -> None:
    command = Command(tmp_path, SLOW_CRASH)
    with listener(b"") as address:
        matrix = command.matrix.read_text()
        index = address.replace("tcp:", "http:")
        command.matrix.write_text(
            f"index: {index}/simple\n{matrix}".replace(
                "axes:", 'axes:\n  demo: {package: demo, versions: ">=1"}', 1
            )
        )
        process = command.start()
        wait_for(lambda: has_connection(process.pid, int(address.rpartition(":")[2])))
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 25
    assert process.returncode == 130, err
    assert "stopped" in err
    assert "Traceback" not in err


SESSIONS = """
import os, signal, time
from bisect_env.cli import signals

signals.SILENT = 0.5
signals.interrupt()
with signals.stop_on_signals() as stop:
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.is_set()
with signals.stop_on_signals() as stop:
    time.sleep(1.5)
    assert not stop.is_set()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    print("stopped between sessions")
"""


def test_a_signal_ends_one_session_of_several_and_the_command_between_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SESSIONS], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped between sessions\n", "")


def ends_at_a_signal(command: Command, *words: str, begun: str) -> None:
    """Interrupt a command when a child runs whose command line has `begun`, and see what stays."""
    process = subprocess.Popen(
        [*COMMAND, *words], env=command.env, cwd=command.folder, stderr=subprocess.PIPE, text=True
    )
    found: list[psutil.Process] = []

    def has_begun() -> bool:
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(process.pid).children(recursive=True)
            found[:] = [one for one in family if begun in " ".join(one.cmdline())]
        return bool(found)

    wait_for(has_begun)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 12, err
    assert process.returncode == 130, err
    assert "stopped" in err
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(found, timeout=5)
    assert alive == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [("plan",), ("env", "fetch", "--output", "away")])
def test_a_solver_that_waits_for_an_index_ends_with_the_command(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    command = Command(tmp_path, SLOW_CRASH, axes='demo: {package: demo, versions: ["1", "2"]}')
    with listener(b"") as address:
        text = command.matrix.read_text().replace(" {level}", "")
        command.matrix.write_text(f"index: {address.replace('tcp:', 'http:')}/simple\n{text}")
        ends_at_a_signal(command, *words, str(command.matrix), begun="pip compile")


@pytest.mark.slow
@pytest.mark.parametrize("word", ["plan", "run"])
@pytest.mark.parametrize("program", ["podman", "skopeo"])
def test_an_image_that_a_registry_never_delivers_ends_with_the_command(
    tmp_path: Path, word: str, program: str
) -> None:
    command = Command(
        tmp_path, SLOW_CRASH, rest='executor: {kind: container, image: "registry.example/it:1"}'
    )
    (tmp_path / "bin").mkdir()
    waits = "exec sleep 601"
    scripts = {
        "podman": f"case $1 in version|--version) echo podman version 5;; pull) {waits};; *) exit 1;; esac",
        "skopeo": waits,
    }
    for name in dict.fromkeys(("podman", program)):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{scripts[name]}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    tools = [Path(sys.executable).parent, Path("/usr/bin"), Path("/bin")]
    if program == "podman" and any((folder / "skopeo").exists() for folder in tools):
        pytest.skip("skopeo is on this host, and asks the registry")
    command.env["PATH"] = os.pathsep.join(map(str, [tmp_path / "bin", *tools]))
    ends_at_a_signal(command, word, str(command.matrix), begun="sleep 601")


FORCED = """
import os, signal, sys
from pathlib import Path
from bisect_env.cli import signals
from bisect_env.running import run_tool

signals.SILENT = 0.5
signals.interrupt()
with signals.stop_on_signals():
    code = "echo $$ > pid; kill -INT $PPID; exec sleep 600"
    run_tool(["sh", "-c", code], env=os.environ, cwd=Path.cwd(), timeout=700)
"""


def test_what_ends_by_force_leaves_no_tool(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORCED], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 130
    assert "what did not end in time was killed" in done.stderr
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", 5)
