"""Studies of commits played without building any: which commit is named, and what would have been built.

Any commit may be the culprit, with whatever was made from it, and any may be one that does not build.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from bisect_env.engine.next_work import expected_builds
from bisect_env.matrix.expand import commit_axis
from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.history import History
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.searcher import Search

BUILD = 20.0
"""Price of a build in trials."""


@dataclass(frozen=True, slots=True)
class Play:
    """How a study ended.

    Attributes:
        first_bad: The commit that it names; "" where it names none.
        between: Commits between it and the last good one that do not build: any of them may be it as well.
        built: Commits that were built, or tried to.
        runs: How often the script ran.
    """

    first_bad: str
    between: frozenset[str]
    built: frozenset[str]
    runs: int


def descendants(history: History, commit: str) -> set[str]:
    """A commit and all that was made from it."""
    bad = {commit}
    for one in sorted(history.commits, key=lambda one: history.place.get(one, 0)):
        if bad.intersection(history.commits[one].parents):
            bad.add(one)
    return bad


def culprits(history: History) -> list[str]:
    """Commits that may be the first bad one: the newer end has them all in its history."""
    return [
        one for one in history.place if one != history.first and history.last in descendants(history, one)
    ]


def play(
    history: History,
    bad: Collection[str],
    *,
    broken: Collection[str] = (),
    rate: float = 1.0,
    chance: random.Random | None = None,
    limits: SearchLimits | None = None,
) -> Play:
    """Let our search find the first bad commit, as a study asks it to.

    Args:
        history: The commits.
        bad: Those that fail.
        broken: Those that do not build.
        rate: How often a bad one fails.
        chance: Says when a flaky one does.
        limits: When to stop, where not as a command does.
    """
    draws = chance or random.Random(0)
    given = limits or SearchLimits(crash_rate=rate)
    values = list(history.chosen())
    built: set[str] = set()
    counts: dict[str, tuple[int, int]] = {}
    checking = False
    while True:
        axis = commit_axis("demo", Direction.REGRESSION, history, values)
        places = range(len(values))
        grid = Grid((axis,), good=(0,), bad=(len(values) - 1,))
        unable = built.intersection(broken)
        able: dict[Index, Index] = {(i,): (i,) for i in places if values[i] not in unable}
        search = Search(grid, able, given, quick=not checking)
        for commit, (hits, trials) in counts.items():
            if commit in values:
                for number in range(trials):
                    search.tell((values.index(commit),), hit=number < hits)
        while not search.finished:
            price = _prices(values, built, broken)
            asked = search.ask(1, build_cost=price)
            if not asked:
                break
            ((place,),) = asked
            commit = values[place]
            built.add(commit)
            if commit in broken:
                search.set_aside((place,))
                continue
            hit = commit in bad and draws.random() < rate
            hits, trials = counts.get(commit, (0, 0))
            counts[commit] = hits + hit, trials + 1
            search.tell((place,), hit=hit)
        best = search.verdict.best
        wanted = values
        if best.first_bad is not None and best.last_good is not None:
            older = [one for one in values[: best.last_good[0] + 1] if one in counts]
            wanted = list(history.around(values, older, values[best.first_bad[0]]))
        if wanted != values:
            values = wanted
        elif checking:
            return _ended(values, search, frozenset(built), sum(trials for _, trials in counts.values()))
        else:
            checking = True


def _prices(values: list[str], built: Collection[str], broken: Collection[str]) -> dict[Index, float]:
    """What builds cost, as a study reckons: more beside commits that did not build."""
    failed = {i for i, one in enumerate(values) if one in built and one in broken}
    worked = {i for i, one in enumerate(values) if one in built and one not in broken}
    left = (i for i, one in enumerate(values) if one not in built)
    return {(i,): BUILD * expected_builds(i, failed, worked) for i in left}


def _ended(values: list[str], search: Search, built: frozenset[str], runs: int) -> Play:
    best = search.verdict.best
    if best.first_bad is None or best.last_good is None:
        return Play("", frozenset(), built, runs)
    between = frozenset(values[cell[0]] for one in best.boundaries for cell in one.between)
    return Play(values[best.first_bad[0]], between, built, runs)


def git_bisect(
    clone: Path, history: History, bad: Collection[str], broken: Collection[str] = ()
) -> frozenset[str]:
    """Commits that `git bisect run` itself looks at, in a history of which every commit is told about.

    Args:
        clone: The repository.
        history: Of it; without what was merged git is told to follow first parents.
        bad: Those that fail.
        broken: Those that do not build.
    """
    ends = {one: 125 if one in broken else int(one in bad) for one in history.place}
    return looked_at_by_git(clone, history.first, history.last, ends, first_parents=not history.every)


def looked_at_by_git(
    clone: Path, first: str, last: str, ends: Mapping[str, int], *, first_parents: bool = False
) -> frozenset[str]:
    """Commits that `git bisect run` looks at, told how the script ends at each."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "ends").write_text("".join(f"{commit} {end}\n" for commit, end in ends.items()))
        tree = folder / "tree"
        clone_it = ["git", "clone", "-q", "--shared", "--no-checkout", str(clone), str(tree)]
        subprocess.run(clone_it, check=True, capture_output=True)
        how = ["--no-checkout", *(["--first-parent"] if first_parents else [])]
        subprocess.run(
            ["git", "bisect", "start", *how, last, first], cwd=tree, check=True, capture_output=True
        )
        check = (
            f"at=$(git rev-parse BISECT_HEAD); echo $at >> {folder}/tried; "
            f'exit $(sed -n "s/^$at //p" {folder}/ends)'
        )
        # It ends with 2 where only skipped commits are left.
        command = ["git", "bisect", "run", "sh", "-c", check]
        subprocess.run(command, cwd=tree, check=False, capture_output=True)
        tried = folder / "tried"
        return frozenset(tried.read_text().split()) if tried.exists() else frozenset()
