"""Faults at random instants: studies with a known answer, under everything that goes wrong around them.

Each round starts `bisect-env run` on a study whose answer is planted, plays a fault at a random instant of
its life, starts the command again until it ends by itself, and looks at what is left: trials that were told
or stored and are gone, trials that are there twice, evidence that the planted truth cannot give, verdicts,
processes, directories, tracebacks. All of these must be 0.

    python -m benchmarks.faults                            # ten minutes
    python -m benchmarks.faults --minutes 60 --seed 7      # the same rounds again
    python -m benchmarks.faults --only tracker --rounds 3 --verbose
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bisect_env.storage.store import Store
from tests.cluster.dask_processes import DaskProcesses
from tests.environments.index_server import IndexServer, serve

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "bisect_env"]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LEVELS, FIRST_BAD = 8, 5
MARK = "BISECT_ENV_FAULTS"
"""Variable by which a person knows the processes of a round."""
PATIENCE = 120.0
"""Seconds for a command to end by itself; one that takes longer is counted as hanging."""
STOPPED = 60.0
"""Seconds after which a stopped process is continued; longer than the time limit of a trial."""
SETTLE = 15.0
"""Seconds for what was started to be gone after a command has ended."""
COUNTED = ("lost", "doubled", "wrong evidence", "wrong verdicts", "left processes", "left directories")
LAST = ("tracebacks", "hangs")

NO_FAILURE = ("0", "125", "126", "127")
"""How a script may end that shows no failure: it passes, skips the combination, or cannot be run."""

MODULE = "VALUE = 'as it was published'\n" + "# filling\n" * 50

SCRIPT = f"""
import os, shutil, sys, time
import faultsdemo
if faultsdemo.VALUE != "as it was published":
    sys.exit("the environment was changed")
level, how = int(sys.argv[1]), sys.argv[2]
time.sleep(float(sys.argv[3]))
if how == "hungry" and level % 3 == 0:
    kept = [bytearray(os.urandom(1 << 20)) for _ in range(600)]
if level >= {FIRST_BAD}:
    if how == "prefix":
        shutil.rmtree(sys.prefix, ignore_errors=True)
    if how.isdigit():
        sys.exit(int(how))
    os.abort()
