"""Everyday questions against a hand-written loop: wall time from Enter to the answer, and to the prompt.

Real packages that certainly fail from some release on, every release of the range, asked in turns in one run
by `bisect-env run` and by the loop that people write: a bisection in shell with `uv run --with NAME==X`.
Cold means that neither has anything cached but the interpreters, warm that both have asked the same before.
Of one case all wheels lie in a folder besides, with which neither asks an index; what counts is how much
longer ours takes. Of protobuf both ends work, and 4.21.0 to 4.21.4 fail: no bisection finds that, so that its
loop tries one release after the other until one fails.

    python -m benchmarks.everyday                  # all cases, five turns, benchmarks/results/everyday.json
    python -m benchmarks.everyday --case click --turns 1
    python -m benchmarks.everyday --offline DIR --workers 2 16 64    # wheels from a folder, no network
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

RESULTS = Path(__file__).parent / "results" / "everyday.json"
PYTHON = "3.11"


@dataclass(frozen=True, slots=True)
class Case:
    """A question with its known answer.

    Attributes:
        package: What is moved.
        versions: Its range.
        script: What fails.
        first_bad: The answer, taken with plain uv.
        beside: Further requirements.
        is_island: Whether both ends work: then releases fail in the midst of the range.
    """

    package: str
    versions: str
    script: str
    first_bad: str
    beside: tuple[str, ...] = ()
    is_island: bool = False


CASES = {
    "marshmallow": Case(
        "marshmallow", ">=3.0.0,<=4.4.0", "from marshmallow import fields\nfields.Int(missing=3)\n", "4.0.0"
    ),
    "httpx": Case("httpx", ">=0.20.0,<=0.28.1", "import httpx\nhttpx.Client(proxies=None)\n", "0.28.0"),
    "werkzeug": Case(
        "werkzeug", ">=2.0.0,<=3.1.3", "from werkzeug.urls import url_quote\nurl_quote('a b')\n", "3.0.0"
    ),
    "numpy": Case(
        "numpy",
        ">=1.24.0,<=2.3.0",
        "import pandas\npandas.DataFrame({'a': [1]})\n",
        "2.0.0",
        ("pandas==2.1.1",),
    ),
    "setuptools": Case("setuptools", ">=75.0.0,<=82.0.1", "import pkg_resources\n", "82.0.0"),
    # Maps of messages are never equal in 4.21.0 to 4.21.4, says `uv run --with protobuf==X` of each release.
    "protobuf": Case(
        "protobuf",
        ">=3.19.0,<=4.25.9",
        "from google.protobuf.struct_pb2 import Struct\none, other = Struct(), Struct()\n"
        "one['a'] = other['a'] = 1\nassert one.fields == other.fields\n",
        "4.21.0",
        is_island=True,
    ),
    "click": Case("click", ">=7.0,<=8.2.1", "import click\nclick.get_terminal_size()\n", "8.1.0"),
}

FROM_A_FOLDER = ("marshmallow",)
"""Cases of which all wheels are fetched into a folder as well."""

LOOP = r"""#!/bin/bash
# Usage: loop.sh PACKAGE SCRIPT [--with REQUIREMENT]... < versions, oldest first
package=$1; script=$2; shift 2
mapfile -t versions; good=0; bad=$((${#versions[@]} - 1))
works() { local version=$1; shift
    uv run -q --no-project --isolated --python %s "$@" --with "$package==$version" \
        python "$script" >/dev/null 2>&1
}
works "${versions[$good]}" "$@" || { echo "the good end fails"; exit 1; }
works "${versions[$bad]}" "$@" && { echo "the bad end works"; exit 1; }
while ((bad - good > 1)); do
    middle=$(((good + bad) / 2))
    if works "${versions[$middle]}" "$@"; then good=$middle; else bad=$middle; fi
done
echo "first bad: ${versions[$bad]}"
"""
SCAN = (
    LOOP[: LOOP.index('works "${versions[$good]}')]
    + r"""for version in "${versions[@]}"; do
    works "$version" "$@" || { echo "first bad: $version"; exit 0; }
done
echo "nothing fails"
"""
)


@dataclass(frozen=True, slots=True)
class Taken:
    """One run.

    Attributes:
        answer: Seconds until the line with the answer.
        prompt: Seconds until the command ended.
        first_bad: What it said.
        trials: How many ran until the answer, -1 if that is not known.
        phases: Kind of event to the seconds until the first one.
    """

    answer: float
    prompt: float
    first_bad: str
    trials: int = -1
    phases: Mapping[str, float] | None = None


def matrix(case: Case, folder: Path, python: str = PYTHON) -> Path:
    """Write a case as a matrix file; gives its path."""
    (folder / "repro.py").write_text(case.script)
    beside = f"packages: {{pypi: {json.dumps(list(case.beside))}}}\n" if case.beside else ""
    path = folder / "matrix.yaml"
    # 4.21.0 was withdrawn.
    island = ", direction: either, yanked: true" if case.is_island else ""
    path.write_text(
        f"version: 1\nname: {case.package}\naxes:\n  python: {{package: python, versions: ['{python}']}}\n"
        f"  {case.package}: {{package: {case.package}, versions: '{case.versions}', step: every{island}}}\n"
        f"{beside}trial:\n  command: python repro.py\n  files: [repro.py]\n"
    )
    return path


def ours(path: Path, cache: Path, options: Sequence[str] = ()) -> Taken:
    """Ask `bisect-env run`, in a new study."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bisect_env", "run", str(path), "--fresh", "--json"]
        command += ["--db", f"{folder}/results.db", "--cache", str(cache), *options]
        started = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(cache)
        )
        answer, first_bad, trials = 0.0, "", -1
        seen: dict[str, float] = {}
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            said = event.get("verdict") if event["event"] in ("answered", "verdict") else None
            if said and not answer and said.get("first_bad"):
                answer = time.monotonic() - started
                first_bad = said["first_bad"][path.parent.name]
                trials = said["trials"]
            seen.setdefault(event["event"], round(time.monotonic() - started, 3))
        process.wait()
        return Taken(answer, time.monotonic() - started, first_bad, trials, seen)


def loop(
    case: Case, path: Path, versions: Sequence[str], cache: Path, *, python: str = PYTHON, wheels: str = ""
) -> Taken:
    """Run the hand-written loop, with an index or with the wheels in a folder."""
    script = path.parent / "loop.sh"
    script.write_text((SCAN if case.is_island else LOOP) % python)
    beside = [word for requirement in case.beside for word in ("--with", requirement)]
    local = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": wheels, "UV_OFFLINE": "1"} if wheels else {}
    started = time.monotonic()
    done = subprocess.run(
        ["bash", str(script), case.package, str(path.parent / "repro.py"), *beside],
        input="\n".join(versions) + "\n",
        capture_output=True,
        text=True,
        # What runs this may have packages there that the script would see.
        env=_environment(cache) | {"UV_CACHE_DIR": str(cache / "loop"), "PYTHONPATH": ""} | local,
        check=False,
    )
    taken = time.monotonic() - started
    return Taken(taken, taken, done.stdout.rpartition(": ")[2].strip())


def _environment(cache: Path) -> dict[str, str]:
    # uv reads no settings of pip, and `bisect-env` does: without them, both ask the same places.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    # The loop's uv is the one that comes with us.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return own | {"PATH": path, "PIP_CONFIG_FILE": os.devnull}


def versions_of(path: Path, cache: Path) -> list[str]:
    """Every release of the range, as the plan lists them."""
    command = [sys.executable, "-m", "bisect_env", "plan", str(path), "--json", "--cache", str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout)["axes"][1]["values"])


