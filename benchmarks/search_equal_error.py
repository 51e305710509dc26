"""This search and git_bayesect at equal realised error: trials against the share of wrong answers.

`python -m benchmarks.search_equal_error [--studies N] [--processes P] [--write]` tunes both confidences: each
study is played at each of them, and for each the trials and the share of wrong answers are kept. Between two
confidences trials are drawn straight against the logarithm of the error. Neither is told a rate: both learn
them from counts. Our checks after the answer are left out (`quick`), since git_bayesect has none. All methods
toss the same coins: the k-th trial of a version ends alike in all of them. What ours saves has the standard
error of 200 samples drawn from the studies with replacement. `--write` keeps the rows that were played,
beside those that were played before.

Two bounds stand beside them. *Rates known* is a posterior over the first bad version alone that is told both
rates, tries what tells most, and stops by the same confidences: what not knowing the rates costs. log2 N / C
is what N equally likely answers take on average at the capacity C of a trial (`search/verdict.py`;
M. V. Burnashev, K. S. Zigangirov, *An interval estimation problem for controlled observations*, Problems of
Information Transmission 10 (1974), 223-231).
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path
from typing import Any

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np
from git_bayesect import Bisector

from benchmarks.search_methods import GIVE_UP, grid_of
from benchmarks.search_rows import Row, plant
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.choice import binary_entropy
from bisect_env.search.searcher import Search
from bisect_env.search.verdict import capacity

RESULTS = Path(__file__).parent / "results" / "search_equal_error.json"
CONFIDENCES = (0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99)
ERRORS = (0.1, 0.05, 0.02)
ROWS = tuple(
    Row((32,), p0, p1)
    for p0, p1 in ((0.0, 0.1), (0.01, 0.1), (0.02, 0.3), (0.05, 0.15), (0.0, 0.5), (0.0, 1.0))
)
OURS, THEIRS, KNOWN = "bisect-env", "git_bayesect", "rates known"
METHODS = (OURS, THEIRS, KNOWN)
Curve = list[tuple[int, bool]]
"""Trials, and whether the answer was wrong, at each confidence."""
SAMPLES = 200


class World:
    """A planted truth, and coins that are the same for whoever tosses them.

    Attributes:
        bad: Which versions are bad.
    """

    def __init__(self, row: Row, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.bad, self._rates = plant(row, rng)
        (size,) = row.shape
        self._coins = [np.random.default_rng((seed, version)) for version in range(size)]

    def fails(self, version: int) -> bool:
        """Whether the next trial of a version does."""
        return bool(self._coins[version].random() < self._rates[version])


def ours(row: Row, seed: int) -> Curve:
    """Trials, and whether the answer was wrong, at each confidence."""
    found = []
    grid = grid_of(row.shape)
    for confidence in CONFIDENCES:
        world = World(row, seed)
        search = Search(grid, {i: i for i in grid.indices()}, SearchLimits(confidence=confidence), quick=True)
        while not search.finished:
            (cell,) = search.ask(1)
            search.tell(cell, hit=world.fails(cell[0]))
        wrong = bool((search.verdict.best.hypothesis.bad_cells() != world.bad).any())
        found.append((search.trials, wrong))
    return found


def theirs(row: Row, seed: int) -> Curve:
    """The same of git_bayesect's own `Bisector`: one study, looked at where it reaches each confidence."""
    world = World(row, seed)
    (size,) = row.shape
    bisector = Bisector([1] * size)
    found: Curve = []
    trials = 0
    while len(found) < len(CONFIDENCES):
        if bisector.distribution.max() >= CONFIDENCES[len(found)] or trials >= GIVE_UP:
            first_bad = size - 1 - int(bisector.distribution.argmax())
            found.append((trials, bool(((np.arange(size) >= first_bad) != world.bad).any())))
            continue
        commit = bisector.select()
        bisector.record(commit, world.fails(size - 1 - commit))
        trials += 1
    return found


def told(row: Row, seed: int) -> Curve:
    """The same of a posterior that is told both rates."""
    world = World(row, seed)
    (size,) = row.shape
    is_bad = np.arange(size) >= np.arange(1, size)[:, None]
    chance = np.where(is_bad, row.assumed_rate, row.p0)
    with np.errstate(divide="ignore"):
        log_hit, log_miss = np.log(chance), np.log1p(-chance)
    log_weight = np.zeros(size - 1)
    found: Curve = []
    trials = 0
    while True:
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        while len(found) < len(CONFIDENCES) and weight.max() >= CONFIDENCES[len(found)]:
            found.append((trials, bool((is_bad[int(weight.argmax())] != world.bad).any())))
        if len(found) == len(CONFIDENCES):
            return found
        bits = binary_entropy(weight @ chance) - weight @ binary_entropy(chance)
        cell = int(bits.argmax())
        log_weight += (log_hit if world.fails(cell) else log_miss)[:, cell]
        trials += 1


