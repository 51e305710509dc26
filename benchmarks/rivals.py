"""The same three questions put to bisect-env and to tools that a reader may know, in one run.

What broke a script, of the releases of one package: certainly, and in a quarter of runs only. And which of
the packages that changed between two lists broke it. Rivals get an environment of their own: the
loop that people write with uv, git_bayesect and script-bisect (both on a repository that has each release as
a commit, made here from the source distributions) and mlbisect (each changed package as one of its axes).

    python -m benchmarks.rivals                      # benchmarks/results/rivals.json
    python -m benchmarks.rivals --question certain --tool loop --tool bisect-env
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pypi_simple import PyPISimple

from benchmarks.everyday import LOOP
from bisect_env.environments.uv_tool import configured_index

RESULTS = Path(__file__).parent / "results" / "rivals.json"
LISTS = Path(__file__).parent.parent / "tests" / "cases" / "asked" / "werkzeug-in-flask"
PYTHON = "3.11"
INSTALLED = {"script-bisect": "script-bisect==0.1.2", "mlbisect": "mlbisect", "git_bayesect": "git-bayesect"}
"""Command to requirement. Releases of script-bisect need Python 3.12 or newer."""
LIMIT = 900.0
PACKAGE, VERSIONS, FIRST_BAD, CULPRIT = "click", ">=7.0,<8.2", "8.1.0", "werkzeug"
CERTAIN = "import click\nclick.get_terminal_size()\n"
SOMETIMES = "import random\nimport click\nif random.random() < 0.25:\n    click.get_terminal_size()\n"

SWAP = r"""#!/bin/bash
# Usage: swap.sh GREEN RED: each package that changed is taken back alone; whose return helps is the culprit.
works() {
    uv run -q --no-project --isolated --python %s --with-requirements "$1" python repro.py >/dev/null 2>&1
}
works "$1" || { echo "the good end fails"; exit 1; }
works "$2" && { echo "the bad end works"; exit 1; }
for name in $(comm -13 "$1" "$2" | cut -d= -f1); do
    { grep -v "^$name==" "$2"; grep "^$name==" "$1"; } > trial.txt
    works trial.txt && { echo "culprit: $name"; exit 0; }
done
echo "no single one"
"""
EVALUATE = """
import os, subprocess
green, red = {green!r}, {red!r}
words = ["uv", "run", "-q", "--no-project", "--isolated", "--python", {python!r}]
for name in red:
    side = os.environ["MLBISECT_AXIS_" + name.upper().replace("-", "_")]
    words += ["--with", name + "==" + (green if side == "green" else red)[name]]