def play(name: str, turns: int, folder: Path) -> dict[str, Any]:
    """One case, cold and warm as often as asked, in turns with the loop."""
    case = CASES[name]
    place = folder / name
    place.mkdir()
    path = matrix(case, place)
    versions = versions_of(path, folder / "plan")
    row: dict[str, Any] = {"releases": len(versions), "first_bad": case.first_bad}
    for kind in ("cold", "warm", *(("folder",) if name in FROM_A_FOLDER else ())):
        pairs = []
        bundle, wheels = place / "bundle", place / "wheels"
        options: tuple[str, ...] = ()
        if kind == "folder":
            fetch(path, bundle, place / "cache")
            copy_wheels(bundle, wheels)
            options = ("--offline", str(bundle))
        # What is unpacked out of a folder is there from the second time on, which is the first that counts.
        for turn in range(-1 if options else 0, turns):
            cache = place / ("cache-of-folder" if options else "cache")
            if kind == "cold":
                shutil.rmtree(cache, ignore_errors=True)
            # Whoever goes second finds a warmer machine: in turns.
            mine = ours(path, cache, options) if turn % 2 == 0 else None
            theirs = loop(case, path, versions, cache, wheels=str(wheels) if options else "")
            pairs.append((mine or ours(path, cache, options), theirs))
        pairs = pairs[-turns:]
        row[kind] = {
            "answer": _spread([mine.answer for mine, _ in pairs]),
            "prompt": _spread([mine.prompt for mine, _ in pairs]),
            "loop": _spread([theirs.answer for _, theirs in pairs]),
            "ratio": round(statistics.median(mine.answer / theirs.answer for mine, theirs in pairs), 2),
            "longer": round(statistics.median(mine.answer - theirs.answer for mine, theirs in pairs), 2),
            "trials": pairs[-1][0].trials,
            "right": all(mine.first_bad == theirs.first_bad == case.first_bad for mine, theirs in pairs),
            "phases": pairs[-1][0].phases,
        }
        found = row[kind]
        print(
            f"{name:12} {len(versions):3} releases {kind}: answer {found['answer']['median']:6.2f} s, prompt "
            f"{found['prompt']['median']:6.2f} s, loop {found['loop']['median']:6.2f} s, ratio "
            f"{found['ratio']:5.2f}, {found['longer']:+.2f} s, {found['trials']} trials, "
            f"{'right' if found['right'] else 'WRONG'}",
            flush=True,
        )
    return row