def study(work: tuple[int, int]) -> tuple[int, dict[str, Curve]]:
    """Play one truth with all."""
    number, seed = work
    row = ROWS[number]
    return number, {OURS: ours(row, seed), THEIRS: theirs(row, seed), KNOWN: told(row, seed)}


def curve(played: Sequence[Sequence[tuple[int, bool]]]) -> list[dict[str, float]]:
    """Mean trials and share of wrong answers at each confidence."""
    return [
        {
            "confidence": confidence,
            "trials": float(np.mean([one[i][0] for one in played])),
            "wrong": float(np.mean([one[i][1] for one in played])),
        }
        for i, confidence in enumerate(CONFIDENCES)
    ]


def at_error(points: Sequence[dict[str, float]], error: float, studies: int) -> float | None:
    """Trials at which a curve reaches an error; None where it never errs as much, or always more."""
    # One half of a study stands for none that was wrong.
    wrong = [math.log(max(point["wrong"], 0.5 / studies)) for point in points]
    for before, after, high, low in zip(points, points[1:], wrong, wrong[1:], strict=False):
        if high >= math.log(error) >= low and high > low:
            share = (high - math.log(error)) / (high - low)
            return before["trials"] + share * (after["trials"] - before["trials"])
    return None


def saved(
    mine: Sequence[Curve], other: Sequence[Curve], error: float, rng: np.random.Generator
) -> tuple[float, float] | None:
    """What share of another method's trials mine saves at equal error, and its standard error."""
    shares = []
    for sample in range(SAMPLES + 1):
        drawn = rng.integers(0, len(mine), len(mine)) if sample else np.arange(len(mine))
        here, there = (at_error(curve([of[n] for n in drawn]), error, len(drawn)) for of in (mine, other))
        if here is None or there is None:
            if not sample:
                return None
            continue
        shares.append(1.0 - here / there)
    return shares[0], float(np.std(shares[1:]))


def measured(studies: int, processes: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of some names."""
    chosen = [number for number, row in enumerate(ROWS) if row.name in names]
    work = [(number, 7_000_000 + seed) for number in chosen for seed in range(studies)]
    if processes == 1:
        played = [study(one) for one in work]
    else:
        with Pool(processes) as pool:
            played = list(pool.imap(study, work, chunksize=2))
    rows = []
    for number in chosen:
        row = ROWS[number]
        of_row = [of for place, of in sorted(played, key=lambda one: one[0]) if place == number]
        each = {name: [of[name] for of in of_row] for name in METHODS}
        rng = np.random.default_rng(0)
        savings = {f"{error:g}": saved(each[OURS], each[THEIRS], error, rng) for error in ERRORS}
        bound = math.log2(row.shape[0]) / capacity(row.p0, row.assumed_rate)
        curves = {name: curve(each[name]) for name in METHODS}
        rows.append({"row": row.name, "studies": studies, "bound": bound, "saved": savings, **curves})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Trials at equal error, as Markdown."""

    def shown(row: dict[str, Any], method: str, error: float) -> str:
        found = at_error(row[method], error, row["studies"])
        if found is not None:
            return f"{found:.0f}"
        first, last = row[method][0], row[method][-1]
        return f"< {first['trials']:.0f}" if first["wrong"] < error else f"> {last['trials']:.0f}"

    def less(row: dict[str, Any], error: float) -> str:
        found = row["saved"][f"{error:g}"]
        return "" if found is None else f"{found[0]:+.0%} ± {found[1]:.0%}"

    names = [*METHODS, "ours saves"]
    heads = [f"{error:.0%} wrong: {name}" for error in ERRORS for name in names]
    lines = [f"| row | studies | {' | '.join(heads)} | bound |", f"|{'---|' * (len(heads) + 3)}"]
    for row in rows:
        cells = []
        for error in ERRORS:
            cells += [*(shown(row, method, error) for method in METHODS), less(row, error)]
        lines.append(f"| {row['row']} | {row['studies']} | {' | '.join(cells)} | {row['bound']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Play, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rows", nargs="*", choices=[row.name for row in ROWS], help="these alone")
    parser.add_argument("--write", action="store_true", help="keep the curves in benchmarks/results")
    options = parser.parse_args()
    rows = measured(options.studies, options.processes, options.rows or [row.name for row in ROWS])
    print(table(rows))
    for row in rows:
        for method in METHODS:
            points = ", ".join(f"{p['trials']:.0f} ({p['wrong']:.1%})" for p in row[method])
            print(f"{row['row']} {method}: {points}")
    if options.write:
        kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
        all_rows = {row["row"]: row for row in [*kept, *rows]}
        found = [all_rows[row.name] for row in ROWS if row.name in all_rows]
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
