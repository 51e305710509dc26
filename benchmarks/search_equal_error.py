"""This search and git_bayesect at equal realised error: trials against the share of wrong answers.

`python -m benchmarks.search_equal_error [--studies N] [--processes P] [--write]` tunes both confidences: each
study is played at each of them, and for each the trials and the share of wrong answers are kept. Between two
confidences trials are drawn straight against the logarithm of the error. Neither is told a rate: both learn
them from counts. Our checks after the answer are left out (`quick`), since git_bayesect has none.

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
from bisect_env.search.acquisition import binary_entropy
from bisect_env.search.searcher import SearchSettings
from bisect_env.search.simulate import simulate
from bisect_env.search.verdict import capacity

RESULTS = Path(__file__).parent / "results" / "search_equal_error.json"
CONFIDENCES = (0.6, 0.7, 0.8, 0.9, 0.95, 0.96, 0.97, 0.98, 0.99)
ERRORS = (0.1, 0.05, 0.02)
ROWS = tuple(
    Row((32,), p0, p1)
    for p0, p1 in ((0.0, 0.1), (0.01, 0.1), (0.02, 0.3), (0.05, 0.15), (0.0, 0.5), (0.0, 1.0))
)
OURS, THEIRS, KNOWN = "bisect-env", "git_bayesect", "rates known"
METHODS = (OURS, THEIRS, KNOWN)
Curve = list[tuple[int, bool]]
"""Trials, and whether the answer was wrong, at each confidence."""


def ours(row: Row, seed: int) -> Curve:
    """Trials, and whether the answer was wrong, at each confidence."""
    found = []
    for confidence in CONFIDENCES:
        rng = np.random.default_rng(seed)
        bad, rates = plant(row, rng)
        grid = grid_of(row.shape)
        settings = SearchSettings(confidence=confidence, quick=True)
        end = simulate(grid, {i: i for i in grid.indices()}, rates, rng, settings=settings)
        found.append((end.trials, bool((end.verdict.best.hypothesis.bad_cells() != bad).any())))
    return found


def theirs(row: Row, seed: int) -> Curve:
    """The same of git_bayesect's own `Bisector`: one study, looked at where it reaches each confidence."""
    rng = np.random.default_rng(seed)
    bad, rates = plant(row, rng)
    (size,) = row.shape
    bisector = Bisector([1] * size)
    found: Curve = []
    trials = 0
    while len(found) < len(CONFIDENCES):
        if bisector.distribution.max() >= CONFIDENCES[len(found)] or trials >= GIVE_UP:
            first_bad = size - 1 - int(bisector.distribution.argmax())
            found.append((trials, bool(((np.arange(size) >= first_bad) != bad).any())))
            continue
        commit = bisector.select()
        bisector.record(commit, bool(rng.random() < rates[size - 1 - commit]))
        trials += 1
    return found


def told(row: Row, seed: int) -> Curve:
    """The same of a posterior that is told both rates."""
    rng = np.random.default_rng(seed)
    bad, rates = plant(row, rng)
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
            found.append((trials, bool((is_bad[int(weight.argmax())] != bad).any())))
        if len(found) == len(CONFIDENCES):
            return found
        bits = binary_entropy(weight @ chance) - weight @ binary_entropy(chance)
        cell = int(bits.argmax())
        log_weight += (log_hit if rng.random() < rates[cell] else log_miss)[:, cell]
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


def measured(studies: int, processes: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of some names."""
    chosen = [number for number, row in enumerate(ROWS) if row.name in names]
    work = [(number, 7_000_000 + seed) for number in chosen for seed in range(studies)]
    if processes == 1:
        played = [study(one) for one in work]
    else:
        with Pool(processes) as pool:
            played = list(pool.imap_unordered(study, work, chunksize=2))
    rows = []
    for number in chosen:
        row = ROWS[number]
        curves = {name: curve([of[name] for place, of in played if place == number]) for name in METHODS}
        bound = math.log2(row.shape[0]) / capacity(row.p0, row.assumed_rate)
        rows.append({"row": row.name, "studies": studies, "bound": bound, **curves})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Trials at equal error, as Markdown."""

    def shown(row: dict[str, Any], method: str, error: float) -> str:
        found = at_error(row[method], error, row["studies"])
        if found is not None:
            return f"{found:.0f}"
        first, last = row[method][0], row[method][-1]
        return f"< {first['trials']:.0f}" if first["wrong"] < error else f"> {last['trials']:.0f}"

    heads = [f"{error:.0%} wrong: {method}" for error in ERRORS for method in METHODS]
    lines = [f"| row | studies | {' | '.join(heads)} | bound |", f"|{'---|' * (len(heads) + 3)}"]
    for row in rows:
        cells = [shown(row, method, error) for error in ERRORS for method in METHODS]
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
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