done = subprocess.run([*words, "python", "repro.py"], capture_output=True)
print('{{"metric": %s}}' % (1.0 if done.returncode == 0 else 0.0))
"""


@dataclass(frozen=True, slots=True)
class Said:
    """What a tool answered.

    Attributes:
        answer: The release or package that it named; "" where it named none.
        line: The line in which it said so.
        seconds: From Enter to the prompt.
    """

    answer: str
    line: str
    seconds: float


def repository(package: str, versions: str, place: Path) -> list[str]:
    """A git repository with each release as a commit and a tag; gives the releases, oldest first."""
    found = {}
    with PyPISimple(f"{configured_index().rstrip('/')}/") as index:
        for file in index.get_project_page(package).packages:
            wanted = file.package_type == "sdist" and file.filename.endswith(".tar.gz") and file.version
            if wanted and not file.is_yanked and Version(str(file.version)) in SpecifierSet(versions):
                found[Version(str(file.version))] = file.url
    place.mkdir()

    def git(*words: str) -> None:
        who = ["-c", "user.name=releases", "-c", "user.email=releases@example.org"]
        subprocess.run(["git", *who, "-C", str(place), *words], check=True, stdout=subprocess.DEVNULL)

    git("init", "-q", "-b", "main")
    for version in sorted(found):
        for path in place.iterdir():
            if path.is_dir() and path.name != ".git":
                shutil.rmtree(path)
            elif path.is_file():
                path.unlink()
        archive = requests.get(found[version], timeout=60).content
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            for member in members:
                member.name = member.name.partition("/")[2]
                if member.name:
                    members.extract(member, place, filter="data")
        (place / ".release").write_text(f"{version}\n")
        git("add", "-A", "-f")
        git("commit", "-q", "-m", f"Release {version}")
        git("tag", f"v{version}")
    return [str(version) for version in sorted(found)]


class Rivals:
    """The tools, each asked in a folder of its own, with caches that each of them has filled before.

    Args:
        folder: For whatever is written.
        releases: Of the package, oldest first.
    """

    def __init__(self, folder: Path, releases: Sequence[str]) -> None:
        self._folder, self._releases = folder, releases
        self._turn = 0

    def ask(self, question: str, tool: str) -> Said | None:
        """Ask once; None where the tool has no way to put this question."""
        self._turn += 1
        place = self._folder / f"{question}-{tool}-{self._turn}"
        place.mkdir()
        if question == "lists":
            for name in ("green.txt", "red.txt", "repro.py"):
                shutil.copy(LISTS / name, place)
            ways: Mapping[str, Callable[[Path], Said]] = {
                "bisect-env": self._between,
                "loop": self._swap,
                "mlbisect": self._mlbisect,
            }
        else:
            (place / "repro.py").write_text(CERTAIN if question == "certain" else SOMETIMES)
            rate = ["--always"] if question == "certain" else ["--rate", "0.25"]
            ways = {
                "bisect-env": lambda p: self._run(p, rate),
                "loop": self._loop,
                "git_bayesect": self._git_bayesect,
                "script-bisect": self._script_bisect,
            }
        return ways[tool](place) if tool in ways else None

    def _call(self, command: Sequence[str], place: Path, find: str, *, text: str = "") -> Said:
        tools = [str(Path(sys.executable).parent), str(self._folder / "rivals" / "bin")]
        env = {
            **os.environ,
            "PATH": os.pathsep.join([*tools, os.environ["PATH"]]),
            "UV_CACHE_DIR": str(self._folder / "uv"),
            "XDG_CACHE_HOME": str(place / "cache"),
            "BISECT_ENV_DB": str(place / "results.db"),
            "BISECT_ENV_CACHE": str(self._folder / "ours"),
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        started = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=place,
                env=env,
                input=text,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Said("", f"nothing in {LIMIT:.0f} s", LIMIT)
        seconds = time.monotonic() - started
        told = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        for line in told:
            if match := re.search(find, line):
                return Said(match[1], line[:300], seconds)
        return Said("", told[-1][:300] if told else "", seconds)

    def _run(self, place: Path, rate: Sequence[str]) -> Said:
        words = ["bisect-env", "run", f"{PACKAGE}{VERSIONS}", "repro.py", "--python", PYTHON, *rate, "-q"]
        # A window is named by its first bad release, too.
        return self._call(words, place, rf"{PACKAGE} (?:is broken from )?([0-9.]*[0-9])")

    def _between(self, place: Path) -> Said:
        words = [
            "bisect-env",
            "between",
            "green.txt",
            "red.txt",
            "--python",
            PYTHON,
            "--always",
            "--no-versions",
        ]
        return self._call([*words, "--", "python", "repro.py"], place, r"changed, (\S+) \S+ → ")

    def _loop(self, place: Path) -> Said:
        (place / "loop.sh").write_text(LOOP % PYTHON)
        return self._call(
            ["bash", "loop.sh", PACKAGE, "repro.py"],
            place,
            r"first bad: (\S+)",
            text="\n".join(self._releases) + "\n",
        )

    def _swap(self, place: Path) -> Said:
        (place / "swap.sh").write_text(SWAP % PYTHON)
        return self._call(["bash", "swap.sh", "green.txt", "red.txt"], place, r"culprit: (\S+)")

    def _clone(self, place: Path) -> Path:
        clone = place / "repository"
        subprocess.run(["git", "clone", "-q", str(self._folder / "repository"), str(clone)], check=True)
        return clone

    def _git_bayesect(self, place: Path) -> Said:
        clone = self._clone(place)
        uv = f"uv run -q --no-project --isolated --python {PYTHON}"
        script = f"{uv} --with {PACKAGE}==$(cat .release) python {place / 'repro.py'} >/dev/null 2>&1"
        (place / "bayesect.sh").write_text(
            f"cd {clone}\n"
            f"git bayesect start --old v{self._releases[0]} --new v{self._releases[-1]} >&2\n"
            f"git bayesect run sh -c '{script}' >&2\n"
            "commit=$(git bayesect status | sed -n 's/.*converged to \\([0-9a-f]*\\).*/\\1/p')\n"
            'test -n "$commit" && git log -1 --format="converged to: %s" "$commit"\n'
        )
        return self._call(["sh", "bayesect.sh"], place, r"converged to: Release (\S+)")

    def _script_bisect(self, place: Path) -> Said:
        header = f'# /// script\n# requires-python = "=={PYTHON}.*"\n# dependencies = ["{PACKAGE}"]\n# ///\n'
        script = place / "repro.py"
        script.write_text(header + script.read_text())
        words = ["script-bisect", "repro.py", PACKAGE, f"v{self._releases[0]}", f"v{self._releases[-1]}"]
        words += ["--repo-url", f"file://{self._folder / 'repository'}", "-y"]
        return self._call(words, place, r"Message: Release (\S+)")

    def _mlbisect(self, place: Path) -> Said:
        pins = {}
        for name in ("green", "red"):
            lines = (place / f"{name}.txt").read_text().split()
            pins[name] = {r.name: str(r.specifier)[2:] for r in map(Requirement, lines)}
        (place / "evaluate.py").write_text(EVALUATE.format(**pins, python=PYTHON))
        manifest = {
            "version": 1,
            "name": "lists",
            "metric": {"name": "passes", "direction": "higher_is_better", "min_effect": 0.5},
            "run": {"command": f"{sys.executable} evaluate.py", "timeout_s": 120, "workdir": "."},
            # Values with a full stop in them are taken for paths.
            "axes": [{"name": n.replace("-", "_"), "old": "green", "new": "red"} for n in pins["red"]],
            "budget": {
                "max_runs": 60,
                "baseline_runs": 5,
                "min_runs_per_config": 3,
                "max_runs_per_config": 10,
                "batch_size": 2,
                "confidence": 0.95,
            },
        }
        (place / "mlbisect.yaml").write_text(json.dumps(manifest, indent=1))
        words = ["sh", "-c", "mlbisect run mlbisect.yaml >&2; cat report.md"]
        return self._call(words, place, r"Culprit set: (.+)")


TOOLS = ("bisect-env", "loop", "git_bayesect", "script-bisect", "mlbisect")
QUESTIONS = {"certain": FIRST_BAD, "sometimes": FIRST_BAD, "lists": CULPRIT}


def play(
    questions: Sequence[str], tools: Sequence[str], turns: int, python: str, folder: Path
) -> dict[str, Any]:
    """Put every question to every tool, in turns; a first time, which fills the caches, does not count."""
    releases = repository(PACKAGE, VERSIONS, folder / "repository")
    if {"script-bisect", "mlbisect", "git_bayesect"} & set(tools):
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", "--python", python, str(folder / "rivals")], check=True)
        install = [uv, "pip", "install", "-q", "--python", str(folder / "rivals" / "bin" / "python")]
        subprocess.run([*install, *(INSTALLED[tool] for tool in tools if tool in INSTALLED)], check=True)
    rivals = Rivals(folder, releases)
    found: dict[str, Any] = {}
    for question in questions:
        found[question] = {}
        told: dict[str, list[Said]] = {tool: [] for tool in tools}
        for turn in range(turns + 1):
            for tool in tools:
                said = rivals.ask(question, tool)
                if said is not None and turn:
                    told[tool].append(said)
        for tool, answers in told.items():
            if not answers:
                continue
            right = sum(said.answer == QUESTIONS[question] for said in answers)
            found[question][tool] = {
                "seconds": round(statistics.median(said.seconds for said in answers), 1),
                "right": right,
                "of": len(answers),
                "said": answers[-1].line,
            }
            print(
                f"{question:10} {tool:14} {json.dumps(found[question][tool], ensure_ascii=False)}", flush=True
            )
    return found


def main() -> None:
    """Play what is asked for, print a line each, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--question", action="append", choices=list(QUESTIONS), help="default: all")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="default: all")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rivals-python", default="3.13", help="in which the rivals are installed")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bisect-env-rivals-") as name:
        found = play(
            arguments.question or list(QUESTIONS),
            arguments.tool or TOOLS,
            arguments.turns,
            arguments.rivals_python,
            Path(name),
        )
    arguments.output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
