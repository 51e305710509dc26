"""Whole tables: what `bisect-env map` costs beside trying everything, and how much of it is right.

`python -m benchmarks.search_tables [--seeds N] [--only SIZE] [--write]` plays staircases, corners, bands,
checkerboards and random tables, with certain and with flaky failures. Trying everything is the same search
over axes without order, which leave nothing to be told from others: each combination is tried until it
carries a label of the same confidence.
`--write` keeps the figures in benchmarks/results and the table in its README.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index
from bisect_env.search.table import TableSearch

RATES = ((0.0, 1.0), (0.0, 0.5), (0.0, 0.2), (0.02, 0.3))
RESULTS = Path(__file__).parent / "results" / "search_tables.json"
PAGE = Path(__file__).parent / "results" / "README.md"
BEGIN, END = (
    "<!-- written by benchmarks.search_tables: begin -->",
    "<!-- written by benchmarks.search_tables: end -->",
)


@dataclass(frozen=True)
class Row:
    """Means over the seeds.

    Attributes:
        truth: Which table.
        rates: Of good and of bad combinations.
        trials: Of `map`.
        environments: Of `map`; `most` is the worst seed.
        most: See there.
        everything: Trials of trying everything, which takes as many environments as there are combinations.
        combinations: How many there are.
        wrong: Share of combinations that `map` calls what they are not.
        wrong_everything: The same where everything is tried.
        step: Median time of a step, in milliseconds of processor time.
    """

    truth: str
    rates: tuple[float, float]
    trials: float
    environments: float
    most: int
    everything: float
    combinations: int
    wrong: float
    wrong_everything: float
    step: float


def tables(rng: np.random.Generator) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Truths: staircases, a corner, bands, a checkerboard and a random table."""
    for size in ((6, 6), (9, 13), (12, 12)):
        i, j = np.indices(size)
        name = "x".join(map(str, size))
        yield f"{name}, staircase up", j > i + size[1] // 3
        yield f"{name}, staircase down", i + j >= size[0]
        steps = np.sort(rng.integers(0, size[1] + 1, size[0]))
        yield f"{name}, random frontier", j >= steps[:, None]
        yield f"{name}, corner", (i >= size[0] // 3) & (j >= size[1] // 2)
        yield f"{name}, bands", abs(i - j * size[0] / size[1]) >= size[0] / 3
        yield f"{name}, checkerboard", (i + j) % 2 == 1
        yield f"{name}, random", rng.random(size) < 0.5


def played(
    bad: NDArray[np.bool_], rates: tuple[float, float], direction: Direction, rng: np.random.Generator
) -> tuple[int, int, float, float]:
    """Trials, environments, share of wrong calls, and milliseconds a step of one table."""
    axes = (
        GridAxis(f"a{i}", AxisKind.PACKAGE, tuple(map(str, range(n))), direction)
        for i, n in enumerate(bad.shape)
    )
    grid = Grid(tuple(axes))
    search = TableSearch(grid, {index: index for index in grid.indices()})
    tried: set[Index] = set()
    steps = []
    while not search.finished:
        started = time.process_time()
        batch = search.ask(1)
        for cell in batch:
            tried.add(cell)
            search.tell(cell, hit=bool(rng.random() < rates[int(bad[cell])]))
        steps.append(time.process_time() - started)
    wrong = sum(one.bad != bad[cell] for cell, one in search.called.items()) / bad.size
    return search.trials, len(tried), wrong, 1e3 * float(np.median(steps))


def measured(seeds: int, only: str) -> list[Row]:
    """All rows, or those of tables of one size."""
    found: dict[tuple[str, tuple[float, float]], list[tuple[float, ...]]] = {}
    sizes = {}
    for seed in range(seeds):
        for name, bad in tables(np.random.default_rng(seed)):
            table = np.asarray(bad)
            if not name.startswith(only) or not table.any() or table.all():
                continue
            sizes[name] = table.size
            for rates in RATES:
                rng = np.random.default_rng((seed, int(1000 * rates[1])))
                mine = played(table, rates, Direction.EITHER, rng)
                all_ = played(table, rates, Direction.UNORDERED, rng)
                found.setdefault((name, rates), []).append((*mine, all_[0], all_[2]))
    rows = []
    for (name, rates), values in found.items():
        mean = np.mean(values, axis=0).tolist()
        most = int(max(one[1] for one in values))
        rows.append(Row(name, rates, mean[0], mean[1], most, mean[4], sizes[name], mean[2], mean[5], mean[3]))
    return rows


def as_markdown(rows: list[Row]) -> list[str]:
    """The table of the page."""
    heads = ("truth", "rates", "environments, most", "of", "fewer by", "trials", "trying everything")
    names = " | ".join((*heads, "wrong calls", "ms a step"))
    return [
        f"| {names} |",
        f"|{'---|' * (len(heads) + 2)}",
        *(
            f"| {row.truth} | {row.rates[0]:g}, {row.rates[1]:g} | {row.environments:.1f}, {row.most} "
            f"| {row.combinations} | {row.combinations / row.environments:.1f} | {row.trials:.0f} "
            f"| {row.everything:.0f} | {row.wrong:.1%} ({row.wrong_everything:.1%}) | {row.step:.1f} |"
            for row in rows
        ),
    ]


def main(arguments: list[str] | None = None) -> None:
    """Play all tables and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", metavar="SIZE", help="6x6, 9x13 or 12x12")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    rows = measured(options.seeds, options.only)
    lines = as_markdown(rows)
    print("\n".join(lines))
    if options.write:
        RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        shown = "\n".join(
            [BEGIN, "", *as_markdown([r for r in rows if r.truth.startswith("12x12")]), "", END]
        )
        PAGE.write_text(before + shown + after, "utf-8")


if __name__ == "__main__":
    main()
