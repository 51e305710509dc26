"""What the search costs and how often it is wrong, beside git_bayesect, on planted truths: the gate's table.

`python -m benchmarks.search [--rows ROW …] [--studies N] [--seed S] [--jobs J]` plays whole studies and
counts all of their trials and environments: controls, ends and checks, too. `--search MODULE:NAME` plays
another search class, so that two can be compared on the same truths and coins. `--write` keeps the rows in
`benchmarks/results/search.json`, the table in the README beside it, and the pictures of
`docs/statistics.md`. `--list` names the rows.

At equal error a study is played at each of eight confidences, or at those of `--confidences`; between two of
them trials are drawn straight against the logarithm of the share of wrong answers, and the trials at 5 % are
what is shown.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

# One study is small: threads inside a matrix product only get in each other's way.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np
from git_bayesect import Bisector

from benchmarks.search_calibration import SEARCH, made_by
from benchmarks.search_claims import Claim, bands, claim, is_kept, wrong_of_two_steps
from benchmarks.search_worlds import Alone, Row, World, grid_of, rows
from bisect_env.matrix.grid import Index
from bisect_env.matrix.schema import SearchLimits

RESULTS = Path(__file__).parent / "results" / "search.json"
PAGE = RESULTS.with_name("README.md")
BEGIN, END = "<!-- written by benchmarks.search: begin -->", "<!-- written by benchmarks.search: end -->"
TABLE = "bisect_env.search.table_search:TableSearch"
OURS, RIVAL, THIRTY = "bisect-env", "git_bayesect", "30 runs a step"
CONFIDENCE, ERROR = 0.95, 0.05
CONFIDENCES = (0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99)
"""Confidences at which a study is played where methods are compared at equal error."""
RUNS = 30
"""Runs of one version after which a method that knows no rates believes it good."""
GIVE_UP = 2000
"""Trials after which git_bayesect, which never ends where nothing changes, is stopped."""
SAMPLES = 200


@dataclass(frozen=True)
class Played:
    """One study.

    Attributes:
        trials: Trials of the study.
        environments: Combinations that they ran in.
        wrong: Whether the answer is not the truth; of a table, the share of wrong labels.
        step: Median seconds of a step: asking, telling, and looking whether it is finished.
        claimed: Probability that the answer states, or the confidence that was asked for.
        end: All that a study of a row `calibration` claims; None for others.
    """

    trials: int
    environments: int
    wrong: float
    step: float = 0.0
    claimed: float = CONFIDENCE
    end: Claim | None = None


# --------------------------------------------------------------------------------------------------
# Methods.


def ours(row: Row, seed: int, confidence: float, search_name: str) -> Played:
    """Play a study with the search of bisect-env, or with another class that has its methods."""
    if row.kind == "calibration":
        one = claim(row, seed)
        return Played(one.trials, one.tried, float(not one.right), claimed=one.claimed, end=one)
    world, grid, groups = World(row, seed), grid_of(row.shape, row.direction), Alone(row.shape)
    limits = SearchLimits(confidence=confidence)
    if row.kind == "table":
        search = made_by(TABLE if search_name == SEARCH else search_name)(grid, groups, limits)
    else:
        search = made_by(search_name)(grid, groups, limits, quick=row.quick)
    costs = dict.fromkeys(groups, row.build_cost) if row.build_cost else {}
    steps: list[float] = []
    started = time.process_time()
    while not search.finished:
        batch: list[Index] = search.ask(row.workers, build_cost=costs)
        if not batch:
            raise RuntimeError(f"{row.name}, seed {seed}: the search asks for nothing and has not finished")
        for index in batch:
            costs.pop(index, None)
            search.tell(index, hit=world.fails(index))
        now = time.process_time()
        steps.append(now - started)
        started = now
    if row.kind == "table":
        called = search.table.called.items()
        wrong = sum(bool(one.bad != world.bad[cell]) for cell, one in called) / world.bad.size
    else:
        wrong = float((search.verdict.best.hypothesis.bad_cells() != world.bad).any())
    return Played(world.trials, len(world.tried), wrong, float(np.median(steps)), confidence)


def git_bayesect(row: Row, seed: int, confidence: float) -> Played:
    """Play a study with git_bayesect's own `Bisector`, until one commit has the confidence.

    Its commits are numbered from the newest. It asks for one trial at a time, whatever the workers, and knows
    no price of environments.
    """
    world = World(row, seed)
    (size,) = row.shape
    bisector = Bisector([1] * size)
    while bisector.distribution.max() < confidence and world.trials < GIVE_UP:
        commit = bisector.select()
        bisector.record(commit, world.fails((size - 1 - commit,)))
    first_bad = size - 1 - int(bisector.distribution.argmax())
    return Played(world.trials, len(world.tried), _is_wrong(world, first_bad), claimed=confidence)


def thirty_runs_a_step(row: Row, seed: int, confidence: float) -> Played:
    """Play bisection that runs each version 30 times and calls it bad on any failure."""
    world = World(row, seed)
    low, high = 1, row.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if any(world.fails((middle,)) for _ in range(RUNS)):
            high = middle
        else:
            low = middle + 1
    return Played(world.trials, len(world.tried), _is_wrong(world, low), claimed=confidence)


def _is_wrong(world: World, first_bad: int) -> float:
    return float(((np.arange(world.bad.size) >= first_bad) != world.bad).any())


Method = Callable[[Row, int, float], Played]


def methods(search_name: str) -> dict[str, Method]:
    """Return the methods; `search_name` names the class of ours."""
    return {
        OURS: partial(ours, search_name=search_name),
        RIVAL: git_bayesect,
        THIRTY: thirty_runs_a_step,
    }


def methods_for(row: Row) -> list[str]:
    """Return the methods that can play a row: the rivals know one axis with a regression."""
    if not row.is_line or row.workers > 1:
        return [OURS]
    # The others cannot say that nothing changes; 30 runs have no confidence to be tuned.
    return [OURS, RIVAL, *([THIRTY] if row.kind == "study" else [])] if row.truth == "some" else [OURS]


# --------------------------------------------------------------------------------------------------
# Playing and counting.


def study(work: tuple[Row, str, str, int], confidences: Sequence[float]) -> list[Played]:
    """Play one study, at each of the confidences if methods are compared at equal error."""
    row, method, search_name, seed = work
    played_at = confidences if row.kind == "equal error" else (CONFIDENCE,)
    return [methods(search_name)[method](row, seed, confidence) for confidence in played_at]


def at_error(curve: Sequence[tuple[float, float]], studies: int) -> tuple[str, float]:
    """Return the mean trials at which a share `ERROR` of the answers is wrong.

    Args:
        curve: Mean trials and share of wrong answers at each confidence.
        studies: How many studies were played at each.

    Returns:
        "" and the trials; "<" and those of the lowest confidence if it errs less; ">" and those of the
        highest if it errs more.
    """
    # Half a study stands for none that was wrong.
    points = [(trials, math.log(max(wrong, 0.5 / studies))) for trials, wrong in curve]
    wanted = math.log(ERROR)
    if points[0][1] < wanted:
        return "<", points[0][0]
    for (before, high), (after, low) in itertools.pairwise(points):
        if high >= wanted >= low and high > low:
            return "", before + (high - wanted) / (high - low) * (after - before)
    return ">", points[-1][0]


def _curve(studies: Sequence[Sequence[Played]]) -> list[tuple[float, float]]:
    """Return mean trials and share of wrong answers at each confidence."""
    columns = zip(*studies, strict=True)
    return [
        (float(np.mean([one.trials for one in column])), float(np.mean([one.wrong for one in column])))
        for column in columns
    ]


def summary(
    row: Row, method: str, studies: Sequence[Sequence[Played]], confidences: Sequence[float]
) -> dict[str, Any]:
    """Return one line of the table: means, and the standard deviation of the trials of one study."""
    found: dict[str, Any] = {"row": row.name, "method": method, "studies": len(studies)}
    if row.kind == "equal error":
        count, rng = len(studies), np.random.default_rng(0)
        drawn = [[studies[n] for n in rng.integers(0, count, count)] for _ in range(SAMPLES)]
        spread = float(np.std([at_error(_curve(one), count)[1] for one in drawn]))
        found["curve"] = _curve(studies)
        found["bound"], found["trials"] = at_error(found["curve"], count)
        found |= {"deviation": spread * math.sqrt(count), "wrong": ERROR}
        played = [one[confidences.index(CONFIDENCE)] for one in studies]
    else:
        played = [one for (one,) in studies]
        if row.kind == "calibration":
            ends = [one.end for one in played if one.end is not None]
            found["bands"] = bands(ends)
            found["two_steps"] = wrong_of_two_steps(ends)
        trials = np.array([one.trials for one in played], dtype=float)
        found |= {"bound": "", "trials": float(trials.mean()), "deviation": float(trials.std())}
        found["excess"] = int(trials.max()) - math.prod(row.shape)
        found["wrong"] = float(np.mean([one.wrong for one in played]))
    found["environments"] = float(np.mean([one.environments for one in played]))
    found["step"] = float(np.median([one.step for one in played]))
    return found


def marks(row: Row, found: Mapping[str, Any], rival: Mapping[str, Any] | None) -> list[str]:
    """Return how a line of ours stands to the gate of its row."""
    words = []
    for band in found.get("bands", ()):
        kept = "met" if is_kept(band) else "MISSED"
        words.append(
            f"from {band['from']:g}: {band['right']}/{band['studies']} right, "
            f"{band['claimed']:.3f} claimed: {kept}"
        )
    if "two_steps" in found:
        wrong, confirmed = found["two_steps"]
        kept = "met" if wrong <= 0.05 * confirmed else "MISSED"
        words.append(f"two steps: {wrong} of {confirmed} confirmed are wrong: {kept}")
    for column, most in row.gate.items():
        if column != "rival":
            words.append(f"{column} ≤ {most:g}: {'met' if found[column] <= most else 'MISSED'}")
        elif rival is not None:
            limit = most * rival["trials"]
            words.append(f"trials ≤ {limit:.0f}: {'met' if found['trials'] <= limit else 'MISSED'}")
    return words


def play(
    wanted: Sequence[Row],
    names: Sequence[str],
    search_name: str,
    studies: int,
    seed: int,
    jobs: int,
    confidences: Sequence[float],
) -> Iterator[dict[str, Any]]:
    """Play all studies on some processes; yield each line once it is done."""
    work = [
        (row, method, search_name, seed * 1_000_000 + i)
        for row in wanted
        for method in sorted(methods_for(row), key=lambda name: name == OURS)
        if method in names
        for i in range(studies)
    ]
    done: defaultdict[tuple[Row, str], list[list[Played]]] = defaultdict(list)
    rivals: dict[Row, dict[str, Any]] = {}
    one_study = partial(study, confidences=confidences)
    with Pool(jobs, initializer=os.nice, initargs=(5,)) as pool:
        for (row, method, *_), result in zip(work, pool.imap(one_study, work), strict=True):
            done[row, method].append(result)
            if len(done[row, method]) == studies:
                found = summary(row, method, done.pop((row, method)), confidences)
                if method == RIVAL:
                    rivals[row] = found
                found["marks"] = marks(row, found, rivals.get(row)) if method == OURS else []
                yield found


# --------------------------------------------------------------------------------------------------
# Showing.

_HEADS = ("row", "method", "studies", "trials (sd)", "environments", "wrong", "seconds a step", "gate")
HEAD = f"| {' | '.join(_HEADS)} |\n{'|---' * len(_HEADS)}|"


def line(found: Mapping[str, Any]) -> str:
    """Return a line of the table."""
    cells = [
        found["row"],
        found["method"],
        found["studies"],
        f"{found['bound']}{found['trials']:.1f} ({found['deviation']:.1f})",
        f"{found['environments']:.1f}",
        f"{100 * found['wrong']:.1f} %",
        f"{found['step']:.4f}" if found["step"] else "",
        ", ".join(found["marks"]),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def write(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Keep lines beside those of other rows, and the table in the page; return all lines."""
    kept = json.loads(RESULTS.read_text("utf-8"))["lines"] if RESULTS.exists() else []
    lines = {(one["row"], one["method"]): one for one in (*kept, *document["lines"])}
    order = [(row.name, method) for row in rows() for method in methods_for(row)]
    shown = [lines[key] for key in order if key in lines]
    RESULTS.write_text(json.dumps({**document, "lines": shown}, indent=1) + "\n", "utf-8")
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    table = "\n".join([BEGIN, "", HEAD, *map(line, shown), "", END])
    PAGE.write_text(before + table + rest.partition(END)[2], "utf-8")
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the rows that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="*", default=["*"], metavar="ROW", help="names, with * for any text")
    parser.add_argument("--studies", type=int, default=300, help="studies of each row and method")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--search", default=SEARCH, metavar="MODULE:NAME", help="what makes the search")
    parser.add_argument("--methods", nargs="*", default=list(methods(SEARCH)), help="these methods alone")
    parser.add_argument(
        "--confidences",
        nargs="*",
        type=float,
        default=CONFIDENCES,
        help=f"where methods are compared at equal error; {CONFIDENCE:g} is one of them",
    )
    parser.add_argument("--write", action="store_true", help="keep the lines, and draw")
    parser.add_argument("--list", action="store_true", help="name the rows")
    options = parser.parse_args(arguments)
    # "calibration" alone stands for all rows whose names begin with it.
    patterns = [pattern for one in options.rows for pattern in (one, f"{one}:*")]
    wanted = [row for row in rows() if any(fnmatch.fnmatch(row.name, one) for one in patterns)]
    if options.list:
        print(*(row.name for row in wanted), sep="\n")
        return
    started, shown = time.monotonic(), []
    print(f"{options.search}, seed {options.seed}, confidence {CONFIDENCE:g}\n\n{HEAD}", flush=True)
    for found in play(
        wanted,
        options.methods,
        options.search,
        options.studies,
        options.seed,
        options.jobs,
        options.confidences,
    ):
        print(line(found), flush=True)
        if options.write:
            # Line by line, so that a run that is stopped leaves what it has found.
            shown = write({"search": options.search, "seed": options.seed, "lines": [found]})
    print(f"\n{time.monotonic() - started:.0f} s on {options.jobs} processes")
    if shown:
        # Drawing needs what playing does not.
        from benchmarks.search_pictures import draw

        draw(shown)


if __name__ == "__main__":
    main()