def fetch(path: Path, bundle: Path, cache: Path) -> None:
    """Put everything that a matrix can need into a directory."""
    command = [sys.executable, "-m", "bisect_env", "env", "fetch", str(path), "--output", str(bundle)]
    subprocess.run([*command, "--no-pythons", "--cache", str(cache)], capture_output=True, check=True)


def copy_wheels(bundle: Path, wheels: Path) -> None:
    """Put the wheels of a fetched directory into one folder, for uv."""
    wheels.mkdir(exist_ok=True)
    for archive in bundle.glob("archives/*/*.whl"):
        shutil.copy(archive, wheels)


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {"min": round(min(seconds), 3), "median": round(statistics.median(seconds), 3)}


def offline(
    name: str,
    bundle: Path,
    workers: Sequence[int],
    turns: int,
    folder: Path,
    python: str,
    versions_asked: str | None = None,
) -> dict[str, Any]:
    """One case out of a directory made by `bisect-env env fetch`, with several numbers of workers.

    Args:
        name: Of the case.
        bundle: The directory; the loop gets its wheels.
        workers: How many at a time.
        turns: How often each is asked, after a first time that does not count.
        folder: For whatever is written.
        python: Version of the environments.
        versions_asked: Another range than the case's.
    """
    case = replace(CASES[name], versions=versions_asked or CASES[name].versions)
    path = matrix(case, folder / name, python)
    wheels = folder / "wheels"
    copy_wheels(bundle, wheels)
    # Old releases write their own name with a capital.
    names = (archive.name.split("-") for archive in wheels.glob("*.whl"))
    known = {version for name, version, *_ in names if name.lower() == case.package}
    versions = sorted(SpecifierSet(case.versions).filter(known), key=Version)
    plain = [
        loop(case, path, versions, folder / "plain", python=python, wheels=str(wheels))
        for _ in range(turns + 1)
    ][1:]
    found: dict[str, Any] = {
        "releases": len(versions),
        "loop": _spread([one.answer for one in plain]),
        "loop_right": all(one.first_bad == case.first_bad for one in plain),
    }
    print(f"{name} from a folder, plain loop: {json.dumps(found)}", flush=True)
    for number in workers:
        options = ("--offline", str(bundle), "--workers", str(number))
        taken = [ours(path, folder / f"cache-{number}", options) for _ in range(turns + 1)][1:]
        found[str(number)] = {
            "answer": _spread([one.answer for one in taken]),
            "prompt": _spread([one.prompt for one in taken]),
            "trials": taken[-1].trials,
            "right": all(one.first_bad == CASES[name].first_bad for one in taken),
            "phases": taken[-1].phases,
        }
        print(f"{name} from a bundle, {number} workers: {json.dumps(found[str(number)])}", flush=True)
    return found


def main() -> None:
    """Play what is asked for, print a line each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=list(CASES), help="default: all")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--offline", type=Path, help="a directory that `bisect-env env fetch` wrote for one case"
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--python", default=PYTHON, help="of the environments, with --offline")
    parser.add_argument("--versions", help="another range than the case's, with --offline")
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="everyday-") as text:
        folder = Path(text)
        for name in asked.case or CASES:
            if asked.offline is not None:
                (folder / name).mkdir()
                rows[name] = offline(
                    name,
                    asked.offline.absolute(),
                    asked.workers,
                    asked.turns,
                    folder,
                    asked.python,
                    asked.versions,
                )
            else:
                rows[name] = play(name, asked.turns, folder)
            # After each case, so that nothing is lost of a run that is ended.
            document = {"cores": len(os.sched_getaffinity(0)), "turns": asked.turns, "cases": rows}
            asked.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
