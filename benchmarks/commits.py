"""Down to the commit, beside `git bisect run` and git_bayesect: `python -m benchmarks.commits`.

The same repositories, the same script, the same machine, one after the other in one run. Of each method: what
it answered, the wall time, how many commits it built, and how often it ran the script. The rivals get a
script that builds each commit once and keeps it, as we do; `git bisect run` runs it once at each commit.

    python -m benchmarks.commits                      # all, benchmarks/results/commits.json
    python -m benchmarks.commits --only linear --rates 1 --output /tmp/one.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import uv

from benchmarks.repositories import SETUPTOOLS, Change, git, in_tree, module, pure, write

RESULTS = Path(__file__).parent / "results" / "commits.json"
LIMIT = 150.0
"""Seconds after which a method is stopped."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SCRIPT = "import demo, sys\nsys.exit(not demo.works())\n"

CHECK = """\
#!/bin/sh
# Builds a commit once, in an environment of its own, and runs the script in it.
sha=$(git rev-parse HEAD)
place={envs}/$sha
if [ ! -e "$place/ready" ]; then
    [ -e "$place/broken" ] && exit 125
    {uv} venv -q --no-project -p {python} "$place" && echo built >> {log}
    if ! {uv} pip install -q -p "$place/bin/python" --reinstall-package demo --exclude-newer {date} . ; then
        touch "$place/broken"
        exit 125
    fi
    touch "$place/ready"
fi
git clean -fdxq
echo ran >> {log}.runs
cd {folder} && exec "$place/bin/python" {script}
"""


@dataclass
class Case:
    """A repository with a planted regression.

    Attributes:
        name: For the table.
        changes: Its commits, of which the first is `v1.0` and the last `v1.1`.
        bad: The first bad one, counted from 1.
        every: Whether merges are to be gone into.
    """

    name: str
    changes: list[Change]
    bad: int
    every: bool = False


def linear(rate: float) -> Case:
    """Sixty commits of a package built by setuptools."""
    return Case("linear", pure("demo", 60, 41, rate=rate), 41)


def merges(rate: float) -> Case:
    """Twelve merges of four commits each; one of those that was merged is the culprit."""
    changes = [Change({**in_tree("demo"), "demo.py": module(1, 0.0)}, tags=["v1.0"])]
    tip, culprit, bad = 1, 0, False
    for branch in range(12):
        fork = tip
        for step in range(4):
            number = len(changes) + 1
            if (branch, step) == (7, 2):
                culprit, bad = number, True
            files = {"demo.py": module(number, rate if bad else 0.0)}
            changes.append(
                Change(files, f"Step {step} of branch {branch}", parents=[fork] if not step else [])
            )
        subject = f"Merge pull request #{branch + 1} from ann/branch-{branch}"
        number = len(changes) + 1
        # What is written here is the whole difference from the first parent: git merges nothing by itself.
        files = {"merged": str(branch), "demo.py": module(number, rate if bad else 0.0)}
        changes.append(Change(files, subject, parents=[tip, number - 1]))
        tip = number
    changes[-1].tags = ["v1.1"]
    return Case("merges", changes, culprit, every=True)


def broken(rate: float) -> Case:
    """Fifty commits, of which twelve cannot be built, and whose build back end changes half-way."""
    changes = pure("demo", 50, 36, rate=rate)
    changes[24].files = {**changes[24].files, **in_tree("demo")}
    for number, change in enumerate(changes, 1):
        if number == 26:
            change.files = {**change.files, "broken": "x"}
        if number == 34:
            change.files = {**change.files, "broken": None}
    return Case("broken", changes, 36)


EXTENSION = """\
#include <Python.h>
#include <stdlib.h>
#include <time.h>
static PyObject *works(PyObject *self, PyObject *args) {{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    srand48(now.tv_nsec);
    return PyBool_FromLong(drand48() >= {rate});
}}
static PyMethodDef methods[] = {{{{"works", works, METH_NOARGS, NULL}}, {{NULL, NULL, 0, NULL}}}};
static struct PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "demo", NULL, -1, methods}};
PyMODINIT_FUNC PyInit_demo(void) {{ return PyModule_Create(&definition); /* {number} */ }}
"""


def compiled(rate: float) -> Case:
    """Forty commits of an extension in C."""
    project = SETUPTOOLS.format(
        name="demo", version="1.0", modules='ext-modules = [{name = "demo", sources = ["demo.c"]}]'
    ).replace("setuptools>=61", "setuptools>=74.1")
    changes = []
    for number in range(1, 41):
        files: dict[str, bytes | str | None] = {
            "demo.c": EXTENSION.format(rate=rate if number >= 12 else 0.0, number=number)
        }
        files |= {"pyproject.toml": project} if number == 1 else {}
        tags = ("v1.0",) if number == 1 else ("v1.1",) if number == 40 else ()
        # Only since then does setuptools take extensions from pyproject.toml.
        when = 1_735_689_600 + 3600 * number
        changes.append(Change(files, f"Change number {number}", tags=tags, time=when))
    return Case("compiled", changes, 12)


CASES: dict[str, Callable[[float], Case]] = {
    "linear": linear,
    "merges": merges,
    "broken": broken,
    "compiled": compiled,
}


