"""Solvers that die never look like anything else: they are killed before, after and between answers."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bisect_env
from bisect_env.environments.conda_lock import CondaSolver
from bisect_env.environments.conda_process import HelperDiedError, HelperPool, HelperProcess, fill
from bisect_env.environments.lock import UnbuildableError
from bisect_env.environments.prefix import ensure_prefix
from bisect_env.environments.provider import Environments
from bisect_env.errors import InfrastructureError

from .conda_channel import Channel
from .test_conda import request

pytestmark = pytest.mark.integration

# A helper whose process dies of SIGSEGV at a given point, as py-rattler can: DEATHS times, counted by files.
DYING = """
import os, signal, sys
from pathlib import Path
from bisect_env.environments import conda_helper

folder, when, deaths = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def die():
    if len(list(folder.iterdir())) < deaths:
        (folder / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGSEGV)

answer = conda_helper.Helper.answer

async def dying(self, request):
    if when == "before":
        die()
    result = await answer(self, request)
    if when == "instead":
        die()
    return result

conda_helper.Helper.answer = dying
if when == "after":
    # The answer is out when the next line is waited for.
    lines = sys.stdin
    class Dying:
        def __iter__(self):
            yield lines.readline()
            die()
            yield from lines
    sys.stdin = Dying()
conda_helper.main()
"""


@pytest.fixture
def channel(tmp_path):
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    channel.add_library("demo", "1.0")
    channel.write()
    return channel


def dying(tmp_path, when, deaths):
    folder = tmp_path / "deaths"
    folder.mkdir()
    return [sys.executable, "-c", DYING, str(folder), when, str(deaths)], folder


def dying_pool(tmp_path, when, deaths):
    command, folder = dying(tmp_path, when, deaths)
    return HelperPool(lambda: HelperProcess(command)), folder


@pytest.mark.parametrize("when", ["before", "instead"])
def test_a_solver_that_crashes_is_asked_again_in_another_process(channel, tmp_path, python, when):
    pool, folder = dying_pool(tmp_path, when, 2)
    solver = CondaSolver(tmp_path / "cache", pool=pool)
    lock = Environments(tmp_path / "cache", conda=solver).solve(request(channel, python, demo="1.0"))
    assert [package.name for package in lock.packages] == ["demo", "python"]
    assert len(list(folder.iterdir())) == 2
    pool.close()


def test_a_solver_that_keeps_crashing_stops_the_study_and_says_so(channel, tmp_path, python):
    pool, _ = dying_pool(tmp_path, "instead", 99)
    solver = CondaSolver(tmp_path / "cache", pool=pool)
    with pytest.raises(InfrastructureError, match=r"the conda solver died of SIGSEGV \(3 times\)"):
        Environments(tmp_path / "cache", conda=solver).solve(request(channel, python, demo="1.0"))


def test_a_crash_after_the_answer_is_not_heard_of(channel, tmp_path, python):
    pool, folder = dying_pool(tmp_path, "after", 1)
    solver = CondaSolver(tmp_path / "cache", pool=pool)
    lock = Environments(tmp_path / "cache", conda=solver).solve(request(channel, python, demo="1.0"))
    assert pool.idle[0].process.wait(30) == -11, "it died by itself, after it had answered"
    assert len(list(folder.iterdir())) == 1
    # The pool notices when it asks the next time, and starts another one.
    again = Environments(tmp_path / "cache", conda=solver).solve(request(channel, python, demo="1.0"))
    assert again == lock
    pool.close()


def test_an_installer_that_crashes_says_nothing_about_the_environment(channel, tmp_path, python):
    cache = tmp_path / "cache"
    lock = Environments(cache).solve(request(channel, python, demo="1.0"))
    command, _ = dying(tmp_path, "instead", 1)
    with pytest.raises(UnbuildableError, match="died of SIGSEGV") as raised:
        fill(tmp_path / "place", lock, cache, 60, command=command)
    assert raised.value.transient
    assert ensure_prefix(lock, cache_dir=cache).build_seconds > 0


def test_a_defect_of_ours_is_not_tried_again():
    starts = []

    def start():
        starts.append(1)
        return HelperProcess([sys.executable, "-c", "input(); raise SystemExit('no such thing')"])

    with pytest.raises(HelperDiedError, match="ended with status 1: no such thing"):
        HelperPool(start).ask({"op": "solve"}, 60)
    assert len(starts) == 1


def test_silence_ends_with_the_process_group():
    # A shell has said who its child is long before its time is over, however busy the machine.
    helper = HelperProcess(["/bin/sh", "-c", "sleep 300 & echo $! >&2; read first; read second"])
    with pytest.raises(HelperDiedError, match="no answer in time") as raised:
        helper.ask({}, 1.0)
    assert raised.value.timed_out
    assert has_ended(raised.value.text.split()[-1]), "the helper's child is still alive"


def test_a_helper_that_reads_nothing_is_ended_too():
    """The request is larger than what a pipe holds, so that writing it would never end."""
    helper = HelperProcess(["/bin/sh", "-c", "sleep 300 & echo $! >&2; wait"])
    with pytest.raises(HelperDiedError, match="no answer in time") as raised:
        helper.ask({"op": "solve", "specs": ["x" * 1_000_000]}, 1.0)
    assert has_ended(raised.value.text.split()[-1])


def has_ended(pid: str) -> bool:
    """Whether a process ends, within a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        state = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True).stdout
        if not state.strip() or state.startswith("Z"):
            return True
        time.sleep(0.05)
    return False


def test_an_answer_that_is_none():
    helper = HelperProcess([sys.executable, "-c", "input(); print('hello'); input()"])
    with pytest.raises(HelperDiedError, match="no answer that can be read"):
        helper.ask({}, 60)


def test_helpers_end_with_the_process_that_started_them(tmp_path):
    code = (
        "import os, sys, time\n"
        "from bisect_env.environments.conda_process import HelperProcess\n"
        "print(HelperProcess().process.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert has_ended(done.stdout.strip()), "the helper outlives its parent"


def test_nothing_but_the_helper_imports_rattler():
    package = Path(bisect_env.__file__).parent
    naming = re.compile(r"^\s*(import|from) rattler", re.MULTILINE)
    found = [path.name for path in package.rglob("*.py") if naming.search(path.read_text())]
    assert found == ["conda_helper.py"]
    code = (
        "import sys, bisect_env.cli.app, bisect_env.environments.provider, bisect_env.cluster.worker\n"
        "print([name for name in ('rattler', 'conda_lock') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
