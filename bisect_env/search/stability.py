"""Tests whether the failure's rate changed over time or between hosts, rather than with versions.

A sick node looks like a flaky test, and a machine that heats up like a regression that comes and goes. Here
the trials of the same combination are compared with one another: in one part of them (on one host, or after
some moment) the rate of every combination is `ρ` times what it is in the rest.

    P(y1, y2 | ρ) = Σ_r π(r) · r^y1 (1−r)^(n1−y1) · (ρr)^y2 (1−ρr)^(n2−y2)         for each combination
    BF = mean over ρ ≠ 1 of Π P(· | ρ) / Π P(· | 1)

with `π` even over log r, and ρ from 1/16 to 16. Where every combination has trials in one part alone nothing
can be said, and BF is 1.

The search decides where to try next from what it has seen, which spoils p-values (a series that is stopped
at its first failure seems to drift). A Bayes factor is untouched: the choice of a trial cancels from the
ratio, and under "no effect", rates drawn from π, a factor of k or more comes up with probability at most 1/k,
whenever one looks. Over several hosts or moments the mean of their factors is such a factor again.
Source: P. Grünwald, R. de Heide, W. Koolen, *Safe testing*, Journal of the Royal Statistical Society B 86
(2024), 1091-1128; the bound: J. Ville 1939.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from bisect_env.search.numeric import logsumexp, xlog1py, xlogy

NOTEWORTHY = 20.0
"""Bayes factor from which on an effect is reported: once in twenty studies without any, at most."""
_RATES = np.geomspace(0.002, 1.0, 60)
_RATIOS = np.array([1 / 16, 1 / 8, 1 / 4, 1 / 2, 2, 4, 8, 16])
_MOMENTS = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Told:
    """A counted trial, listed in the order in which trials ended.

    Attributes:
        cell: The combination.
        hit: Whether it showed the target.
        host: Host where it ran; with a GPU, host and GPU.
    """

    cell: Hashable
    hit: bool
    host: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """A comparison of the failure rate in one part of the trials with the rest.

    Attributes:
        part: The part that deviates most: a host, or the share of all trials after which the rate changed.
        bayes_factor: Bayes factor of "the rate differs in some part" against "in none".
        ratio: The most likely factor between the rate in that part and in the rest.
        hits: Trials of that part that showed the target.
        trials: Trials of that part.
    """

    part: str
    bayes_factor: float
    ratio: float
    hits: int
    trials: int

    @property
    def noteworthy(self) -> bool:
        """Return whether the effect should be reported."""
        return self.bayes_factor >= NOTEWORTHY


def host_effect(told: Sequence[Told]) -> Effect | None:
    """Return the host whose trials differ most from those of the others; None with a single host."""
    hosts = sorted({t.host for t in told})
    if len(hosts) < 2:
        return None
    return _strongest([(host, _part(told, lambda _i, t, host=host: t.host == host)) for host in hosts])  # type: ignore[misc]


def drift(told: Sequence[Told]) -> Effect | None:
    """Return the strongest change of the rate after a quarter, half or three quarters of all trials.

    None if there are too few trials.
    """
    if len(told) < len(_MOMENTS) + 1:
        return None
    parts = []
    for moment in _MOMENTS:
        start = round(moment * len(told))
        parts.append((f"{moment:g}", _part(told, lambda i, _t, start=start: i >= start)))  # type: ignore[misc]
    return _strongest(parts)


_Table = Counter[tuple[Hashable, bool, bool]]


def _part(told: Sequence[Told], inside: Callable[[int, Told], bool]) -> _Table:
    """Count how often each (cell, in the part, hit) occurs."""
    return Counter((t.cell, inside(i, t), t.hit) for i, t in enumerate(told))


def _strongest(parts: Sequence[tuple[str, _Table]]) -> Effect:
    effects = [_effect(name, table) for name, table in parts]
    best = max(effects, key=lambda e: e.bayes_factor)
    mean = float(np.mean([e.bayes_factor for e in effects]))
    return Effect(best.part, mean, best.ratio, best.hits, best.trials)


def _effect(name: str, table: _Table) -> Effect:
    logs = np.zeros(len(_RATIOS))
    for cell in {key[0] for key in table}:
        n = {(there, hit): table[cell, there, hit] for there in (False, True) for hit in (False, True)}
        if not (n[True, True] + n[True, False]) or not (n[False, True] + n[False, False]):
            continue
        same = _log_likelihood(n, np.ones(1))[0]
        logs += _log_likelihood(n, _RATIOS) - same
    inside = {hit: sum(c for (_, there, was), c in table.items() if there and was == hit) for hit in (0, 1)}
    factor = float(np.exp(min(700.0, logsumexp(logs) - np.log(len(_RATIOS)))))
    ratio = float(_RATIOS[logs.argmax()]) if logs.any() else 1.0
    return Effect(name, factor, ratio, inside[1], inside[0] + inside[1])


def _log_likelihood(n: dict[tuple[bool, bool], int], ratios: np.ndarray) -> np.ndarray:
    there = np.minimum(ratios[:, None] * _RATES, 1.0)
    log = (
        xlogy(n[False, True], _RATES)
        + xlog1py(n[False, False], -_RATES)
        + xlogy(n[True, True], there)
        + xlog1py(n[True, False], -there)
    )
    return np.asarray(logsumexp(log, axis=1) - np.log(len(_RATES)))