"""

# --------------------------------------------------------------------------------------------------
# One study, its command, and what is known of its trials.


@dataclass
class Round:
    """One study under faults.

    Attributes:
        home: Holds everything of it.
        rng: Its randomness.
        how: What the script does when it fails.
        options: Of the command.
        index: Where its package comes from.
        budget: Of trials and of seconds, None without one.
        counts: Where findings are counted.
        known: Trials that were stored when it was last looked.
        told: Trials that commands told of.
        family: Every process that was seen.
    """

    home: Path
    rng: random.Random
    how: str
    options: tuple[str, ...]
    index: str
    budget: tuple[int, int] | None
    counts: Counter[str]
    known: set[str] = field(default_factory=set)
    told: Counter[str] = field(default_factory=Counter)
    family: dict[tuple[int, float], psutil.Process] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("db", "cache", "tmp"):
            (self.home / name).mkdir()
        pause = self.rng.choice((0.02, 0.1, 0.3))
        limits = ""
        if self.budget is not None:
            limits = f"search: {{max_trials: {self.budget[0]}, budget: {self.budget[1]}s}}\n"
        (self.home / "script.py").write_text(SCRIPT)
        (self.home / "matrix.yaml").write_text(
            f"version: 1\nname: faults\nindex: {self.index}\n"
            f'axes:\n  python: {{package: python, versions: ["{PYTHON}"]}}\n'
            f"  level: {{values: [{', '.join(map(str, range(1, LEVELS + 1)))}]}}\n"
            "packages: [faultsdemo]\n"
            f'trial: {{command: "python script.py {{level}} {self.how} {pause}", '
            "files: [script.py], timeout: 20s}\n" + limits
        )
        self.mark = f"{os.getpid()}-{self.home.name}"

    @property
    def db(self) -> Path:
        """Its database."""
        return self.home / "db" / "results.sqlite"

    def start(self, *before: str) -> Running:
        """Start its command, behind other words if any are given."""
        env = {
            **os.environ,
            MARK: self.mark,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.home / "tmp"),
            "BISECT_ENV_DB": str(self.db),
            "BISECT_ENV_CACHE": str(self.home / "cache"),
            "BISECT_ENV_LOCKFILES": str(self.home / "lockfiles"),
            "XDG_STATE_HOME": str(self.home / "state"),
        }
        out, err = (self.home / f"{name}-{len(self.log)}" for name in ("out", "err"))
        self.log.append("start")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [*before, *COMMAND, "run", str(self.home / "matrix.yaml"), "--json", *self.options],
                cwd=self.home,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        return Running(self, process, out, err)

    def stored(self) -> list[dict[str, Any]]:
        """All trials that the database has, by a reader of its own."""
        done = subprocess.run(
            [*COMMAND, "query", "SELECT trial_id, outcome, evidence, combination FROM v_trials", "--json"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "BISECT_ENV_DB": str(self.db)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []

    def look(self) -> None:
        """Compare what is stored with what was stored and told, and with the planted truth."""
        if not self.db.exists():
            return
        trials = self.stored()
        ids = [trial["trial_id"] for trial in trials]
        self.count("doubled", len(ids) - len(set(ids)))
        lost = (self.known | set(self.told)) - set(ids)
        self.count("lost", len(lost))
        for trial in trials:
            values = trial["combination"]
            values = json.loads(values) if isinstance(values, str) else values
            # A script that ends with 0 fails nowhere.
            is_bad = int(dict(values)["level"]) >= FIRST_BAD and self.how != "0"
            if (trial["evidence"], is_bad) in (("bad", False), ("good", True)):
                self.count("wrong evidence", 1, f"{trial}")
        self.known = set(ids)

    def count(self, what: str, number: int, words: str = "") -> None:
        """Note a finding."""
        if number:
            self.counts[what] += number
            self.log.append(f"!! {what}: {number} {words}")

    def forget(self) -> None:
        """The database was taken away: what it held is gone by our own hand."""
        self.known, self.told = set(), Counter()

    def note_family(self, pid: int) -> None:
        """Remember the processes of a command, who are to be gone after it."""
        with contextlib.suppress(psutil.Error):
            top = psutil.Process(pid)
            for process in (top, *top.children(recursive=True)):
                self.family.setdefault((process.pid, process.create_time()), process)


@dataclass
class Running:
    """One command of a round."""

    round: Round
    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def wait(self, seconds: float) -> bool:
        """Let it run, noting its processes; whether it has ended."""
        until = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until:
            self.round.note_family(self.process.pid)
            time.sleep(0.02)
        return self.process.poll() is not None

    def end(self, *, alone: bool = True) -> int:
        """Wait for its end, hear what it told, and look at what is left; gives its exit status."""
        if not self.wait(PATIENCE):
            self.round.count("hangs", 1, self.words())
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        words = self.words()
        self.round.log.append(f"end {code} {words.splitlines()[-1:]}")
        if "Traceback" in words or "leaked" in words or code == 70:
            self.round.count("tracebacks", 1, words[-3000:])
        for line in self.out.read_text("utf-8", "replace").splitlines(keepends=True):
            if line.endswith("\n"):  # else it was killed in the middle of it
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event["event"] == "trial":
                        self.round.told[event["trial"]] += 1
        if alone:
            self.round.count("left processes", self.left())
        return code

    def left(self) -> int:
        """Processes of this round that are still there some time after the end."""
        until = time.monotonic() + SETTLE
        while True:
            alive = [one for one in self.round.family.values() if _is_alive(one)]
            if not alive or time.monotonic() > until:
                break
            time.sleep(0.05)
        for one in alive:
            with contextlib.suppress(psutil.Error):
                self.round.log.append(f"left: {one.pid} {one.status()} {one.cmdline()}")
                one.kill()
        return len(alive)

    def words(self) -> str:
        """What it said on standard error."""
        return self.err.read_text("utf-8", "replace")

    def verdict(self) -> str:
        """Return the first bad level of its answer, "" if it gave none; a best guess is no answer."""
        for line in reversed(self.out.read_text("utf-8", "replace").splitlines()):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                verdict = json.loads(line)["verdict"]
                return "" if verdict["status"] == "none" else str(verdict["first_bad"]["level"])
        return ""

    def children(self, *words: str) -> list[psutil.Process]:
        """Processes below it whose command line has one of these words."""
        found = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    line = " ".join(child.cmdline())
                    if any(word in line for word in words):
                        found.append(child)
        return found


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


# --------------------------------------------------------------------------------------------------
# The faults. Each plays its own at a random instant, and leaves a command that has ended or will end.


def kill_main(play: Round) -> None:
    """SIGKILL to the command alone."""
    running = begun(play)
    running.process.kill()
    play.counts["kills"] += 1
    running.end()


def kill_group(play: Round) -> None:
    """SIGKILL to the command's whole process group."""
    running = begun(play)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.process.pid, signal.SIGKILL)
    play.counts["kills"] += 1
    running.end()