@dataclass
class Played:
    """What a method did.

    Attributes:
        case: Of the repository.
        rate: How often a bad commit fails.
        method: Which.
        answer: Position of the commit that it names, or -1.
        right: Whether it is the planted one.
        builds: Commits that it built, or tried to.
        runs: How often it ran the script; -1 where that was not counted.
        seconds: Of wall time.
    """

    case: str
    rate: float
    method: str
    answer: int
    right: bool
    builds: int
    runs: int
    seconds: float


def ours(place: Path, folder: Path, case: Case, rate: float) -> tuple[str, int, int]:
    """`bisect-env run --git`, with a cache of its own."""
    env = {
        **os.environ,
        "BISECT_ENV_DB": str(folder / "results.sqlite"),
        "BISECT_ENV_CACHE": str(folder / "cache"),
    }
    words = [
        "run",
        "--git",
        str(place),
        "--from",
        "v1.0",
        "--to",
        "v1.1",
        "-p",
        "demo",
        "--rate",
        f"{rate:g}",
    ]
    words += ["--into-merges"] if case.every else []
    command = [sys.executable, "-m", "bisect_env", *words, "--workers", "2", "--json", "--quiet", "script.py"]
    done = _limited(command, folder, env)
    lines = [json.loads(line) for line in done.splitlines() if line.startswith("{")]
    last = lines[-1] if lines else {}
    report = last.get("report", last)
    found = (report.get("verdict") or {}).get("first_bad") or {}
    built = len(list((folder / "cache" / "commits").glob("*/wheel.json")))
    failed = sum(one.get("status") == "env-unbuildable" for one in report.get("combinations") or ())
    return str(found.get("demo", "")), built + failed, int(report.get("trials") or -1)


def git_bisect(place: Path, folder: Path, case: Case, rate: float) -> tuple[str, int, int]:
    """`git bisect run`."""
    check = _check(folder, place)
    git(place, "bisect", "start", "v1.1", "v1.0")
    text = _limited(["git", "bisect", "run", str(check)], place, dict(os.environ))
    named = [line.split()[0] for line in text.splitlines() if line.endswith("is the first bad commit")]
    return (named[0] if named else "", *_counted(folder))


def bayesect(place: Path, folder: Path, case: Case, rate: float) -> tuple[str, int, int]:
    """`git bayesect run`, which stops at 0.95."""
    check = _check(folder, place)
    program = str(Path(sys.executable).parent / "git_bayesect")
    subprocess.run(
        [program, "start", "--old", "v1.0", "--new", "v1.1"], cwd=place, check=True, capture_output=True
    )
    text = _limited([program, "run", str(check)], place, dict(os.environ))
    known = git(place, "log", "--format=%H", "v1.1").split()
    named = [one for one in known if f"{one[:7]}" in text.splitlines()[-1]] if text.strip() else []
    for line in reversed(text.splitlines()):
        found = [one for one in known if one[:7] in line]
        if found:
            named = found
            break
    return (named[0] if named else "", *_counted(folder))


METHODS = {"bisect-env": ours, "git bisect run": git_bisect, "git_bayesect": bayesect}


def _limited(command: list[str], cwd: Path, env: dict[str, str]) -> str:
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 15)
        return process.communicate()[0] or ""


def _check(folder: Path, place: Path) -> Path:
    check = folder / "check.sh"
    (folder / "envs").mkdir()
    text = CHECK.format(
        envs=folder / "envs",
        uv=uv.find_uv_bin(),
        python=sys.executable,
        log=folder / "log",
        date="2025-06-01",
        folder=folder,
        script="script.py",
    )
    check.write_text(text)
    check.chmod(0o755)
    git(place, "checkout", "--quiet", "v1.1")
    return check


def _counted(folder: Path) -> tuple[int, int]:
    def lines(name: str) -> int:
        path = folder / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    return lines("log"), lines("log.runs")


def play(case: Case, rate: float, method: str) -> Played:
    """Let a method answer a fresh copy of a repository."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        commits = write(folder / "repository", case.changes)
        (folder / "script.py").write_text(SCRIPT)
        started = time.monotonic()
        answer, builds, runs = METHODS[method](folder / "repository", folder, case, rate)
        seconds = time.monotonic() - started
    place = commits.index(answer) + 1 if answer in commits else -1
    return Played(case.name, rate, method, place, place == case.bad, builds, runs, round(seconds, 1))


def main() -> int:
    """Play what is asked for, print a line each, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rates", nargs="*", type=float, default=[1.0, 0.5, 0.1])
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if shutil.which("git") is None:
        parser.error("git is not on this host")
    played: list[Played] = []
    print(f"{'case':<10} {'rate':>4} {'method':<15} {'right':<6} {'builds':>6} {'runs':>5} {'seconds':>8}")
    for name in chosen.only:
        for rate in chosen.rates:
            for method in chosen.methods:
                one = play(CASES[name](rate), rate, method)
                played.append(one)
                said = "right" if one.right else "wrong"
                print(
                    f"{one.case:<10} {one.rate:>4g} {one.method:<15} {said:<6} {one.builds:>6} {one.runs:>5} "
                    f"{one.seconds:>8}",
                    flush=True,
                )
                chosen.output.write_text(json.dumps([asdict(each) for each in played], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
