"""What other assumptions would cost: the search as it is, beside variants of it, on the same truths.

`python -m benchmarks.search_variants [--studies N] [--seed S] [--processes P] [VARIANT ...]` plays whole
studies like `benchmarks.search`, without checks, with one thing changed in each variant, and prints trials
and wrong answers. A run of all variants writes `benchmarks/results/search_variants.json`, from which
`benchmarks.search_pictures` makes the table of *What was aimed at and not reached* in `docs/statistics.md`.

The first three variants are told what a user does not know. They are bounds, not rivals.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Pool
from pathlib import Path
from typing import Any
from unittest.mock import patch

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np

from benchmarks.search_methods import CONFIDENCE, this_search
from benchmarks.search_rows import Row
from bisect_env.search import acquisition, question, rates
from bisect_env.search.families import FloatArray
from bisect_env.search.rates import RateGrid

RESULTS = Path(__file__).parent / "results" / "search_variants.json"
LINE = (32,)
ROWS = (
    Row(LINE, 0.0, 0.1, marks=(("trials", 175.0),)),
    Row(LINE, 0.01, 0.1, marks=(("trials", 330.0),)),
    Row(LINE, 0.02, 0.3, marks=(("trials", 80.0),)),
    Row(LINE, 0.0, 1.0, marks=(("trials", 8.0),)),
    Row(LINE, 0.0, 0.5),
    Row(LINE, 0.0, None),
    Row(LINE, 0.01, None),
    Row((8,), 0.05, 0.15),
)

Make = Callable[[RateGrid, Row], RateGrid]


def _columns(grid: RateGrid, weight: FloatArray) -> RateGrid:
    """The grid with each column, shape (J,), or cell, shape (J, K), of its prior weighted."""
    joint = grid.joint * weight
    return RateGrid(grid.m, grid.spread, grid.rates, grid.kernel, grid.p0, joint / joint.sum())


def _told(grid: RateGrid, row: Row, *, bad: bool, background: bool) -> RateGrid:
    """One rate for all bad combinations, and what the method is told put in place of what it would learn."""
    assert row.p1 is not None
    of_bad = np.array([row.p1]) if bad else grid.m[grid.spread == 0]
    of_good = np.array([row.p0]) if background else grid.p0
    prior_bad = np.ones(1) if bad else grid.joint[grid.spread == 0].sum(axis=1)
    prior_good = np.ones(1) if background else grid.joint.sum(axis=0)
    joint = np.outer(prior_bad, prior_good) * (of_bad[:, None] >= 2 * of_good)
    return RateGrid(of_bad, np.zeros(len(of_bad)), of_bad, np.eye(len(of_bad)), of_good, joint / joint.sum())


def _shared(grid: RateGrid, _: Row) -> RateGrid:
    joint = np.where((grid.spread == 0.0)[:, None], grid.joint, 0.0)
    return RateGrid(grid.m, grid.spread, grid.rates, grid.kernel, grid.p0, joint / joint.sum())


def _mostly_shared(grid: RateGrid, _: Row) -> RateGrid:
    """Half of the weight of the spreads goes to one rate for all."""
    shared = float(grid.joint[grid.spread == 0].sum())
    spread = np.where(grid.spread == 0, 1 + 0.5 * (1 - shared) / shared, 0.5)
    return _columns(grid, spread[:, None])


def _higher_rates(grid: RateGrid, _: Row) -> RateGrid:
    certain = (grid.m == 1) & (grid.spread == 0)
    return _columns(grid, np.where(certain, 1.0, np.sqrt(grid.m))[:, None])


def _often_certain(grid: RateGrid, _: Row) -> RateGrid:
    certain = (grid.m == 1) & (grid.spread == 0)
    held = float(grid.joint[certain].sum())
    return _columns(grid, np.where(certain, 0.6 / held, 0.4 / (1 - held))[:, None])


def _rarely_a_background(grid: RateGrid, _: Row) -> RateGrid:
    held = float(grid.joint[:, 0].sum())
    return _columns(grid, np.where(grid.p0 == 0, 0.6 / held, 0.4 / (1 - held))[None, :])


def _as_it_is(grid: RateGrid, _: Row) -> RateGrid:
    return grid


def _floors_of_octaves(min_rate: float, p0: FloatArray) -> FloatArray:
    """1.4 to 2.8 times the background, as before 0086."""
    above = np.clip(2.0**1.5 * p0 / min_rate, 1.0, 1.0 / min_rate)
    return np.where(above >= 2, min_rate * 2.0 ** np.floor(np.log2(above) + 1e-9), 0.0)


VARIANTS: dict[str, tuple[Make, dict[Any, dict[str, Any]]]] = {
    "both rates known, one bad rate": (lambda g, r: _told(g, r, bad=True, background=True), {}),
    "bad rate known, one bad rate": (lambda g, r: _told(g, r, bad=True, background=False), {}),
    "background known, one bad rate": (lambda g, r: _told(g, r, bad=False, background=True), {}),
    "one bad rate": (_shared, {}),
    "one bad rate twice as likely": (_mostly_shared, {}),
    "high rates likelier": (_higher_rates, {}),
    "certain failures likelier": (_often_certain, {}),
    "no background likelier": (_rarely_a_background, {}),
    "floor of 1.4 to 2.8 times the background": (_as_it_is, {rates: {"_floors": _floors_of_octaves}}),
    "rates count until an answer holds 0.5": (_as_it_is, {acquisition: {"LEADING": 0.5}}),
    "three failures at the first bad one": (_as_it_is, {question: {"_FAILURES": 3}}),
    "as it is": (_as_it_is, {}),
}
_BOUNDS = 3


@contextmanager
def changed(variant: str, row: Row) -> Iterator[None]:
    """The search with one thing changed."""
    make, names = VARIANTS[variant]
    default = RateGrid.default

    def replaced(min_rate: float = 0.02, stated: float | None = None, *, two_steps: bool = True) -> RateGrid:
        return make(default(min_rate, stated, two_steps=two_steps), row)

    patches = [patch.multiple(module, **values) for module, values in names.items()]
    if make is not _as_it_is:
        patches.append(patch.object(RateGrid, "default", replaced))
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def can_play(variant: str, row: Row) -> bool:
    """What is told of *the* bad rate is nothing where each combination has its own."""
    return row.p1 is not None or variant not in list(VARIANTS)[:_BOUNDS]


def study(work: tuple[str, Row, int]) -> tuple[int, bool, bool]:
    """Trials of one study, whether its answer was wrong, and whether it was not confirmed."""
    variant, row, seed = work
    with changed(variant, row):
        played = this_search(row, seed, quick=True)
    return played.trials, played.wrong, played.not_confirmed


def main(arguments: Sequence[str] | None = None) -> None:
    """Play, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"of: {'; '.join(VARIANTS)}")
    parser.add_argument("--studies", type=int, default=200, help="a variant and row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, help=f"where the JSON goes; all variants: {RESULTS.name}")
    options = parser.parse_args(arguments)
    unknown = set(options.variants) - set(VARIANTS)
    if unknown:
        parser.error(f"no such variant: {', '.join(sorted(unknown))}; there are: {'; '.join(VARIANTS)}")
    wanted = options.variants or list(VARIANTS)
    output = options.output or (None if options.variants else RESULTS)
    document: dict[str, Any] = {
        "seed": options.seed,
        "confidence": CONFIDENCE,
        "studies": options.studies,
        "marks": {row.name: dict(row.marks)["trials"] for row in ROWS if row.marks},
        "rows": [],
    }
    print(f"seed {options.seed}, confidence {CONFIDENCE:g}, {options.studies} studies a variant and row")
    with Pool(options.processes) as pool:
        for variant in wanted:
            for row in ROWS:
                if not can_play(variant, row):
                    continue
                work = [(variant, row, options.seed * 1_000_000 + i) for i in range(options.studies)]
                found = np.array(pool.map(study, work, chunksize=2), dtype=np.float64)
                document["rows"].append(_summary(variant, row, found))
                print(_line(document["rows"][-1]), flush=True)
                if output is not None:
                    output.parent.mkdir(parents=True, exist_ok=True)
                    output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _summary(variant: str, row: Row, found: FloatArray) -> dict[str, Any]:
    out: dict[str, Any] = {"variant": variant, "row": row.name}
    for name, values in zip(("trials", "wrong", "not_confirmed"), found.T, strict=True):
        out[name] = float(values.mean())
        out[f"{name}_error"] = float(values.std(ddof=1) / np.sqrt(len(values)))
    return out


def _line(found: dict[str, Any]) -> str:
    shares = (
        f"{100 * found[name]:5.1f} ± {100 * found[f'{name}_error']:.1f} % {words}"
        for name, words in (("wrong", "wrong"), ("not_confirmed", "not confirmed"))
    )
    trials = f"{found['trials']:7.1f} ± {found['trials_error']:.1f} trials"
    return ", ".join([f"{found['variant']:42} {found['row']:15} {trials}", *shares])


if __name__ == "__main__":
    main()