def signal_group(play: Round) -> None:
    """SIGINT, SIGTERM or SIGHUP to the command or its group, once or twice."""
    running = begun(play)
    number = play.rng.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    send = play.rng.choice((os.kill, os.killpg))
    for _ in range(play.rng.choice((1, 2))):
        with contextlib.suppress(ProcessLookupError):
            send(running.process.pid, number)
        time.sleep(play.rng.uniform(0.0, 0.6))
    play.counts["kills"] += 1
    running.end()


def kill_child(*words: str) -> Callable[[Round], None]:
    """SIGKILL, or SIGSTOP, to one process below the command.

    A stopped process is continued after some seconds: a tool such as uv has minutes for what it does, and the
    command waits for it.
    """

    def fault(play: Round) -> None:
        running = begun(play)
        found: list[psutil.Process] = []
        until = time.monotonic() + 5
        while not found and time.monotonic() < until and running.process.poll() is None:
            found = running.children(*words)
        if found:
            number = play.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
            one = play.rng.choice(found)
            with contextlib.suppress(psutil.Error):
                one.send_signal(number)
                play.counts["kills"] += 1
            if number == signal.SIGSTOP and not running.wait(STOPPED):
                with contextlib.suppress(psutil.Error):
                    one.resume()
        running.end()

    return fault


def kill_of_cluster(who: str) -> Callable[[Round], None]:
    """SIGKILL to the scheduler, or to a worker or its nanny, of a cluster that others started."""

    def fault(play: Round) -> None:
        (play.home / "dask").mkdir()
        env = {"BISECT_ENV_CACHE": str(play.home / "cache"), MARK: play.mark}
        env["TMPDIR"] = str(play.home / "tmp")
        with DaskProcesses(play.home / "dask", env=env) as dask:
            scheduler = dask.scheduler()
            nannies = [dask.worker() for _ in range(2)]
            play.options = ("--scheduler", dask.address)
            running = begun(play)
            for process in dask.processes:
                play.note_family(process.pid)
            victim = scheduler if who == "scheduler" else play.rng.choice(nannies)
            workers = psutil.Process(victim.pid).children() if who == "worker" else []
            (play.rng.choice(workers) if workers else victim).kill()
            play.counts["kills"] += 1
            running.end(alone=False)
        # It goes on without that cluster.
        play.options = ("--workers", "2")
        play.count("left processes", running.left())

    return fault


def two_commands(play: Round) -> None:
    """Two commands on one study, of which one is killed."""
    first, second = play.start(), play.start()
    second.wait(play.rng.uniform(0.2, 6.0))
    victim, other = play.rng.sample((first, second), 2)
    victim.process.send_signal(play.rng.choice((signal.SIGKILL, signal.SIGTERM)))
    play.counts["kills"] += 1
    victim.end(alone=False)
    other.end()


def full(place: str) -> Callable[[Round], None]:
    """A file system that runs full, or out of files, under the command."""

    def fault(play: Round) -> None:
        inodes = play.rng.random() < 0.5
        with small_disk(play.home / place, inodes=inodes) as mounted:
            if not mounted:
                play.log.append("nothing can be mounted here")
                return
            running = begun(play)
            with filled(play.home / place, inodes=inodes):
                running.wait(play.rng.uniform(1.0, 10.0))
                if running.process.poll() is None:
                    running.process.send_signal(signal.SIGTERM)
                running.end()
            play.look()
            answer(play)

    return fault


@contextlib.contextmanager
def small_disk(folder: Path, *, inodes: bool) -> Iterator[bool]:
    """A small file system at a place, whose files stay there afterwards; whether it could be mounted."""
    options = "size=64m,nr_inodes=4k" if inodes else "size=64m"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        yield False
        return
    try:
        yield True
    finally:
        keep = folder.with_name(f"{folder.name}-kept")
        shutil.copytree(folder, keep, symlinks=True)
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()
        keep.rename(folder)


@contextlib.contextmanager
def filled(folder: Path, *, inodes: bool) -> Iterator[None]:
    """For the time of a block no byte, or no file, can be added there."""
    inside = folder / "filler"
    inside.mkdir()
    with contextlib.suppress(OSError):
        if inodes:
            for i in range(10_000):
                (inside / str(i)).touch()
        else:
            with (inside / "filler").open("wb", buffering=0) as stream:
                while True:
                    stream.write(bytes(1 << 12))
    yield
    shutil.rmtree(inside)


