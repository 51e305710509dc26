"""What people are shown, and how often it is right: planted worlds, three modes, a virtual clock.

A *mode* is `quick`, the default with trials of some length on some workers, or `sure`. Worlds come in the
shares of the kept cases: certain failures with and without a first step that fails rarely, windows, failures
that are flaky, and backgrounds. `python -m benchmarks.search --rows calibration` plays all modes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search_worlds import Alone, Row, grid_of
from bisect_env.engine.settling import CheckTime
from bisect_env.matrix.grid import Direction, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.searcher import Search
from bisect_env.search.verdict import Status

SHARES = {"certain": 0.6, "two steps": 0.1, "flaky": 0.2, "background": 0.1}
"""Of 43 kept cases with several bad combinations, three fail seldom at first and always later, two have
other rates that differ, none of those that always fail has a background; rounded up for what is feared."""
WINDOWS = 0.3
"""Share of worlds that are fixed again later; their axes may change either way."""
BANDS = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
_SIZES = (6, 10, 17, 32)
_MOST = 3000
"""Maximum number of trials of a study."""


@dataclass(frozen=True)
class Claim:
    """The end of one study.

    Attributes:
        world: Kind of world, a key of `SHARES`.
        claimed: Stated probability of the answer.
        confirmed: Whether the answer is confirmed.
        right: Whether it names the first bad release.
        trials: Trials of the study.
        tried: Number of releases that were tried.
    """

    world: str
    claimed: float
    confirmed: bool
    right: bool
    trials: int
    tried: int


@dataclass(frozen=True)
class _World:
    kind: str
    direction: Direction
    rates: Sequence[float]
    first_bad: int


def _world(rng: np.random.Generator) -> _World:
    """Draw a world: its kind, and the failure rate of each release."""
    kind = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    size, is_window = int(rng.choice(_SIZES)), bool(rng.random() < WINDOWS)
    first = int(rng.integers(1, size - 1))
    end = int(rng.integers(first + 1, size)) if is_window else size
    bad = np.zeros(size)
    match kind:
        case "flaky":
            typical = np.exp(rng.uniform(np.log(0.05), np.log(0.9)))
            spread = rng.choice([0.0, 0.5], p=[0.7, 0.3])
            bad[first:end] = np.clip(typical * np.exp(spread * rng.normal(size=end - first)), 0.03, 1.0)
        case _:
            bad[first:end] = 1.0
    if kind == "two steps":
        bad[first] = np.exp(rng.uniform(np.log(0.05), np.log(0.5)))
    background = np.exp(rng.uniform(np.log(0.005), np.log(0.05))) if kind == "background" else 0.0
    direction = Direction.EITHER if is_window else Direction.REGRESSION
    return _World(kind, direction, np.maximum(bad, background).tolist(), first)


def claim(row: Row, seed: int) -> Claim:
    """Play one study in the mode of a row, and return what it claims in the end.

    Trials take `row.seconds` each on a virtual clock, `row.workers` at a time, and end in the order in which
    they began; when the checks have ended, what is still running is waited for.
    """
    rng = np.random.default_rng(seed)
    world = _world(rng)
    size = len(world.rates)
    search = Search(
        grid_of((size,), world.direction), Alone((size,)), SearchLimits(max_trials=_MOST), quick=row.quick
    )
    limit = CheckTime(is_sure=row.seconds == 0)
    running: deque[Index] = deque()
    spent = 0.0
    while True:
        if not search.finished:
            running += search.ask(row.workers - len(running), pending=Counter(running))
        if not running:
            break
        cell = running.popleft()
        search.tell(cell, hit=bool(rng.random() < world.rates[cell[0]]))
        spent += row.seconds / row.workers
        if not row.quick:
            limit.look(search, spent)
    verdict = search.verdict
    tried = sum(search.counts((place,))[1] > 0 for place in range(size))
    return Claim(
        world.kind,
        verdict.best.probability,
        verdict.status is Status.CONFIRMED,
        verdict.best.first_bad == (world.first_bad,),
        search.trials,
        tried,
    )


def bands(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Count the right answers in each band of claims; the highest band includes 1."""
    found = []
    for low, high in zip(BANDS, (*BANDS[1:-1], 1.1), strict=False):
        inside = [one for one in claims if low <= one.claimed < high]
        if inside:
            claimed = float(np.mean([one.claimed for one in inside]))
            right = sum(one.right for one in inside)
            found.append({"from": low, "studies": len(inside), "right": right, "claimed": claimed})
    return found


def is_kept(band: dict[str, Any]) -> bool:
    """Return whether no fewer answers of a band are right than claimed, within two standard errors."""
    count, claimed = band["studies"], band["claimed"]
    error = 2.0 * float(np.sqrt(max(claimed * (1.0 - claimed), 0.25 / count) / count))
    return bool(band["right"] / count >= claimed - error)


def wrong_of_two_steps(claims: Sequence[Claim]) -> tuple[int, int]:
    """Return how many confirmed answers about worlds of two steps are wrong, and how many there are."""
    chosen = [one for one in claims if one.world == "two steps" and one.confirmed]
    return sum(not one.right for one in chosen), len(chosen)
