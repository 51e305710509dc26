"""Whatever kills a build of conda packages at whatever instant: nothing half-made is ever used."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from bisect_env.environments.cache import verify
from bisect_env.environments.integrity import MARKER
from bisect_env.environments.lock import UnbuildableError
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments

from .conda_channel import Channel
from .test_conda import request, run

pytestmark = [pytest.mark.slow, pytest.mark.integration]

BUILD = """
import sys, time
from pathlib import Path
from bisect_env.environments.lockfiles import read_lock
from bisect_env.environments.prefix import ensure_prefix
lock = read_lock(Path(sys.argv[1]))
print("ready", flush=True)
started = time.monotonic()
ensure_prefix(lock, cache_dir=Path(sys.argv[2]))
print(time.monotonic() - started, flush=True)
"""


@pytest.fixture
def lock(tmp_path, cache, python):
    """A lock of a few hundred files."""
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    names = [f"part-{n}" for n in range(8)]
    for name in names:
        files = {f"share/{name}/{n}.txt": f"{name} {n}\n" * 500 for n in range(60)}
        channel.add(name, "1.0", files=files)
    channel.add_library("whole", "1.0", depends=names)
    channel.write()
    return Environments(tmp_path / "elsewhere").solve(request(channel, python, whole="1.0"))


def build(path, cache):
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, path, cache],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def kill(process, *, helpers):
    children = psutil.Process(process.pid).children(recursive=True) if helpers else []
    process.kill()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


@pytest.mark.parametrize("instants", [5, pytest.param(30, marks=pytest.mark.heavy)])
def test_killed_at_random_instants(lock, cache, tmp_path, instants):
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    path = tmp_path / "whole.conda-lock.yml"
    path.write_text(lock.text)
    with build(path, tmp_path / "trial") as process:
        whole = float(process.stdout.read().split()[1])
    finished = 0
    for n in range(instants):
        with build(path, cache) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0, whole))
            kill(process, helpers=n % 2 == 0)
            finished += bool(process.stdout.read())
        for prefix in (cache / "prefixes").glob("[0-9a-f]*"):
            # What has a marker is whole; anything else is taken away by who builds it next.
            if not (prefix / MARKER).exists():
                continue
            assert (prefix / "lib").is_dir()
            assert len(list(prefix.glob("share/*/*.txt"))) == 8 * 60
            if n % 3:
                # Once it is there, the next instants have something to interrupt again.
                subprocess.run(["chmod", "-R", "u+w", prefix], check=True)
                subprocess.run(["rm", "-rf", prefix], check=True)
    prefix = ensure_prefix(lock, cache_dir=cache)
    assert run(prefix, "import whole; print(whole.__version__)") == "1.0"
    assert len(list(prefix.path.glob("share/*/*.txt"))) == 8 * 60
    assert not [checked for checked in verify(cache) if checked.changed]
    print(f"{finished} of {instants} had ended before they were killed")


def test_four_processes_build_it_once(lock, cache, tmp_path):
    path = tmp_path / "whole.conda-lock.yml"
    path.write_text(lock.text)
    processes = [build(path, cache) for _ in range(4)]
    for process in processes:
        with process:
            assert process.stdout.readline() == "ready\n"
            assert float(process.stdout.readline()) >= 0
    names = [path.name for path in (cache / "prefixes").iterdir() if not path.name.startswith(".")]
    assert names == [lock.content_hash]


def test_a_helper_that_is_killed_while_it_installs(lock, cache, tmp_path):
    path = tmp_path / "whole.conda-lock.yml"
    path.write_text(lock.text)
    code = BUILD.replace("ensure_prefix(lock, cache_dir=Path(sys.argv[2]))", KILLED)
    command = [sys.executable, "-c", code, path, cache]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "transient: the conda solver died of SIGKILL" in done.stdout
    assert ensure_prefix(lock, cache_dir=cache).build_seconds > 0


KILLED = """
import os, signal, threading, psutil
from bisect_env.environments.lock import UnbuildableError
def kill():
    while not (children := psutil.Process().children()):
        time.sleep(0.001)
    children[0].kill()
threading.Thread(target=kill).start()
try:
    ensure_prefix(lock, cache_dir=Path(sys.argv[2]))
except UnbuildableError as error:
    print("transient:" if error.transient else "final:", error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_no_room_left(lock, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", small], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(UnbuildableError, match="No space left on device") as raised:
            ensure_prefix(lock, cache_dir=small)
        assert raised.value.transient
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_stop_from_the_terminal_ends_the_helper(lock, cache, tmp_path):
    path = tmp_path / "whole.conda-lock.yml"
    path.write_text(lock.text)
    with build(path, cache) as process:
        assert process.stdout.readline() == "ready\n"
        while not (children := psutil.Process(process.pid).children()):
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        process.wait(30)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.wait(30)
    assert not [child for child in children if child.is_running()]
    assert ensure_prefix(lock, cache_dir=cache).build_seconds >= 0
