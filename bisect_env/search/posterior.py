"""Computes the probability of each hypothesis, and of the rates at which good and bad ones fail.

The log likelihood of a hypothesis `h` is a sum over cells: each is scored as bad or as good (`RateGrid`), so
it is one mode product a grid column (`HypothesisSpace.bad_totals`). The joint with the rates factors but for
the prior's support m >= 2·p0, held in C:

    W(h, (m, σ), p0) = π(h) · exp A[h, (m, σ)] · C[(m, σ), p0] · exp B[h, p0]

hence both marginals cost `patterns × (columns of A + columns of B)` exponentials, never their product: a
pattern is what hypotheses say of the cells that were tried, and those that say the same have one likelihood.
Counts are sufficient: the belief is rebuilt from stored trials alone, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index
from bisect_env.search.families import FloatArray
from bisect_env.search.rates import IMPOSSIBLE
from bisect_env.search.space import HypothesisSpace
from bisect_env.search.tallies import Counts

# Patterns weighed first, and the log of what others are left out below.
_FIRST = 64
_NEGLIGIBLE = -30.0
# exp() of more overflows; only rows that are all zero anyway come near it.
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, eq=False)
class Patterns:
    """A partition of the hypotheses into patterns that label all tried cells alike and share a likelihood.

    Attributes:
        of: Pattern of each hypothesis, shape (H,); *never bad* has one of its own.
        cells: The cells, sorted.
        calls: Which of them each pattern calls bad, shape (patterns, cells).
    """

    of: NDArray[np.intp]
    cells: tuple[Index, ...]
    calls: NDArray[np.bool_]

    @classmethod
    def before(cls, space: HypothesisSpace) -> Patterns:
        """Return the patterns of a space before any trial."""
        of = np.zeros(space.size, dtype=np.intp)
        of[space.never] = 1
        return cls(of, (), np.zeros((2, 0), dtype=bool))

    def after(self, space: HypothesisSpace, cells: Iterable[Index]) -> Patterns:
        """Return the patterns for all these cells, reusing the present ones if `cells` contains their cells.

        Patterns are numbered by what they say, so that sums do not depend on the order of trials.
        """
        cells = sorted(cells)
        new = [cell for cell in cells if cell not in self.cells]
        if len(new) + len(self.cells) != len(cells):
            return Patterns.before(space).after(space, cells)
        if not new:
            return self
        of, calls = self.of, self.calls
        for cell in new:
            code = 2 * of + space.calls_bad(cell)
            used = np.bincount(code, minlength=2 * len(calls)) > 0
            of = (np.cumsum(used) - 1)[code]
            here = np.flatnonzero(used)
            calls = np.column_stack([calls[here // 2], here % 2 == 1])
        known = [*self.cells, *new]
        calls = calls[:, [known.index(cell) for cell in cells]]
        is_never = np.arange(len(calls)) == of[space.never]
        order = np.lexsort((*_words(calls).T, is_never))
        number = np.empty(len(order), dtype=np.intp)
        number[order] = np.arange(len(order))
        return Patterns(number[of], tuple(cells), calls[order])


def _words(calls: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Pack boolean rows into integers that can be sorted, shape (rows, words)."""
    packed = np.packbits(calls, axis=1)
    wide = np.zeros((len(calls), -(-packed.shape[1] // 8) * 8 or 8), dtype=np.uint8)
    wide[:, : packed.shape[1]] = packed
    return wide.view(np.uint64)


_COARSE = 3000
"""Patterns from which on their likelihoods are summed in single precision: in a third of the time, and the
logarithms of hundreds of trials keep four decimals."""
_SAMPLED = 600
"""Hypotheses over which is summed where sums need not be exact: the others are drawn by their weight."""
_SPELLED_OUT = 4
"""Price of what one hypothesis says of one cell, where it is spelled out, in entries of the joint: where all
hypotheses together have fewer, products of the axes' matrices take less time."""
_NEVER_MIND = 1e-9


@dataclass(frozen=True, eq=False)
class Belief:
    """The posterior, stored per pattern: a hypothesis has its own weight times the value of its pattern.

    Attributes:
        weight: Prior of each hypothesis, shape (H,).
        of: Pattern of each hypothesis, shape (H,).
        by_rate: Joint of a hypothesis and (m, σ), divided by its weight, per pattern, shape (patterns, J).
        by_background: The same with p0, shape (patterns, K).
        log_evidence: Log marginal likelihood of all counts; differences between models are Bayes factors.
    """

    weight: FloatArray
    of: NDArray[np.intp]
    by_rate: FloatArray
    by_background: FloatArray
    log_evidence: float

    @cached_property
    def hypotheses(self) -> FloatArray:
        """Return the posterior of each hypothesis, shape (H,); it sums to 1."""
        return np.asarray(self.weight * self.by_rate.sum(axis=1)[self.of])

    @cached_property
    def _weights(self) -> FloatArray:
        return np.bincount(self.of, weights=self.weight, minlength=len(self.by_rate)).astype(np.float64)

    @cached_property
    def bad_rates(self) -> FloatArray:
        """Return the posterior of (m, σ), shape (J,)."""
        return np.asarray(self._weights @ self.by_rate)

    @cached_property
    def backgrounds(self) -> FloatArray:
        """Return the posterior of p0, shape (K,)."""
        return np.asarray(self._weights @ self.by_background)

    def with_bad_rate(self, these: NDArray[np.intp] | slice = slice(None)) -> FloatArray:
        """Return the joint posterior of some hypotheses and (m, σ), shape (these, J)."""
        return np.asarray(self.weight[these, None] * self.by_rate[self.of[these]])

    def with_background(self, these: NDArray[np.intp] | slice = slice(None)) -> FloatArray:
        """Return the joint posterior of some hypotheses and p0, shape (these, K)."""
        return np.asarray(self.weight[these, None] * self.by_background[self.of[these]])

    def bad_cells(self, space: HypothesisSpace) -> tuple[FloatArray, FloatArray]:
        """Return the weight of the hypotheses that call each cell bad, jointly with (m, σ) and with p0.

        With more than `_SAMPLED` likely hypotheses, a weighted sample of them is used, which suffices to
        choose trials.

        Returns:
            Shapes (*lattice, J) and (*lattice, K).
        """
        size = int(np.prod(space.shape))
        chosen = np.arange(len(self.weight))
        share = self.weight
        if len(chosen) > _SAMPLED:
            chosen = np.flatnonzero(self.hypotheses > _NEVER_MIND * self.hypotheses.max())
            share = self.weight[chosen]
            if len(chosen) > _SAMPLED:
                mass = np.cumsum(self.hypotheses[chosen])
                steps = (np.arange(_SAMPLED) + 0.5) / _SAMPLED * mass[-1]
                drawn, times = np.unique(np.searchsorted(mass, steps), return_counts=True)
                drawn = np.minimum(drawn, len(chosen) - 1)
                chosen = chosen[drawn]
                # Each stands for as many as were drawn for it.
                share = times / _SAMPLED / np.maximum(self.by_rate.sum(axis=1)[self.of[chosen]], 1e-300)
        entries = len(self.weight) * (self.by_rate.shape[1] + self.by_background.shape[1])
        if _SPELLED_OUT * len(chosen) * size > entries:
            return space.bad_mass(self.with_bad_rate()), space.bad_mass(self.with_background())
        order = np.argsort(self.of[chosen], kind="stable")
        chosen, share = chosen[order], share[order]
        says = space.judged(chosen, np.arange(size)) * share[:, None]
        starts = np.flatnonzero(np.diff(self.of[chosen], prepend=-1))
        mass = np.add.reduceat(says, starts, axis=0).T
        pattern = self.of[chosen[starts]]
        with_rate, with_background = mass @ self.by_rate[pattern], mass @ self.by_background[pattern]
        return (
            with_rate.reshape(*space.shape, with_rate.shape[-1]),
            with_background.reshape(*space.shape, with_background.shape[-1]),
        )


def update(space: HypothesisSpace, counts: Counts, patterns: Patterns | None = None) -> Belief:
    """Return the posterior after all counts.

    Args:
        space: The hypotheses with their prior.
        counts: Counts so far.
        patterns: Patterns of the space, possibly for fewer cells; None to compute them.
    """
    if patterns is None:
        patterns = Patterns.before(space)
    patterns = patterns.after(space, counts.own_rate)
    a, b = _log_likelihoods(space, counts, patterns)
    top_a, top_b = a.max(axis=1), b.max(axis=1)
    weight = np.bincount(patterns.of, weights=space.prior, minlength=len(a))
    # No pattern fits better than at the best rates for its bad cells and for its good ones, each by itself.
    with np.errstate(divide="ignore"):
        bound = top_a + top_b + np.log(weight)
    joint = counts.grid.joint.astype(a.dtype)

    def weighed(these: NDArray[np.intp]) -> tuple[FloatArray, FloatArray, FloatArray]:
        exp_a, exp_b = np.exp(a[these] - top_a[these, None]), np.exp(b[these] - top_b[these, None])
        by_rate = exp_a * (exp_b @ joint.T)
        with np.errstate(divide="ignore"):
            return by_rate, exp_b * (exp_a @ joint), bound[these] + np.log(by_rate.sum(axis=1))

    # The peaks may lie at rates that exclude each other (m < 2·p0), so that only the sums say how well a
    # pattern fits. Some fit: never and always bad have one of the two terms free.
    best = np.argsort(-bound, kind="stable")[:_FIRST]
    least = float(weighed(best)[2].max()) + _NEGLIGIBLE
    these = np.flatnonzero(bound > least)
    by_rate, by_background, log_fit = weighed(these)
    peak = float(log_fit.max())
    scale = np.exp(np.minimum(bound[these] - peak, _LARGEST_EXPONENT) - np.log(weight[these]))[:, None]
    total = float(weight[these] @ (by_rate * scale).sum(axis=1))
    # The last row is that of all patterns that are as good as impossible.
    place = np.full(len(a), len(these), dtype=np.intp)
    place[these] = np.arange(len(these))
    rows = []
    for one in (by_rate, by_background):
        row = np.zeros((len(these) + 1, one.shape[1]))
        np.multiply(one, scale / total, out=row[:-1])
        rows.append(row)
    return Belief(space.prior, place[patterns.of], rows[0], rows[1], peak + float(np.log(total)))


def _log_likelihoods(
    space: HypothesisSpace, counts: Counts, patterns: Patterns
) -> tuple[FloatArray, FloatArray]:
    """Return the log likelihoods under each pattern of its bad cells and of its good cells.

    The shapes are (patterns, J) and (patterns, K).
    """
    if patterns.cells:
        where = tuple(np.array(patterns.cells).T)
        log_bad, log_good = counts.log_bad[where], counts.log_good[where]
    else:
        log_bad, log_good = (np.zeros((0, one.shape[-1])) for one in (counts.log_bad, counts.log_good))
    number = np.float32 if len(patterns.calls) > _COARSE else np.float64
    calls = patterns.calls.astype(number)
    a, b = calls @ log_bad.astype(number), (1 - calls) @ log_good.astype(number)
    # Where all combinations fail alike, and not rarely, they are bad: "never" is no name for it.
    b[patterns.of[space.never], counts.grid.too_often] = IMPOSSIBLE
    return a, b


def share(space: HypothesisSpace, counts: Counts, these: NDArray[np.bool_], patterns: Patterns) -> float:
    """Return the posterior of some hypotheses together.

    Args:
        space: The hypotheses with their prior.
        counts: Counts so far.
        these: Which hypotheses, shape (H,).
        patterns: Patterns of the space for the tried cells.
    """
    a, b = _log_likelihoods(space, counts, patterns)
    top_a, top_b = a.max(axis=1), b.max(axis=1)
    exp_a, exp_b = np.exp(a - top_a[:, None]), np.exp(b - top_b[:, None])
    all_of = np.bincount(patterns.of, weights=space.prior, minlength=len(a))
    some_of = np.bincount(patterns.of, weights=np.where(these, space.prior, 0.0), minlength=len(a))
    with np.errstate(divide="ignore"):
        fit = top_a + top_b + np.log((exp_a * (exp_b @ counts.grid.joint.T)).sum(axis=1))
        fit = np.where(all_of > 0, fit, -np.inf)
    weight = np.exp(fit - fit.max())
    return float((weight * some_of).sum() / (weight * all_of).sum())
