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

from bisect_env.environments.repository import Repository
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis
from bisect_env.matrix.history import History
from bisect_env.search.searcher import Search
from bisect_env.search.stopping import SearchSettings

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
    theirs = looked_at_by_git(clone, case, seen)
    builds = f"{built} builds (git bisect {theirs})"
    of = f"{len(seen)} commits, {builds}, {report.get('trials')} trials, {seconds:.0f} s"
    print(f"{'right' if right else 'WRONG'}  {name}: {report['verdict']['sentence']} ({of})")
    return 0 if right else 1


def looked_at_by_git(clone: Path, case: Mapping[str, Any], seen: Iterable[Mapping[str, Any]]) -> int:
    """How many commits `git bisect run` would build, told what each of them did."""
    ends = {one["commit"]: one["exit"] if one["built"] else 125 for one in seen}
    return len(git_bisect(clone, str(case["from"]), str(case["to"]), ends))


def git_bisect(clone: Path, first: str, last: str, ends: Mapping[str, int]) -> set[str]:
    """Commits that `git bisect run` looks at, told how the script ends at each."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "ends").write_text("".join(f"{commit} {end}\n" for commit, end in ends.items()))
        _run(["git", "clone", "-q", "--shared", "--no-checkout", str(clone), "tree"], folder)
        start = ["git", "bisect", "start", "--no-checkout", last, first]
        subprocess.run(start, cwd=folder / "tree", check=True, capture_output=True)
        check = (
            f"at=$(git rev-parse BISECT_HEAD); echo $at >> {folder}/tried; "
            f'exit $(sed -n "s/^$at //p" {folder}/ends)'
        )
        command = ["git", "bisect", "run", "sh", "-c", check]
        subprocess.run(command, cwd=folder / "tree", check=True, capture_output=True)
        return set((folder / "tried").read_text().split())


def play(clone: Path, name: str) -> int:
    """Let some fifty commits be the culprit in turn, and compare the builds that each takes."""
    case = cases()[name]
    with tempfile.TemporaryDirectory() as directory:
        history = Repository(str(clone), Path(directory)).history(
            str(case["from"]), str(case["to"]), every=True
        )
    known = [one for one in history.place if history.last in descendants(history, one)]
    more: Counter[int] = Counter()
    for culprit in random.Random(1).sample(known[1:], min(50, len(known) - 1)):
        bad = descendants(history, culprit)
        found, built = searched(history, bad)
        theirs = git_bisect(clone, history.first, history.last, {c: int(c in bad) for c in history.place})
        if found != culprit:
            print(f"WRONG  {name}: {found}, and not {culprit}")
            return 1
        more[len(built) - len(theirs)] += 1
    print(f"{name}: builds more than git bisect, and how often: {dict(sorted(more.items()))}")
    return int(max(more) > 2)


def descendants(history: History, commit: str) -> set[str]:
    """A commit and all that was made from it."""
    bad = {commit}
    for one in sorted(history.commits, key=lambda one: history.place.get(one, 0)):
        if bad.intersection(history.commits[one].parents):
            bad.add(one)
    return bad


def searched(history: History, bad: Collection[str]) -> tuple[str, set[str]]:
    """The first bad commit of a certain failure as a study finds it, and what it builds for that."""
    values = list(history.chosen())
    built: set[str] = set()
    counts: dict[str, int] = {}
    while True:
        size = len(values)
        axis = GridAxis("demo", AxisKind.COMMIT, tuple(values), Direction.REGRESSION, history=history)
        lattice = Grid((axis,), good=(0,), bad=(size - 1,))
        settings = SearchSettings(thrifty=True, crash_rate=1.0, quick=True)
        search = Search(lattice, {(i,): (i,) for i in range(size)}, settings)
        for commit, count in counts.items():
            hits = count * (commit in bad)
            search.tell_counts((values.index(commit),), hits, count)
        while not search.finished:
            ((place,),) = search.ask(
                1, build_cost={(i,): 20.0 for i in range(size) if values[i] not in built}
            )
            built.add(values[place])
            counts[values[place]] = counts.get(values[place], 0) + 1
            search.tell((place,), hit=values[place] in bad)
        best = search.verdict.best
        assert best.first_bad is not None
        assert best.last_good is not None
        found = values[best.first_bad[0]]
        inside = [one for one in history.inside(values[best.last_good[0]], found) if one not in values]
        if not inside:
            return found, built
        values[best.first_bad[0] : best.first_bad[0]] = inside


def _run(command: list[str], cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def main(words: list[str]) -> int:
    """Do what is asked for."""
    what, clone, name = words
    return {"truth": truth, "answer": answer, "play": play}[what](Path(clone).absolute(), name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