def database_gone(play: Round) -> None:
    """The database is deleted, or replaced by something else or by another database, under the command."""
    other = play.home / "other.sqlite"
    Store.open(str(other)).close()
    replaced = play.rng.choice((b"", b"not a database\n" * 100, other.read_bytes()))
    running = begun(play)
    was_there = play.db.exists()
    if was_there:
        play.db.unlink()
        if replaced:
            play.db.write_bytes(replaced)
    running.end()
    if was_there and replaced and play.db.read_bytes() != replaced:
        play.count("wrong evidence", 1, "something was written into what had taken the database's place")
    for path in play.db.parent.iterdir():
        if replaced or not play.db.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    play.forget()


def cache_gone(play: Round) -> None:
    """The cache is deleted, or a file stands in its place, under the command."""
    running = begun(play)
    cache = play.home / "cache"
    with contextlib.suppress(OSError):
        cache.rename(play.home / "cache-away")
        if play.rng.random() < 0.5:
            cache.write_text("in the way")
    running.end()
    if cache.is_file():
        cache.unlink()


def corrupt(play: Round) -> None:
    """A byte of a module is changed, or the module is gone, in every prefix; between or during commands."""
    running = begun(play)
    if play.rng.random() < 0.5:
        running.process.kill()
        play.counts["kills"] += 1
        running.end()
    for path in (play.home / "cache").glob("prefixes/*/lib/python*/site-packages/faultsdemo.py"):
        with contextlib.suppress(OSError):
            path.parent.chmod(0o755)
            if play.rng.random() < 0.5:
                path.unlink()
            else:
                path.chmod(0o644)
                path.write_text(MODULE.replace("published", "PUBLISHED"))
    if running.process.poll() is None:
        running.process.kill()  # what it was told before its next look is no fault of its own
        play.counts["kills"] += 1
        running.end()


