"""Commits built at equal realised error: ours and git_bayesect, played without building.

The histories of `benchmarks.commits`, each with another commit as the culprit in every study. git_bayesect's
own `Bisector` is asked as its command line does, at ever higher confidences: the lowest at which no more of
its answers are wrong than of ours is *equal error*. A rival that can name no merged commit, or takes a commit
that does not build for a bad one, may have no such confidence. Ours is told the rate, as `--rate` does, and
once more it is not.

    python -m benchmarks.commits_equal_error                  # benchmarks/results/commits_equal_error.json
    python -m benchmarks.commits_equal_error --studies 20 --only linear --output /tmp/few.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from git_bayesect import Bisector

from benchmarks.commit_plays import culprits, descendants, play
from bisect_env.matrix.history import Commit, History
from bisect_env.matrix.schema import SearchLimits

RESULTS = Path(__file__).parent / "results" / "commits_equal_error.json"
CONFIDENCES = (0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9999)
"""Of git_bayesect, which stops at the first of them."""
GIVE_UP = 3000
OURS, UNTOLD = "bisect-env", "bisect-env, rate not told"
BAYESECT, EQUAL = "git_bayesect", "git_bayesect at equal error"


@dataclass(frozen=True, slots=True)
class Ended:
    """How one study of one method ended.

    Attributes:
        right: Whether the culprit was named, and nothing beside it but what does not build.
        builds: Commits that were built, or tried to.
        runs: How often the script ran.
    """

    right: bool
    builds: int
    runs: int


@dataclass(frozen=True, slots=True)
class Case:
    """A history.

    Attributes:
        history: The commits.
        broken: Those that do not build.
    """

    history: History
    broken: frozenset[str] = frozenset()


def line(size: int, broken: Collection[int] = ()) -> Case:
    """Commits in a row, counted from 1."""
    made = [_hash(n) for n in range(1, size + 1)]
    known = {made[n]: Commit((made[n - 1],)) for n in range(size - 1, 0, -1)}
    return Case(History(made[0], made[-1], known), frozenset(made[n - 1] for n in broken))


def merged(*, every: bool) -> Case:
    """Twelve merges of four commits each."""
    made, tip = [(_hash(1), Commit(()))], _hash(1)
    for _ in range(12):
        fork = tip
        for step in range(4):
            parent = made[-1][0] if step else fork
            made.append((_hash(len(made) + 1), Commit((parent,))))
        merge = _hash(len(made) + 1)
        made.append((merge, Commit((fork, made[-1][0]))))
        tip = merge
    whole = History(made[0][0], tip, dict(reversed(made[1:])), every=every)
    if every:
        return Case(whole)
    return Case(History(whole.first, whole.last, {one: whole.commits[one] for one in whole.line[:0:-1]}))


def _hash(number: int) -> str:
    return hashlib.sha1(str(number).encode()).hexdigest()


CASES: dict[str, Callable[[], Case]] = {
    "linear": lambda: line(60),
    "compiled": lambda: line(40),
    "merges, to the merge": lambda: merged(every=False),
    "merges": lambda: merged(every=True),
    "broken": lambda: line(50, range(26, 34)),
}


def ours(case: Case, culprit: str, rate: float, chance: random.Random, *, told: bool = True) -> Ended:
    """Our search, as a command asks it that was told about the rate, or was not."""
    bad = descendants(case.history, culprit)
    limits = SearchLimits(crash_rate=rate if told else None)
    found = play(case.history, bad, broken=case.broken, rate=rate, chance=chance, limits=limits)
    right = found.first_bad == culprit and found.between <= case.broken
    return Ended(right, len(found.built), found.runs)


def bayesect(case: Case, culprit: str, rate: float, chance: random.Random) -> list[Ended]:
    """`git bayesect run` at each confidence, along first parents; to it an exit with 125 is a failure."""
    commits = case.history.line[::-1]
    bad = descendants(case.history, culprit)
    bisector = Bisector([1] * len(commits))
    built: set[str] = set()
    found: list[Ended] = []
    runs = 0
    while len(found) < len(CONFIDENCES):
        if bisector.distribution.max() >= CONFIDENCES[len(found)] or runs >= GIVE_UP:
            named = commits[int(bisector.distribution.argmax())]
            found.append(Ended(named == culprit, len(built), runs))
            continue
        place = bisector.select()
        built.add(commits[place])
        runs += 1
        fails = commits[place] in case.broken or (commits[place] in bad and chance.random() < rate)
        bisector.record(place, fails)
    return found


def row(name: str, rate: float, studies: int) -> list[dict[str, object]]:
    """What all methods did on one history at one rate."""
    case = CASES[name]()
    able = [one for one in culprits(case.history) if one not in case.broken]
    # A culprit right after what does not build is a range for everybody.
    able = [one for one in able if not case.broken.intersection(case.history.parents(one))]
    mine, untold = [], []
    theirs: list[list[Ended]] = []
    for seed in range(studies):
        culprit = random.Random(seed).choice(able)
        mine.append(ours(case, culprit, rate, random.Random(seed)))
        untold.append(ours(case, culprit, rate, random.Random(seed), told=False))
        theirs.append(bayesect(case, culprit, rate, random.Random(seed)))
    wrong = [sum(not one[n].right for one in theirs) for n in range(len(CONFIDENCES))]
    most = sum(not one.right for one in mine)
    enough = next((n for n, number in enumerate(wrong) if number <= most), None)
    rows = [
        _told(name, rate, OURS, mine),
        _told(name, rate, UNTOLD, untold),
        _told(name, rate, BAYESECT, [one[0] for one in theirs]),
    ]
    if enough is None:
        last = _told(name, rate, EQUAL, [one[-1] for one in theirs])
        return [*rows, {**last, "confidence": None}]
    equal = _told(name, rate, EQUAL, [one[enough] for one in theirs])
    return [*rows, {**equal, "confidence": CONFIDENCES[enough]}]


@dataclass(frozen=True, slots=True)
class Told:
    """Means over studies.

    Attributes:
        case: The history.
        rate: How often a bad commit fails.
        method: Which.
        studies: How many.
        wrong: Share of answers that are.
        builds: Commits built.
        error: Standard error of `builds`.
        runs: Of the script.
    """

    case: str
    rate: float
    method: str
    studies: int
    wrong: float
    builds: float
    error: float
    runs: float


def _told(name: str, rate: float, method: str, ended: list[Ended]) -> dict[str, object]:
    builds = [one.builds for one in ended]
    error = statistics.stdev(builds) / len(builds) ** 0.5 if len(builds) > 1 else 0.0
    told = Told(
        name,
        rate,
        method,
        len(ended),
        round(sum(not one.right for one in ended) / len(ended), 4),
        round(statistics.fmean(builds), 2),
        round(error, 2),
        round(statistics.fmean(one.runs for one in ended), 1),
    )
    return asdict(told)


def main() -> int:
    """Play what is asked for, print a line each, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rates", nargs="*", type=float, default=[1.0, 0.5, 0.1])
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    played: list[dict[str, object]] = []
    for name in chosen.only:
        for rate in chosen.rates:
            for one in row(name, rate, chosen.studies):
                played.append(one)
                at = one.get("confidence", "")
                print(
                    f"{one['case']:<21} {one['rate']!s:>4} {one['method']:<28} wrong {one['wrong']:<7} "
                    f"builds {one['builds']} ± {one['error']}, runs {one['runs']} {at}",
                    flush=True,
                )
            chosen.output.write_text(json.dumps(played, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
