"""Certain failures of two packages: what a study of a frontier, a band or any table costs, beside its rivals.

`python -m benchmarks.search_frontiers [--seeds N]` plays this search, trying everything, saddleback search
from one corner to the other, and plain bisection along the diagonal. It prints a Markdown table: trials until
the answer stood (checks left out), environments, whether the named pair is true, whether the whole table is
right, and the median time of a step in milliseconds of processor time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index
from bisect_env.search.searcher import Search

Table = NDArray[np.bool_]


@dataclass(frozen=True)
class Played:
    """What one study cost.

    Attributes:
        trials: Until the answer stood.
        environments: In which they ran.
        pair: Whether the pair of neighbours that it names is one bad and one good combination.
        table: Whether it calls every combination what it is.
        step: Median time of a step, in milliseconds of processor time.
    """

    trials: int
    environments: int
    pair: bool
    table: bool
    step: float = 0.0


def tables(rng: np.random.Generator) -> Iterator[tuple[str, Table]]:
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


def this_search(bad: Table, direction: Direction) -> Played:
    """The search of bisect-env."""
    grid = Grid(
        tuple(
            GridAxis(f"a{i}", AxisKind.PACKAGE, tuple(map(str, range(n))), direction)
            for i, n in enumerate(bad.shape)
        )
    )
    search = Search(grid, {index: index for index in grid.indices()}, quick=True)
    tried: list[Index] = []
    steps = []
    while not search.finished:
        started = time.process_time()
        (cell,) = search.ask(1)
        tried.append(cell)
        search.tell(cell, hit=bool(bad[cell]))
        search.answered  # noqa: B018 - a part of the step
        steps.append(time.process_time() - started)
    best = search.verdict.best
    pair = best.first_bad is not None and best.last_good is not None
    pair = pair and bool(bad[best.first_bad]) and not bad[best.last_good]
    right = bool((best.hypothesis.bad_cells() == bad).all())
    return Played(len(tried), len(set(tried)), pair, right, 1e3 * float(np.median(steps)))


def everything(bad: Table, direction: Direction) -> Played:
    """Each combination once, and the first bad one once more."""
    return Played(bad.size + 1, bad.size, pair=bool(bad.any() and not bad.all()), table=True)


def saddleback(bad: Table, direction: Direction) -> Played:
    """From the corner of the first and the last value: down while bad, on while good; right if monotone.

    Source: D. Gries, *The Science of Programming* (1981), section 17.
    """
    said = np.zeros(bad.shape, dtype=bool)
    tried: set[Index] = set()
    row, column = 0, bad.shape[1] - 1
    while row < bad.shape[0] and column >= 0:
        tried.add((row, column))
        if bad[row, column]:
            said[row:, column] = True
            column -= 1
        else:
            row += 1
    return Played(len(tried), len(tried), pair=bool((said == bad).all()), table=bool((said == bad).all()))


def diagonal(bad: Table, direction: Direction) -> Played:
    """Plain bisection along the diagonal, from both oldest to both newest; seldom ends in neighbours."""
    length = max(bad.shape)
    path = [tuple(round(k * (n - 1) / (length - 1)) for n in bad.shape) for k in range(length)]
    low, high, trials = 0, length - 1, 2
    if bad[path[low]] or not bad[path[high]]:
        return Played(trials, trials, pair=False, table=False)
    while high - low > 1:
        middle = (low + high) // 2
        trials += 1
        low, high = (low, middle) if bad[path[middle]] else (middle, high)
    one_axis = sum(a != b for a, b in zip(path[low], path[high], strict=True)) == 1
    return Played(trials, trials, pair=one_axis, table=False)


METHODS: dict[str, Callable[[Table, Direction], Played]] = {
    "bisect-env": this_search,
    "everything": everything,
    "saddleback": saddleback,
    "diagonal": diagonal,
}


def main(arguments: list[str] | None = None) -> None:
    """Play all truths and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    print("| truth | direction | method | trials | environments | true pair | whole table | ms a step |")
    print("|---|---|---|---|---|---|---|---|")
    for direction in (Direction.REGRESSION, Direction.EITHER):
        found: dict[tuple[str, str], list[Played]] = {}
        for seed in range(options.seeds):
            for name, bad in tables(np.random.default_rng(seed)):
                for method, play in METHODS.items():
                    found.setdefault((name, method), []).append(play(np.asarray(bad), direction))
        for (name, method), played in found.items():
            means = [float(np.mean([getattr(p, key) for p in played])) for key in ("trials", "environments")]
            shares = [float(np.mean([getattr(p, key) for p in played])) for key in ("pair", "table")]
            step = float(np.median([p.step for p in played]))
            print(
                f"| {name} | {direction} | {method} | {means[0]:.1f} | {means[1]:.1f} | {shares[0]:.0%} "
                f"| {shares[1]:.0%} | {step:.1f} |"
            )


if __name__ == "__main__":
    main()
