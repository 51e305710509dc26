"""The regressions of `matrices/`, replayed: trials are drawn from the rates that were seen.

`python -m tests.search.replay [--seeds N] [NAME ...]` prints what each costs the search.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.load import load_matrix
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.searcher import Search
from bisect_env.search.verdict import Verdict
from tests.cases.truth import MATRICES, Truth, case_names, check_against


class _Offline:
    """A catalogue for matrices that list their versions."""

    def versions(self, package: str, *, index: str | None) -> list[Any]:
        raise AssertionError(f"{package} has a range, which needs the index")

    def python_versions(self) -> list[str]:
        raise AssertionError("a range of Pythons needs the index")


@dataclass(frozen=True)
class Replay:
    """A case as the search sees it.

    Attributes:
        name: Of the case.
        grid: Its lattice.
        truth: What was seen, with the rule that judges verdicts.
        groups: Combinations with an environment.
        rates: Share of counted trials that failed.
        silent: Combinations whose trials all end in some other way: they are set aside when they are met.
    """

    name: str
    grid: Grid
    truth: Truth
    groups: dict[Index, Index]
    rates: NDArray[np.float64]
    silent: frozenset[Index]

    @classmethod
    def load(cls, name: str) -> Replay:
        matrix = load_matrix(MATRICES / f"{name}.yaml")
        grid = expand(matrix, _Offline())
        truth = Truth.load(name)
        groups, silent = {}, set()
        rates = np.zeros(grid.shape)
        for index in grid.indices():
            cell = truth.cell(grid.combination(index).as_dict())
            if cell is None or not cell.built:
                continue
            groups[index] = index
            if cell.says_something:
                rates[index] = cell.bad / (cell.bad + cell.good)
            else:
                silent.add(index)
        return cls(name, grid, truth, groups, rates, frozenset(silent))


@dataclass(frozen=True)
class Played:
    """One study: its verdict, what is wrong with it, and what it cost."""

    verdict: Verdict
    problems: list[str]
    trials: int
    environments: int
    seconds: float


def play_case(case: Replay, seed: int, settings: SearchLimits | None = None) -> Played:
    """Bisect a case with one worker."""
    rng = np.random.default_rng(seed)
    started = time.perf_counter()
    search = Search(case.grid, case.groups, settings)
    tried: Counter[Index] = Counter()
    while not search.finished:
        (cell,) = search.ask(1)
        tried[cell] += 1
        if cell in case.silent:
            search.set_aside(cell)
        else:
            search.tell(cell, hit=bool(rng.random() < case.rates[cell]))
    seconds = time.perf_counter() - started
    report = _report(case, search.verdict)
    return Played(search.verdict, check_against(case.truth, report), tried.total(), len(tried), seconds)


def _report(case: Replay, verdict: Verdict) -> dict[str, Any]:
    def values(index: Index | None) -> dict[str, str]:
        return case.grid.combination(index).as_dict() if index is not None else {}

    best = verdict.best
    return {
        "verdict": {
            "status": verdict.status.value,
            "reason": verdict.reason,
            "first_bad": values(best.first_bad),
            "last_good": values(best.last_good),
            "culprit_axes": [case.grid.axes[i].name for i in best.culprits],
        },
        "combinations": [
            {"combination": values(index), "status": "env-unbuildable"}
            for index in case.grid.indices()
            if index not in case.groups
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=case_names())
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    for name in options.names:
        case = Replay.load(name)
        played = [play_case(case, seed) for seed in range(options.seeds)]
        trials = [p.trials for p in played]
        wrong = [p for p in played if p.problems]
        statuses = Counter(p.verdict.status.value for p in played)
        print(
            f"{name:24} {case.grid.shape!s:12} wrong {len(wrong)}/{len(played)}"
            f"  trials {np.mean(trials):.0f} ({min(trials)} to {max(trials)})"
            f"  environments {np.mean([p.environments for p in played]):.1f}"
            f"  {1e3 * np.sum([p.seconds for p in played]) / np.sum(trials):.1f} ms a trial"
            f"  {dict(statuses)}",
            flush=True,
        )
        for p in wrong[:3]:
            print(f"    {p.verdict.best.first_bad} {p.verdict.best.last_good}: {'; '.join(p.problems)}")


if __name__ == "__main__":
    main()
