"""`--all`: are several failing configurations all found, is anything else named, and what does it cost?

`python -m benchmarks.search_all [--studies N] [--seed S] [ROW ...]` plants random failing configurations,
none inside another, and plays whole studies to their end, one at a time. Of each row it prints, with standard
errors, the share of studies that found exactly the planted ones, the share that named one that is not among
them, the share that ended before the budget, and the mean number of trials. A row is `6x6:2:0,1`: lattice,
configurations, rates of good and bad combinations. Without names it plays every row and writes
`benchmarks/results/search_all.json`.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import os
from itertools import permutations
from pathlib import Path
from typing import Any

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np

from benchmarks.search_methods import grid_of
from bisect_env.matrix.grid import Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.multiple import SearchAll

RESULTS = Path(__file__).parent / "results" / "search_all.json"
LATTICES = ("6x6", "3x8", "4x4x4", "12x12")
RATES = ("0,1", "0,0.5", "0,0.2", "0.02,0.3")
_BUDGET = 3000


def drawn(shape: tuple[int, ...], count: int, rng: np.random.Generator) -> list[Index]:
    """Where random failing configurations begin, none of which lies inside another."""
    while True:
        starts = [tuple(int(rng.integers(n)) for n in shape) for _ in range(count)]
        if all(map(any, starts)) and all(
            any(a > b for a, b in zip(one, other, strict=True)) for one, other in permutations(starts, 2)
        ):
            return starts


def study(row: str, seed: int) -> dict[str, Any]:
    """Play one study."""
    lattice, count, rates = row.split(":")
    shape = tuple(map(int, lattice.split("x")))
    p0, p1 = map(float, rates.split(","))
    rng = np.random.default_rng(seed)
    starts = drawn(shape, int(count), rng)
    grid = grid_of(shape)
    search = SearchAll(grid, {i: i for i in grid.indices()}, SearchLimits(max_trials=_BUDGET))
    while not search.finished:
        (cell,) = search.ask(1)
        bad = any(all(a >= b for a, b in zip(cell, start, strict=True)) for start in starts)
        search.tell(cell, hit=bool(rng.random() < (p1 if bad else p0)))
    # Before the first configuration is confirmed none is named.
    verdicts = [search.verdict, *search.others] if search.no_other is not None else []
    found = [tuple(int(bad.argmax()) for bad in v.best.hypothesis.sets) for v in verdicts]
    return {
        "seed": seed,
        "exact": sorted(found) == sorted(starts),
        "wrong": not set(found) <= set(starts),
        "ended": search.trials < _BUDGET,
        "trials": search.trials,
        "planted": starts,
        "found": found,
    }


def summary(row: str, played: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares and means of a row with standard errors."""
    out: dict[str, Any] = {"row": row, "studies": len(played), "first_seed": played[0]["seed"]}
    for name in ("exact", "wrong", "ended"):
        count = sum(one[name] for one in played)
        # Laplace's estimate in the error, so that "all" has one, too.
        smooth = (count + 1) / (len(played) + 2)
        out[name] = count / len(played)
        out[f"{name}_error"] = float(np.sqrt(smooth * (1 - smooth) / len(played)))
    trials = np.array([one["trials"] for one in played], dtype=np.float64)
    out["trials"] = float(trials.mean())
    out["trials_error"] = float(trials.std(ddof=1) / np.sqrt(len(trials))) if len(trials) > 1 else 0.0
    out["not_exact"] = [one for one in played if not one["exact"] or not one["ended"]]
    return out


def line(found: dict[str, Any]) -> str:
    """A row for people."""
    shares = "; ".join(
        f"{name} {100 * found[name]:.1f} ± {100 * found[f'{name}_error']:.1f} %"
        for name in ("exact", "wrong", "ended")
    )
    return (
        f"{found['row']:16} {found['studies']} studies; {shares}; "
        f"trials {found['trials']:.0f} ± {found['trials_error']:.0f}"
    )


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--studies", type=int, default=30, help="of each row")
    parser.add_argument("--seed", type=int, default=0, help="of the first study of each row")
    options = parser.parse_args()
    every_row = [f"{shape}:{count}:{rates}" for rates in RATES for shape in LATTICES for count in (2, 3)]
    results = []
    for row in options.rows or every_row:
        played = [study(row, options.seed + number) for number in range(options.studies)]
        results.append(summary(row, played))
        print(line(results[-1]), flush=True)
        for one in results[-1]["not_exact"]:
            print(f"  {one}", flush=True)
    if not options.rows:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
