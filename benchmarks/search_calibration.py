"""Plays studies to see whether 95 % means 95 %: with truths from the search's own prior, and with fixed ones.

`tests/search/test_calibration.py` plays both; `search_claims` looks at what people are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pool
from typing import Any

import numpy as np

from benchmarks.search_worlds import Alone, grid_of
from bisect_env.matrix.grid import Direction
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.rates import RateGrid
from bisect_env.search.space import HypothesisSpace

SEARCH = "bisect_env.search.searcher:Search"
"""What makes a search: a function or class with the arguments of `Search`."""
CERTAIN = 0.85
"""Share of the studies in which failures are certain."""
CLAIMS = (0.9, 0.95, 0.99)
FIXED = ((0.0, 0.1), (0.0, 0.3), (0.0, 0.5), (0.0, 1.0), (0.01, 0.1), (0.02, 0.3), (0.05, 0.15), (0.05, 0.5))
DRIFTS = ((0.0, 0.19, 0.4), (0.0, 0.4, 0.19), (0.02, 0.2, 0.4))
"""Rates that change in the middle of a study: a real crash was seen at 0.19 on an idle machine, and at 0.4
beside one busy process. Of good combinations, of bad ones, and of these from some trial on."""
_SHAPES = ((16,), (4, 5), (3, 3, 2))
_BUDGET = 300


@dataclass(frozen=True)
class Played:
    """One study.

    Attributes:
        truth: Name of the kind of truth.
        claimed: Probability that the verdict states.
        right: Whether the verdict is the truth.
        held: How many of its intervals hold the true rate.
        intervals: How many intervals it has.
        trials: Trials of the study.
        tried: How many combinations they ran in.
    """

    truth: str
    claimed: float
    right: bool
    held: int
    intervals: int
    trials: int
    tried: int


def made_by(name: str) -> Callable[..., Any]:
    """Return the function or class that a text such as `package.module:name` names."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), attribute)
    return found


def study(seed: int, fixed: tuple[float, ...] | None = None, search_name: str = SEARCH) -> Played:
    """Play one study.

    Trials end at a budget drawn beforehand, so that every level of confidence comes up.

    Args:
        seed: Decides shape, truth and coins.
        fixed: (p0, p1), with p1 from some trial on if that is another; None for rates from the prior.
        search_name: What makes the search, as `SEARCH`.
    """
    rng = np.random.default_rng(seed)
    shape = _SHAPES[seed % len(_SHAPES)]
    grid = grid_of(shape)
    directions = [Direction.REGRESSION] * len(shape)
    space = HypothesisSpace(shape, directions)
    budget = int(rng.integers(5, _BUDGET)) if fixed is None else 5000
    search = made_by(search_name)(grid, Alone(shape), SearchLimits(max_trials=budget))
    tried = set()
    hypothesis = space.hypothesis(int(rng.choice(space.size, p=space.prior)))
    while fixed is not None and hypothesis.kind in ("never", "always"):
        hypothesis = space.hypothesis(int(rng.choice(space.size, p=space.prior)))
    bad = hypothesis.bad_cells()
    if fixed is None:
        prior = RateGrid.default()
        certain = bool(rng.random() < CERTAIN)
        j, k = np.unravel_index(rng.choice(prior.joint.size, p=prior.joint.ravel()), prior.joint.shape)
        rates = np.where(bad, rng.choice(prior.rates, size=shape, p=prior.kernel[j]), prior.p0[k])
        if certain:
            rates = bad.astype(float)
    else:
        rates = np.where(bad, fixed[1], fixed[0])
    changes_at = int(rng.integers(10, 120)) if fixed is not None and len(fixed) > 2 else -1
    while not search.finished:
        if fixed is not None and search.trials == changes_at:
            rates = np.where(bad, fixed[2], fixed[0])
        (cell,) = search.ask(1)
        tried.add(cell)
        search.tell(cell, hit=bool(rng.random() < rates[cell]))
    best = search.verdict.best
    held = intervals = 0
    # Where rates drift there is none that an interval could hold.
    for end in (best.first_bad, best.last_good) if changes_at < 0 else ():
        if end is not None and search.counts(end)[1]:
            low, high = clopper_pearson(*search.counts(end))
            intervals += 1
            held += low <= rates[end] <= high
    right = bool((best.hypothesis.bad_cells() == bad).all())
    name = "prior" if fixed is None else f"{fixed[0]:g},{'→'.join(f'{rate:g}' for rate in fixed[1:])}"
    return Played(name, best.probability, right, int(held), intervals, search.trials, len(tried))


def summary(played: Sequence[Played]) -> dict[str, Any]:
    """Shares of right answers by what was claimed, with standard errors."""
    claims = []
    for q in CLAIMS:
        chosen = [p for p in played if p.claimed >= q]
        claims.append({"at_least": q, **_share([p.right for p in chosen])})
    intervals = sum(p.intervals for p in played)
    held = sum(p.held for p in played)
    return {
        "studies": len(played),
        "claims": claims,
        "expected_right": float(sum(p.claimed for p in played)),
        "right": sum(p.right for p in played),
        "intervals": intervals,
        "intervals_held": held / max(1, intervals),
    }


def _share(right: Sequence[bool]) -> dict[str, Any]:
    count = len(right)
    share = float(np.mean(right)) if count else None
    # Laplace's estimate in the error, so that "all right" has one, too.
    smooth = (sum(right) + 1) / (count + 2)
    return {
        "studies": count,
        "right": share,
        "right_error": float(np.sqrt(smooth * (1 - smooth) / max(1, count))),
    }


def calibrate(studies: int, fixed: int, seed: int, processes: int) -> dict[str, Any]:
    """Play `studies` studies from the prior and `fixed` for each fixed truth."""
    work: list[tuple[int, tuple[float, ...] | None]] = [(seed * 1_000_000 + i, None) for i in range(studies)]
    work += [(seed * 1_000_000 + i, truth) for truth in (*FIXED, *DRIFTS) for i in range(fixed)]
    if processes == 1:
        played = [study(*one) for one in work]
    else:
        with Pool(processes) as pool:
            played = pool.starmap(study, work, chunksize=4)
    by_truth = {
        name: [p for p in played if p.truth == name] for name in dict.fromkeys(p.truth for p in played)
    }
    return {
        **summary([p for p in played if p.truth == "prior"]),
        "fixed": {name: summary(chosen) for name, chosen in by_truth.items() if name != "prior"},
        "fixed_together": summary([p for p in played if p.truth != "prior"]),
    }