def terminal_closed(play: Round) -> None:
    """The terminal goes away: SIGHUP, and standard streams that lead nowhere."""
    master, slave = os.openpty()
    env = {
        **os.environ,
        MARK: play.mark,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(play.home / "tmp"),
        "BISECT_ENV_DB": str(play.db),
        "BISECT_ENV_CACHE": str(play.home / "cache"),
        "XDG_STATE_HOME": str(play.home / "state"),
    }
    process = subprocess.Popen(
        ["setsid", "-c", *COMMAND, "run", str(play.home / "matrix.yaml"), *play.options],
        cwd=play.home,
        env=env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    until = time.monotonic() + play.rng.uniform(0.3, 6.0)
    os.set_blocking(master, False)
    while time.monotonic() < until:
        play.note_family(process.pid)
        with contextlib.suppress(OSError):
            os.read(master, 1 << 16)
        time.sleep(0.02)
    os.close(master)
    play.counts["kills"] += 1
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        play.count("hangs", 1, "after the terminal was closed")
        process.kill()
        process.wait()


def memory(play: Round) -> None:
    """A memory limit under which the kernel kills what asks for too much."""
    group = memory_group(400 << 20)
    if group is None:
        play.log.append("no memory limit can be set here")
        return
    try:
        running = play.start("sh", "-c", 'echo $$ > "$0"; exec "$@"', str(group / "cgroup.procs"))
        running.wait(PATIENCE)
        running.end()
        play.counts["kills"] += oom_kills(group)
    finally:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def memory_group(limit: int) -> Path | None:
    """A new cgroup of this process's with a memory limit; None where that is not possible."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            group = Path(f"/sys/fs/cgroup/memory{path}") / f"faults-{os.getpid()}-{random.randrange(10**6)}"
            with contextlib.suppress(OSError):
                group.mkdir()
                (group / "memory.limit_in_bytes").write_text(str(limit))
                return group
    return None


def oom_kills(group: Path) -> int:
    """How often the kernel has killed in a cgroup for lack of memory."""
    text = (group / "memory.oom_control").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))


def nothing(play: Round) -> None:
    """No fault but what the script does (any exit code, no environment left), or a small budget."""


FAULTS: dict[str, Callable[[Round], None]] = {
    "main": kill_main,
    "group": kill_group,
    "signals": signal_group,
    "supervisor": kill_child("supervisor.py"),
    "trial": kill_child("script.py"),
    "worker": kill_of_cluster("worker"),
    "solver": kill_child("uv pip", "/uv "),
    "scheduler": kill_of_cluster("scheduler"),
    "nanny": kill_of_cluster("nanny"),
    "two": two_commands,
    "database full": full("db"),
    "cache full": full("cache"),
    "TMPDIR full": full("tmp"),
    "database": database_gone,
    "cache": cache_gone,
    "corrupt": corrupt,
    "terminal": terminal_closed,
    "memory": memory,
    "script": nothing,
    "budget": nothing,
}


def begun(play: Round) -> Running:
    """A command, at a random instant of its life."""
    running = play.start()
    running.wait(play.rng.expovariate(1 / 2.0) if play.rng.random() < 0.3 else play.rng.uniform(0.05, 7.0))
    return running


def answer(play: Round) -> None:
    """Start the command until it ends by itself, and compare its verdict with the planted one."""
    expected = "" if play.how in NO_FAILURE else str(FIRST_BAD)
    for _ in range(3):
        running = play.start()
        code = running.end()
        play.look()
        if play.how == "prefix" and "changes no installed file" in running.words():
            # No trial of a script that removes its environment counts, and the command says so.
            return
        if code in (0, 1) and play.budget is not None:
            counted = [trial for trial in play.stored() if trial["evidence"] in ("good", "bad")]
            if running.verdict() not in ("", expected) or len(counted) > play.budget[0]:
                play.count(
                    "wrong verdicts", 1, f"{running.verdict()!r}, {len(counted)} trials: {play.budget}"
                )
            return
        if code in (0, 1):
            if running.verdict() != expected and not (play.how in NO_FAILURE and code == 1):
                play.count(
                    "wrong verdicts", 1, f"{running.verdict()!r} for {expected!r}: {running.words()[-500:]}"
                )
            return
    play.count("wrong verdicts", 1, f"none after three commands: {running.words()[-800:]}")


def play_round(
    number: int, seed: int, fault: str, counts: Counter[str], folder: Path, index: str
) -> list[str]:
    """One study from its first command to its answer; gives what happened, line by line."""
    rng = random.Random(f"{seed}-{number}-{fault}")
    hows = ["abort"] * 3 + [str(rng.choice([c for c in range(1, 256) if str(c) not in NO_FAILURE])), "prefix"]
    budget = (rng.randint(1, 60), rng.randint(1, 8)) if fault == "budget" else None
    how = "hungry" if fault == "memory" else rng.choice(hows)
    if fault == "script":
        how = rng.choice([*NO_FAILURE, "prefix", str(rng.randrange(256))])
    options = ("--workers", "2")
    home = Path(tempfile.mkdtemp(prefix=f"round-{number}-", dir=folder))
    play = Round(home, rng, how, options, index, budget, counts)
    play.log.append(f"round {number}: {fault}, {how}, {' '.join(options)}")
    try:
        FAULTS[fault](play)
        play.look()
        if how != "hungry":
            answer(play)
        until = time.monotonic() + SETTLE
        # What somebody else's `dask worker` leaves is not ours.
        theirs = {"dask-scratch-space"}
        while (left := sorted({path.name for path in (home / "tmp").iterdir()} - theirs)) and (
            time.monotonic() < until
        ):
            time.sleep(0.1)
        play.count("left directories", len(left), " ".join(left))
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(home)], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)
    return play.log


def main() -> int:
    """Play rounds until the time is over; 1 if anything that must be 0 is not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", choices=FAULTS, nargs="+", default=list(FAULTS))
    parser.add_argument(
        "--verbose", action="store_true", help="show every round, not only those with findings"
    )
    chosen = parser.parse_args()
    seed = random.randrange(10**6) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", flush=True)
    counts: Counter[str] = Counter()
    played: Counter[str] = Counter()
    began = time.monotonic()
    offered = IndexServer()
    offered.add("faultsdemo", "1.0", modules={"faultsdemo.py": MODULE})
    server = serve(offered)
    number = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        while number < chosen.rounds and time.monotonic() < began + 60 * chosen.minutes:
            # Every kind in turn, so that a short run plays as many kinds as it can.
            fault = chosen.only[number % len(chosen.only)]
            log = play_round(number, seed, fault, counts, Path(name), offered.url)
            played[fault] += 1
            if chosen.verbose or any(line.startswith("!!") for line in log):
                print("\n".join(log), flush=True)
            number += 1
    server.shutdown()
    minutes = (time.monotonic() - began) / 60
    print(
        f"{number} rounds in {minutes:.1f} min: " + ", ".join(f"{n} × {name}" for name, n in played.items())
    )
    for name in ("kills", *COUNTED, *LAST):
        print(f"{name:>18} {counts[name]}")
    return int(any(counts[name] for name in (*COUNTED, *LAST)))


if __name__ == "__main__":
    sys.exit(main())
