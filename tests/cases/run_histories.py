"""Regressions in the histories of real packages: which commit it was, and whether we find it.

    python -m tests.cases.run_histories truth CLONE NAME    # builds every commit once, by plain git and uv
    python -m tests.cases.run_histories answer CLONE NAME   # asks `bisect-env run --git`, and compares
    python -m tests.cases.run_histories play CLONE NAME     # builds nothing: any commit may be the culprit

`histories/cases.yaml` says what is asked, `histories/truth/<name>.jsonl` what each commit did.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import uv
import yaml

from benchmarks import commit_plays
from benchmarks.commit_plays import culprits, descendants, git_bisect, looked_at_by_git
from bisect_env.environments.repository import Repository
from bisect_env.matrix.history import History

FOLDER = Path(__file__).parent / "histories"
PROGRAM = Path(sys.executable).with_name("bisect-env")
TOOLS = "2022-10-25"
"""Nothing older builds for Python 3.11: what is newer than this and than the commit is not used."""


def cases() -> dict[str, dict[str, Any]]:
    """Name to what is asked."""
    loaded: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "cases.yaml").read_text("utf-8"))
    return loaded


def first_bad(seen: Iterable[Mapping[str, Any]], *, every: bool) -> list[str]:
    """Commits that fail while nothing that they were made from does, the newer end's own line first. Pure.

    Args:
        seen: What each commit did, parents first; the first is the good end.
        every: Whether what a merge brought in counts, too; else first parents alone do.
    """
    known = {one["commit"]: one for one in seen}
    found = []
    for commit, one in known.items():
        parents = [known[p] for p in one["parents"][: None if every else 1] if p in known]
        # What cannot be built says nothing.
        if one["built"] and one["exit"] and all(p["built"] and not p["exit"] for p in parents):
            found.append(commit)
    return found


def truth(clone: Path, name: str) -> int:
    """Build every commit between two once, run the script in it, and write down what it did."""
    case = cases()[name]
    target = FOLDER / "truth" / f"{name}.jsonl"
    target.parent.mkdir(exist_ok=True)
    done = {json.loads(line)["commit"] for line in target.read_text().splitlines()} if target.exists() else ()
    with tempfile.TemporaryDirectory() as directory:
        tree, place = Path(directory) / "tree", Path(directory) / "env"
        _run(["git", "clone", "-q", "--shared", "--no-checkout", str(clone), str(tree)], tree.parent)
        span = f"{case['from']}..{case['to']}"
        lines = _run(["git", "log", "--topo-order", "--reverse", "--format=%H %cs %P", span], tree)
        begin = _run(["git", "log", "-1", "--format=%H %cs %P", case["from"]], tree)
        for line in [*begin.splitlines(), *lines.splitlines()]:
            commit, day, *parents = line.split()
            if commit in done:
                continue
            _run(["git", "checkout", "-q", "--force", commit], tree)
            _run(["git", "clean", "-fdxq"], tree)
            tool = uv.find_uv_bin()
            _run([tool, "venv", "-q", "--clear", "--no-project", "-p", sys.executable, str(place)], tree)
            python = str(place / "bin" / "python")
            dated = ["--exclude-newer", max(f"{day}T23:59:59Z", TOOLS)]
            # Of a directory uv would take the wheel that it made of it before, which was another commit.
            fresh = ["--reinstall-package", case["package"]]
            install = [tool, "pip", "install", "-q", "-p", python, *dated, *fresh, "."]
            built = subprocess.run(install, cwd=tree, capture_output=True, check=False).returncode == 0
            ended = -1
            if built:
                run = [python, "-I", "-c", case["script"]]
                ended = subprocess.run(run, cwd=directory, capture_output=True, check=False).returncode
            compiled = sum(1 for _ in (place / "lib").rglob("_speedups*.so"))
            facts = {"commit": commit, "parents": parents, "built": built, "exit": ended}
            facts |= {"compiled": bool(compiled)} if compiled else {}
            with target.open("a") as stream:
                stream.write(json.dumps(facts) + "\n")
    seen = [json.loads(line) for line in target.read_text().splitlines()]
    print(f"{name}: {len(seen)} commits, first bad {first_bad(seen, every=case.get('every', False))}")
    return 0


def answer(clone: Path, name: str) -> int:
    """Ask for the commit, and compare with what is true."""
    case = cases()[name]
    seen = [json.loads(line) for line in (FOLDER / "truth" / f"{name}.jsonl").read_text().splitlines()]
    every = bool(case.get("every"))
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "script.py").write_text(case["script"] + "\n")
        own = {"DB": "results.sqlite", "CACHE": "cache", "ASKED": "asked"}
        env = {**os.environ, **{f"BISECT_ENV_{key}": str(folder / value) for key, value in own.items()}}
        words = ["--git", str(clone), "--from", str(case["from"]), "--to", str(case["to"])]
        words += ["-p", case["package"], "--always", *(["--into-merges"] if every else [])]
        started = time.monotonic()
        command = [str(PROGRAM), "run", *words, "--json", "--quiet", "script.py"]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - started
        if done.returncode:
            print(f"WRONG  {name}: ended with {done.returncode}: {done.stderr.strip()[-600:]}")
            return 1
        report = json.loads(done.stdout.splitlines()[-1])
        report = report.get("report", report)
        built = len(list((folder / "cache" / "commits").glob("*/wheel.json")))
    said = report["verdict"]["first_bad"][case["package"]]
    right = said in first_bad(seen, every=every)
    ends = {one["commit"]: one["exit"] if one["built"] else 125 for one in seen}
    theirs = len(looked_at_by_git(clone, str(case["from"]), str(case["to"]), ends))
    builds = f"{built} builds (git bisect {theirs})"
    of = f"{len(seen)} commits, {builds}, {report.get('trials')} trials, {seconds:.0f} s"
    print(f"{'right' if right else 'WRONG'}  {name}: {report['verdict']['sentence']} ({of})")
    return 0 if right else 1


def play(clone: Path, name: str) -> int:
    """Let every commit be the culprit in turn, and compare the builds that each takes with git's.

    Along first parents and with all that was merged, each without and with stretches that do not build.
    """
    case = cases()[name]
    worst = 0
    for every in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            repository = Repository(str(clone), Path(directory))
            history = repository.history(str(case["from"]), str(case["to"]), every=every)
        for stretches in (0, 1, 2):
            chance = random.Random(1)
            more = Counter(
                compared(clone, history, culprit, unbuildable(history, stretches, chance))
                for culprit in culprits(history)
            )
            worst = max(worst, *more)
            what = "all" if every else "first parents"
            how_often = ", ".join(f"{n:+d}: {times}" for n, times in sorted(more.items()))
            print(f"{name}, {what}, {stretches} stretches that do not build: {how_often}", flush=True)
    return int(worst > 2)


def unbuildable(history: History, stretches: int, chance: random.Random) -> set[str]:
    """Commits that do not build: some stretches of the order of a history, without its ends."""
    order = [one for one in history.place if one not in (history.first, history.last)]
    found: set[str] = set()
    for _ in range(stretches):
        begin = chance.randrange(len(order))
        found.update(order[begin : begin + chance.randrange(1, max(2, len(order) // 6))])
    return found


def compared(clone: Path, history: History, culprit: str, broken: Collection[str]) -> int:
    """How many builds more than git bisect a culprit takes, once the answer was compared with the truth."""
    bad = descendants(history, culprit)
    found = commit_plays.play(history, bad, broken=broken)
    named = {found.first_bad, *found.between}
    if culprit not in named or (culprit not in broken and not broken and len(named) > 1):
        raise SystemExit(f"WRONG: {sorted(named)}, and not {culprit}; broken: {sorted(broken)}")
    return len(found.built) - len(git_bisect(clone, history, bad, broken))


def _run(command: list[str], cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def main(words: list[str]) -> int:
    """Do what is asked for."""
    what, clone, name = words
    return {"truth": truth, "answer": answer, "play": play}[what](Path(clone).absolute(), name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
