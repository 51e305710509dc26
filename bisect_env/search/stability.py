"""Test whether the failure rate changed over time, or differs between hosts, independently of the versions.

A broken host looks like a flaky test, and a machine that heats up looks like a regression that comes and
goes. Here the trials of each combination are split into two parts (those on one host and the rest; or those
before and after some moment). The alternative hypothesis: in one part, the rate of every combination is `ρ`
times its rate in the other part.

    P(y1, y2 | ρ) = Σ_r π(r) · r^y1 (1−r)^(n1−y1) · (ρr)^y2 (1−ρr)^(n2−y2)         for each combination
    BF = mean over ρ ≠ 1 of Π P(· | ρ) / Π P(· | 1)

Here `π` has one half at r = 0, since most combinations never fail, and is uniform over log r otherwise; ρ
ranges from 1/16 to 16. Without the half at 0, each combination that never fails would speak for a lower rate
in the part where it has more trials. BF is 1 if no combination has trials in both parts.

The search chooses the next trial from earlier results. This invalidates p-values (a series that stops at its
first failure seems to drift) but not a Bayes factor: the choice of a trial cancels from the ratio. Without
any effect, and with rates drawn from π, a factor of k or more occurs with probability at most 1/k, no matter
how often one looks. The mean of the factors of several hosts or moments has the same property.
Source: P. Grünwald, R. de Heide, W. Koolen, *Safe testing*, Journal of the Royal Statistical Society B 86
(2024), 1091-1128; the bound: J. Ville 1939.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from bisect_env.search.numeric import xlogy

NOTEWORTHY = 20.0
"""Minimum Bayes factor of an effect that is reported. At most one in twenty studies without any effect
reaches it."""
_RATES = np.geomspace(0.002, 1.0, 60)
_NEVER = 0.5
"""Prior probability that a combination never fails."""
_RATIOS = np.array([1 / 16, 1 / 8, 1 / 4, 1 / 2, 2, 4, 8, 16])
_MOMENTS = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of one counted trial: its combination, whether it failed, and its host.

    Sequences of these are in the order in which the trials ended.

    Attributes:
        cell: The combination.
        hit: Whether it showed the target failure.
        host: Name of the host on which it ran, with the GPU if it used one.
    """

    cell: Hashable
    hit: bool
    host: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """A comparison of the failure rate in one part of the trials with the rate in the rest.

    Attributes:
        part: The part that differs most: the name of a host, or the share of all trials after which the rate
            changed (for example "0.25").
        bayes_factor: Bayes factor of "the rate differs in some part" against "it differs in none".
        ratio: The most likely ratio of the rate in that part to the rate in the rest.
        hits: Number of trials in that part that showed the target failure.
        trials: Number of trials in that part.
    """

    part: str
    bayes_factor: float
    ratio: float
    hits: int
    trials: int

    @property
    def noteworthy(self) -> bool:
        """Return whether the difference between failure rates is strong enough to be reported."""
        return self.bayes_factor >= NOTEWORTHY


def host_effect(results: Sequence[TrialResult]) -> Effect | None:
    """Compare the failure rates of each host and all other hosts, and return the strongest effect.

    Returns None if there are fewer than two hosts.
    """
    hosts = sorted({t.host for t in results})
    if len(hosts) < 2:
        return None
    return _strongest([(host, _part(results, [one.host == host for one in results])) for host in hosts])


def drift(results: Sequence[TrialResult]) -> Effect | None:
    """Compare the failure rates before and after each of three moments, and return the strongest effect.

    The moments are after a quarter, half and three quarters of all trials. Returns None if there are fewer
    than four trials.
    """
    if len(results) < len(_MOMENTS) + 1:
        return None
    parts = []
    for moment in _MOMENTS:
        start = round(moment * len(results))
        parts.append((f"{moment:g}", _part(results, [place >= start for place in range(len(results))])))
    return _strongest(parts)


_Table = Counter[tuple[Hashable, bool, bool]]


def _part(results: Sequence[TrialResult], inside: Sequence[bool]) -> _Table:
    """Count the trials inside and outside a part, separately for each combination and result.

    The keys are (combination, whether in the part, whether it failed).
    """
    return Counter((one.cell, there, one.hit) for one, there in zip(results, inside, strict=True))


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
    factor = float(np.exp(min(700.0, np.logaddexp.reduce(logs) - np.log(len(_RATIOS)))))
    ratio = float(_RATIOS[logs.argmax()]) if logs.any() else 1.0
    return Effect(name, factor, ratio, inside[1], inside[0] + inside[1])


def _log_likelihood(n: dict[tuple[bool, bool], int], ratios: np.ndarray) -> np.ndarray:
    there = np.minimum(ratios[:, None] * _RATES, 1.0)
    log = (
        xlogy(n[False, True], _RATES)
        + xlogy(n[False, False], 1.0 - _RATES)
        + xlogy(n[True, True], there)
        + xlogy(n[True, False], 1.0 - there)
    )
    rarely = np.logaddexp.reduce(log, axis=1) + np.log((1.0 - _NEVER) / len(_RATES))
    never = -np.inf if n[False, True] or n[True, True] else np.log(_NEVER)
    return np.asarray(np.logaddexp(rarely, never))
