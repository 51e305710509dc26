"""Histories that change more than once, planted: are they found to be so, or reported as something else?

`python -m benchmarks.search_histories [ROW …] [--studies N] [--seed S] [--processes P]` plays whole studies
on one axis that is said to be a regression. A row is KIND:SIZE:P0,P1, with the kinds `bgb` (bad, good, bad),
`gbgb` and, for comparison, `gb`; the places of the changes are drawn evenly. The columns:

* *found*: confirmed as not monotone, with every change where it is;
* *inexact*: confirmed as not monotone, but not that;
* *one boundary*: confirmed as monotone (right for `gb` alone); of these, *admitted*: the report's line on
  what was not tried names versions that are not as the verdict says, and *long*: more than a quarter of the
  axis is not as the verdict says;
* *all bad*: ended as "always bad"; *other*: not confirmed.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing import Pool

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np
from numpy.typing import NDArray

from benchmarks.search_methods import grid_of
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.simulate import simulate
from bisect_env.search.verdict import Status, Verdict

ROWS = (
    *(f"bgb:{size}:0,{rate}" for size in (32, 16) for rate in ("1", "0.5", "0.2")),
    *(f"gbgb:{size}:0,{rate}" for size in (32, 16) for rate in ("1", "0.5", "0.2")),
    *(f"gb:32:{rates}" for rates in ("0,0.3", "0.02,0.3", "0,1", "0.01,0.1")),
)
_CHANGES = {"gb": 1, "bgb": 2, "gbgb": 3}
_LONG = 0.25


def study(work: tuple[str, int, float, float, int]) -> tuple[set[str], int, int]:
    """Play one study: the columns to which its end belongs, trials, environments.

    Args:
        work: Kind, size, background, bad rate, seed.
    """
    kind, size, background, rate, seed = work
    rng = np.random.default_rng(seed)
    changes = np.sort(rng.choice(np.arange(1, size), _CHANGES[kind], replace=False))
    turned = np.searchsorted(changes, np.arange(size), side="right") % 2 == 1
    bad = ~turned if kind == "bgb" else turned
    grid = grid_of((size,))
    end = simulate(
        grid,
        {index: index for index in grid.indices()},
        np.where(bad, rate, background),
        rng,
        limits=SearchLimits(confidence=0.95, max_trials=5000),
    )
    return ended(end.verdict, bad), end.trials, end.environments


def ended(verdict: Verdict, bad: NDArray[np.bool_]) -> set[str]:
    """The columns to which a verdict belongs.

    Args:
        verdict: The end of a study.
        bad: Which versions are bad, shape (size,).
    """
    if verdict.status is not Status.CONFIRMED:
        return {"all bad" if verdict.best.hypothesis.kind == "always" else "other"}
    said = verdict.best.hypothesis.bad_cells()
    if not verdict.monotone:
        return {"found" if np.array_equal(said, bad) else "inexact"}
    wrong = np.flatnonzero(said != bad)
    columns = {"one boundary"}
    if any(one.first[0] <= place <= one.last[0] for one in verdict.untested for place in wrong):
        columns.add("admitted")
    if len(wrong) > _LONG * len(bad):
        columns.add("long")
    return columns


def main(arguments: Sequence[str] | None = None) -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="KIND:SIZE:P0,P1; all that are measured if none"
    )
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--seed", type=int, default=77_000, help="of the first study")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    n = options.studies
    print(f"seeds {options.seed} to {options.seed + n - 1}, confidence 0.95", flush=True)
    columns = ("found", "inexact", "one boundary", "admitted", "long", "all bad", "other")
    print(f"| row | studies | trials | environments | {' | '.join(columns)} |")
    print("|" + "---|" * (len(columns) + 4), flush=True)
    started = time.monotonic()
    with Pool(options.processes) as pool:
        for row in options.rows or ROWS:
            kind, size, rates = row.split(":")
            background, rate = map(float, rates.split(","))
            seeds = range(options.seed, options.seed + n)
            played = pool.map(study, [(kind, int(size), background, rate, s) for s in seeds], chunksize=1)
            print(_line(row, played, columns), flush=True)
    print(f"{time.monotonic() - started:.0f} s on {options.processes} processes")


def _line(row: str, played: Sequence[tuple[set[str], int, int]], columns: Sequence[str]) -> str:
    found = Counter(column for ends, *_ in played for column in ends)
    n = len(played)
    shares = [found[column] / n for column in columns]
    cells = [f"{100 * p:.0f} ± {100 * (p * (1 - p) / n) ** 0.5:.0f} %" for p in shares]
    trials, environments = (np.array([one[i] for one in played], dtype=float) for i in (1, 2))
    means = [f"{x.mean():.1f} ± {x.std() / n**0.5:.1f}" for x in (trials, environments)]
    return f"| {row} | {n} | {' | '.join([*means, *cells])} |"


if __name__ == "__main__":
    main()
